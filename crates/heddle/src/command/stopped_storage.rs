//! The storage nodes of a network whose processes do not run, because no peer has a copy there. The file
//! `storage-stopped.json` in the network's directory names them. The supervisor of the network's processes follows it, and empties
//! it when it starts: a peer that is new, or that has lost all of its copies, needs every node of its plan. Nodes that an operator
//! has started for a copy are *kept*: until the copy is there, no report says that it is wanted.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use base::durable::{self, FileAccess};
use serde::{Deserialize, Serialize};

use crate::failure::CommandError;

const FILE: &str = "storage-stopped.json";
/// Held by the process that changes the file.
const LOCK: &str = "storage-stopped.lock";

/// The stopped storage nodes of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoppedStorage {
    /// Their names, such as `storage-3`.
    pub nodes: BTreeSet<String>,
    /// Nodes that are not to be stopped.
    #[serde(default)]
    pub kept: BTreeSet<String>,
}

impl StoppedStorage {
    /// The stopped storage nodes of the network in a directory.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn load(network: &Path) -> Result<StoppedStorage, CommandError> {
        let path = network.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(StoppedStorage::default()),
            Err(error) => return Err(failed(&path)(error)),
        };
        serde_json::from_slice(&bytes).map_err(|error| failed(&path)(error.into()))
    }

    /// When the network's file was written, if there is one.
    pub fn modified_at(network: &Path) -> Option<SystemTime> {
        std::fs::metadata(network.join(FILE)).and_then(|file| file.modified()).ok()
    }

    /// Has the process of a storage node end, unless the node is kept. Its supervisor ends it soon afterwards; its files stay.
    /// Returns whether it is to end.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn stop(network: &Path, node: &str) -> Result<bool, CommandError> {
        StoppedStorage::change(network, |all| !all.kept.contains(node) && (all.nodes.insert(node.to_owned()), true).1)
    }

    /// Has the process of a storage node run; with `keep` until [`StoppedStorage::release`]. Returns whether it was stopped.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn start(network: &Path, node: &str, keep: bool) -> Result<bool, CommandError> {
        StoppedStorage::change(network, |all| {
            if keep {
                all.kept.insert(node.to_owned());
            }
            all.nodes.remove(node)
        })
    }

    /// A storage node is kept no longer.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn release(network: &Path, node: &str) -> Result<(), CommandError> {
        StoppedStorage::change(network, |all| all.kept.remove(node)).map(|_| ())
    }

    fn change(network: &Path, change: impl FnOnce(&mut StoppedStorage) -> bool) -> Result<bool, CommandError> {
        let path = network.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path).and_then(|file| file.lock().map(|()| file));
        let _lock = lock.map_err(failed(&path))?;
        let before = StoppedStorage::load(network)?;
        let mut all = before.clone();
        let outcome = change(&mut all);
        if all != before {
            all.store(network)?;
        }
        Ok(outcome)
    }

    /// Has all of them run.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn clear(network: &Path) -> Result<(), CommandError> {
        match StoppedStorage::modified_at(network) {
            None => Ok(()),
            Some(_) => StoppedStorage::default().store(network),
        }
    }

    fn store(&self, network: &Path) -> Result<(), CommandError> {
        let text = serde_json::to_string(self).expect("it has a JSON form");
        let path = network.join(FILE);
        durable::write(&path, (text + "\n").as_bytes(), FileAccess::Everybody).map_err(failed(&path))
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CommandError {
    move |error| CommandError::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_is_kept_until_it_is_to_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        let load = || StoppedStorage::load(path).map(|all| all.nodes.into_iter().collect::<Vec<_>>());
        assert_eq!((load().expect("there is none"), StoppedStorage::modified_at(path)), (Vec::new(), None));
        StoppedStorage::clear(path).expect("there is nothing to do");
        let stop = |node| StoppedStorage::stop(path, node).expect("it can be written");
        let start = |node, keep| StoppedStorage::start(path, node, keep).expect("it can be written");
        assert_eq!([stop("storage-3"), stop("storage-3"), stop("storage-1")], [true; 3]);
        assert_eq!(load().expect("it is there"), ["storage-1", "storage-3"]);
        assert_eq!([start("storage-2", true), start("storage-1", false)], [false, true]);
        assert_eq!(load().expect("it is there"), ["storage-3"]);
        assert!(!stop("storage-2"), "it is kept");
        StoppedStorage::release(path, "storage-2").expect("it can be written");
        assert!(stop("storage-2"));
        assert_eq!(load().expect("it is there"), ["storage-2", "storage-3"]);
        StoppedStorage::clear(path).expect("it can be written");
        assert_eq!(load().expect("it is there"), [""; 0]);
        std::fs::write(path.join(FILE), "[]").expect("it can be written");
        load().expect_err("that is another file");
    }
}
