//! What goes on behind reads and blocks: losses, the savepoint, reclamation. Eviction is a module of its own ([`super::evict`]).
//!
//! Reclamation of a version that block `b` superseded:
//! 1. once every view is above `b`, here and at the readers, no read that begins needs it: it is put aside;
//! 2. [`REUSE_AFTER`](super::lease::REUSE_AFTER) later no lease under which its address was learnt is live: its buffer is
//!    free, and its next life has another incarnation.
//!
//! A record of a deletion goes the same way once the savepoint covers it: storage then knows of the deletion. Its slot is
//! emptied first.
//!
//! After subtables were lost, records that only they led to are found by going over all buffers, some at a time
//! ([`SWEEP_BUFFERS`]): a record that its slot does not lead to, and that no list knows, is put aside.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::rt::{self, AbortOnDrop};
use base::{BlockNumber, Set};

use super::fault::hold_up;
use super::index::KeyHash;
use super::memory::completed;
use super::pointer::{Incarnation, Pointer};
use super::{Shared, Writer};
use crate::events;

/// How long the pool is not asked for more after it had nothing to give.
pub const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);
/// Buffers that a sweep looks at before it lets blocks pass.
const SWEEP_BUFFERS: usize = 512;
/// How often reclamation runs when no block does it.
const RECLAIM_PERIOD: Duration = Duration::from_millis(100);
/// Blocks that may pass before storage is told that nobody reads below them.
const TELL_BLOCKS: u64 = 4;
/// The pause after storage could not do what was asked.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn start(shared: &Arc<Shared>) -> Vec<AbortOnDrop<()>> {
    let losses = Arc::clone(shared);
    let savepoints = Arc::clone(shared);
    let reclaiming = Arc::clone(shared);
    let evicting = Arc::clone(shared);
    let leasing = Arc::clone(shared);
    vec![
        rt::spawn(async move { losses.watch_losses().await }).abort_on_drop(),
        rt::spawn(async move { savepoints.watch_savepoint().await }).abort_on_drop(),
        rt::spawn(async move { reclaiming.keep_reclaiming().await }).abort_on_drop(),
        rt::spawn(async move { evicting.keep_evicting().await }).abort_on_drop(),
        rt::spawn(async move { leasing.keep_readers().await }).abort_on_drop(),
    ]
}

impl Shared {
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
            // What only the lost sections had of the last blocks is in storage after this.
            self.wanted.notify_one();
        }
    }

    async fn watch_savepoint(&self) {
        let mut savepoint = self.store.subscribe_savepoint();
        loop {
            let height = *savepoint.borrow_and_update();
            self.settle(height).await;
            if let Err(error) = self.prune().await {
                tracing::debug!(%error, "old versions stay in storage for now");
                rt::sleep(RETRY_PAUSE).await;
            }
            if savepoint.changed().await.is_err() {
                return;
            }
        }
    }

    async fn keep_reclaiming(&self) {
        loop {
            // Woken early when a section was given up.
            let _woken = rt::timeout(RECLAIM_PERIOD, self.wanted.notified()).await;
            if self.is_fenced() {
                return;
            }
            let mut writer = self.writer.lock().await;
            self.enter_late_section(&mut writer).await;
            self.reclaim(&mut writer);
            self.watch_room(&writer);
            let orphans = std::mem::take(&mut writer.orphans);
            drop(writer);
            if orphans {
                self.sweep().await;
            }
            self.keep_storage_told().await;
        }
    }

    /// Puts aside what no view needs any more, and frees what was put aside long enough ago.
    pub(super) fn reclaim(&self, writer: &mut Writer) {
        let floor = self.floor();
        while let Some(superseded) = writer.superseded.front()
            && superseded.since < floor
        {
            let pointer = superseded.pointer;
            writer.superseded.pop_front();
            writer.put_aside(pointer);
        }
        writer.put_aside_what_is_told();
        let now = rt::now();
        let freed = writer.space.drain(now);
        writer.forget_evicted(now);
        if freed > 0 {
            events::BytesReclaimed.add(freed);
        }
        let accounts = writer.space.accounts();
        events::RemoteBytesLeased.set(accounts.leased as i64);
        events::RemoteBytesFree.set(accounts.free as i64);
    }

    /// Storage holds every block below `savepoint` durably: the delta forgets them, and records of deletions go.
    pub(super) async fn settle(&self, savepoint: u64) {
        // Storage may be ahead of us. What no height shows yet stays in the delta: whoever reads below it must learn that
        // there is something newer.
        let savepoint = savepoint.min(self.height.load(Ordering::Acquire));
        self.delta_mut().forget_below(savepoint);
        if self.settled.fetch_max(savepoint, Ordering::AcqRel) < savepoint {
            self.holders.log(|changes| changes.settled(savepoint));
        }
        let mut guard = self.writer.lock().await;
        let writer = &mut *guard;
        while writer.tombstones.front().is_some_and(|tombstone| tombstone.block < savepoint) {
            let tombstone = writer.tombstones.pop_front().expect("there is one");
            let Some(subtable) = self.find_subtable(tombstone.hash) else { continue };
            let Some(group) = self.read_group(writer, &subtable, tombstone.hash).await else { continue };
            let slot = tombstone.hash.slot(tombstone.pointer);
            // A newer version may have taken its place.
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
            let name = super::Name { namespace: &tombstone.namespace, key: &tombstone.key };
            self.caches.detach(tombstone.hash, name, tombstone.pointer);
            self.holders.log(|changes| changes.detached(name, tombstone.pointer));
            writer.put_aside(tombstone.pointer);
        }
    }

    /// Tells storage below which block nobody reads any more.
    pub(super) async fn prune(&self) -> Result<(), storage::Error> {
        let oldest = self.floor().saturating_sub(1);
        self.told.store(oldest, Ordering::Relaxed);
        if oldest == 0 { Ok(()) } else { self.store.prune(BlockNumber(oldest)).await }
    }

    /// As [`Shared::prune`], when storage does not know it of many blocks: it leaves out versions of the blocks to come
    /// that nobody will see.
    async fn keep_storage_told(&self) {
        let untold = self.height.load(Ordering::Acquire).saturating_sub(self.told.load(Ordering::Relaxed));
        if untold > TELL_BLOCKS
            && let Err(error) = self.prune().await
        {
            tracing::debug!(%error, "old versions stay in storage for now");
        }
    }

    /// Finds the records to which nothing leads.
    async fn sweep(&self) {
        let mut from = 0;
        loop {
            let mut guard = self.writer.lock().await;
            let writer = &mut *guard;
            let mut spared: Set<u64> = writer.superseded.iter().map(|one| one.pointer.address()).collect();
            spared.extend(writer.space.quarantined().map(|extent| extent.address));
            spared.extend(writer.untold.iter().map(|(_, pointer)| pointer.address()));
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

    async fn sweep_one(&self, writer: &mut Writer, address: u64, bytes: usize) {
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
        self.holders.log(|changes| changes.detached(name, pointer));
        writer.tombstones.retain(|tombstone| tombstone.pointer != pointer);
        writer.put_aside(pointer);
    }

    /// Which life of a live buffer is the present one: its own word says so.
    async fn incarnation_at(&self, address: u64) -> Option<Incarnation> {
        let verb = self.memory.read(address, rma::WORD_BYTES, base::BytesMut::with_capacity(rma::WORD_BYTES));
        let bytes = completed(&*self.memory, verb).await.ok()?;
        let word = u64::from_le_bytes(bytes[..].try_into().ok()?);
        super::record::Word::from_bits(word).map(|word| word.incarnation)
    }
}
