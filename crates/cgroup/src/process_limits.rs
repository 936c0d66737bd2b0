//! Cgroups that limit this process.

use std::io;
use std::path::Path;

use crate::mounts::CgroupVersion;
use crate::{CpuGroup, MemoryGroup};

/// Limits of one process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ProcessLimits {
    /// Processor time, in percent of one processor.
    pub cpu_percent: Option<u32>,
    /// Memory in bytes, page cache included.
    pub memory_bytes: Option<u64>,
}

/// The groups that this process is in while it runs. On drop the process leaves them.
pub struct LimitedProcess {
    cpu: Option<CpuGroup>,
    memory: Option<MemoryGroup>,
}

impl LimitedProcess {
    /// Moves this process into cgroups of this name, one for each limit; in version 2 one for both. A group that a killed process
    /// left behind is taken over.
    ///
    /// # Errors
    /// Why there can be no such groups.
    pub fn enter(name: &str, limits: ProcessLimits) -> Result<LimitedProcess, String> {
        let mut groups = LimitedProcess { cpu: None, memory: None };
        if limits.cpu_percent.is_some() {
            groups.cpu = Some(CpuGroup::make(name).map_err(|error| error.to_string())?);
        }
        if limits.memory_bytes.is_some() {
            groups.memory = Some(MemoryGroup::make(name).map_err(|error| error.to_string())?);
        }
        if let (Some(cpu), Some(memory)) = (&groups.cpu, &groups.memory)
            && cpu.version() == CgroupVersion::Two
            && memory.version() == CgroupVersion::Two
            && cpu.folder() != memory.folder()
        {
            // A process is in one group of version 2.
            return Err(format!(
                "no group has both a cpu and a memory controller: {} has only the former, {} only the latter",
                cpu.folder().display(),
                memory.folder().display()
            ));
        }
        let failed = |folder: &Path, error: io::Error| format!("{}: {error}", folder.display());
        // The limit is in force before the process is in the group, so that nothing of it escapes.
        if let Some(memory) = &groups.memory {
            let entered = memory.set_limit(limits.memory_bytes).and_then(|()| memory.add(std::process::id()));
            entered.map_err(|error| failed(memory.folder(), error))?;
        }
        if let Some(cpu) = &groups.cpu {
            let entered = cpu.add(std::process::id()).and_then(|()| cpu.set_quota(limits.cpu_percent));
            entered.map_err(|error| failed(cpu.folder(), error))?;
        }
        Ok(groups)
    }
}

impl Drop for LimitedProcess {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.leave();
        }
        if let Some(cpu) = &self.cpu {
            cpu.leave();
        }
    }
}
