//! The effect of a crash on a disk.

use super::super::ids::NodeId;
use super::super::trace::{TraceEvent, content_of};
use super::super::world::WorldCore;
use super::file::CrashSurvival;

impl WorldCore {
    /// Reduces a node's disk to what a crash leaves.
    pub(in super::super) fn crash_disk(&mut self, node: NodeId) {
        let WorldCore { nodes, rng, .. } = self;
        let disk = &mut nodes[node.index()].disk;
        // Crashes that keep or lose everything are the common ones, so they are drawn more often than independent choices would
        // give.
        let survival = match rng.below(10) {
            0 => CrashSurvival::All,
            1..=3 => CrashSurvival::None,
            _ => CrashSurvival::Mixed,
        };
        // A journal keeps changes of names in order; a file system without one keeps any of them.
        let in_order = rng.one_in(2);
        for directory in disk.directories.values_mut() {
            let changes = std::mem::take(&mut directory.changes);
            let kept_first = rng.index(changes.len() + 1);
            for (place, (_, change)) in changes.iter().enumerate() {
                let kept = match survival {
                    CrashSurvival::All => true,
                    CrashSurvival::None => false,
                    CrashSurvival::Mixed if in_order => place < kept_first,
                    CrashSurvival::Mixed => rng.one_in(2),
                };
                if kept {
                    change.apply(&mut directory.durable);
                }
            }
            directory.names = directory.durable.clone();
        }
        let mut survived = Vec::new();
        for (id, inode) in &mut disk.inodes {
            inode.crash(survival, rng);
            let (length, content) = (inode.current.len() as u64, content_of(&inode.current));
            survived.push(TraceEvent::Survived { node, inode: *id, length, content });
        }
        disk.forget_unused();
        disk.faults = super::fault::DiskFaults::default();
        survived.into_iter().for_each(|event| self.record(event));
    }
}
