//! The writer's work on buckets: reading groups of buckets and the heads of records (the first bytes, which hold the
//! key), creating subtables, splitting them. [`super::index`] has the layout and the steps of a split.

use std::collections::BTreeMap;

use base::{Bytes, BytesMut, Version};

use super::fault::hold_up;
use super::index::{BucketGroup, DEPTH_MAX, GROUP_BYTES, GROUPS, KeyHash, SUBTABLE_BYTES, Subtable};
use super::memory::{completed, had_no_effect};
use super::pointer::{Incarnation, Pointer};
use super::record::{self, HEADER_BYTES, KeyName, LinkWord};
use super::space::Extent;
use super::{StateCore, StateWriter};
use crate::events;

/// Verbs that a writer has in flight at once.
pub const IN_FLIGHT_MAX: usize = 256;
/// Bytes of a record that are read to learn its key. Most keys end within.
const HEAD_BYTES: usize = 192;

/// A head that owns its bytes.
pub struct OwnedHead {
    bytes: Bytes,
    pointer: Pointer,
}

impl OwnedHead {
    fn head(&self) -> record::RecordHead<'_> {
        record::head(&self.bytes, self.pointer).expect("it was one when it was read")
    }

    pub fn is_of(&self, name: KeyName<'_>) -> bool {
        let head = self.head();
        head.namespace == name.namespace.as_bytes() && head.key == name.key.as_bytes()
    }

    /// Whether it is the newest version of its key, by its link word.
    pub fn is_newest(&self) -> bool {
        self.head().link.next.is_null()
    }

    pub fn is_deletion(&self) -> bool {
        self.head().deleted
    }

    pub fn version(&self) -> Version {
        self.head().version
    }

    /// Namespace and key, if they are text.
    pub fn name(&self) -> Option<KeyName<'_>> {
        let head = self.head();
        let (namespace, key) = (std::str::from_utf8(head.namespace).ok()?, std::str::from_utf8(head.key).ok()?);
        Some(KeyName { namespace, key })
    }
}

impl StateCore {
    /// The heads of records, in the order asked; `None` if a verb failed or the bytes are not a head.
    pub(super) async fn read_heads(&self, pointers: &[Pointer]) -> Vec<Option<OwnedHead>> {
        let mut heads = Vec::with_capacity(pointers.len());
        for window in pointers.chunks(IN_FLIGHT_MAX) {
            let posted: Vec<_> = window.iter().map(|pointer| self.post_head(*pointer, HEAD_BYTES)).collect();
            for (verb, pointer) in posted.into_iter().zip(window) {
                let bytes = match verb {
                    Some(verb) => completed(&*self.memory, verb).await,
                    None => continue_none(),
                };
                heads.push(self.finish_head(*pointer, bytes).await);
            }
        }
        heads
    }

    pub(super) async fn read_head(&self, pointer: Pointer) -> Option<OwnedHead> {
        self.read_heads(&[pointer]).await.pop().flatten()
    }

    /// The heads of the records in these buffers, with the pointers that lead to them; `None` for subtables, for
    /// records marked invalid, and if a verb failed.
    pub(super) async fn read_heads_at(&self, extents: &[Extent]) -> Vec<Option<(Pointer, OwnedHead)>> {
        let mut heads = Vec::with_capacity(extents.len());
        for window in extents.chunks(IN_FLIGHT_MAX) {
            let pointer =
                |extent: &Extent, incarnation| Pointer::new(extent.address, extent.bytes as usize, incarnation);
            let post = |extent: &Extent| self.post_head(pointer(extent, Incarnation::default()), HEAD_BYTES);
            let posted: Vec<_> = window.iter().map(post).collect();
            for (verb, extent) in posted.into_iter().zip(window) {
                let read = match verb {
                    Some(verb) => completed(&*self.memory, verb).await,
                    None => continue_none(),
                };
                let Ok(bytes) = read.inspect_err(|error| self.memory.note_failure(extent.address, error)) else {
                    heads.push(None);
                    continue;
                };
                let word = wire::u64_at(&bytes, 0);
                let is_subtable = self.directory.has(extent.address, word);
                let word = LinkWord::from_bits(word).filter(|word| word.valid && !is_subtable);
                let pointer = word.map(|word| pointer(extent, word.incarnation));
                heads.push(match pointer {
                    Some(pointer) => self.finish_head(pointer, Ok(bytes)).await.map(|head| (pointer, head)),
                    None => None,
                });
            }
        }
        heads
    }

    fn post_head(&self, pointer: Pointer, bytes: usize) -> Option<rma::Completion<BytesMut>> {
        let section_bytes = self.memory.section_bytes();
        let room = (section_bytes - pointer.address() % section_bytes) as usize;
        let length = bytes.min(pointer.class().bytes()).min(room);
        (length >= HEADER_BYTES).then(|| self.memory.read(pointer.address(), length, BytesMut::with_capacity(length)))
    }

    async fn finish_head(&self, pointer: Pointer, bytes: Result<BytesMut, rma::Error>) -> Option<OwnedHead> {
        let mut bytes = bytes.inspect_err(|error| self.memory.note_failure(pointer.address(), error)).ok()?;
        let needed = record::head_bytes(&bytes)?;
        if needed > bytes.len() {
            bytes = completed(&*self.memory, self.post_head(pointer, needed)?).await.ok()?;
        }
        let bytes = bytes.freeze();
        record::head(&bytes, pointer)?;
        Some(OwnedHead { bytes, pointer })
    }

    /// Whether the record at a pointer is marked as evicted.
    pub(super) async fn is_marked_evicted(&self, pointer: Pointer) -> bool {
        match self.post_head(pointer, HEADER_BYTES) {
            Some(verb) => completed(&*self.memory, verb).await.is_ok_and(|bytes| record::is_given_up(&bytes, pointer)),
            None => false,
        }
    }

    /// Swaps the slot that leads from a key to a record of no more use to empty, and retires the record. If that fails,
    /// the subtable's section is abandoned.
    pub(super) async fn clear_slot(
        &self,
        writer: &mut StateWriter,
        subtable: Subtable,
        hash: KeyHash,
        pointer: Pointer,
    ) {
        let Some(group) = self.read_group(writer, &subtable, hash).await else { return };
        let slot = hash.slot(pointer);
        let Some(place) = group.find(hash, slot) else { return };
        let address = place.address(subtable.group_address(hash.group()));
        match completed(&*self.memory, self.memory.compare_swap(address, slot, 0)).await {
            Ok(found) if found == slot => writer.retire(pointer),
            failed => {
                if let Err(error) = failed {
                    self.memory.note_failure(address, &error);
                }
                self.give_up(writer, address);
            }
        }
    }

    /// Reads the group of a key; if that fails, abandons its section, because no entry in it could be removed.
    pub(super) async fn read_group(
        &self,
        writer: &mut StateWriter,
        subtable: &Subtable,
        hash: KeyHash,
    ) -> Option<BucketGroup> {
        let address = subtable.group_address(hash.group());
        let verb = self.memory.read(address, GROUP_BYTES, BytesMut::with_capacity(GROUP_BYTES));
        match completed(&*self.memory, verb).await {
            Ok(bytes) if BucketGroup::new(&bytes, subtable).is_some() => BucketGroup::new(&bytes, subtable),
            failed => {
                if let Err(error) = failed {
                    self.memory.note_failure(address, &error);
                }
                self.give_up(writer, subtable.address);
                None
            }
        }
    }

    /// The subtable that serves a hash, created if there is none; `None` if memory has no space for one.
    pub(super) async fn subtable(&self, writer: &mut StateWriter, hash: KeyHash) -> Option<Subtable> {
        if let Some(subtable) = self.find_subtable(hash) {
            return Some(subtable);
        }
        let (depth, suffix) = self.directory.missing(hash);
        let mut subtable = self.new_subtable(writer, depth, suffix).await?;
        subtable.incarnation = writer.space.incarnation();
        let empty = subtable.empty().freeze();
        self.write_new(writer, subtable.address, empty).await?;
        self.list_subtable(writer, subtable.address).await;
        self.directory.set(subtable);
        self.log_change(|changes| changes.subtable(&subtable));
        Some(subtable)
    }

    pub(super) async fn new_subtable(&self, writer: &mut StateWriter, depth: u32, suffix: u64) -> Option<Subtable> {
        let align = super::index::BUCKET_BYTES as u64;
        let extent = match writer.space.allocate(SUBTABLE_BYTES, align) {
            Some(extent) => extent,
            None if self.grow_space(writer).await => writer.space.allocate(SUBTABLE_BYTES, align)?,
            None => return None,
        };
        Some(Subtable { address: extent.address, depth, suffix, incarnation: writer.space.incarnation() })
    }

    /// Writes into a buffer to which nothing leads yet. If that fails, frees the buffer or abandons its section.
    pub(super) async fn write_new(&self, writer: &mut StateWriter, address: u64, bytes: Bytes) -> Option<()> {
        let verb = self.memory.write(address, &[bytes]);
        let error = match completed(&*self.memory, verb).await {
            Ok(()) => return Some(()),
            Err(error) => error,
        };
        self.memory.note_failure(address, &error);
        match had_no_effect(&error) && self.is_usable(&error) {
            true => writer.space.free(address),
            false => self.give_up(writer, address),
        }
        None
    }

    /// Whether the section may still be used after a verb in it failed with this error.
    pub(super) fn is_usable(&self, error: &rma::Error) -> bool {
        matches!(error, rma::Error::Busy)
    }

    /// Splits a subtable into two with one more bit of depth. False if that failed.
    pub(super) async fn split(&self, writer: &mut StateWriter, old: Subtable) -> bool {
        if old.depth >= DEPTH_MAX {
            return false;
        }
        hold_up("state.split.begin").await;
        let verb = self.memory.read(old.address, SUBTABLE_BYTES, BytesMut::with_capacity(SUBTABLE_BYTES));
        let Ok(bytes) = completed(&*self.memory, verb).await else {
            self.give_up(writer, old.address);
            return false;
        };
        let groups: Option<Vec<BucketGroup>> =
            bytes.chunks(GROUP_BYTES).map(|bytes| BucketGroup::new(bytes, &old)).collect();
        let Some(mut stay) = groups.filter(|groups| groups.len() == GROUPS) else {
            self.give_up(writer, old.address);
            return false;
        };
        // Entries that lead into sections that are gone are dropped here.
        let mut entries = BTreeMap::new();
        for (at, group) in stay.iter_mut().enumerate() {
            for (place, pointer) in group.entries().collect::<Vec<_>>() {
                match writer.space.holds(pointer.address()) {
                    true => drop(entries.insert((at, place), pointer)),
                    false => group.set(place, 0),
                }
            }
        }
        let pointers: Vec<Pointer> = entries.values().copied().collect();
        let heads = self.read_heads(&pointers).await;
        let depth = old.depth + 1;
        let Some(new) = self.new_subtable(writer, depth, old.suffix | 1 << old.depth).await else { return false };
        let old = Subtable { depth, ..old };
        let mut moved = stay.clone();
        stay.iter_mut().for_each(|group| group.set_header(&old));
        moved.iter_mut().for_each(|group| group.set_header(&new));
        for (((at, place), _), head) in entries.iter().zip(&heads) {
            let Some(name) = head.as_ref().and_then(OwnedHead::name) else {
                writer.space.free(new.address);
                return false;
            };
            let moves = KeyHash::new(name, self.seed).suffix(depth) == new.suffix;
            let other = if moves { &mut stay } else { &mut moved };
            other[*at].set(*place, 0);
        }
        let encode = |groups: &[BucketGroup]| {
            let mut bytes = BytesMut::with_capacity(SUBTABLE_BYTES);
            groups.iter().for_each(|group| group.encode(&mut bytes));
            bytes.freeze()
        };
        if self.write_new(writer, new.address, encode(&moved)).await.is_none() {
            return false;
        }
        self.list_subtable(writer, new.address).await;
        // A later primary must not find it half rewritten.
        if !self.unlist_subtable(writer, old.address).await {
            return false;
        }
        hold_up("state.split.directory").await;
        self.directory.set(new);
        self.directory.set(old);
        self.log_change(|changes| {
            changes.subtable(&new);
            changes.subtable(&old);
        });
        hold_up("state.split.rewrite").await;
        let verb = self.memory.write(old.address, &[encode(&stay)]);
        match completed(&*self.memory, verb).await {
            Ok(()) => self.list_subtable(writer, old.address).await,
            Err(_) => self.give_up(writer, old.address),
        }
        events::SubtablesSplit.add(1);
        true
    }
}

fn continue_none() -> Result<BytesMut, rma::Error> {
    Err(rma::Error::Malformed("a pointer too close to the end of its section"))
}
