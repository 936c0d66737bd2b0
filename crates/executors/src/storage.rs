//! Storage for pages that executors have no memory for: a file for each, which has no name, in a folder of the operator's.
//!
//! # Bounds
//! - *The file.* The kernel refuses to write behind the limit that the process has had since before its first instruction (`RLIMIT_FSIZE`). It holds for
//!   any instruction that a function jumps to: the process may not raise it, cannot open another file, and has no system call that changes
//!   a file's size. A file that was made as large as it may be would bound nothing, since a write behind its end makes it larger.
//! - *Memory.* The executor keeps fewer pages there than its cgroup allows ([`pages_in_memory`]), so that one which keeps to that is not ended by the
//!   kernel. One that does not is.
//!
//! The file belongs to the role's user, and nobody else may open it. Nor can a program take the descriptor of its executor, for which the bound
//! would not hold: that needs rights in the executor's namespace, which the role's user has. So storage for others needs namespaces.
//!
//! What the kernel caches of the file counts as the executor's memory, and gives way.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bare::PAGE_BYTES;
use pushdown::MEMORY_PAGES_MIN;
use rustix::fs::{AtFlags, Mode, OFlags, fstatfs, openat, unlinkat};
use rustix::io::Errno;

use crate::error::ExecutorsError;

/// What an executor has beside pages: the messages to its program (16 MiB), its program, tables of pages.
const OWN_BYTES: u64 = 24 << 20;
/// What it has to remember of a page that it has stored.
const BYTES_OF_STORED_PAGE: u64 = 192;
/// File systems that are memory: `TMPFS_MAGIC` and `RAMFS_MAGIC`.
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];
/// Names that are tried where files without a name cannot be made.
const NAMES_MAX: u32 = 64;

/// Storage for executors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageSettings {
    /// Where the files are made. Nothing is seen of them there, and nothing stays.
    pub folder: PathBuf,
    /// Bytes of the file of an executor, at most.
    pub bytes: u64,
}

impl StorageSettings {
    /// Pages of the file of an executor.
    pub(crate) fn pages(&self) -> u64 {
        self.bytes / PAGE_BYTES as u64
    }
}

/// How many pages an executor keeps in memory that has this much memory and storage. Half of what its tables leave is not for pages: the kernel
/// caches its file there, and constant pages of its program, which are not counted, lie there as well.
pub(crate) fn pages_in_memory(memory_bytes: u64, storage: &StorageSettings) -> u64 {
    let tables = storage.pages().saturating_mul(BYTES_OF_STORED_PAGE);
    memory_bytes.saturating_sub(OWN_BYTES).saturating_sub(tables) / 2 / PAGE_BYTES as u64
}

/// How much memory an executor needs to have this much storage.
fn memory_needed(storage: &StorageSettings) -> u64 {
    let tables = storage.pages().saturating_mul(BYTES_OF_STORED_PAGE);
    OWN_BYTES.saturating_add(tables).saturating_add(2 * MEMORY_PAGES_MIN * PAGE_BYTES as u64)
}

/// # Errors
/// An executor with this much memory cannot have this storage.
pub(crate) fn check_storage(storage: &StorageSettings, memory_bytes: Option<u64>) -> Result<(), ExecutorsError> {
    let Some(memory_bytes) = memory_bytes else {
        return Err(ExecutorsError::Setting(
            "storage without a limit of memory; how many pages an executor keeps in memory follows from that limit"
                .to_owned(),
        ));
    };
    if storage.pages() < MEMORY_PAGES_MIN {
        let least = MEMORY_PAGES_MIN * PAGE_BYTES as u64;
        return Err(ExecutorsError::Setting(format!(
            "a storage of {} bytes; it must be at least {least}",
            storage.bytes
        )));
    }
    if pages_in_memory(memory_bytes, storage) < MEMORY_PAGES_MIN {
        return Err(ExecutorsError::Setting(format!(
            "a storage of {} bytes for an executor, which has {memory_bytes} of memory and needs {} to keep track of so much: lower \
             --storage-bytes, or raise --memory, and --owner-memory if it is given, which --per-owner executors share",
            storage.bytes,
            memory_needed(storage)
        )));
    }
    Ok(())
}

/// The folder of the files.
pub(crate) struct StorageFolder {
    folder: OwnedFd,
    path: PathBuf,
}

impl StorageFolder {
    /// Opens the folder, and makes sure that a file can be made there.
    ///
    /// # Errors
    /// There is no such folder, it is memory, or no file can be made in it.
    pub(crate) fn open(path: &Path) -> Result<StorageFolder, ExecutorsError> {
        let about = |error: Errno| ExecutorsError::File { path: path.to_path_buf(), source: error.into() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(about)?;
        let kind = fstatfs(&folder).map_err(about)?.f_type as i64;
        if MEMORY_FILE_SYSTEMS.contains(&kind) {
            return Err(ExecutorsError::Setting(format!(
                "{} is in memory: what executors store there would count as their memory; name a folder of a disk",
                path.display()
            )));
        }
        let folder = StorageFolder { folder, path: path.to_path_buf() };
        folder.make().map_err(about)?;
        Ok(folder)
    }

    /// A file for an executor.
    ///
    /// # Errors
    /// The reason, for people.
    pub(crate) fn file(&self) -> Result<OwnedFd, String> {
        self.make().map_err(|error| format!("storage in {}: {}", self.path.display(), std::io::Error::from(error)))
    }

    fn make(&self) -> Result<OwnedFd, Errno> {
        let (flags, mode) = (OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        // With `EXCL`, nobody can give the file a name later.
        match openat(&self.folder, ".", flags | OFlags::TMPFILE, mode) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
            made => return made,
        }
        // Not every file system has files without names.
        for number in 0..NAMES_MAX {
            let name = format!(".heddle-executor-{}-{number}", std::process::id());
            match openat(&self.folder, &name, flags | OFlags::CREATE | OFlags::NOFOLLOW, mode) {
                // Left behind by a role that was killed at this moment.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    unlinkat(&self.folder, &name, AtFlags::empty())?;
                    return Ok(file);
                }
            }
        }
        Err(Errno::EXIST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(bytes: u64) -> StorageSettings {
        StorageSettings { folder: "storage".into(), bytes }
    }

    #[test]
    fn storage_leaves_memory_for_the_executor_itself() {
        let pages = pages_in_memory(512 << 20, &storage(4 << 30));
        // 512 MiB less 24 for the executor itself and 192 for tables; half of that is for pages.
        assert_eq!(pages, (148 << 20) / 4096);
        check_storage(&storage(4 << 30), Some(512 << 20)).expect("there is room");
        for (storage, memory_bytes, named) in [
            (storage(4 << 30), None, "without a limit"),
            (storage(4096), Some(512 << 20), "at least 1048576"),
            (storage(4 << 30), Some(128 << 20), "needs 228589568"),
            (storage(u64::MAX), Some(u64::MAX / 32), "--storage-bytes"),
        ] {
            let error = check_storage(&storage, memory_bytes).expect_err("there is no room").to_string();
            assert!(error.contains(named), "{error}");
        }
        check_storage(&storage(4 << 30), Some(228_589_568)).expect("just so");
    }

    #[test]
    fn a_file_has_no_name_and_a_missing_folder_is_named() {
        // That of the program's build is on a disk.
        let folder = std::env::current_exe().expect("the test has a file");
        let folder = folder.parent().expect("it is in a folder");
        match StorageFolder::open(folder) {
            Ok(opened) => {
                let file = opened.file().expect("as before");
                let status = rustix::fs::fstat(&file).expect("it is open");
                assert_eq!((status.st_nlink, status.st_mode & 0o7777, status.st_size), (0, 0o600, 0));
            }
            Err(error) => eprintln!("not tested: {error}"),
        }
        let error = StorageFolder::open(Path::new("/nonexistent")).map(drop).expect_err("it is not there");
        assert!(error.to_string().contains("/nonexistent"), "{error}");
        if let Err(error) = StorageFolder::open(Path::new("/dev/shm")).map(drop) {
            assert!(error.to_string().contains("/dev/shm"), "{error}");
        }
    }
}
