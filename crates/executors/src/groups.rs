//! The cgroups of executors: one for each and, if owners are limited, one around those of each owner.
//!
//! 1. Before a process is started, its group is made, within that of its owner; the owner's is made with its first executor.
//! 2. When the process has ended, its group is removed, at once or at a later look: the kernel may not have taken leave of it.
//! 3. An owner's group goes when no group is within it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cgroup::{LimitedGroup, ProcessLimits};

use crate::ending::MemoryShortage;
use crate::settings::ExecutorsSettings;

/// The group of an executor, and what was counted before it was there: a killed role may have left the group behind.
pub(crate) struct ExecutorGroup {
    group: LimitedGroup,
    owner: Option<Arc<LimitedGroup>>,
    kills_before: u64,
    shortages_before: u64,
    owner_shortages_before: u64,
}

/// All groups.
pub(crate) struct Groups {
    /// How their names begin.
    prefix: String,
    of_executor: ProcessLimits,
    of_owner: ProcessLimits,
    owners: BTreeMap<u32, Arc<LimitedGroup>>,
    /// By slot: those of ended executors that could not be removed yet.
    left: BTreeMap<usize, ExecutorGroup>,
}

impl ExecutorGroup {
    fn new(group: LimitedGroup, owner: Option<Arc<LimitedGroup>>) -> ExecutorGroup {
        group.forget_shortages();
        ExecutorGroup {
            kills_before: group.kills().unwrap_or(0),
            shortages_before: group.shortages(),
            owner_shortages_before: owner.as_deref().map_or(0, LimitedGroup::shortages),
            group,
            owner,
        }
    }

    /// The group itself.
    pub(crate) fn limited(&self) -> &LimitedGroup {
        &self.group
    }

    /// The bytes that the executor uses, if memory is limited.
    pub(crate) fn memory_used(&self) -> Option<u64> {
        self.group.memory_used()
    }

    /// The processor time that it has used, if that is limited.
    pub(crate) fn cpu_used(&self) -> Option<Duration> {
        self.group.cpu_used()
    }

    /// Whose memory was short, if the kernel has ended the executor for that.
    pub(crate) fn memory_shortage(&self) -> Option<MemoryShortage> {
        if self.group.kills()? <= self.kills_before {
            return None;
        }
        let own = self.group.was_short(self.shortages_before);
        let Some(owner) = &self.owner else { return Some(MemoryShortage::of(own, Some(false))) };
        let shortage = MemoryShortage::of(own, owner.was_short(self.owner_shortages_before));
        // This shortage must not be blamed for the end of another executor.
        owner.forget_shortages();
        Some(shortage)
    }
}

impl Groups {
    /// None yet.
    pub(crate) fn new(prefix: String, settings: &ExecutorsSettings) -> Groups {
        let limits = |cpu_percent, memory_bytes| ProcessLimits { cpu_percent, memory_bytes };
        Groups {
            prefix,
            of_executor: limits(settings.processor_percent, settings.memory_bytes),
            of_owner: limits(settings.owner_processor_percent, settings.owner_memory_bytes),
            owners: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// Makes the group of a slot for an executor of an owner, if anything is limited.
    ///
    /// # Errors
    /// Why there can be none.
    pub(crate) fn make(&mut self, slot: usize, owner: u32) -> Result<Option<ExecutorGroup>, String> {
        let none = ProcessLimits::default();
        if self.of_owner == none {
            if self.of_executor == none {
                return Ok(None);
            }
            let group = LimitedGroup::make(&format!("{}-{slot}", self.prefix), self.of_executor)?;
            return Ok(Some(ExecutorGroup::new(group, None)));
        }
        let around = self.around(owner)?;
        match around.make_within(&slot.to_string(), self.of_executor) {
            Ok(group) => Ok(Some(ExecutorGroup::new(group, Some(around)))),
            Err(reason) => {
                drop(around);
                self.tidy();
                Err(reason)
            }
        }
    }

    /// The group of an owner.
    fn around(&mut self, owner: u32) -> Result<Arc<LimitedGroup>, String> {
        // One that nobody uses is about to be removed, or is in part.
        if let Some(group) = self.owners.get(&owner).filter(|group| Arc::strong_count(group) > 1) {
            return Ok(Arc::clone(group));
        }
        let name = format!("{}-owner-{owner}", self.prefix);
        let group = Arc::new(LimitedGroup::make_around(&name, self.of_owner, self.of_executor)?);
        self.owners.insert(owner, Arc::clone(&group));
        Ok(group)
    }

    /// Removes a group, now or at a later look.
    pub(crate) fn remove(&mut self, slot: usize, group: ExecutorGroup) {
        self.left.insert(slot, group);
        self.tidy();
    }

    /// Removes the groups that nobody needs any more, as far as the kernel has taken leave of them.
    pub(crate) fn tidy(&mut self) {
        self.left.retain(|_, group| !group.group.try_remove());
        self.owners.retain(|_, group| Arc::strong_count(group) > 1 || !group.try_remove());
    }

    /// Whether a group is still to be removed, that of this slot if one is given.
    pub(crate) fn has_left(&self, slot: Option<usize>) -> bool {
        match slot {
            Some(slot) => self.left.contains_key(&slot),
            None => !self.left.is_empty() || self.owners.values().any(|group| Arc::strong_count(group) == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the kernel's own groups, where this user may make them.
    #[test]
    fn the_group_of_an_owner_goes_with_its_last_executor() {
        let settings = ExecutorsSettings {
            owner_memory_bytes: Some(1 << 30),
            ..ExecutorsSettings::new("socket".into(), "heddle-executor".into())
        };
        let mut groups = Groups::new(format!("heddle-test-groups-{}", std::process::id()), &settings);
        let first = match groups.make(0, 1000) {
            Ok(first) => first.expect("something is limited"),
            Err(error) => {
                eprintln!("not tested: {error}");
                return;
            }
        };
        let second = groups.make(1, 1000).expect("as before").expect("something is limited");
        let other = groups.make(2, 1001).expect("as before").expect("something is limited");
        assert_eq!((groups.owners.len(), first.memory_shortage()), (2, None));
        groups.remove(0, first);
        groups.remove(2, other);
        assert!(groups.owners.keys().eq([&1000]) && !groups.has_left(None), "one has an executor");
        groups.remove(1, second);
        assert!(groups.owners.is_empty() && !groups.has_left(Some(1)));
    }
}
