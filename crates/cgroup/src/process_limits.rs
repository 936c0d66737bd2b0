//! Cgroups that limit a process: this one, or one that it starts.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::mounts::CgroupVersion;
use crate::{CpuGroup, MemoryGroup, group};

/// Limits of one process.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ProcessLimits {
    /// Processor time, in percent of one processor.
    pub cpu_percent: Option<u32>,
    /// Memory in bytes, page cache included.
    pub memory_bytes: Option<u64>,
}

/// A group with limits for a process of ours; in version 1, one for each limit.
///
/// ```
/// use cgroup::{LimitedGroup, ProcessLimits};
///
/// let limits = ProcessLimits { memory_bytes: Some(64 << 20), ..ProcessLimits::default() };
/// // It needs root, or a group that was delegated.
/// if let Ok(group) = LimitedGroup::make("heddle-example-limited", limits) {
///     assert_eq!(group.kills(), Some(0));
///     assert!(group.try_remove());
/// }
/// ```
#[derive(Debug)]
pub struct LimitedGroup {
    cpu: Option<CpuGroup>,
    memory: Option<MemoryGroup>,
}

impl LimitedGroup {
    /// Makes groups of this name, one for each limit; in version 2 one for both. The limits are in force. A group that a killed process
    /// left behind is taken over.
    ///
    /// # Errors
    /// Why there can be no such groups.
    pub fn make(name: &str, limits: ProcessLimits) -> Result<LimitedGroup, String> {
        let mut groups = LimitedGroup { cpu: None, memory: None };
        let made = groups.make_each(name, limits);
        if made.is_err() {
            groups.try_remove();
        }
        made.map(|()| groups)
    }

    fn make_each(&mut self, name: &str, limits: ProcessLimits) -> Result<(), String> {
        if limits.cpu_percent.is_some() {
            self.cpu = Some(CpuGroup::make(name).map_err(|error| error.to_string())?);
        }
        if limits.memory_bytes.is_some() {
            self.memory = Some(MemoryGroup::make(name).map_err(|error| error.to_string())?);
        }
        if let (Some(cpu), Some(memory)) = (&self.cpu, &self.memory)
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
        if let Some(memory) = &self.memory {
            memory.set_limit(limits.memory_bytes).map_err(|error| failed(memory.folder(), &error))?;
        }
        if let Some(cpu) = &self.cpu {
            cpu.set_quota(limits.cpu_percent).map_err(|error| failed(cpu.folder(), &error))?;
        }
        Ok(())
    }

    /// Moves a process with all its threads into the groups.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn add(&self, process: u32) -> Result<(), String> {
        if let Some(memory) = &self.memory {
            memory.add(process).map_err(|error| failed(memory.folder(), &error))?;
        }
        if let Some(cpu) = &self.cpu {
            cpu.add(process).map_err(|error| failed(cpu.folder(), &error))?;
        }
        Ok(())
    }

    /// The bytes that its processes use, if memory is limited.
    pub fn memory_used(&self) -> Option<u64> {
        self.memory.as_ref()?.used()
    }

    /// The processor time that its processes have used, if that is limited.
    pub fn cpu_used(&self) -> Option<Duration> {
        self.cpu.as_ref()?.used()
    }

    /// How many processes the kernel has ended because the group needed more than its memory.
    pub fn kills(&self) -> Option<u64> {
        self.memory.as_ref()?.kills()
    }

    /// Removes the groups if their processes have ended. Returns whether they are gone; does not wait.
    pub fn try_remove(&self) -> bool {
        let folders = [self.memory.as_ref().map(MemoryGroup::folder), self.cpu.as_ref().map(CpuGroup::folder)];
        let counted = self.cpu.as_ref().and_then(CpuGroup::counted);
        let mut are_gone = true;
        for folder in folders.into_iter().chain([counted]).flatten() {
            are_gone &= group::try_remove(folder);
        }
        are_gone
    }
}

fn failed(folder: &Path, error: &io::Error) -> String {
    format!("{}: {error}", folder.display())
}

/// The groups that this process is in while it runs. On drop the process leaves them.
pub struct LimitedProcess(LimitedGroup);

impl LimitedProcess {
    /// Moves this process into cgroups of this name, one for each limit; in version 2 one for both. A group that a killed process
    /// left behind is taken over.
    ///
    /// # Errors
    /// Why there can be no such groups.
    pub fn enter(name: &str, limits: ProcessLimits) -> Result<LimitedProcess, String> {
        let limited = LimitedProcess(LimitedGroup::make(name, limits)?);
        // The limits are in force before the process is in the group, so that nothing of it escapes.
        limited.0.add(std::process::id())?;
        Ok(limited)
    }
}

impl Drop for LimitedProcess {
    fn drop(&mut self) {
        if let Some(memory) = &self.0.memory {
            memory.leave();
        }
        if let Some(cpu) = &self.0.cpu {
            cpu.leave();
        }
    }
}
