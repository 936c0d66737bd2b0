//! A block's write of one record while it is carried out in remote memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::{Bytes, Map, rt};

use super::delta::{DeltaVersion, ValueLocation as Where};
use super::fault::{Mutant, mutant};
use super::index::{BucketGroup, KeyHash, SlotIndex, Subtable};
use super::pointer::Pointer;
use super::record::KeyName;
use super::space::HeldSections;
use crate::{Durable, Error, Update, UpdateBatch};

/// How long the writer's lock is held while a block becomes durable.
pub(super) const LOCK_HELD_MAX: Duration = Duration::from_millis(50);

/// Groups of the index as this block knows them, by address. `None` is a group that is still to be read.
pub(super) type Groups = Map<u64, (Subtable, Option<BucketGroup>)>;

/// A posted compare-and-swap of a slot of the index.
pub(super) struct SlotSwap {
    /// The slot.
    pub(super) address: u64,
    /// Its value before.
    pub(super) before: u64,
    pub(super) verb: rma::Completion<u64>,
}

/// A write of the block in progress.
pub(super) struct PendingWrite {
    pub(super) namespace: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) update: Update,
    pub(super) hash: KeyHash,
    pub(super) located: bool,
    /// The subtable that serves the key.
    pub(super) subtable: Option<Subtable>,
    /// The subtable, the slot's position in it, and the slot's content.
    pub(super) slot: Option<(Subtable, SlotIndex, u64)>,
    /// The version before, where remote memory holds it.
    pub(super) old: Option<Pointer>,
    /// The caches have the value of the version before.
    pub(super) is_read: bool,
    pub(super) new: Option<NewRecord>,
    /// The new record is in its buffer, with `prev` leading to `old`.
    pub(super) written: bool,
}

/// The record of a new version.
pub(super) struct NewRecord {
    pub(super) pointer: Pointer,
    pub(super) bytes: usize,
}

impl PendingWrite {
    pub(super) fn name(&self) -> KeyName<'_> {
        KeyName { namespace: &self.namespace, key: &self.key }
    }

    /// Whether its slot is in a section that is not leased any more.
    pub(super) fn has_lost_slot(&self, held: &HeldSections) -> bool {
        self.slot.as_ref().is_some_and(|(subtable, ..)| !held.holds(subtable.address))
    }

    /// Forgets where it is.
    pub(super) fn unlocate(&mut self) {
        (self.located, self.slot, self.old, self.is_read, self.written) = (false, None, None, false, false);
    }

    /// Where the new version is. A value that must be kept here is copied: it may be a slice of a longer buffer.
    pub(super) fn delta_version(&self) -> DeltaVersion {
        let place = match (&self.update.value, &self.new) {
            (None, _) => Where::Deleted,
            (Some(_), Some(new)) => Where::Remote(new.pointer, new.bytes as u32),
            (Some(value), None) => Where::Inline(Box::new(Bytes::copy_from_slice(value))),
        };
        DeltaVersion { version: self.update.version, location: place }
    }
}

/// The writes of a block, not located yet.
pub(super) fn items(batch: UpdateBatch, seed: u64) -> Vec<PendingWrite> {
    let mut items = Vec::with_capacity(batch.len());
    for (namespace, keys) in batch.into_namespaces() {
        let namespace_hash = KeyHash::namespace(&namespace, seed);
        items.extend(keys.into_iter().map(|(key, update)| PendingWrite {
            hash: KeyHash::with_namespace(namespace_hash, &key),
            namespace: namespace.clone(),
            key,
            update,
            located: false,
            subtable: None,
            slot: None,
            old: None,
            is_read: false,
            new: None,
            written: false,
        }));
    }
    items
}

/// Does the work while the block becomes durable, then waits for durability up to [`LOCK_HELD_MAX`]. `None`: not durable
/// yet.
pub(super) async fn beside(durable: &mut Durable<'_>, work: impl Future<Output = ()>) -> Option<Result<(), Error>> {
    let mut ended = None;
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        if ended.is_none()
            && let Poll::Ready(outcome) = durable.as_mut().poll(cx)
        {
            ended = Some(outcome);
        }
        work.as_mut().poll(cx)
    })
    .await;
    match ended {
        None if mutant(Mutant::PublishUndurable) => Some(Ok(())),
        None => rt::timeout(LOCK_HELD_MAX, durable.as_mut()).await.ok(),
        ended => ended,
    }
}
