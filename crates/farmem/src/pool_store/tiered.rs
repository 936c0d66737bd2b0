//! The store itself: reads, writes, and what moves between memory and storage.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::{self, AbortOnDrop};
use base::{Bytes, BytesMut};
use futures_util::future::join_all;
use pool::{AddressSpace, SectionId};

use super::frames::{FRAME_BYTES, FrameNumber, Frames, donor, grow_error, is_lost};
use super::groups::{Group, GroupTable};
use crate::error::Error;
use crate::mutant::{Mutant, mutant};
use crate::page::{GROUP_PAGES, PAGE_BYTES, PageGroup, PageNumber, PageRange, REGION_PAGES_MAX, ranges_of};
use crate::storage_tier::StorageTier;
use crate::store::{PageStore, StoreError, StoreFuture};

/// Groups that are written at the same time.
const WRITE_GROUPS_MAX: usize = 8;
/// Attempts to find a frame, each of which may give one up.
const FRAME_ATTEMPTS: u32 = 8;

/// A store in the memory pool. See [the module](super).
pub struct PoolStore {
    inner: Arc<PoolStoreInner>,
    /// Notes the sections that are lost.
    _watch: AbortOnDrop<()>,
}

struct PoolStoreInner {
    space: AddressSpace,
    storage: Option<Arc<dyn StorageTier>>,
    table: Mutex<GroupTable>,
    /// Held while something changes: see the module's invariants.
    changes: rt::sync::Mutex<()>,
}

impl PoolStore {
    /// Makes a store for a region of `pages` pages. Nothing else may use the address space: the store requests its sections and
    /// waits for its losses. Without `storage`, writes fail once the pool has no room left.
    ///
    /// # Errors
    /// [`Error::Config`] when the region is too large or the space's sections are smaller than a group of pages.
    pub fn new(space: AddressSpace, pages: u32, storage: Option<Arc<dyn StorageTier>>) -> Result<PoolStore, Error> {
        if pages == 0 || pages > REGION_PAGES_MAX {
            return Err(Error::Config(format!("a region of {pages} pages: choose 1 to {REGION_PAGES_MAX}")));
        }
        if space.section_bytes() < FRAME_BYTES {
            let bytes = space.section_bytes();
            return Err(Error::Config(format!("sections of {bytes} bytes: far memory needs {FRAME_BYTES} and more")));
        }
        let table = GroupTable::new(pages.div_ceil(GROUP_PAGES), Frames::new(space.section_bytes()));
        let changes = rt::sync::Mutex::new(());
        let inner = Arc::new(PoolStoreInner { space, storage, table: Mutex::new(table), changes });
        let watched = Arc::clone(&inner);
        let watch = rt::spawn(async move {
            loop {
                let loss = watched.space.lost().await;
                loss.sections.iter().for_each(|id| watched.table().lose(*id));
            }
        });
        Ok(PoolStore { inner, _watch: watch.abort_on_drop() })
    }
}

impl PageStore for PoolStore {
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        self.inner.read(range, into)
    }

    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(self.inner.write(range, bytes))
    }

    fn holds(&self, page: PageNumber) -> bool {
        self.inner.table().holds(page)
    }

    fn discard(&self, range: PageRange) {
        self.inner.table().forget(range);
    }
}

/// A use of a group's frame, which stays meanwhile.
struct FrameUse<'a> {
    store: &'a PoolStoreInner,
    group: PageGroup,
}

impl Drop for FrameUse<'_> {
    fn drop(&mut self) {
        self.store.table().get_mut(self.group).users -= 1;
    }
}

impl PoolStoreInner {
    fn table(&self) -> MutexGuard<'_, GroupTable> {
        // Consistent between any two statements that may panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        let number = PageGroup::of(range.first);
        match self.begin_read(number, range) {
            Some(begun) => self.post_read(begun, range, into),
            None => Box::pin(self.read_slowly(number, range, into)),
        }
    }

    /// Has the frame of a group stay for a read, if it holds the pages and is not leaving.
    fn begin_read(&self, number: PageGroup, range: PageRange) -> Option<(FrameUse<'_>, FrameNumber)> {
        let bits = range.group_bits();
        let mut table = self.table();
        let group = table.get_mut(number);
        let frame = group.frame.filter(|_| group.valid & bits == bits && !group.is_leaving)?;
        group.is_used = true;
        group.users += 1;
        Some((FrameUse { store: self, group: number }, frame))
    }

    fn post_read<'a>(
        &'a self,
        (used, frame): (FrameUse<'a>, FrameNumber),
        range: PageRange,
        into: BytesMut,
    ) -> StoreFuture<'a, BytesMut> {
        let (address, section) = self.place_of(frame, range);
        let posted = self.space.read(address, range.bytes(), into);
        self.space.flush();
        Box::pin(async move {
            let outcome = posted.await;
            drop(used);
            outcome.map_err(|error| self.read_failed(section, address, range, &error))
        })
    }

    /// The address and the section of pages in a frame.
    fn place_of(&self, frame: FrameNumber, range: PageRange) -> (u64, SectionId) {
        let table = self.table();
        (table.frames.address(frame) + range.first.offset() % FRAME_BYTES, table.frames.section(frame))
    }

    fn read_failed(&self, section: SectionId, address: u64, range: PageRange, error: &rma::Error) -> StoreError {
        self.space.note_failure(address, error);
        if is_lost(error) {
            // The pages may be in storage; another attempt finds out.
            self.table().lose(section);
        }
        StoreError::Unavailable(format!("{range:?} could not be read from {}: {error}", donor(&self.space, section)))
    }

    /// Waits for the change in progress, and fetches from storage the pages that memory does not have.
    async fn read_slowly(&self, number: PageGroup, range: PageRange, into: BytesMut) -> Result<BytesMut, StoreError> {
        let changing = self.changes.lock().await;
        let bits = range.group_bits();
        self.check_lost(number, bits)?;
        let group = *self.table().get(number);
        if group.valid & bits != bits {
            self.fetch(number, group).await?;
            self.check_lost(number, bits)?;
        }
        // While nothing changes, no frame is leaving.
        let Some(begun) = self.begin_read(number, range) else {
            return Err(StoreError::Unavailable(format!("{range:?} are neither in memory nor in storage")));
        };
        let read = self.post_read(begun, range, into);
        drop(changing);
        read.await
    }

    fn check_lost(&self, number: PageGroup, bits: u16) -> Result<(), StoreError> {
        let table = self.table();
        let lost: Vec<PageNumber> = number.pages(table.get(number).lost & bits).collect();
        let Some(first) = lost.first() else { return Ok(()) };
        if let Some(node) = table.storage_that_lost(*first) {
            return Err(StoreError::Lost { range: PageRange::of(*first), node });
        }
        let section = table.lost_in(number);
        let with_donor = lost.iter().copied().filter(|page| table.storage_that_lost(*page).is_none());
        let range = ranges_of(with_donor, GROUP_PAGES).first().copied().unwrap_or(PageRange::of(*first));
        drop(table);
        let node = section.map_or_else(|| "a memory node".to_owned(), |id| donor(&self.space, id));
        Err(StoreError::Lost { range, node })
    }

    /// Reads the pages of a group that storage alone has into its frame. What storage has lost is noted, and the rest is read.
    async fn fetch(&self, number: PageGroup, group: Group) -> Result<(), StoreError> {
        let Some(storage) = &self.storage else {
            return Err(StoreError::Unavailable(format!("group {} was never written", number.0)));
        };
        let mut missing = group.stored & !group.valid & !group.lost;
        let frame = self.frame_of(number).await?;
        // Each round reads a range, or loses a page of it.
        while let Some(range) = ranges_of(number.pages(missing), GROUP_PAGES).first().copied() {
            let read = match storage.read(range, BytesMut::new()).await {
                Ok(bytes) => {
                    self.write_frame(number, frame, range, bytes.freeze(), false).await?;
                    range.group_bits()
                }
                Err(StoreError::Lost { range: lost, node }) if range.contains(lost) => {
                    self.table().lose_stored(lost, &node);
                    lost.group_bits()
                }
                Err(error) => return Err(error),
            };
            missing &= !read;
        }
        Ok(())
    }

    async fn write(&self, range: PageRange, bytes: Bytes) -> Result<(), StoreError> {
        assert_eq!(bytes.len(), range.bytes(), "the caller has as many bytes as pages");
        let _changing = self.changes.lock().await;
        let parts: Vec<(PageGroup, PageRange)> = range.by_group().collect();
        // Until a write is acknowledged there is no newest version; if one fails, there is none either.
        self.table().forget(range);
        for some in parts.chunks(WRITE_GROUPS_MAX) {
            if let Err(error) = self.write_groups(range, &bytes, some).await {
                self.table().forget(range);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes parts of a range, at the same time.
    async fn write_groups(
        &self,
        range: PageRange,
        bytes: &Bytes,
        parts: &[(PageGroup, PageRange)],
    ) -> Result<(), StoreError> {
        let mut frames = Vec::new();
        for (number, part) in parts {
            let frame = self.frame_of(*number).await?;
            // The frame must not be given up for the next part.
            self.table().get_mut(*number).users += 1;
            frames.push((FrameUse { store: self, group: *number }, *part, frame));
        }
        let writes = frames.iter().map(|(used, part, frame)| {
            let start = (part.first.0 - range.first.0) as usize * PAGE_BYTES;
            let bytes = bytes.slice(start..start + part.bytes());
            self.write_frame(used.group, *frame, *part, bytes, !mutant(Mutant::WrittenIsClean))
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Writes pages into a group's frame; they are valid then, and dirty if storage does not have them.
    async fn write_frame(
        &self,
        number: PageGroup,
        frame: FrameNumber,
        range: PageRange,
        bytes: Bytes,
        is_dirty: bool,
    ) -> Result<(), StoreError> {
        let (address, section) = self.place_of(frame, range);
        // Until the write is acknowledged, also if this future is dropped. A loss meanwhile takes the frame and the mark away.
        self.table().get_mut(number).is_tainted = true;
        let posted = self.space.write(address, &[bytes]);
        self.space.flush();
        let outcome = posted.await;
        let mut table = self.table();
        let group = table.get_mut(number);
        match outcome {
            // The section may have been lost meanwhile, and the frame with it.
            Ok(()) if group.frame == Some(frame) => {
                group.is_tainted = false;
                group.valid |= range.group_bits();
                group.dirty |= if is_dirty { range.group_bits() } else { 0 };
                group.is_used = true;
                return Ok(());
            }
            Ok(()) => {}
            Err(error) => {
                drop(table);
                self.space.note_failure(address, &error);
                if is_lost(&error) {
                    self.table().lose(section);
                }
            }
        }
        Err(StoreError::Unavailable(format!("{range:?} could not be written to {}", donor(&self.space, section))))
    }

    /// The group's frame, or a new one that holds the same pages.
    async fn frame_of(&self, number: PageGroup) -> Result<FrameNumber, StoreError> {
        let group = *self.table().get(number);
        match group.frame {
            Some(frame) if !group.is_tainted => return Ok(frame),
            Some(old) => {
                // New reads wait, and the clock passes the group.
                self.table().get_mut(number).is_leaving = true;
                let moved = self.move_group(number, group, old).await;
                self.table().get_mut(number).is_leaving = false;
                return moved;
            }
            None => {}
        }
        let frame = self.free_frame().await?;
        self.table().get_mut(number).frame = Some(frame);
        Ok(frame)
    }

    /// Copies the pages of a group from a frame that must not be written again to a new one. The old one is not used again.
    async fn move_group(&self, number: PageGroup, group: Group, old: FrameNumber) -> Result<FrameNumber, StoreError> {
        let new = self.free_frame().await?;
        for range in ranges_of(number.pages(group.valid), GROUP_PAGES) {
            let bytes = self.read_frame(old, range).await?;
            let (address, _) = self.place_of(new, range);
            let posted = self.space.write(address, &[bytes]);
            self.space.flush();
            // A new frame that could not be written is not used either.
            posted.await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        }
        let mut table = self.table();
        let group = table.get_mut(number);
        if group.frame != Some(old) {
            return Err(StoreError::Unavailable(format!("group {} was lost while it was moved", number.0)));
        }
        (group.frame, group.is_tainted) = (Some(new), false);
        Ok(new)
    }

    async fn read_frame(&self, frame: FrameNumber, range: PageRange) -> Result<Bytes, StoreError> {
        let (address, section) = self.place_of(frame, range);
        let posted = self.space.read(address, range.bytes(), BytesMut::new());
        self.space.flush();
        let bytes = posted.await.map_err(|error| self.read_failed(section, address, range, &error))?;
        Ok(bytes.freeze())
    }

    async fn free_frame(&self) -> Result<FrameNumber, StoreError> {
        let mut why = StoreError::Full("every frame of the pool is being read".to_owned());
        for _ in 0..FRAME_ATTEMPTS {
            let free = {
                let mut table = self.table();
                table.frames.take().or_else(|| table.reclaim_frame())
            };
            if let Some(frame) = free {
                return Ok(frame);
            }
            match self.space.grow().await {
                Ok(section) => {
                    self.table().frames.add(section);
                    continue;
                }
                Err(error) => why = grow_error(&error),
            }
            // Without storage no group may give up its frame.
            let victim = self.storage.as_ref().and_then(|_| self.table().next_victim());
            match victim {
                Some(victim) => self.give_up(victim).await?,
                None => break,
            }
        }
        Err(why)
    }

    /// Takes the frame of a group that is leaving away, after what only it holds is in storage.
    async fn give_up(&self, number: PageGroup) -> Result<(), StoreError> {
        let group = *self.table().get(number);
        let outcome = match (group.frame, &self.storage) {
            (Some(frame), Some(storage)) => self.write_to_storage(number, group, frame, &**storage).await,
            _ => Ok(()),
        };
        let mut table = self.table();
        table.get_mut(number).is_leaving = false;
        // The section may have been lost meanwhile.
        if outcome.is_ok() && table.get(number).frame.is_some() {
            assert_eq!(table.get(number).users, 0, "nothing uses a frame that leaves");
            table.give_up_frame(number);
        }
        outcome
    }

    async fn write_to_storage(
        &self,
        number: PageGroup,
        group: Group,
        frame: FrameNumber,
        storage: &dyn StorageTier,
    ) -> Result<(), StoreError> {
        let dirty = if mutant(Mutant::DropDirtyFrame) { 0 } else { group.dirty };
        for range in ranges_of(number.pages(dirty), GROUP_PAGES) {
            let bytes = self.read_frame(frame, range).await?;
            storage.write(range, bytes).await?;
            let mut table = self.table();
            let group = table.get_mut(number);
            // A page that was discarded, or lost, meanwhile is so still.
            let written = range.group_bits() & group.dirty;
            group.dirty &= !written;
            group.stored |= written;
        }
        Ok(())
    }
}
