//! What an operator decides.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use cgroup::{MEMORY_BYTES_MIN, PERCENT_MIN};
use pushdown::CONTEXTS_MAX;

use crate::ending::ExecutorBounds;
use crate::error::ExecutorsError;
use crate::storage::{StorageSettings, check_storage, pages_in_memory};

/// Most executors of one role.
const EXECUTORS_MAX: usize = 256;
/// The shortest silence: an executor may have to wait for its processor.
const SILENCE_MIN: Duration = Duration::from_millis(400);

/// Which users may have executors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnersAllowed {
    /// The user of the role, and root.
    Own,
    /// The user of the role, root, and these.
    These(BTreeSet<u32>),
    /// Every user of the host.
    Any,
}

impl OwnersAllowed {
    /// All, or these, or the role's own user if there are none.
    pub fn new(any: bool, owners: impl IntoIterator<Item = u32>) -> OwnersAllowed {
        let owners: BTreeSet<u32> = owners.into_iter().collect();
        match (any, owners.is_empty()) {
            (true, _) => OwnersAllowed::Any,
            (false, true) => OwnersAllowed::Own,
            (false, false) => OwnersAllowed::These(owners),
        }
    }

    /// Whether this user may have executors of a role that runs as `own`.
    pub fn allows(&self, owner: u32, own: u32) -> bool {
        owner == own || owner == 0 || matches!(self, OwnersAllowed::Any) || self.names(owner)
    }

    fn names(&self, owner: u32) -> bool {
        matches!(self, OwnersAllowed::These(owners) if owners.contains(&owner))
    }
}

/// The settings of a role.
#[derive(Clone, Debug)]
pub struct ExecutorsSettings {
    /// Where programs connect.
    pub socket: PathBuf,
    /// The program `heddle-executor`.
    pub program: PathBuf,
    /// Which users may have executors.
    pub owners: OwnersAllowed,
    /// Most executors at the same time.
    pub executors_max: usize,
    /// Most executors of one owner.
    pub per_owner_max: usize,
    /// Most functions that run at the same time in an executor.
    pub contexts_max: u32,
    /// Bytes of an executor's memory; `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Percent of a processor that an executor may use; `None`: no limit.
    pub processor_percent: Option<u32>,
    /// Bytes that all executors of an owner have together; `None`: what each may have.
    pub owner_memory_bytes: Option<u64>,
    /// Percent of a processor that all executors of an owner may use together; `None`: what each may use.
    pub owner_processor_percent: Option<u32>,
    /// Storage for pages that an executor has no memory for; `None`: it has memory alone.
    pub storage: Option<StorageSettings>,
    /// After which silence an executor is killed.
    pub silence: Duration,
    /// For how long functions may go on when the role stops.
    pub grace: Duration,
    /// Whether executors have namespaces of their own.
    pub has_namespaces: bool,
}

impl ExecutorsSettings {
    /// The defaults.
    pub fn new(socket: PathBuf, program: PathBuf) -> ExecutorsSettings {
        ExecutorsSettings {
            socket,
            program,
            owners: OwnersAllowed::Own,
            executors_max: 16,
            per_owner_max: 4,
            contexts_max: 4,
            memory_bytes: Some(512 << 20),
            processor_percent: Some(100),
            owner_memory_bytes: None,
            owner_processor_percent: None,
            storage: None,
            silence: Duration::from_secs(10),
            grace: Duration::from_secs(10),
            has_namespaces: true,
        }
    }

    /// # Errors
    /// A setting is out of its bounds.
    pub(crate) fn check(&self) -> Result<(), ExecutorsError> {
        let wrong = |what: String| Err(ExecutorsError::Setting(what));
        if self.executors_max == 0 || self.executors_max > EXECUTORS_MAX {
            return wrong(format!("{} executors; it must be from 1 to {EXECUTORS_MAX}", self.executors_max));
        }
        if self.per_owner_max == 0 {
            return wrong("no executors for an owner; it must be at least 1".to_owned());
        }
        if self.contexts_max == 0 || self.contexts_max > CONTEXTS_MAX {
            return wrong(format!("{} contexts; it must be from 1 to {CONTEXTS_MAX}", self.contexts_max));
        }
        if let Some(bytes) = self.memory_bytes.filter(|bytes| *bytes < MEMORY_BYTES_MIN) {
            return wrong(format!("a memory of {bytes} bytes; an executor needs {MEMORY_BYTES_MIN}"));
        }
        if let Some(percent) = self.processor_percent.filter(|percent| *percent < PERCENT_MIN) {
            return wrong(format!("{percent} % of a processor; the kernel limits to no less than {PERCENT_MIN} %"));
        }
        self.check_owner()?;
        if let Some(storage) = &self.storage {
            check_storage(storage, self.memory_of_each())?;
            if !self.has_namespaces && self.owners != OwnersAllowed::Own {
                return wrong(
                    "storage for executors of other users, without namespaces: a program could take the file from its executor, and \
                     write it without a bound. Leave out --without-namespaces, or --storage"
                        .to_owned(),
                );
            }
        }
        if self.silence < SILENCE_MIN {
            return wrong(format!(
                "a silence of {} ms; it must be at least {}",
                self.silence.as_millis(),
                SILENCE_MIN.as_millis()
            ));
        }
        Ok(())
    }

    /// # Errors
    /// An owner may have less than one of its executors.
    fn check_owner(&self) -> Result<(), ExecutorsError> {
        let least = self.memory_bytes.unwrap_or(MEMORY_BYTES_MIN);
        if let Some(bytes) = self.owner_memory_bytes.filter(|bytes| *bytes < least) {
            return Err(ExecutorsError::Setting(format!(
                "a memory of {bytes} bytes for all executors of an owner, and {least} for each: raise --owner-memory, or lower --memory"
            )));
        }
        let least = self.processor_percent.unwrap_or(PERCENT_MIN);
        if let Some(percent) = self.owner_processor_percent.filter(|percent| *percent < least) {
            return Err(ExecutorsError::Setting(format!(
                "{percent} % of a processor for all executors of an owner, and {least} % for each: raise --owner-processor, or lower \
                 --processor"
            )));
        }
        Ok(())
    }

    /// The memory that an executor has for certain, however much those of the same owner use.
    fn memory_of_each(&self) -> Option<u64> {
        let shared_by = self.per_owner_max.min(self.executors_max).max(1) as u64;
        let share = self.owner_memory_bytes.map(|bytes| bytes / shared_by);
        self.memory_bytes.into_iter().chain(share).min()
    }

    /// How many pages an executor with storage keeps in memory.
    pub(crate) fn memory_pages(&self) -> Option<u64> {
        self.memory_of_each().zip(self.storage.as_ref()).map(|(bytes, storage)| pages_in_memory(bytes, storage))
    }

    /// What an executor may use.
    pub(crate) fn bounds(&self) -> ExecutorBounds {
        ExecutorBounds {
            memory_bytes: self.memory_bytes,
            owner_memory_bytes: self.owner_memory_bytes,
            storage_bytes: self.storage.as_ref().map(|storage| storage.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_their_bounds_and_others_are_refused_by_name() {
        let settings = ExecutorsSettings::new("socket".into(), "heddle-executor".into());
        settings.check().expect("defaults");
        for (changed, named) in [
            (ExecutorsSettings { executors_max: 0, ..settings.clone() }, "0 executors"),
            (ExecutorsSettings { executors_max: 1000, ..settings.clone() }, "1000 executors"),
            (ExecutorsSettings { per_owner_max: 0, ..settings.clone() }, "owner"),
            (ExecutorsSettings { contexts_max: 17, ..settings.clone() }, "17 contexts"),
            (ExecutorsSettings { memory_bytes: Some(1), ..settings.clone() }, "memory"),
            (ExecutorsSettings { processor_percent: Some(1), ..settings.clone() }, "processor"),
            (ExecutorsSettings { owner_memory_bytes: Some(256 << 20), ..settings.clone() }, "--owner-memory"),
            (ExecutorsSettings { owner_processor_percent: Some(50), ..settings.clone() }, "--owner-processor"),
            (ExecutorsSettings { silence: Duration::ZERO, ..settings.clone() }, "silence"),
        ] {
            let error = changed.check().expect_err("it is out of bounds").to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn storage_keeps_within_what_executors_of_an_owner_have_together() {
        let storage = StorageSettings { folder: "storage".into(), bytes: 64 << 20 };
        let settings = ExecutorsSettings::new("socket".into(), "heddle-executor".into());
        assert_eq!(settings.memory_pages(), None);
        let mut settings = ExecutorsSettings { storage: Some(storage), ..settings };
        let alone = settings.memory_pages().expect("it has storage");
        settings.owner_memory_bytes = Some(4 * (512 << 20));
        assert_eq!(settings.memory_pages(), Some(alone), "there is enough for all of them");
        settings.owner_memory_bytes = Some(512 << 20);
        // A quarter of it, without 24 MiB of the executor's own and 3 of tables.
        assert_eq!(settings.memory_pages(), Some(((128 - 27) << 19) / 4096));
        settings.check().expect("there is room");
        let others = ExecutorsSettings { has_namespaces: false, owners: OwnersAllowed::Any, ..settings.clone() };
        let error = others.check().expect_err("a program could take the file").to_string();
        assert!(error.contains("--without-namespaces"), "{error}");
        (settings.executors_max, settings.per_owner_max) = (64, 64);
        let error = settings.check().expect_err("there is too little for each").to_string();
        assert!(error.contains("--owner-memory"), "{error}");
    }

    #[test]
    fn owners_are_the_roles_user_root_and_those_that_are_named() {
        assert!(OwnersAllowed::Own.allows(7, 7) && OwnersAllowed::Own.allows(0, 7) && !OwnersAllowed::Own.allows(8, 7));
        let these = OwnersAllowed::These([8].into());
        assert!(these.allows(8, 7) && these.allows(7, 7) && !these.allows(9, 7));
        assert!(OwnersAllowed::Any.allows(9, 7));
    }
}
