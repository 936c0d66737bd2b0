//! The handles through which a node's tasks use the directories and files of its simulated disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::super::ids::{Incarnation, InodeId};
use super::super::timer::Sleep;
use super::super::trace::{TraceEvent, content_of};
use super::super::world::{World, WorldCore};
use super::{DiskOperation, DiskState};
use crate::rt::context::AmbientContext;

#[derive(Clone)]
pub(in crate::rt) struct Directory {
    ambient: AmbientContext,
    path: Arc<PathBuf>,
}

#[derive(Clone)]
pub(in crate::rt) struct File {
    shared: Arc<OpenFile>,
}

struct OpenFile {
    ambient: AmbientContext,
    inode: InodeId,
    handle: u64,
}

/// Runs `operate` on the disk of a node, unless that incarnation is over or a fault is pending.
fn operate<T>(
    AmbientContext { world, incarnation: life }: &AmbientContext,
    operation: DiskOperation,
    operate: impl FnOnce(&mut WorldCore) -> io::Result<T>,
) -> io::Result<T> {
    world.with(|core| {
        check_incarnation(core, *life)?;
        core.check_disk(life.node, operation)?;
        operate(core)
    })
}

fn check_incarnation(core: &WorldCore, life: Incarnation) -> io::Result<()> {
    if core.is_alive(life) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotConnected, "the handle is from before a crash of its node"))
}

/// Fails when a file is to grow on a full disk.
fn check_free_space(core: &mut WorldCore, file: &OpenFile, offset: u64, length: usize) -> io::Result<()> {
    let node = file.ambient.incarnation.node;
    let disk = &mut core.node(node).disk;
    let growth = disk.inode(file.inode).growth(offset, length)?;
    // The files are counted only when the limit matters.
    if growth > 0 && disk.capacity.is_some_and(|capacity| disk.used().saturating_add(growth) > capacity) {
        core.record(TraceEvent::DiskFailed { node, operation: "growth" });
        return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
    }
    Ok(())
}

/// The time that the device takes.
async fn sync_delay(world: &Arc<World>) {
    let delay = world.with(|core| {
        let range = core.settings.sync_delay.clone();
        core.rng.duration(&range)
    });
    Sleep::for_duration(world, delay).await;
}

impl Directory {
    pub(in crate::rt) async fn open(ambient: AmbientContext, path: PathBuf) -> io::Result<Directory> {
        sync_delay(&ambient.world).await;
        operate(&ambient, DiskOperation::Write, |core| {
            core.node(ambient.incarnation.node).disk.create_directory(&path);
            Ok(())
        })?;
        Ok(Directory { ambient, path: Arc::new(path) })
    }

    pub(in crate::rt) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::rt) fn list(&self) -> io::Result<Vec<String>> {
        let node = self.ambient.incarnation.node;
        operate(&self.ambient, DiskOperation::Read, |core| Ok(core.node(node).disk.list(&self.path)))
    }

    pub(in crate::rt) fn open_file(&self, name: &str, create: bool) -> io::Result<File> {
        let (inode, handle) = self.change(name, DiskOperation::Read, |disk, path| {
            let inode = disk.open_file(path, name, create)?;
            disk.inode(inode).handles += 1;
            disk.handles_made += 1;
            Ok((inode, disk.handles_made))
        })?;
        Ok(File { shared: Arc::new(OpenFile { ambient: self.ambient.clone(), inode, handle }) })
    }

    pub(in crate::rt) fn remove(&self, name: &str) -> io::Result<()> {
        self.change(name, DiskOperation::Write, |disk, path| disk.remove(path, name))
    }

    pub(in crate::rt) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(to, DiskOperation::Write, |disk, path| disk.rename(path, from, to))
    }

    fn change<T>(
        &self,
        name: &str,
        operation: DiskOperation,
        change: impl FnOnce(&mut DiskState, &Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let node = self.ambient.incarnation.node;
        operate(&self.ambient, operation, |core| {
            core.record(TraceEvent::NamesChanged { node, name: name.to_owned() });
            change(&mut core.node(node).disk, &self.path)
        })
    }

    pub(in crate::rt) async fn sync(&self) -> io::Result<()> {
        let node = self.ambient.incarnation.node;
        let last_change = operate(&self.ambient, DiskOperation::Sync, |core| {
            Ok(core.node(node).disk.directory(&self.path).changes_made)
        })?;
        sync_delay(&self.ambient.world).await;
        self.ambient.world.with(|core| {
            check_incarnation(core, self.ambient.incarnation)?;
            core.node(node).disk.names_synced(&self.path, last_change);
            core.record(TraceEvent::NamesSynced { node });
            Ok(())
        })
    }
}

impl File {
    fn operate<T>(
        &self,
        operation: DiskOperation,
        access: impl FnOnce(&mut WorldCore, &OpenFile) -> io::Result<T>,
    ) -> io::Result<T> {
        operate(&self.shared.ambient, operation, |core| access(core, &self.shared))
    }

    pub(in crate::rt) fn len(&self) -> io::Result<u64> {
        self.operate(DiskOperation::Read, |core, file| {
            Ok(core.node(file.ambient.incarnation.node).disk.inode(file.inode).current.len() as u64)
        })
    }

    pub(in crate::rt) fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        self.operate(DiskOperation::Read, |core, file| {
            Ok(core.node(file.ambient.incarnation.node).disk.inode(file.inode).read(offset, length))
        })
    }

    pub(in crate::rt) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, Bytes::copy_from_slice(bytes))
    }

    pub(in crate::rt) fn write_vectored_at(&self, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        let mut bytes = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        self.write(offset, bytes.freeze())
    }

    fn write(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.operate(DiskOperation::Write, |core, file| {
            let node = file.ambient.incarnation.node;
            check_free_space(core, file, offset, bytes.len())?;
            let (length, content) = (bytes.len() as u64, content_of(&bytes));
            core.node(node).disk.inode(file.inode).write(offset, bytes);
            core.record(TraceEvent::Wrote { node, inode: file.inode, offset, length, content });
            Ok(())
        })
    }

    pub(in crate::rt) fn truncate(&self, length: u64) -> io::Result<()> {
        self.operate(DiskOperation::Write, |core, file| {
            let node = file.ambient.incarnation.node;
            check_free_space(core, file, length, 0)?;
            core.node(node).disk.inode(file.inode).set_length(length);
            core.record(TraceEvent::Truncated { node, inode: file.inode, length });
            Ok(())
        })
    }

    pub(in crate::rt) async fn sync(&self) -> io::Result<()> {
        let AmbientContext { world, incarnation: life } = &self.shared.ambient;
        let inode = self.shared.inode;
        let last_change = world.with(|core| {
            check_incarnation(core, *life)?;
            Ok::<_, io::Error>(core.node(life.node).disk.inode(inode).last_change())
        })?;
        sync_delay(world).await;
        world.with(|core| {
            check_incarnation(core, *life)?;
            let failed = core.check_disk(life.node, DiskOperation::Sync);
            let WorldCore { nodes, rng, .. } = core;
            let disk = &mut nodes[life.node.index()].disk;
            let lying = disk.lying;
            let state = disk.inode(inode);
            match failed {
                Ok(()) if lying => {}
                Ok(()) => state.synced(last_change),
                Err(_) => state.sync_failed(last_change, rng),
            }
            core.record(TraceEvent::Synced { node: life.node, inode });
            failed
        })
    }

    pub(in crate::rt) fn try_lock(&self) -> io::Result<bool> {
        self.operate(DiskOperation::Read, |core, file| {
            let inode = core.node(file.ambient.incarnation.node).disk.inode(file.inode);
            let holder = *inode.locked_by.get_or_insert(file.handle);
            Ok(holder == file.handle)
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let AmbientContext { world, incarnation: life } = &self.ambient;
        world.with(|core| {
            if core.is_alive(*life) {
                core.node(life.node).disk.handle_closed(self.inode, self.handle);
            }
        });
    }
}
