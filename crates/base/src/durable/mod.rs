//! Files that a loss of power leaves whole: configuration, keys, certificates, and notes of what runs.
//!
//! [`write`] replaces a file in these steps, and returns when all of them are done:
//! 1. Create the missing folders above it, each durable in its parent.
//! 2. Write the bytes to a temporary name in the same folder, and sync that file.
//! 3. Rename it to its own name, and sync the folder.
//!
//! A loss of power at any point leaves the file that was there before or the new one, never an empty one; once `write`
//! has returned it leaves the new one. A reader meanwhile sees one of the two. Several files are not replaced as one:
//! who needs that writes, last of all, a file whose presence says that the others are complete.
//!
//! These are plain calls to the operating system, for files that are written when a network is created, changed or
//! started, never in a simulation. What a role writes while it works goes through [`crate::rt::disk`].
//!
//! [`recorded`] gives a test the steps of its thread, and [`power`] what a loss of power leaves of them.

pub mod power;

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Of folders that are created: ledgers, states and keys lie in them.
const FOLDER_MODE: u32 = 0o700;

/// Who may read a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Its owner alone (mode 0600), from the moment that it exists.
    Owner,
    /// Everybody who can look into its folder (mode 0644).
    Everybody,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Access::Owner => 0o600,
            Access::Everybody => 0o644,
        }
    }
}

/// Replaces a file, or creates it with the folders above it (mode 0700). Durable on return.
///
/// # Errors
/// As the operating system says. The file is then the old or the new one.
pub fn write(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = parent(path);
    create_folder(folder)?;
    // Readers of whole folders pass over hidden names.
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".new");
    let temporary = folder.join(temporary);
    // One that an earlier attempt left behind may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(access.mode()).open(&temporary)?;
    file.write_all(bytes)?;
    record(|| Step::Written { path: temporary.clone(), bytes: bytes.to_vec() });
    file.sync_all()?;
    record(|| Step::Synced(temporary.clone()));
    rename(&temporary, path)
}

/// Gives a file or a folder another name in the same file system. Durable on return.
///
/// # Errors
/// As the operating system says. It then has the old or the new name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    record(|| Step::Renamed { from: from.to_path_buf(), to: to.to_path_buf() });
    sync_folder(parent(to))?;
    if parent(from) != parent(to) {
        sync_folder(parent(from))?;
    }
    Ok(())
}

/// Creates a folder that only its owner can look into, with the missing ones above it. Each is durable in its parent on
/// return; one that exists keeps its mode.
///
/// # Errors
/// As the operating system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    create_folder(above)?;
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        // Another task was faster; it syncs the name too, but perhaps not yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    record(|| Step::Folder(path.to_path_buf()));
    sync_folder(above)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    record(|| Step::FolderSynced(path.to_path_buf()));
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What this module has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
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
    /// A file or folder got another name.
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
    /// The steps of a test that wants to know them.
    static STEPS: RefCell<Option<Vec<Step>>> = const { RefCell::new(None) };
}

/// Does work and gives what this module did on this thread meanwhile, for tests.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Vec<Step>) {
    STEPS.with_borrow_mut(|steps| *steps = Some(Vec::new()));
    let value = work();
    let steps = STEPS.with_borrow_mut(Option::take);
    (value, steps.expect("recordings do not nest"))
}

fn record(step: impl FnOnce() -> Step) {
    STEPS.with_borrow_mut(|steps| {
        if let Some(steps) = steps {
            steps.push(step());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::power::{Names, survivors};
    use super::*;

    /// Power was lost seconds after a network was created: its configuration, keys and certificates were files of no
    /// bytes, since each was renamed to its name before its bytes had reached the disk.
    #[test]
    fn power_lost_at_any_step_leaves_the_old_file_or_the_new_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/er/file");
        let ((), first) = recorded(|| write(&path, b"old", Access::Owner).expect("it can be written"));
        let ((), second) = recorded(|| write(&path, b"new", Access::Owner).expect("it can be written"));
        let all: Vec<Step> = first.iter().chain(&second).cloned().collect();
        for count in 0..=all.len() {
            for names in [Names::Lost, Names::Kept] {
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
        write(&path, b"key", Access::Owner).expect("it can be written");
        assert_eq!(mode(&path), 0o600, "also where an earlier attempt left a file of another mode");
        assert!(!left_behind.exists());
        write(&folder.path().join("new/page"), b"text", Access::Everybody).expect("it can be written");
        assert_eq!(mode(&folder.path().join("new")), 0o700);
        assert_eq!(mode(&folder.path().join("new/page")) & 0o600, 0o600);
    }
}
