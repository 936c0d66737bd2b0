//! What a crash leaves of a disk.

use super::super::ids::NodeId;
use super::super::trace::{Event, content_of};
use super::super::world::Core;
use super::file::Survival;

impl Core {
    /// Leaves on a node's disk what a crash leaves.
    pub(in super::super) fn crash_disk(&mut self, node: NodeId) {
        let Core { nodes, chance, .. } = self;
        let disk = &mut nodes[node.index()].disk;
        // Crashes that keep or lose everything are the common ones, so they are drawn more often than chance would.
        let survival = match chance.below(10) {
            0 => Survival::All,
            1..=3 => Survival::None,
            _ => Survival::Mixed,
        };
        // A journal keeps changes of names in order; a file system without one keeps any of them.
        let in_order = chance.one_in(2);
        for directory in disk.directories.values_mut() {
            let changes = std::mem::take(&mut directory.changes);
            let kept_first = chance.index(changes.len() + 1);
            for (place, (_, change)) in changes.iter().enumerate() {
                let kept = match survival {
                    Survival::All => true,
                    Survival::None => false,
                    Survival::Mixed if in_order => place < kept_first,
                    Survival::Mixed => chance.one_in(2),
                };
                if kept {
                    change.apply(&mut directory.durable);
                }
            }
            directory.names = directory.durable.clone();
        }
        let mut survived = Vec::new();
        for (id, inode) in &mut disk.inodes {
            inode.crash(survival, chance);
            let (length, content) = (inode.current.len() as u64, content_of(&inode.current));
            survived.push(Event::Survived { node, inode: *id, length, content });
        }
        disk.forget_unused();
        disk.faults = super::fault::Faults::default();
        survived.into_iter().for_each(|event| self.record(event));
    }
}
