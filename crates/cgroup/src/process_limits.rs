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
#[derive(Default, Debug)]
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
        LimitedGroup::default().filled(|groups| groups.make_each(name, limits, limits))
    }

    /// Makes groups of this name for groups within them ([`make_within`](LimitedGroup::make_within)), whose processes together have these
    /// limits. `of_each` are the limits of each group within. In version 1 each resource that either of them limits has a group. Groups without
    /// processes that a killed process left behind are taken over, and those within them removed.
    ///
    /// # Errors
    /// Why there can be no such groups.
    pub fn make_around(name: &str, limits: ProcessLimits, of_each: ProcessLimits) -> Result<LimitedGroup, String> {
        let either = ProcessLimits {
            cpu_percent: limits.cpu_percent.or(of_each.cpu_percent),
            memory_bytes: limits.memory_bytes.or(of_each.memory_bytes),
        };
        LimitedGroup::default().filled(|groups| groups.make_each(name, either, limits))
    }

    /// Makes groups of this name within these, with limits of their own, which are no larger than those of these. What is limited in neither
    /// has no group.
    ///
    /// # Errors
    /// Why there can be no such groups.
    pub fn make_within(&self, name: &str, limits: ProcessLimits) -> Result<LimitedGroup, String> {
        LimitedGroup::default().filled(|groups| {
            if let Some(cpu) = &self.cpu {
                groups.cpu = Some(cpu.make_within(name).map_err(|error| failed(&cpu.folder().join(name), &error))?);
            }
            if let Some(memory) = &self.memory {
                let made = memory.make_within(name);
                groups.memory = Some(made.map_err(|error| failed(&memory.folder().join(name), &error))?);
            }
            groups.set(limits)
        })
    }

    /// The groups that were made, or none of them.
    fn filled(mut self, make: impl FnOnce(&mut LimitedGroup) -> Result<(), String>) -> Result<LimitedGroup, String> {
        let made = make(&mut self);
        if made.is_err() {
            self.try_remove();
        }
        made.map(|()| self)
    }

    /// Makes a group for each of `kinds`, and sets limits.
    fn make_each(&mut self, name: &str, kinds: ProcessLimits, limits: ProcessLimits) -> Result<(), String> {
        if kinds.cpu_percent.is_some() {
            self.cpu = Some(CpuGroup::make(name).map_err(|error| error.to_string())?);
        }
        if kinds.memory_bytes.is_some() {
            self.memory = Some(MemoryGroup::make(name).map_err(|error| error.to_string())?);
        }
        self.folders().for_each(group::remove_within);
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
            memory.hold_within().map_err(|error| failed(memory.folder(), &error))?;
        }
        self.set(limits)
    }

    /// Sets the limits, each where it has a group.
    fn set(&self, limits: ProcessLimits) -> Result<(), String> {
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

    /// As [`MemoryGroup::shortages`].
    pub fn shortages(&self) -> u64 {
        self.memory.as_ref().map_or(0, MemoryGroup::shortages)
    }

    /// As [`MemoryGroup::was_short`]; not, if memory is not limited.
    pub fn was_short(&self, since: u64) -> Option<bool> {
        self.memory.as_ref().map_or(Some(false), |memory| memory.was_short(since))
    }

    /// As [`MemoryGroup::forget_shortages`].
    pub fn forget_shortages(&self) {
        if let Some(memory) = &self.memory {
            memory.forget_shortages();
        }
    }

    /// Removes the groups if their processes have ended, and no group is within them. Returns whether they are gone; does not wait.
    pub fn try_remove(&self) -> bool {
        self.folders().filter(|folder| !group::try_remove(folder)).count() == 0
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        let folders = [self.memory.as_ref().map(MemoryGroup::folder), self.cpu.as_ref().map(CpuGroup::folder)];
        let counted = self.cpu.as_ref().and_then(CpuGroup::counted);
        folders.into_iter().chain([counted]).flatten()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// With the kernel's own files, where this user may make groups.
    #[test]
    fn groups_within_a_group_have_limits_of_their_own_and_go_before_it() {
        let name = format!("heddle-test-around-{}", std::process::id());
        let (all, each) = (
            ProcessLimits { memory_bytes: Some(64 << 20), cpu_percent: None },
            ProcessLimits { memory_bytes: Some(32 << 20), cpu_percent: Some(50) },
        );
        let around = match LimitedGroup::make_around(&name, all, each) {
            Ok(around) => around,
            Err(error) => {
                eprintln!("not tested: {error}");
                return;
            }
        };
        let within = around.make_within("0", each).expect("the group is ours");
        let limits = |group: &LimitedGroup| {
            (group.memory.as_ref().and_then(MemoryGroup::limit), group.cpu.as_ref().and_then(CpuGroup::quota))
        };
        assert_eq!((limits(&around), limits(&within)), ((Some(64 << 20), None), (Some(32 << 20), Some(0.5))));
        assert_eq!((within.kills(), around.was_short(0), within.was_short(0)), (Some(0), Some(false), Some(false)));
        assert!(!around.try_remove(), "a group is within it");
        // As a killed process leaves them, and another one takes them with other limits.
        let lower = ProcessLimits { memory_bytes: Some(32 << 20), cpu_percent: Some(20) };
        let again = LimitedGroup::make_around(&name, lower, lower).expect("nobody is in it");
        assert_eq!(limits(&again), (Some(32 << 20), Some(0.2)));
        assert!(within.try_remove(), "it is gone already");
        assert!(again.make_within("0", lower).expect("the group is ours").try_remove() && again.try_remove());
    }
}
