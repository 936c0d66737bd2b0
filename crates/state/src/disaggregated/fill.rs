//! Fills: what a reader had to ask of storage is brought back to remote memory.
//!
//! Steps of a fill, of which the first two are the reader's:
//! 1. it took a token before it looked anywhere; whatever changes the key since kills the token;
//! 2. storage answered with the newest version of the key;
//! 3. a task of its own waits for its turn as the writer, up to [`FILLS_MAX`] of them; more are dropped;
//! 4. with the writer's lock held, so that no block is applied meanwhile: is the token alive? Is there room, without asking
//!    for another section? The group of buckets is read again: the key must still be absent from it;
//! 5. the record is written, completely;
//! 6. the slot is set by compare-and-swap, and the caches learn where the record is.
//!
//! A failure at 5 gives the buffer back if the write certainly had no effect, else gives up its section; at 6 it gives up the
//! section of the buckets. Nothing depends on a fill.

use std::sync::Arc;

use base::rt;

use super::Shared;
use super::cache::{Kept, Kind, Known, Token};
use super::fault::hold_up;
use super::index::KeyHash;
use super::memory::completed;
use super::pointer::{Pointer, UNIT_BYTES};
use super::record::{self, Content, Name, RECORD_BYTES_MAX};
use crate::events;

/// Fills that may be under way.
pub const FILLS_MAX: usize = 64;

impl Shared {
    /// Step 3.
    pub(super) fn fill(shared: &Arc<Shared>, hash: KeyHash, name: Name<'_>, token: Token, kept: Kept) {
        let bytes = record::record_bytes(name.namespace.len(), name.key.len(), kept.bytes);
        if bytes > RECORD_BYTES_MAX.min(shared.memory.section_bytes() as usize) {
            return;
        }
        if let Some(life) = shared.role.life() {
            // Only the primary changes the index.
            return Shared::wish_for(life, name);
        }
        let Some(permit) = shared.fills.try_acquire() else { return };
        let (namespace, key): (Arc<str>, Arc<str>) = (name.namespace.into(), name.key.into());
        let shared = Arc::clone(shared);
        drop(rt::spawn(async move {
            let _permit = permit;
            shared.install(hash, Name { namespace: &namespace, key: &key }, token, kept).await;
        }));
    }

    async fn install(&self, hash: KeyHash, name: Name<'_>, token: Token, kept: Kept) {
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
                // Whether it is this key's cannot be told.
                None => return,
            }
        }
        let Some(place) = group.vacancy(hash, |address| writer.space.holds(address)) else { return };
        let bytes = record::record_bytes(name.namespace.len(), name.key.len(), kept.bytes);
        let Some(extent) = writer.space.allocate(bytes, UNIT_BYTES) else {
            // Eviction asks for another section, or makes room; later fills find it.
            writer.is_short_of(bytes);
            self.crowded.notify_one();
            return;
        };
        let incarnation = writer.space.incarnation();
        let pointer = Pointer::new(extent.address, bytes, incarnation);
        let content = Content { name, version: kept.version, value: kept.value.as_deref(), prev: Pointer::NULL };
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
                let known = Known { pointer, version: kept.version, kind: Kind::Live, bytes: bytes as u32 };
                self.caches.learn(token, hash, name, known, Some(&kept));
                self.watch_room(writer);
            }
            failed => {
                if let Err(error) = failed {
                    self.memory.note_failure(address, &error);
                }
                self.give_up(writer, subtable.address);
                // The slot may have been set, and read.
                self.caches.detach(hash, name, pointer);
                self.holders.log(|changes| changes.detached(name, pointer));
                writer.put_aside(pointer);
            }
        }
    }
}
