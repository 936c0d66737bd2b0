//! Handles of directories and files, as tasks hold them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::super::ids::{InodeId, Life};
use super::super::timer::Sleep;
use super::super::trace::{Event, content_of};
use super::super::world::{Core, World};
use super::{DiskOperation, DiskState};
use crate::rt::context::Ambient;

#[derive(Clone)]
pub(in crate::rt) struct Directory {
    ambient: Ambient,
    path: Arc<PathBuf>,
}

#[derive(Clone)]
pub(in crate::rt) struct File {
    shared: Arc<OpenFile>,
}

struct OpenFile {
    ambient: Ambient,
    inode: InodeId,
    handle: u64,
}

/// Runs `operate` on the disk of a life's node, unless that life is over or the operation is to fail.
fn operate<T>(
    Ambient { world, life }: &Ambient,
    operation: DiskOperation,
    operate: impl FnOnce(&mut Core) -> io::Result<T>,
) -> io::Result<T> {
    world.with(|core| {
        check_life(core, *life)?;
        core.check_disk(life.node, operation)?;
        operate(core)
    })
}

fn check_life(core: &Core, life: Life) -> io::Result<()> {
    if core.is_alive(life) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotConnected, "the handle is from before a crash of its node"))
}

/// Fails when a file is to grow on a disk that is full.
fn check_room(core: &mut Core, file: &OpenFile, offset: u64, length: usize) -> io::Result<()> {
    let node = file.ambient.life.node;
    let disk = &mut core.node(node).disk;
    let growth = disk.inode(file.inode).growth(offset, length)?;
    // Every file is counted only when it matters.
    if growth > 0 && disk.capacity.is_some_and(|capacity| disk.used().saturating_add(growth) > capacity) {
        core.record(Event::DiskFailed { node, operation: "growth" });
        return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
    }
    Ok(())
}

/// The time that the device takes.
async fn sync_delay(world: &Arc<World>) {
    let delay = world.with(|core| {
        let range = core.settings.sync_delay.clone();
        core.chance.duration(&range)
    });
    Sleep::for_duration(world, delay).await;
}

impl Directory {
    pub(in crate::rt) async fn open(ambient: Ambient, path: PathBuf) -> io::Result<Directory> {
        sync_delay(&ambient.world).await;
        operate(&ambient, DiskOperation::Write, |core| {
            core.node(ambient.life.node).disk.create_directory(&path);
            Ok(())
        })?;
        Ok(Directory { ambient, path: Arc::new(path) })
    }

    pub(in crate::rt) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::rt) fn list(&self) -> io::Result<Vec<String>> {
        let node = self.ambient.life.node;
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
        let node = self.ambient.life.node;
        operate(&self.ambient, operation, |core| {
            core.record(Event::NamesChanged { node, name: name.to_owned() });
            change(&mut core.node(node).disk, &self.path)
        })
    }

    pub(in crate::rt) async fn sync(&self) -> io::Result<()> {
        let node = self.ambient.life.node;
        let last_change = operate(&self.ambient, DiskOperation::Sync, |core| {
            Ok(core.node(node).disk.directory(&self.path).changes_made)
        })?;
        sync_delay(&self.ambient.world).await;
        self.ambient.world.with(|core| {
            check_life(core, self.ambient.life)?;
            core.node(node).disk.names_synced(&self.path, last_change);
            core.record(Event::NamesSynced { node });
            Ok(())
        })
    }
}

impl File {
    fn operate<T>(
        &self,
        operation: DiskOperation,
        access: impl FnOnce(&mut Core, &OpenFile) -> io::Result<T>,
    ) -> io::Result<T> {
        operate(&self.shared.ambient, operation, |core| access(core, &self.shared))
    }

    pub(in crate::rt) fn len(&self) -> io::Result<u64> {
        self.operate(DiskOperation::Read, |core, file| {
            Ok(core.node(file.ambient.life.node).disk.inode(file.inode).current.len() as u64)
        })
    }

    pub(in crate::rt) fn read_at(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        self.operate(DiskOperation::Read, |core, file| {
            Ok(core.node(file.ambient.life.node).disk.inode(file.inode).read(offset, length))
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
            let node = file.ambient.life.node;
            check_room(core, file, offset, bytes.len())?;
            let (length, content) = (bytes.len() as u64, content_of(&bytes));
            core.node(node).disk.inode(file.inode).write(offset, bytes);
            core.record(Event::Wrote { node, inode: file.inode, offset, length, content });
            Ok(())
        })
    }

    pub(in crate::rt) fn truncate(&self, length: u64) -> io::Result<()> {
        self.operate(DiskOperation::Write, |core, file| {
            let node = file.ambient.life.node;
            check_room(core, file, length, 0)?;
            core.node(node).disk.inode(file.inode).set_length(length);
            core.record(Event::Truncated { node, inode: file.inode, length });
            Ok(())
        })
    }

    pub(in crate::rt) async fn sync(&self) -> io::Result<()> {
        let Ambient { world, life } = &self.shared.ambient;
        let inode = self.shared.inode;
        let last_change = world.with(|core| {
            check_life(core, *life)?;
            Ok::<_, io::Error>(core.node(life.node).disk.inode(inode).last_change())
        })?;
        sync_delay(world).await;
        world.with(|core| {
            check_life(core, *life)?;
            let failed = core.check_disk(life.node, DiskOperation::Sync);
            let Core { nodes, chance, .. } = core;
            let disk = &mut nodes[life.node.index()].disk;
            let lying = disk.lying;
            let state = disk.inode(inode);
            match failed {
                Ok(()) if lying => {}
                Ok(()) => state.synced(last_change),
                Err(_) => state.sync_failed(last_change, chance),
            }
            core.record(Event::Synced { node: life.node, inode });
            failed
        })
    }

    pub(in crate::rt) fn try_lock(&self) -> io::Result<bool> {
        self.operate(DiskOperation::Read, |core, file| {
            let inode = core.node(file.ambient.life.node).disk.inode(file.inode);
            let holder = *inode.locked_by.get_or_insert(file.handle);
            Ok(holder == file.handle)
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let Ambient { world, life } = &self.ambient;
        world.with(|core| {
            if core.is_alive(*life) {
                core.node(life.node).disk.handle_closed(self.inode, self.handle);
            }
        });
    }
}
