//! Replaces small files atomically, so that a loss of power leaves either the old or the new content. It is for
//! configuration, keys, certificates, and records of what runs.
//!
//! [`write()`] replaces a file in these steps, and returns when all of them are done:
//! 1. Create the missing folders above it, each durable in its parent.
//! 2. Write the bytes to a temporary name in the same folder, and sync that file.
//! 3. Rename it to its own name, and sync the folder.
//!
//! A loss of power at any point leaves either the previous file or the new file, never an empty one. After `write` has
//! returned, a loss of power leaves the new file. A concurrent reader sees either the previous file or the new one.
//! Several files are not replaced atomically. A caller that needs this writes one more file last, whose presence shows
//! that the others are complete.
//!
//! These functions call the operating system directly, so simulations never use them. They are for files that are
//! written when a network is created, changed or started. Files that a node writes while it works go through
//! [`crate::rt::disk`].
//!
//! For tests, [`recorded`] returns the steps that the test's thread executed, and [`power`] computes what a loss of
//! power leaves of them.

pub mod power;

use std::cell::RefCell;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Mode of new folders: ledgers, states and keys lie in them.
const FOLDER_MODE: u32 = 0o700;

/// Who may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileAccess {
    /// Only its owner (mode 0600), from the moment it exists.
    Owner,
    /// All users who can read its folder (mode 0644).
    Everybody,
}

impl FileAccess {
    fn mode(self) -> u32 {
        match self {
            FileAccess::Owner => 0o600,
            FileAccess::Everybody => 0o644,
        }
    }
}

/// Replaces a file, or creates it with the folders above it (mode 0700). Durable on return.
///
/// # Errors
/// An error of the operating system. The file is then the old or the new one.
pub fn write(path: &Path, bytes: &[u8], access: FileAccess) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = parent(path);
    create_folder(folder)?;
    // Readers of whole folders skip hidden names.
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".new");
    let temporary = folder.join(temporary);
    // A leftover of an earlier attempt may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(access.mode()).open(&temporary)?;
    file.write_all(bytes)?;
    record(|| DurabilityStep::Written { path: temporary.clone(), bytes: bytes.to_vec() });
    file.sync_all()?;
    record(|| DurabilityStep::Synced(temporary.clone()));
    rename(&temporary, path)
}

/// Renames a file or a folder within the same file system. Durable on return.
///
/// # Errors
/// An error of the operating system. It then has the old or the new name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    record(|| DurabilityStep::Renamed { from: from.to_path_buf(), to: to.to_path_buf() });
    sync_folder(parent(to))?;
    if parent(from) != parent(to) {
        sync_folder(parent(from))?;
    }
    Ok(())
}

/// Creates a folder that only its owner can read, with the missing ones above it. Each is durable in its parent on return; an
/// existing folder keeps its mode.
///
/// # Errors
/// An error of the operating system.
pub fn create_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    create_folder(above)?;
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        // Another task was faster; it syncs the name too, but perhaps has not yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    record(|| DurabilityStep::Folder(path.to_path_buf()));
    sync_folder(above)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    record(|| DurabilityStep::FolderSynced(path.to_path_buf()));
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// One step of this module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DurabilityStep {
    /// A folder was created.
    Folder(PathBuf),
    /// A file was created with these bytes.
    Written {
        /// The file.
        path: PathBuf,
        /// All of its bytes.
        bytes: Vec<u8>,
    },
    /// A file's bytes reached the disk.
    Synced(PathBuf),
    /// A file or folder was renamed.
    Renamed {
        /// The old name.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
    },
    /// The names in a folder reached the disk.
    FolderSynced(PathBuf),
}

thread_local! {
    /// The recorded steps of a test.
    static STEPS: RefCell<Option<Vec<DurabilityStep>>> = const { RefCell::new(None) };
}

/// Runs `work` and returns the steps that this module took on this thread meanwhile, for tests.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Vec<DurabilityStep>) {
    STEPS.with_borrow_mut(|steps| *steps = Some(Vec::new()));
    let value = work();
    let steps = STEPS.with_borrow_mut(Option::take);
    (value, steps.expect("recordings do not nest"))
}

fn record(step: impl FnOnce() -> DurabilityStep) {
    STEPS.with_borrow_mut(|steps| {
        if let Some(steps) = steps {
            steps.push(step());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::power::{UnsyncedNames, survivors};
    use super::*;

    /// Regression: power was lost seconds after a network was created. Its configuration, keys and certificates were empty
    /// files, since each was renamed to its name before its bytes had reached the disk.
    #[test]
    fn power_lost_at_any_step_leaves_the_old_file_or_the_new_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/er/file");
        let ((), first) = recorded(|| write(&path, b"old", FileAccess::Owner).expect("it can be written"));
        let ((), second) = recorded(|| write(&path, b"new", FileAccess::Owner).expect("it can be written"));
        let all: Vec<DurabilityStep> = first.iter().chain(&second).cloned().collect();
        for count in 0..=all.len() {
            for names in [UnsyncedNames::Lost, UnsyncedNames::Kept] {
                let survivors = survivors(&all[..count], names);
                let held = survivors.get(&path).map(|bytes| &bytes[..]);
                let expected: &[Option<&[u8]>] = match count {
                    _ if count == all.len() => &[Some(b"new")],
                    _ if count >= first.len() => &[Some(b"old"), Some(b"new")],
                    _ => &[None, Some(b"old")],
                };
                assert!(expected.contains(&held), "{names:?} after {count} steps: {held:?}");
            }
        }
    }

    #[test]
    fn a_secret_is_never_readable_by_others() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        let path = folder.path().join("keys/secret");
        fs::create_dir(folder.path().join("keys")).expect("a folder");
        let left_behind = folder.path().join("keys/.secret.new");
        fs::write(&left_behind, "half").expect("it can be written");
        fs::set_permissions(&left_behind, fs::Permissions::from_mode(0o666)).expect("it is ours");
        write(&path, b"key", FileAccess::Owner).expect("it can be written");
        assert_eq!(mode(&path), 0o600, "also where an earlier attempt left a file of another mode");
        assert!(!left_behind.exists());
        write(&folder.path().join("new/page"), b"text", FileAccess::Everybody).expect("it can be written");
        assert_eq!(mode(&folder.path().join("new")), 0o700);
        assert_eq!(mode(&folder.path().join("new/page")) & 0o600, 0o600);
    }
}
