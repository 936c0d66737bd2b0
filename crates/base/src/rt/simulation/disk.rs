//! The simulated disk of a node, and the effect of a crash on it.
//!
//! 1. Every file has its current bytes, its durable bytes, and the list of changes between the two, in order.
//! 2. When a sync completes, the changes that existed when it was called are durable. When a sync fails, each of these
//!    changes becomes durable or is lost for good. As in operating systems, only this one sync reports the failure.
//! 3. At a crash, each unsynced change is kept, lost, or torn at the boundaries of 512-byte sectors. A file's new
//!    length may survive without its new bytes, which then read as zeros.
//! 4. The same holds for the names in directories, but a change of a name is kept or lost as a whole.
//!
//! Handles belong to one incarnation of their node and fail after its crash. A run can make the disk full, make it fail, flip
//! bits on it, and make it lie about syncs.

mod crash;
mod fault;
mod file;
mod handle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use super::ids::InodeId;
pub use fault::{DiskCopy, DiskOperation, SimDisk};
pub(in crate::rt) use handle::{Directory, File};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The contents and faults of the disk of one node.
#[derive(Default)]
pub(super) struct DiskState {
    directories: BTreeMap<PathBuf, DirectoryState>,
    inodes: BTreeMap<InodeId, file::Inode>,
    inodes_made: u64,
    handles_made: u64,
    /// Bytes that files may hold; `None` for no limit.
    capacity: Option<u64>,
    /// Syncs of files report success and do nothing.
    lying: bool,
    faults: fault::DiskFaults,
}

/// A directory: its names, those that are durable, and the changes between the two.
#[derive(Default)]
struct DirectoryState {
    names: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
    changes: VecDeque<(u64, NameChange)>,
    changes_made: u64,
}

/// A change of names, kept or lost as a whole.
#[derive(Clone)]
enum NameChange {
    Link { name: String, inode: InodeId },
    Unlink { name: String },
    Rename { from: String, to: String, inode: InodeId },
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, InodeId>) {
        match self {
            NameChange::Link { name, inode } => drop(names.insert(name.clone(), *inode)),
            NameChange::Unlink { name } => drop(names.remove(name)),
            NameChange::Rename { from, to, inode } => {
                // The old name may stand for another file by now.
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl DirectoryState {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.changes_made += 1;
        self.changes.push_back((self.changes_made, change));
    }

    /// The files that have a name here, or may have one after a crash; some several times.
    fn mentioned(&self) -> impl Iterator<Item = InodeId> + '_ {
        let in_changes = self.changes.iter().filter_map(|(_, change)| match change {
            NameChange::Link { inode, .. } | NameChange::Rename { inode, .. } => Some(*inode),
            NameChange::Unlink { .. } => None,
        });
        self.names.values().chain(self.durable.values()).copied().chain(in_changes)
    }
}

fn missing(path: &Path, name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} has no file {name}", path.display()))
}

impl DiskState {
    fn directory(&mut self, path: &Path) -> &mut DirectoryState {
        self.directories.get_mut(path).expect("directories are never removed")
    }

    fn inode(&mut self, inode: InodeId) -> &mut file::Inode {
        self.inodes.get_mut(&inode).expect("a file with an open handle is kept")
    }

    fn create_directory(&mut self, path: &Path) {
        for ancestor in path.ancestors() {
            self.directories.entry(ancestor.to_path_buf()).or_default();
        }
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let files = self.directories.get(path).into_iter().flat_map(|directory| directory.names.keys().cloned());
        let below = self.directories.keys().filter(|other| other.parent() == Some(path));
        let directories = below.filter_map(|other| Some(other.file_name()?.to_str()?.to_owned()));
        let mut names: Vec<String> = files.chain(directories).collect();
        names.sort_unstable();
        names
    }

    fn open_file(&mut self, path: &Path, name: &str, create: bool) -> io::Result<InodeId> {
        if self.directories.contains_key(&path.join(name)) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, format!("{name} is a directory")));
        }
        if let Some(inode) = self.directory(path).names.get(name) {
            return Ok(*inode);
        }
        if !create {
            return Err(missing(path, name));
        }
        let inode = InodeId(self.inodes_made);
        self.inodes_made += 1;
        self.inodes.insert(inode, file::Inode::default());
        self.directory(path).change(NameChange::Link { name: name.to_owned(), inode });
        Ok(inode)
    }

    fn remove(&mut self, path: &Path, name: &str) -> io::Result<()> {
        if !self.directory(path).names.contains_key(name) {
            return Err(missing(path, name));
        }
        self.directory(path).change(NameChange::Unlink { name: name.to_owned() });
        Ok(())
    }

    fn rename(&mut self, path: &Path, from: &str, to: &str) -> io::Result<()> {
        let Some(inode) = self.directory(path).names.get(from).copied() else { return Err(missing(path, from)) };
        if self.directories.contains_key(&path.join(to)) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, format!("{to} is a directory")));
        }
        if from != to {
            self.directory(path).change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        }
        Ok(())
    }

    /// Makes changes of names up to a number durable.
    fn names_synced(&mut self, path: &Path, last_change: u64) {
        let directory = self.directory(path);
        let mut names_ended = false;
        while directory.changes.front().is_some_and(|(number, _)| *number <= last_change) {
            let (_, change) = directory.changes.pop_front().expect("the front was just seen");
            change.apply(&mut directory.durable);
            names_ended |= !matches!(change, NameChange::Link { .. });
        }
        if names_ended {
            self.forget_unused();
        }
    }

    /// Removes files that have neither a name nor an open handle.
    fn forget_unused(&mut self) {
        let named: BTreeSet<InodeId> = self.directories.values().flat_map(DirectoryState::mentioned).collect();
        self.inodes.retain(|inode, state| state.handles > 0 || named.contains(inode));
    }

    fn handle_closed(&mut self, inode: InodeId, handle: u64) {
        let state = self.inode(inode);
        state.handles -= 1;
        state.locked_by.take_if(|holder| *holder == handle);
        let unused = state.handles == 0
            && !self.directories.values().any(|directory| directory.mentioned().any(|of| of == inode));
        if unused {
            self.inodes.remove(&inode);
        }
    }

    /// Bytes that files hold.
    fn used(&self) -> u64 {
        self.inodes.values().map(|inode| inode.current.len() as u64).sum()
    }
}
