//! The tiers that stores share, the address space and the storage below it, and how pages move from one to the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Bytes, BytesMut, rt};
use pool::{AddressSpace, SectionId};

use super::frames::{FRAME_BYTES, FrameNumber, Frames, donor, grow_error, is_lost};
use super::groups::Group;
use super::slots::SlotNumber;
use super::tables::{GroupOf, Tables};
use crate::mutant::{Mutant, mutant};
use crate::page::{GROUP_PAGES, PageNumber, PageRange, ranges_of};
use crate::storage_tier::StorageTier;
use crate::store::StoreError;

/// Attempts to find a frame, each of which may give one up.
const FRAME_ATTEMPTS: u32 = 8;

/// See [the module](self).
pub(super) struct Tiers {
    pub(super) space: AddressSpace,
    storage: Option<Arc<dyn StorageTier>>,
    tables: Mutex<Tables>,
    /// Held while something changes: see the invariants of [the module above](super).
    pub(super) changes: rt::sync::Mutex<()>,
}

/// A use of a frame, which is neither given up nor free meanwhile. Not dropped while the tables are locked.
pub(super) struct FrameUse<'a> {
    tiers: &'a Tiers,
    pub(super) frame: FrameNumber,
    address: u64,
    section: SectionId,
}

impl<'a> FrameUse<'a> {
    /// Of a frame of which the tables count the use already.
    pub(super) fn new(tiers: &'a Tiers, tables: &Tables, frame: FrameNumber) -> FrameUse<'a> {
        FrameUse { tiers, frame, address: tables.frames.address(frame), section: tables.frames.section(frame) }
    }

    /// The address of a group's page in the frame.
    fn address_of(&self, page: PageNumber) -> u64 {
        self.address + page.offset() % FRAME_BYTES
    }

    /// Posts a read of pages, and returns what waits for it.
    pub(super) fn read(
        &self,
        range: PageRange,
        into: BytesMut,
    ) -> impl Future<Output = Result<BytesMut, StoreError>> + Send + use<'a> {
        let (tiers, section, address) = (self.tiers, self.section, self.address_of(range.first));
        let posted = tiers.space.read(address, range.bytes(), into);
        tiers.space.flush();
        async move { posted.await.map_err(|error| tiers.read_failed(section, address, range, &error)) }
    }

    /// Writes pages, and notes in the tables that the frame holds them.
    pub(super) async fn write(
        &self,
        range: PageRange,
        bytes: Bytes,
        note: impl FnOnce(&mut Tables),
    ) -> Result<(), StoreError> {
        let address = self.address_of(range.first);
        // Until the write is acknowledged, also if this future is dropped.
        self.tiers.tables().frames.taint(self.frame);
        let posted = self.tiers.space.write(address, &[bytes]);
        self.tiers.space.flush();
        let outcome = posted.await;
        let mut tables = self.tiers.tables();
        match outcome {
            // The section may have been lost meanwhile.
            Ok(()) if !tables.frames.is_lost(self.frame) => {
                tables.frames.clear_taint(self.frame);
                tables.frames.mark_used(self.frame);
                note(&mut tables);
                return Ok(());
            }
            Ok(()) => {}
            Err(error) => {
                drop(tables);
                self.tiers.space.note_failure(address, &error);
                if is_lost(&error) {
                    self.tiers.tables().lose(self.section);
                }
            }
        }
        let donor = donor(&self.tiers.space, self.section);
        Err(StoreError::Unavailable(format!("{range:?} could not be written to {donor}")))
    }
}

impl Drop for FrameUse<'_> {
    fn drop(&mut self) {
        self.tiers.tables().frames.end_use(self.frame);
    }
}

/// A slot to which a change writes. It is not free meanwhile. Not dropped while the tables are locked.
struct SlotUse<'a> {
    tiers: &'a Tiers,
    slot: SlotNumber,
}

impl Drop for SlotUse<'_> {
    fn drop(&mut self) {
        self.tiers.tables().slots.release(self.slot);
    }
}

impl Tiers {
    pub(super) fn new(space: AddressSpace, storage: Option<Arc<dyn StorageTier>>) -> Tiers {
        let tables = Mutex::new(Tables::new(Frames::new(space.section_bytes())));
        Tiers { space, storage, tables, changes: rt::sync::Mutex::new(()) }
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        // Consistent between any two statements that may panic.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_failed(&self, section: SectionId, address: u64, range: PageRange, error: &rma::Error) -> StoreError {
        self.space.note_failure(address, error);
        if is_lost(error) {
            // The pages may be in storage; another attempt finds out.
            self.tables().lose(section);
        }
        StoreError::Unavailable(format!("{range:?} could not be read from {}: {error}", donor(&self.space, section)))
    }

    /// A frame to which no group refers. Other groups may give theirs up for it.
    pub(super) async fn free_frame(&self) -> Result<FrameUse<'_>, StoreError> {
        let mut why = StoreError::Full("every frame of the pool is being read".to_owned());
        for _ in 0..FRAME_ATTEMPTS {
            if let Some(frame) = self.use_frame(|tables| tables.frames.take()) {
                return Ok(frame);
            }
            match self.space.grow().await {
                Ok(section) => {
                    self.tables().frames.add(section);
                    continue;
                }
                Err(error) => why = grow_error(&error),
            }
            // Without storage no group may give up its frame.
            let Some(storage) = self.storage.as_deref() else { break };
            let Some(victim) = self.use_frame(|tables| tables.frames.next_victim()) else { break };
            self.give_up(victim, storage).await?;
        }
        Err(why)
    }

    fn use_frame(&self, choose: impl FnOnce(&mut Tables) -> Option<FrameNumber>) -> Option<FrameUse<'_>> {
        let mut tables = self.tables();
        let frame = choose(&mut tables)?;
        Some(FrameUse::new(self, &tables, frame))
    }

    /// Takes a frame away from all groups that refer to it, after what only it holds is in storage. It is free as soon as no
    /// read of it is in flight.
    async fn give_up(&self, frame: FrameUse<'_>, storage: &dyn StorageTier) -> Result<(), StoreError> {
        loop {
            // A store may be forked, or dropped, while another one's pages are written.
            let dirty = self.tables().dirty_or_detach(frame.frame);
            let Some((of, group)) = dirty else { return Ok(()) };
            self.write_to_storage(&frame, of, group, storage).await?;
        }
    }

    /// Writes the dirty pages of a group to its slot; or, if another store needs what they would overwrite there, all its pages
    /// to a new slot.
    async fn write_to_storage(
        &self,
        frame: &FrameUse<'_>,
        of: GroupOf,
        group: Group,
        storage: &dyn StorageTier,
    ) -> Result<(), StoreError> {
        let slot = self.slot_for(of, group)?;
        let mut pages = group.dirty();
        if group.slot != Some(slot.slot) {
            self.copy_slot(of, group, slot.slot, storage).await?;
            pages = group.valid;
        }
        for range in ranges_of(of.number.pages(pages), GROUP_PAGES) {
            let bytes = frame.read(range, BytesMut::new()).await?.freeze();
            storage.write(slot.slot.place_of(range), bytes).await?;
        }
        self.tables().move_to_slot(of, frame.frame, slot.slot);
        Ok(())
    }

    /// The slot to which a group's dirty pages may be written.
    fn slot_for(&self, of: GroupOf, group: Group) -> Result<SlotUse<'_>, StoreError> {
        let mut tables = self.tables();
        let slot = match group.slot {
            Some(slot) if !tables.is_slot_needed(slot, of.number, group.dirty()) => {
                tables.slots.share(slot);
                slot
            }
            _ => tables.slots.take().ok_or_else(|| StoreError::Full("storage has no slot left".to_owned()))?,
        };
        Ok(SlotUse { tiers: self, slot })
    }

    /// Copies the pages that a group's slot alone has to another slot.
    async fn copy_slot(
        &self,
        of: GroupOf,
        group: Group,
        to: SlotNumber,
        storage: &dyn StorageTier,
    ) -> Result<(), StoreError> {
        let mut pages = if mutant(Mutant::LeaveStoredPages) { 0 } else { group.absent() };
        while let Some((range, read)) = self.read_slot(of, group, pages).await? {
            if let Some(bytes) = read {
                storage.write(to.place_of(range), bytes).await?;
            }
            pages &= !range.group_bits();
        }
        Ok(())
    }

    /// Reads some of these pages of a group from its slot. If storage has lost them, that is noted, and there are no bytes. None
    /// if no pages are left to read.
    pub(super) async fn read_slot(
        &self,
        of: GroupOf,
        group: Group,
        pages: u16,
    ) -> Result<Option<(PageRange, Option<Bytes>)>, StoreError> {
        let (Some(storage), Some(slot)) = (&self.storage, group.slot) else { return Ok(None) };
        let Some(range) = ranges_of(of.number.pages(pages), GROUP_PAGES).first().copied() else { return Ok(None) };
        let place = slot.place_of(range);
        match storage.read(place, BytesMut::new()).await {
            Ok(bytes) => Ok(Some((range, Some(bytes.freeze())))),
            Err(StoreError::Lost { range: lost, node }) if place.contains(lost) => {
                let first = PageNumber(lost.first.0 - place.first.0 + range.first.0);
                let lost = PageRange { first, ..lost };
                self.tables().lose_stored(of, lost.group_bits(), &node);
                Ok(Some((lost, None)))
            }
            Err(error) => Err(error),
        }
    }
}
