//! The manager's record as a file.
//!
//! 1. A manager holds an exclusive lock on `manager.lock` beside the record for as long as its process lives. The kernel
//!    releases the lock only when the process has ended, so at most one manager of a folder acts.
//! 2. A record is replaced as a whole, durably ([`base::durable`]). Before each replacement and each action the manager
//!    compares the incarnation in the file with its own: if somebody has removed the lock, the older manager ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base::durable::{self, FileAccess};

use crate::driver::{ManagerError, RecordStore};
use crate::record::{ManagerRecord, RECORD_BYTES_MAX};

/// The record's name.
pub const RECORD_FILE: &str = "manager.record";
/// The lock's name.
pub const LOCK_FILE: &str = "manager.lock";

/// A record in a folder, held by this process.
pub struct RecordFile {
    path: PathBuf,
    /// Locked until it is closed.
    _lock: File,
}

impl RecordFile {
    /// Opens the record of a folder, which is made if it is missing, and holds it.
    ///
    /// # Errors
    /// [`ManagerError::Held`]: another process does. [`ManagerError::Storage`].
    pub fn open(folder: &Path) -> Result<RecordFile, ManagerError> {
        let path = folder.join(LOCK_FILE);
        let failed = |error| ManagerError::Storage(path.display().to_string(), error);
        durable::create_folder(folder).map_err(failed)?;
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut lock = opened.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = lock.take(32).read_to_string(&mut holder);
                return Err(ManagerError::Held(path.display().to_string(), holder.trim().to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // For the error of the next one; nothing rests on it.
        let _ = lock.set_len(0).and_then(|()| lock.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(RecordFile { path: folder.join(RECORD_FILE), _lock: lock })
    }
}

/// Whether a process holds the record of a folder.
pub fn is_held(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK_FILE));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Reads the record of a folder, without holding it; `None` if there is none.
///
/// # Errors
/// [`ManagerError::Corrupt`], [`ManagerError::Storage`].
pub fn read_record(folder: &Path) -> Result<Option<ManagerRecord>, ManagerError> {
    let path = folder.join(RECORD_FILE);
    let failed = |error| ManagerError::Storage(path.display().to_string(), error);
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    let record = ManagerRecord::decode(&bytes);
    record.map(Some).map_err(|reason| ManagerError::Corrupt(path.display().to_string(), reason))
}

impl RecordStore for RecordFile {
    fn load(&mut self) -> Result<ManagerRecord, ManagerError> {
        let folder = self.path.parent().expect("it was made with one");
        Ok(read_record(folder)?.unwrap_or_default())
    }

    fn store(&mut self, record: &ManagerRecord) -> Result<(), ManagerError> {
        self.check(record.incarnation)?;
        let stored = durable::write(&self.path, &record.encode(), FileAccess::Owner);
        stored.map_err(|error| ManagerError::Storage(self.path.display().to_string(), error))
    }

    fn check(&mut self, incarnation: u64) -> Result<(), ManagerError> {
        match self.load()?.incarnation > incarnation {
            true => Err(ManagerError::Fenced(self.path.display().to_string())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_record_and_a_newer_incarnation_fences() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut held = RecordFile::open(folder.path()).expect("it is free");
        assert!(is_held(folder.path()));
        let refused = RecordFile::open(folder.path()).err().expect("it is held");
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        let record = |incarnation| ManagerRecord { incarnation, ..ManagerRecord::default() };
        held.store(&record(1)).expect("it can be written");
        // Somebody removes the lock, and starts another manager.
        std::fs::remove_file(folder.path().join(LOCK_FILE)).expect("it is there");
        let mut newer = RecordFile::open(folder.path()).expect("it is free");
        newer.store(&record(2)).expect("it can be written");
        assert!(matches!(held.store(&record(1)), Err(ManagerError::Fenced(_))));
        assert!(matches!(held.check(1), Err(ManagerError::Fenced(_))));
        assert_eq!(read_record(folder.path()).expect("it is whole"), Some(record(2)));
        drop(newer);
        RecordFile::open(folder.path()).expect("its holder has gone");
    }
}
