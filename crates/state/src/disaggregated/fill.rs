//! A fill brings a record back to remote memory after a reader found it only in storage.
//!
//! Steps of a fill; the reader does the first two:
//! 1. take a token before it looks anywhere; any later change of the key invalidates the token;
//! 2. get the newest version of the key from storage;
//! 3. a separate task waits for the writer's lock; at most [`FILLS_MAX`] such tasks exist, and further fills are
//!    dropped;
//! 4. with the lock held, so that no block is applied meanwhile: check that the token is valid and that memory has
//!    space without leasing another section. Read the group of buckets again: the key must still be absent from it;
//! 5. write the record completely;
//! 6. set the slot by compare-and-swap, and enter the record's location into the caches.
//!
//! If step 5 fails and the write certainly had no effect, the buffer is freed. If the write may have had an effect,
//! the buffer's section is abandoned. If step 6 fails, the section of the buckets is abandoned. A fill is optional:
//! nothing depends on its success.

use base::rt;

use super::cache::{CachedValue, CachedVersion, FillToken, VersionKind};
use super::fault::hold_up;
use super::index::KeyHash;
use super::memory::completed;
use super::pointer::{Pointer, UNIT_BYTES};
use super::record::{KeyName, RECORD_BYTES_MAX, RecordContent};
use super::{StateCore, record};
use crate::events;

pub(super) use std::sync::Arc;

impl StateCore {
    /// Step 3.
    pub(super) fn fill(shared: &Arc<StateCore>, hash: KeyHash, name: KeyName<'_>, token: FillToken, kept: CachedValue) {
        let bytes = record::record_bytes(name.namespace.len(), name.key.len(), kept.bytes);
        if bytes > RECORD_BYTES_MAX.min(shared.memory.section_bytes() as usize) {
            return;
        }
        if let Some(life) = shared.role.joined() {
            // Only the primary changes the index.
            return StateCore::request_fill(life, name);
        }
        let Some(permit) = shared.fills.try_acquire() else { return };
        let (namespace, key): (Arc<str>, Arc<str>) = (name.namespace.into(), name.key.into());
        let shared = Arc::clone(shared);
        drop(rt::spawn(async move {
            let _permit = permit;
            shared.install(hash, KeyName { namespace: &namespace, key: &key }, token, kept).await;
        }));
    }

    async fn install(&self, hash: KeyHash, name: KeyName<'_>, token: FillToken, kept: CachedValue) {
        let mut writer = self.writer.lock().await;
        hold_up("state.fill.begin").await;
        let writer = &mut *writer;
        if self.is_fenced() || !self.caches.is_alive(hash, token) {
            events::FillsDropped.add(1);
            return;
        }
        let Some(subtable) = self.subtable(writer, hash).await else { return };
        let Some(group) = self.read_group(writer, &subtable, hash).await else { return };
        for (_, pointer) in group.candidates(hash) {
            if !writer.space.holds(pointer.address()) {
                continue;
            }
            match self.read_head(pointer).await {
                Some(head) if head.is_of(name) => return,
                Some(_) => {}
                // An earlier primary died while it evicted the record. A later fill finds the slot empty.
                None if self.is_marked_evicted(pointer).await => {
                    return self.clear_slot(writer, subtable, hash, pointer).await;
                }
                // The slot may or may not belong to this key.
                None => return,
            }
        }
        let Some(place) = group.vacant_slot(hash, |address| writer.space.holds(address)) else { return };
        let bytes = record::record_bytes(name.namespace.len(), name.key.len(), kept.bytes);
        let Some(extent) = writer.space.allocate(bytes, UNIT_BYTES) else {
            // Eviction leases another section or frees memory; later fills use it.
            writer.is_short_of(bytes);
            self.crowded.notify_one();
            return;
        };
        let incarnation = writer.space.incarnation();
        let pointer = Pointer::new(extent.address, bytes, incarnation);
        let content = RecordContent { name, version: kept.version, value: kept.value.as_deref(), prev: Pointer::NULL };
        let encoded = record::encode(&content, incarnation);
        hold_up("state.fill.write").await;
        if self.write_new(writer, extent.address, encoded).await.is_none() {
            return;
        }
        hold_up("state.fill.slot").await;
        let (before, after) = (group.slot(place), hash.slot(pointer));
        let address = place.address(subtable.group_address(hash.group()));
        match completed(&*self.memory, self.memory.compare_swap(address, before, after)).await {
            Ok(found) if found == before => {
                events::Fills.add(1);
                self.heat.touch(pointer.address());
                let known =
                    CachedVersion { pointer, version: kept.version, kind: VersionKind::Live, bytes: bytes as u32 };
                self.caches.learn(token, hash, name, known, Some(&kept));
                self.watch_free_space(writer);
            }
            failed => {
                if let Err(error) = failed {
                    self.memory.note_failure(address, &error);
                }
                self.give_up(writer, subtable.address);
                // The slot may have been set, and read.
                self.caches.detach(hash, name, pointer);
                self.log_change(|changes| changes.detached(name, pointer));
                writer.retire(pointer);
            }
        }
    }
}
