//! Makes, joins and removes groups, for all controllers.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::mounts::{CgroupMount, CgroupVersion};

/// The most attempts to remove a group while its last processes end.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// Why no group could be made.
#[derive(Debug)]
pub struct CgroupError {
    controller: &'static str,
    /// Each attempt: a folder and its error.
    tried: Vec<(PathBuf, io::Error)>,
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return write!(f, "no cgroup file system with a {} controller is mounted", self.controller);
        }
        for (number, (folder, error)) in self.tried.iter().enumerate() {
            let separator = if number > 0 { ", " } else { "" };
            write!(f, "{separator}{}: {error}", folder.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for CgroupError {}

/// Makes a group of this name in the first place in which `make_in` succeeds.
pub fn make<G>(
    controller: &'static str,
    name: &str,
    make_in: impl Fn(&CgroupMount, &Path) -> io::Result<G>,
) -> Result<G, CgroupError> {
    let mut tried = Vec::new();
    for mount in CgroupMount::of_machine(controller) {
        for place in mount.places() {
            let within = place.join(name);
            match make_in(&mount, &within) {
                Ok(group) => return Ok(group),
                Err(error) => tried.push((mount.root.join(within), error)),
            }
        }
    }
    Err(CgroupError { controller, tried })
}

/// Makes the folder of a group. In version 2, also enables the controller for it.
pub fn make_folder(controller: &str, version: CgroupVersion, folder: &Path) -> io::Result<()> {
    make_empty(folder)?;
    if let (CgroupVersion::Two, Some(parent)) = (version, folder.parent()) {
        // If the controller stays disabled, setting a limit fails later.
        let _ = write_existing(&parent.join("cgroup.subtree_control"), &format!("+{controller}"));
    }
    Ok(())
}

/// Removes the groups within a group that have no processes: those that a killed process left behind, whose limits the kernel compares with
/// those of the group.
pub fn remove_within(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        // A removed group of version 1 counts for a while.
        let _ = write_existing(&entry.path().join("cpu.cfs_quota_us"), "-1");
        let _ = fs::remove_dir(entry.path());
    }
}

/// Makes a group's folder, or takes an existing one without processes.
pub fn make_empty(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let processes = fs::read_to_string(folder.join("cgroup.procs"))?;
            match processes.trim().is_empty() {
                true => Ok(()),
                false => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it has processes of others")),
            }
        }
        made => made,
    }
}

/// Moves a process with all its threads into a group.
pub fn add(folder: &Path, process: u32) -> io::Result<()> {
    write_existing(&folder.join("cgroup.procs"), &process.to_string())
}

/// Removes a group whose processes have ended or are about to end. Blocks for a second at most.
#[allow(clippy::disallowed_methods, reason = "its callers are benchmarks, outside of any simulation")]
pub fn remove(folder: &Path) {
    for _ in 0..REMOVALS_MAX {
        if fs::remove_dir(folder).is_ok() || !folder.exists() {
            break;
        }
        std::thread::sleep(REMOVAL_PAUSE);
    }
}

/// Removes a group if it has no processes. Returns whether it is gone.
pub fn try_remove(folder: &Path) -> bool {
    fs::remove_dir(folder).is_ok() || !folder.exists()
}

/// Moves this process to the parent group and removes the group, unless it has other processes.
pub fn leave(folder: &Path) {
    if let Some(above) = folder.parent() {
        // If the move is not permitted, the group stays until a later process takes it by its name.
        let _ = add(above, std::process::id());
        let _ = fs::remove_dir(folder);
    }
}

/// Writes to an existing file: a missing file means a missing controller.
pub fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    let mut file = file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    io::Write::write_all(&mut file, text.as_bytes())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The files of a hierarchy, as the kernel lays them out.
    pub struct Hierarchy(pub tempfile::TempDir);

    impl Hierarchy {
        pub fn new() -> Hierarchy {
            Hierarchy(tempfile::tempdir().expect("a temporary folder"))
        }

        pub fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        pub fn read(&self, path: &str) -> String {
            fs::read_to_string(self.0.path().join(path)).expect("it is there")
        }

        pub fn mount(&self, version: CgroupVersion, root: &str, own: &str) -> CgroupMount {
            CgroupMount { version, root: self.0.path().join(root), own: own.into() }
        }
    }

    #[test]
    fn a_group_with_processes_is_not_taken() {
        let files = Hierarchy::new();
        files.write("free/cgroup.procs", "\n");
        files.write("taken/cgroup.procs", "17\n");
        make_empty(&files.0.path().join("free")).expect("nobody is in it");
        let error = make_empty(&files.0.path().join("taken")).expect_err("somebody is in it");
        assert!(error.to_string().contains("processes"), "{error}");
    }

    #[test]
    fn groups_left_within_a_group_are_removed_if_they_are_empty() {
        let files = Hierarchy::new();
        files.write("owner/cgroup.procs", "\n");
        files.write("owner/used/cgroup.procs", "17\n");
        fs::create_dir(files.0.path().join("owner/left")).expect("a folder");
        remove_within(&files.0.path().join("owner"));
        let is_there = |name: &str| files.0.path().join("owner").join(name).exists();
        assert!(!is_there("left") && is_there("used") && is_there("cgroup.procs"));
    }

    #[test]
    fn a_missing_controller_is_named() {
        let error = CgroupError { controller: "memory", tried: Vec::new() };
        assert!(error.to_string().contains("memory controller"), "{error}");
    }
}
