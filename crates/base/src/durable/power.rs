//! Computes, for tests, which files a loss of power leaves after some recorded [`DurabilityStep`]s.
//!
//! A file system may write a name to the disk before the directory is synced, or not until then. It may also write a
//! file's bytes later than its name; so a file whose name survives, but whose bytes were never synced, is empty.
//! [`UnsyncedNames`] chooses whether unsynced names survive. A program may rely only on statements that hold in both
//! cases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{DurabilityStep, parent};

/// The fate of names that no sync of their folder covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnsyncedNames {
    /// All of them are lost.
    Lost,
    /// All of them are present.
    Kept,
}

/// A named entry of the file system.
#[derive(Clone)]
enum DirectoryEntry {
    Folder,
    /// Identifies the bytes, so that a rename keeps them.
    File(usize),
}

/// The files that exist after the loss of power, with their bytes. Folders that the steps do not create exist.
///
/// # Panics
/// If a step names a file that no earlier step has written.
pub fn survivors(steps: &[DurabilityStep], names: UnsyncedNames) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files: Vec<(&[u8], bool)> = Vec::new();
    let mut live: BTreeMap<PathBuf, DirectoryEntry> = BTreeMap::new();
    let mut durable: BTreeMap<PathBuf, DirectoryEntry> = BTreeMap::new();
    for step in steps {
        match step {
            DurabilityStep::Folder(path) => drop(live.insert(path.clone(), DirectoryEntry::Folder)),
            DurabilityStep::Written { path, bytes } => {
                live.insert(path.clone(), DirectoryEntry::File(files.len()));
                files.push((bytes, false));
            }
            DurabilityStep::Synced(path) => match live.get(path) {
                Some(DirectoryEntry::File(file)) => files[*file].1 = true,
                _ => panic!("{} is synced and was not written", path.display()),
            },
            DurabilityStep::Renamed { from, to } => {
                let node = live.remove(from).expect("the steps have made what they rename");
                live.insert(to.clone(), node);
            }
            DurabilityStep::FolderSynced(folder) => {
                durable.retain(|path, _| parent(path) != folder);
                let within = live.iter().filter(|(path, _)| parent(path) == folder);
                durable.extend(within.map(|(path, node)| (path.clone(), node.clone())));
            }
        }
    }
    let made = |path: &Path| steps.iter().any(|step| matches!(step, DurabilityStep::Folder(folder) if folder == path));
    let kept = if names == UnsyncedNames::Kept { &live } else { &durable };
    let is_reachable = |path: &Path| path.ancestors().skip(1).all(|above| !made(above) || kept.contains_key(above));
    let left = kept.iter().filter(|(path, _)| is_reachable(path)).filter_map(|(path, node)| match node {
        DirectoryEntry::File(file) => {
            Some((path.clone(), if files[*file].1 { files[*file].0.to_vec() } else { Vec::new() }))
        }
        DirectoryEntry::Folder => None,
    });
    left.collect()
}
