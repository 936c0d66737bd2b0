//! A block's write of one record while it is carried out in remote memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use base::{Bytes, Map, rt};

use super::StateWriter;
use super::delta::{DeltaVersion, ValueLocation as Where};
use super::fault::{Mutant, mutant};
use super::index::{BucketGroup, KeyHash, SlotIndex, Subtable};
use super::pointer::Pointer;
use super::record::KeyName;
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
pub(super) struct PendingWrite<'a> {
    pub(super) namespace: &'a Arc<str>,
    pub(super) key: &'a Arc<str>,
    pub(super) update: &'a Update,
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
}

/// The record of a new version.
pub(super) struct NewRecord {
    pub(super) pointer: Pointer,
    pub(super) bytes: usize,
}

impl<'a> PendingWrite<'a> {
    pub(super) fn name(&self) -> KeyName<'a> {
        KeyName { namespace: self.namespace, key: self.key }
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

/// The group of an item's key, if it was read under the header that the subtable still has.
pub(super) fn group_of<'g>(item: &PendingWrite<'_>, groups: &'g Groups) -> Option<&'g BucketGroup> {
    let subtable = item.subtable?;
    let (read, group) = groups.get(&subtable.group_address(item.hash.group()))?;
    group.as_ref().filter(|_| *read == subtable)
}

/// The writes of a block, not located yet.
pub(super) fn items(batch: &UpdateBatch, seed: u64) -> Vec<PendingWrite<'_>> {
    let mut namespace_hash = None;
    let mut items = Vec::with_capacity(batch.len());
    items.extend(batch.iter().map(|(namespace, key, update)| {
        let (_, hash) = match namespace_hash {
            Some((known, hash)) if Arc::ptr_eq(known, namespace) => (known, hash),
            _ => (namespace, KeyHash::namespace(namespace, seed)),
        };
        namespace_hash = Some((namespace, hash));
        let hash = KeyHash::with_namespace(hash, key);
        let (located, is_read) = (false, false);
        PendingWrite {
            namespace,
            key,
            update,
            hash,
            located,
            subtable: None,
            slot: None,
            old: None,
            is_read,
            new: None,
        }
    }));
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

/// Frees the written buffers, to which nothing leads.
pub(super) fn undo(writer: &mut StateWriter, items: &mut [PendingWrite<'_>]) {
    for NewRecord { pointer, .. } in items.iter_mut().filter_map(|item| item.new.take()) {
        if writer.space.holds(pointer.address()) && !mutant(Mutant::KeepUndone) {
            writer.space.free(pointer.address());
        }
    }
}
