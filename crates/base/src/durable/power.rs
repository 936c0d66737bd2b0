//! What a loss of power leaves of recorded [`Step`]s, for tests.
//!
//! A file system may write names back earlier than it was asked to, and a file's bytes later than its name: a file whose
//! name survives and whose bytes were never synced is empty. So there are two extremes, [`Names`], and whatever holds
//! in both is what a program may rely on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Step, parent};

/// What became of names that no sync of their folder covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// All of them are gone.
    Lost,
    /// All of them are there.
    Kept,
}

/// Something that has a name.
#[derive(Clone)]
enum Node {
    Folder,
    /// The place of its bytes, so that a rename keeps them.
    File(usize),
}

/// The files that there are after the power was lost, with their bytes. Folders that the steps do not create are there.
///
/// # Panics
/// Steps of files that none of them has written.
pub fn survivors(steps: &[Step], names: Names) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files: Vec<(&[u8], bool)> = Vec::new();
    let mut live: BTreeMap<PathBuf, Node> = BTreeMap::new();
    let mut durable: BTreeMap<PathBuf, Node> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Folder(path) => drop(live.insert(path.clone(), Node::Folder)),
            Step::Written { path, bytes } => {
                live.insert(path.clone(), Node::File(files.len()));
                files.push((bytes, false));
            }
            Step::Synced(path) => match live.get(path) {
                Some(Node::File(file)) => files[*file].1 = true,
                _ => panic!("{} is synced and was not written", path.display()),
            },
            Step::Renamed { from, to } => {
                let node = live.remove(from).expect("the steps have made what they rename");
                live.insert(to.clone(), node);
            }
            Step::FolderSynced(folder) => {
                durable.retain(|path, _| parent(path) != folder);
                let within = live.iter().filter(|(path, _)| parent(path) == folder);
                durable.extend(within.map(|(path, node)| (path.clone(), node.clone())));
            }
        }
    }
    let made = |path: &Path| steps.iter().any(|step| matches!(step, Step::Folder(folder) if folder == path));
    let kept = if names == Names::Kept { &live } else { &durable };
    let is_reachable = |path: &Path| path.ancestors().skip(1).all(|above| !made(above) || kept.contains_key(above));
    let left = kept.iter().filter(|(path, _)| is_reachable(path)).filter_map(|(path, node)| match node {
        Node::File(file) => Some((path.clone(), if files[*file].1 { files[*file].0.to_vec() } else { Vec::new() })),
        Node::Folder => None,
    });
    left.collect()
}
