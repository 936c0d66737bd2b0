//! Background maintenance: losses, the savepoint, reclamation. Eviction is a separate module ([`super::evict`]).
//!
//! Reclamation of a version that block `b` superseded:
//! 1. when every view, here and on the followers, is above `b`, no new read can need the version: retire it;
//! 2. after another [`REUSE_AFTER`](replica::lease::REUSE_AFTER), every lease under which its address was learnt has
//!    ended: free its buffer. The buffer's next use has another incarnation.
//!
//! A tombstone is retired in the same way once the savepoint covers it, since storage then has the deletion. Its slot
//! is emptied first.
//!
//! After subtables were lost, some live records are unreachable. A sweep over all buffers finds them, [`SWEEP_BUFFERS`]
//! at a time: for each live record it looks the key up in the index, and if no slot points to the record, it retires
//! the record. It skips superseded versions, and records whose retirement waits for acknowledgements of followers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::rt::AbortOnDrop;
use base::{BlockNumber, Set, rt};

use super::fault::hold_up;
use super::index::KeyHash;
use super::limits::RETRY_PAUSE;
use super::memory::completed;
use super::pointer::{Incarnation, Pointer};
use super::{StateCore, StateWriter};
use crate::events;

pub(super) use std::sync::Arc;

/// Buffers that a sweep examines before it lets blocks pass.
const SWEEP_BUFFERS: usize = 512;
/// How often reclamation runs when no block does it.
const RECLAIM_PERIOD: Duration = Duration::from_millis(100);
/// Blocks that may pass before the oldest block still read is reported to storage.
const REPORT_BLOCKS: u64 = 4;
pub(super) fn start(shared: &Arc<StateCore>) -> Vec<AbortOnDrop<()>> {
    let losses = Arc::clone(shared);
    let savepoints = Arc::clone(shared);
    let reclaiming = Arc::clone(shared);
    let evicting = Arc::clone(shared);
    let leasing = Arc::clone(shared);
    let surveying = Arc::clone(shared);
    let vacating = Arc::clone(shared);
    vec![
        rt::spawn(async move { losses.watch_losses().await }).abort_on_drop(),
        rt::spawn(async move { savepoints.watch_savepoint().await }).abort_on_drop(),
        rt::spawn(async move { reclaiming.reclaim_periodically().await }).abort_on_drop(),
        rt::spawn(async move { evicting.run_eviction().await }).abort_on_drop(),
        rt::spawn(async move { replica::followers::send_heartbeats(&*leasing).await }).abort_on_drop(),
        rt::spawn(async move { surveying.survey().await }).abort_on_drop(),
        rt::spawn(async move { vacating.vacate().await }).abort_on_drop(),
    ]
}

impl StateCore {
    async fn watch_losses(&self) {
        loop {
            let lost = self.memory.lost().await;
            hold_up("state.loss").await;
            let mut writer = self.writer.lock().await;
            let bases: Vec<u64> = {
                let known = writer.sections.iter().filter(|(_, id)| lost.sections.contains(id));
                known.map(|(base, _)| *base).collect()
            };
            for base in bases {
                self.give_up(&mut writer, base);
            }
            if writer.growing.is_some() {
                writer.lost.extend(lost.sections);
            }
            drop(writer);
            if self.is_fenced() {
                return;
            }
            // Wake reclamation, which also looks for records that the loss made unreachable.
            self.wanted.notify_one();
        }
    }

    async fn watch_savepoint(&self) {
        let mut savepoint = self.store.subscribe_savepoint();
        loop {
            let height = *savepoint.borrow_and_update();
            self.advance_savepoint(height).await;
            if let Err(error) = self.prune().await {
                tracing::debug!(%error, "old versions stay in storage for now");
                rt::sleep(RETRY_PAUSE).await;
            }
            if savepoint.changed().await.is_err() {
                return;
            }
        }
    }

    async fn reclaim_periodically(&self) {
        loop {
            // Woken early when a section was abandoned.
            let _woken = rt::timeout(RECLAIM_PERIOD, self.wanted.notified()).await;
            if self.is_fenced() {
                return;
            }
            let mut writer = self.writer.lock().await;
            self.enter_late_section(&mut writer).await;
            if !self.are_marks_recorded(&mut writer) || !self.are_settled(&writer) {
                self.post_marks(&mut writer, self.height.load(Ordering::Acquire));
            }
            self.reclaim(&mut writer);
            self.watch_free_space(&writer);
            // A survey under way may still claim records that became unreachable meanwhile.
            let orphans = !writer.space.has_unsurveyed() && std::mem::take(&mut writer.orphans);
            drop(writer);
            if orphans {
                self.sweep().await;
            }
            self.report_floor().await;
        }
    }

    /// Retires the versions that no view needs any more, and frees the buffers whose quarantine is over.
    pub(super) fn reclaim(&self, writer: &mut StateWriter) {
        let floor = self.floor();
        while let Some(superseded) = writer.superseded.front()
            && superseded.since < floor
        {
            let pointer = superseded.pointer;
            writer.superseded.pop_front();
            writer.retire(pointer);
        }
        writer.retire_acknowledged();
        let now = rt::now();
        let freed = if self.are_marks_recorded(writer) { writer.space.drain(now) } else { 0 };
        writer.forget_evicted(now);
        if freed > 0 {
            events::BytesReclaimed.add(freed);
        }
        let accounts = writer.space.accounts();
        events::RemoteBytesLeased.set(accounts.leased as i64);
        events::RemoteBytesFree.set(accounts.free as i64);
    }

    /// Storage holds every block below `savepoint` durably: the delta drops these blocks, and their tombstones are
    /// removed.
    pub(super) async fn advance_savepoint(&self, savepoint: u64) {
        // Storage may be ahead of us. A block that no height shows yet stays in the delta: a reader at a lower height
        // must learn that something newer exists.
        let savepoint = savepoint.min(self.height.load(Ordering::Acquire));
        self.delta_mut().forget_below(savepoint);
        if self.savepoint.fetch_max(savepoint, Ordering::AcqRel) < savepoint {
            self.log_change(|changes| changes.savepoint_advanced(savepoint));
        }
        let mut guard = self.writer.lock().await;
        let writer = &mut *guard;
        while writer.tombstones.front().is_some_and(|tombstone| tombstone.block < savepoint) {
            let tombstone = writer.tombstones.pop_front().expect("there is one");
            let Some(subtable) = self.find_subtable(tombstone.hash) else { continue };
            let Some(group) = self.read_group(writer, &subtable, tombstone.hash).await else { continue };
            let slot = tombstone.hash.slot(tombstone.pointer);
            // A newer version may have replaced it in the slot.
            let Some(place) = group.find(tombstone.hash, slot) else { continue };
            let address = place.address(subtable.group_address(tombstone.hash.group()));
            match completed(&*self.memory, self.memory.compare_swap(address, slot, 0)).await {
                Ok(found) if found == slot => {}
                failed => {
                    if let Err(error) = failed {
                        self.memory.note_failure(address, &error);
                    }
                    self.give_up(writer, address);
                }
            }
            let name = super::KeyName { namespace: &tombstone.namespace, key: &tombstone.key };
            self.caches.detach(tombstone.hash, name, tombstone.pointer);
            self.log_change(|changes| changes.detached(name, tombstone.pointer));
            writer.retire(tombstone.pointer);
        }
    }

    /// Reports to storage the oldest block that is still read.
    pub(super) async fn prune(&self) -> Result<(), storage::Error> {
        let oldest = self.floor().saturating_sub(1);
        self.reported.store(oldest, Ordering::Relaxed);
        if oldest == 0 { Ok(()) } else { self.store.prune(BlockNumber(oldest)).await }
    }

    /// Calls [`StateCore::prune`] if the last report is more than [`REPORT_BLOCKS`] blocks old. Storage then skips
    /// versions of coming blocks that no reader will see.
    async fn report_floor(&self) {
        let untold = self.height.load(Ordering::Acquire).saturating_sub(self.reported.load(Ordering::Relaxed));
        if untold > REPORT_BLOCKS
            && let Err(error) = self.prune().await
        {
            tracing::debug!(%error, "old versions stay in storage for now");
        }
    }

    /// Finds the unreachable records.
    async fn sweep(&self) {
        let mut from = 0;
        loop {
            let mut guard = self.writer.lock().await;
            let writer = &mut *guard;
            let mut spared: Set<u64> = writer.superseded.iter().map(|one| one.pointer.address()).collect();
            spared.extend(writer.space.quarantined().map(|extent| extent.address));
            spared.extend(writer.unacknowledged.iter().map(|(_, pointer)| pointer.address()));
            spared.extend(self.directory.subtables().map(|subtable| subtable.address));
            let buffers: Vec<_> =
                writer.space.buffers().filter(|extent| extent.address >= from).take(SWEEP_BUFFERS).collect();
            let Some(last) = buffers.last() else { return };
            from = last.address + 1;
            let records: Vec<_> = buffers.iter().filter(|extent| !spared.contains(&extent.address)).collect();
            let addresses: Vec<(u64, usize)> =
                records.iter().map(|extent| (extent.address, extent.bytes as usize)).collect();
            for (address, bytes) in addresses {
                if writer.space.holds(address) {
                    self.sweep_one(writer, address, bytes).await;
                }
            }
        }
    }

    async fn sweep_one(&self, writer: &mut StateWriter, address: u64, bytes: usize) {
        let Some(incarnation) = self.incarnation_at(address).await else { return self.give_up(writer, address) };
        let pointer = Pointer::new(address, bytes, incarnation);
        let Some(head) = self.read_head(pointer).await else { return self.give_up(writer, address) };
        let Some(name) = head.name() else { return self.give_up(writer, address) };
        let hash = KeyHash::new(name, self.seed);
        if let Some(subtable) = self.find_subtable(hash) {
            let Some(group) = self.read_group(writer, &subtable, hash).await else { return };
            if group.find(hash, hash.slot(pointer)).is_some() {
                return;
            }
        }
        events::OrphansFound.add(1);
        self.caches.detach(hash, name, pointer);
        self.delta_mut().detach(hash, name, pointer);
        self.log_change(|changes| changes.detached(name, pointer));
        writer.tombstones.retain(|tombstone| tombstone.pointer != pointer);
        writer.retire(pointer);
    }

    /// The current incarnation of a live buffer, read from its link word.
    async fn incarnation_at(&self, address: u64) -> Option<Incarnation> {
        let verb = self.memory.read(address, rma::WORD_BYTES, base::BytesMut::with_capacity(rma::WORD_BYTES));
        let bytes = completed(&*self.memory, verb).await.ok()?;
        let word = u64::from_le_bytes(bytes[..].try_into().ok()?);
        super::record::LinkWord::from_bits(word).map(|word| word.incarnation)
    }
}
