//! The store itself: reads and writes of one region's pages.

use std::sync::{Arc, MutexGuard};

use base::rt::{self, AbortOnDrop};
use base::{Bytes, BytesMut};
use futures_util::future::join_all;
use pool::AddressSpace;

use super::frames::{FRAME_BYTES, donor};
use super::groups::GroupTable;
use super::tables::{GroupOf, StoreId, StoreUsage, Tables};
use super::tiers::{FrameUse, Tiers};
use crate::error::Error;
use crate::mutant::{Mutant, mutant};
use crate::page::{GROUP_PAGES, PAGE_BYTES, PageGroup, PageNumber, PageRange, REGION_PAGES_MAX, ranges_of};
use crate::storage_tier::StorageTier;
use crate::store::{PageStore, StoreError, StoreFuture};

/// Groups that are written at the same time.
const WRITE_GROUPS_MAX: usize = 8;

/// A store in the memory pool. When it is dropped, it forgets its pages, and what no other store shares is free. See
/// [the module](super).
pub struct PoolStore {
    tiers: Arc<Tiers>,
    id: StoreId,
    /// Notes the sections that are lost, for all stores.
    watch: Arc<AbortOnDrop<()>>,
}

impl PoolStore {
    /// Makes a store for a region of `pages` pages. Nothing else may use the address space, nor the storage, but the stores
    /// that [`another`](PoolStore::another) and [`fork`](PoolStore::fork) make: the store requests the space's sections and waits
    /// for its losses. Without `storage`, writes fail once the pool has no room left.
    ///
    /// # Errors
    /// [`Error::Config`] when the region is too large or the space's sections are smaller than a group of pages.
    pub fn new(space: AddressSpace, pages: u32, storage: Option<Arc<dyn StorageTier>>) -> Result<PoolStore, Error> {
        check_pages(pages)?;
        if space.section_bytes() < FRAME_BYTES {
            let bytes = space.section_bytes();
            return Err(Error::Config(format!("sections of {bytes} bytes: far memory needs {FRAME_BYTES} and more")));
        }
        let tiers = Arc::new(Tiers::new(space, storage));
        let id = tiers.tables().add(GroupTable::new(pages));
        let watched = Arc::clone(&tiers);
        let watch = rt::spawn(async move {
            loop {
                let loss = watched.space.lost().await;
                loss.sections.iter().for_each(|id| watched.tables().lose(*id));
            }
        });
        Ok(PoolStore { tiers, id, watch: Arc::new(watch.abort_on_drop()) })
    }

    /// Makes an empty store for another region of `pages` pages, over the same address space and storage.
    ///
    /// # Errors
    /// [`Error::Config`] when the region is too large.
    pub fn another(&self, pages: u32) -> Result<PoolStore, Error> {
        check_pages(pages)?;
        let id = self.tables().add(GroupTable::new(pages));
        Ok(self.beside(id))
    }

    /// Makes a store that holds the pages that this one holds now, those that are lost included. It copies no page: the two
    /// stores share frames and slots until one of them writes.
    ///
    /// No write or discard of this store may be in flight; reads may be.
    pub fn fork(&self) -> PoolStore {
        let id = self.tables().fork(self.id);
        self.beside(id)
    }

    fn beside(&self, id: StoreId) -> PoolStore {
        PoolStore { tiers: Arc::clone(&self.tiers), id, watch: Arc::clone(&self.watch) }
    }

    /// How much memory and storage the store uses. It looks at each group of the region.
    pub fn usage(&self) -> StoreUsage {
        let tables = self.tables();
        let mut usage = StoreUsage::default();
        for (_, group) in tables.of(self.id).iter() {
            usage.pool_bytes += group.frame.map_or(0, |_| FRAME_BYTES);
            usage.storage_bytes += group.slot.map_or(0, |_| FRAME_BYTES);
        }
        usage
    }

    /// The memory and storage that all stores over the address space use together.
    ///
    /// # Errors
    /// What is wrong with the counts of references to frames and slots.
    #[doc(hidden)]
    pub fn check(&self) -> Result<StoreUsage, String> {
        self.tables().check()
    }
}

fn check_pages(pages: u32) -> Result<(), Error> {
    match pages {
        1..=REGION_PAGES_MAX => Ok(()),
        _ => Err(Error::Config(format!("a region of {pages} pages: choose 1 to {REGION_PAGES_MAX}"))),
    }
}

impl Drop for PoolStore {
    fn drop(&mut self) {
        self.tables().remove(self.id);
    }
}

impl PageStore for PoolStore {
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        let number = PageGroup::of(range.first);
        match self.begin_read(number, range) {
            Some(frame) => finish_read(frame, range, into),
            None => Box::pin(self.read_slowly(number, range, into)),
        }
    }

    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(self.write_range(range, bytes))
    }

    fn holds(&self, page: PageNumber) -> bool {
        self.tables().of(self.id).holds(page)
    }

    fn discard(&self, range: PageRange) {
        self.tables().forget(self.id, range);
    }
}

/// Posts a read of a frame, which stays until the read is over.
fn finish_read(frame: FrameUse<'_>, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
    let posted = frame.read(range, into);
    Box::pin(async move {
        let outcome = posted.await;
        drop(frame);
        outcome
    })
}

impl PoolStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tiers.tables()
    }

    fn group(&self, number: PageGroup) -> GroupOf {
        GroupOf { store: self.id, number }
    }

    /// Uses the frame of a group, if it holds the pages.
    fn begin_read(&self, number: PageGroup, range: PageRange) -> Option<FrameUse<'_>> {
        let bits = range.group_bits();
        let mut tables = self.tables();
        let group = tables.of(self.id).get(number);
        let frame = group.frame.filter(|_| group.valid & bits == bits)?;
        tables.frames.mark_used(frame);
        tables.frames.begin_use(frame);
        Some(FrameUse::new(&self.tiers, &tables, frame))
    }

    /// Waits for the change in progress, and fetches from storage the pages that memory does not have.
    async fn read_slowly(&self, number: PageGroup, range: PageRange, into: BytesMut) -> Result<BytesMut, StoreError> {
        let changing = self.tiers.changes.lock().await;
        let bits = range.group_bits();
        self.check_lost(number, bits)?;
        if self.tables().of(self.id).get(number).valid & bits != bits {
            self.fetch(number).await?;
            self.check_lost(number, bits)?;
        }
        let Some(frame) = self.begin_read(number, range) else {
            return Err(StoreError::Unavailable(format!("{range:?} are neither in memory nor in storage")));
        };
        let read = finish_read(frame, range, into);
        drop(changing);
        read.await
    }

    fn check_lost(&self, number: PageGroup, bits: u16) -> Result<(), StoreError> {
        let tables = self.tables();
        let table = tables.of(self.id);
        let lost: Vec<PageNumber> = number.pages(table.get(number).lost & bits).collect();
        let Some(first) = lost.first() else { return Ok(()) };
        if let Some(node) = table.storage_that_lost(*first) {
            return Err(StoreError::Lost { range: PageRange::of(*first), node });
        }
        let section = table.lost_in(number);
        let with_donor = lost.iter().copied().filter(|page| table.storage_that_lost(*page).is_none());
        let range = ranges_of(with_donor, GROUP_PAGES).first().copied().unwrap_or(PageRange::of(*first));
        drop(tables);
        let node = section.map_or_else(|| "a memory node".to_owned(), |id| donor(&self.tiers.space, id));
        Err(StoreError::Lost { range, node })
    }

    /// Reads the pages of a group that storage alone has into its frame. What storage has lost is noted, and the rest is read.
    async fn fetch(&self, number: PageGroup) -> Result<(), StoreError> {
        let of = self.group(number);
        if self.tables().of(self.id).get(number).absent() == 0 {
            return Ok(());
        }
        let frame = self.frame_of(number).await?;
        let group = self.tables().of(self.id).get(number);
        let mut pages = group.absent();
        while let Some((range, read)) = self.tiers.read_slot(of, group, pages).await? {
            if let Some(bytes) = read {
                let note = |tables: &mut Tables| {
                    tables.change(of, |group| {
                        // Pages that were discarded meanwhile stay so.
                        group.valid |= range.group_bits() & group.stored;
                        group.frame = Some(frame.frame);
                    });
                };
                frame.write(range, bytes, note).await?;
            }
            pages &= !range.group_bits();
        }
        Ok(())
    }

    async fn write_range(&self, range: PageRange, bytes: Bytes) -> Result<(), StoreError> {
        assert_eq!(bytes.len(), range.bytes(), "the caller has as many bytes as pages");
        let _changing = self.tiers.changes.lock().await;
        let parts: Vec<(PageGroup, PageRange)> = range.by_group().collect();
        // Until a write is acknowledged there is no newest version; if one fails, there is none either.
        self.discard(range);
        for some in parts.chunks(WRITE_GROUPS_MAX) {
            if let Err(error) = self.write_groups(range, &bytes, some).await {
                self.discard(range);
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
            frames.push((self.frame_of(*number).await?, self.group(*number), *part));
        }
        let writes = frames.iter().map(|(frame, of, part)| {
            let start = (part.first.0 - range.first.0) as usize * PAGE_BYTES;
            let note = move |tables: &mut Tables| {
                tables.change(*of, |group| {
                    group.valid |= part.group_bits();
                    group.stored |= if mutant(Mutant::WrittenIsClean) { part.group_bits() } else { 0 };
                    group.frame = Some(frame.frame);
                });
            };
            frame.write(*part, bytes.slice(start..start + part.bytes()), note)
        });
        join_all(writes).await.into_iter().collect()
    }

    /// A frame to which pages of a group may be written: its own, with the group's valid pages, or a free one if it has none
    /// of them.
    async fn frame_of(&self, number: PageGroup) -> Result<FrameUse<'_>, StoreError> {
        match self.use_frame_of(number) {
            Some((frame, true)) => Ok(frame),
            Some((old, false)) => self.move_group(number, old).await,
            None => self.tiers.free_frame().await,
        }
    }

    /// A group's frame, and whether it may be written.
    fn use_frame_of(&self, number: PageGroup) -> Option<(FrameUse<'_>, bool)> {
        let mut tables = self.tables();
        let frame = tables.of(self.id).get(number).frame?;
        tables.frames.begin_use(frame);
        Some((FrameUse::new(&self.tiers, &tables, frame), tables.frames.may_be_written(frame)))
    }

    /// Copies the valid pages of a group from a frame that must not be written to a free one, which is the group's from then on.
    async fn move_group(&self, number: PageGroup, old: FrameUse<'_>) -> Result<FrameUse<'_>, StoreError> {
        let new = self.tiers.free_frame().await?;
        let valid = self.tables().of(self.id).get(number).valid;
        for range in ranges_of(number.pages(valid), GROUP_PAGES) {
            let bytes = old.read(range, BytesMut::new()).await?.freeze();
            new.write(range, bytes, |_| {}).await?;
        }
        let mut tables = self.tables();
        if tables.frames.is_lost(old.frame) || tables.frames.is_lost(new.frame) {
            return Err(StoreError::Unavailable(format!("group {} was lost while it was moved", number.0)));
        }
        tables.change(self.group(number), |group| group.frame = Some(new.frame));
        Ok(new)
    }
}
