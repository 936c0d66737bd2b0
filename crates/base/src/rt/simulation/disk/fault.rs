//! The handle with which a test injects faults on a node's disk (full, failing, decaying) and inspects the disk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::ids::{InodeId, NodeId};
use super::super::trace::TraceEvent;
use super::super::world::{World, WorldCore};
use super::DirectoryState;
use super::file::Inode;

/// Operations of a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DiskOperation {
    /// Reading bytes.
    Read,
    /// Writing bytes, truncating, changing names.
    Write,
    /// Making bytes or names durable.
    Sync,
}

impl DiskOperation {
    const fn name(self) -> &'static str {
        match self {
            DiskOperation::Read => "a read",
            DiskOperation::Write => "a write",
            DiskOperation::Sync => "a sync",
        }
    }
}

/// Pending failures; a crash ends them.
#[derive(Default)]
pub(super) struct DiskFaults {
    /// How many of the next operations fail: reads, writes, syncs.
    next: [u64; 3],
    /// Every operation fails.
    failing: bool,
}

/// The contents of a directory when [`SimDisk::copy`] was called.
#[derive(Clone)]
pub struct DiskCopy {
    directory: PathBuf,
    files: BTreeMap<PathBuf, BTreeMap<String, Vec<u8>>>,
}

/// The disk of a node, from outside: to inject faults and to inspect it.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<World>,
    node: NodeId,
}

impl WorldCore {
    /// Fails an operation if a fault is pending.
    pub(super) fn check_disk(&mut self, node: NodeId, operation: DiskOperation) -> io::Result<()> {
        let faults = &mut self.node(node).disk.faults;
        let next = &mut faults.next[operation as usize];
        if !faults.failing && *next == 0 {
            return Ok(());
        }
        *next = next.saturating_sub(1);
        self.record(TraceEvent::DiskFailed { node, operation: operation.name() });
        Err(io::Error::other("simulated failure of the disk"))
    }
}

impl SimDisk {
    pub(in super::super) fn new(world: Arc<World>, node: NodeId) -> SimDisk {
        SimDisk { world, node }
    }

    fn fault<T>(&self, what: &str, change: impl FnOnce(&mut WorldCore) -> T) -> T {
        self.world.with(|core| {
            let text = format!("{what} the disk of {}", core.node_name(self.node));
            core.record(TraceEvent::Fault(text));
            change(core)
        })
    }

    /// Prevents all files from growing, until [`SimDisk::set_capacity`].
    pub fn fill(&self) {
        self.fault("fill", |core| {
            let disk = &mut core.node(self.node).disk;
            disk.capacity = Some(disk.used());
        });
    }

    /// Sets how many bytes all files together may hold; `None` for no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.fault("size", |core| core.node(self.node).disk.capacity = bytes);
    }

    /// Fails the next `times` operations of a kind, or until the next crash.
    pub fn fail_next(&self, operation: DiskOperation, times: u64) {
        self.fault("fail", |core| core.node(self.node).disk.faults.next[operation as usize] = times);
    }

    /// Fails every operation while set, or until the next crash.
    pub fn set_failing(&self, failing: bool) {
        self.fault(if failing { "fail" } else { "mend" }, |core| core.node(self.node).disk.faults.failing = failing);
    }

    /// Makes syncs of files report success and do nothing: a planted mistake for tests that must find it.
    pub fn set_lying(&self, lying: bool) {
        self.fault("let syncs lie on", |core| core.node(self.node).disk.lying = lying);
    }

    /// Flips bits of one byte on the medium. Returns false when there is no such byte.
    pub fn flip(&self, file: impl AsRef<Path>, offset: u64, mask: u8) -> bool {
        let file = file.as_ref();
        self.fault("flip bits on", |core| {
            let disk = &mut core.node(self.node).disk;
            let name = file.file_name().and_then(|name| name.to_str());
            let directory = file.parent().and_then(|parent| disk.directories.get(parent));
            let inode = directory.zip(name).and_then(|(directory, name)| directory.names.get(name).copied());
            inode.is_some_and(|inode| {
                let inode = disk.inode(inode);
                let offset = offset as usize;
                let mut flipped = false;
                for bytes in [&mut inode.current, &mut inode.durable] {
                    if let Some(byte) = bytes.get_mut(offset) {
                        *byte ^= mask;
                        flipped = true;
                    }
                }
                flipped
            })
        })
    }

    /// Flips one bit, chosen at random among all files. Returns the file and the offset; `None` when the disk is empty.
    pub fn rot(&self) -> Option<(PathBuf, u64)> {
        let target = self.world.with(|core| {
            let WorldCore { nodes, rng, .. } = core;
            let disk = &nodes[self.node.index()].disk;
            let mut files = Vec::new();
            for (path, directory) in &disk.directories {
                for (name, inode) in &directory.names {
                    let length = disk.inodes.get(inode).map_or(0, |inode| inode.current.len() as u64);
                    if length > 0 {
                        files.push((path.join(name), length));
                    }
                }
            }
            if files.is_empty() {
                return None;
            }
            let (file, length) = rng.pick(&files).clone();
            Some((file, rng.below(length), 1u8 << rng.below(8)))
        });
        let (file, offset, mask) = target?;
        self.flip(&file, offset, mask);
        Some((file, offset))
    }

    /// Erases the disk, as when it is replaced. Panics when the node is up.
    pub fn wipe(&self) {
        self.fault("wipe", |core| {
            let node = core.node(self.node);
            assert!(!node.up, "a disk is replaced while its node is down");
            node.disk.directories.clear();
            node.disk.inodes.clear();
        });
    }

    /// Copies what would survive a crash in a directory and those below it, for [`SimDisk::restore`].
    pub fn copy(&self, directory: impl AsRef<Path>) -> DiskCopy {
        self.world.with(|core| {
            let disk = &core.node(self.node).disk;
            let within = disk.directories.iter().filter(|(path, _)| path.starts_with(&directory));
            let copied = within.map(|(path, state)| {
                let durable = state.durable.iter();
                let files = durable.map(|(name, inode)| (name.clone(), disk.inodes[inode].durable.clone()));
                (path.clone(), files.collect())
            });
            DiskCopy { directory: directory.as_ref().to_path_buf(), files: copied.collect() }
        })
    }

    /// Replaces a directory by an earlier copy, like an operator who restores a backup. Panics when the node is up.
    pub fn restore(&self, copy: &DiskCopy) {
        self.fault("put an earlier copy back on", |core| {
            let node = core.node(self.node);
            assert!(!node.up, "a backup is restored while the node is down");
            let disk = &mut node.disk;
            disk.directories.retain(|path, _| !path.starts_with(&copy.directory));
            for (path, files) in &copy.files {
                let mut state = DirectoryState::default();
                for (name, bytes) in files {
                    let inode = InodeId(disk.inodes_made);
                    disk.inodes_made += 1;
                    disk.inodes.insert(inode, Inode::holding(bytes));
                    state.names.insert(name.clone(), inode);
                    state.durable.insert(name.clone(), inode);
                }
                disk.directories.insert(path.clone(), state);
            }
        });
    }

    /// Bytes that the files hold.
    pub fn used(&self) -> u64 {
        self.world.with(|core| core.node(self.node).disk.used())
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk of {}", self.node)
    }
}
