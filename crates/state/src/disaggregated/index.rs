//! The index: from a key's hash to pointers to records (docs/formats/index.md).
//!
//! An extendible directory leads to subtables of [`GROUPS`] groups. A group has three buckets of one cache line each;
//! the middle bucket takes the overflow of the outer two. This is the layout of RACE hashing, but a key has one main
//! bucket instead of two:
//!
//! ```text
//! group    main 0 (64 bytes) | overflow (64 bytes) | main 1 (64 bytes)
//! bucket   header:8 | slot:8 × 7
//! slot     pointer:54 | fingerprint:10, or 0
//! header   depth:6 | suffix:26 | incarnation:8 | 0:8 | magic:16
//! hash     directory:26 (lowest) | 0:6 | group:16 | main:1 | 0:5 | fingerprint:10 (highest)
//! ```
//!
//! A key's main bucket and the overflow bucket are adjacent, so one read of [`PROBE_BYTES`] covers every slot that the
//! key may have. The header states which suffix of hashes the subtable serves, so a reader with a stale directory sees
//! a header that does not match.
//!
//! Growth of a subtable at depth `d`, by the primary alone:
//! 1. write a new subtable of depth `d + 1` with the entries whose hash has bit `d` set, at the same positions;
//! 2. list it in the header of its section, and the old one no longer ([`super::marks`]); point the directory to it;
//! 3. rewrite the old subtable without these entries, under its new header, and list it again.
//!
//! Between two steps a reader finds an entry in one or both of the subtables, or in none, or finds a header that does
//! not match. A miss is always safe: a version to which the index does not lead is in the delta or in storage.
//!
//! Invariant: only the primary changes buckets, and a slot leads to the newest applied version of its key.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::BytesMut;
use twox_hash::XxHash3_64;

use super::pointer::{Incarnation, POINTER_BITS, Pointer};
use super::record::KeyName;

/// Bytes of a bucket: a cache line.
pub const BUCKET_BYTES: usize = 64;
/// Slots of a bucket.
pub const SLOTS: usize = 7;
/// Words of a bucket and of a group.
const BUCKET_WORDS: usize = BUCKET_BYTES / 8;
pub const GROUP_WORDS: usize = 3 * BUCKET_WORDS;
pub const GROUP_BYTES: usize = 8 * GROUP_WORDS;
/// Groups of a subtable, as many as fit 4 KiB.
pub const GROUPS: usize = 21;
pub const SUBTABLE_BYTES: usize = GROUPS * GROUP_BYTES;
/// Bytes that a read of a key covers: its main bucket and the adjacent overflow bucket.
pub const PROBE_BYTES: usize = 2 * BUCKET_BYTES;
/// The [directory](super::directory) has at most 2^26 entries.
pub const DEPTH_MAX: u32 = 26;
const MAGIC: u64 = 0x4958; // "XI"
const FINGERPRINT_BITS: u32 = 10;

const _: () = assert!(SUBTABLE_BYTES <= 4096 && BUCKET_BYTES == 8 * (SLOTS + 1));
const _: () = assert!(POINTER_BITS + FINGERPRINT_BITS == 64);

/// The hash of a key, which determines its position in index and caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The seed belongs to the address space and is random, so that nobody can choose keys that collide.
    #[inline]
    pub fn new(name: KeyName<'_>, seed: u64) -> KeyHash {
        KeyHash::with_namespace(KeyHash::namespace(name.namespace, seed), name.key)
    }

    /// The first half of [`KeyHash::new`], for look-ups of many keys of one namespace.
    #[inline]
    pub fn namespace(namespace: &str, seed: u64) -> u64 {
        XxHash3_64::oneshot_with_seed(seed, namespace.as_bytes())
    }

    /// The second half of [`KeyHash::new`].
    #[inline]
    pub fn with_namespace(namespace: u64, key: &str) -> KeyHash {
        KeyHash(XxHash3_64::oneshot_with_seed(namespace, key.as_bytes()))
    }

    /// The lowest `depth` bits.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn suffix(self, depth: u32) -> u64 {
        self.0 & ((1 << depth) - 1)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn group(self) -> usize {
        ((((self.0 >> 32) & 0xffff) * GROUPS as u64) >> 16) as usize
    }

    /// Whether the key's main bucket is the second one.
    pub const fn second(self) -> bool {
        (self.0 >> 48) & 1 == 1
    }

    pub const fn fingerprint(self) -> u64 {
        self.0 >> (64 - FINGERPRINT_BITS)
    }

    /// The slot that leads from this key to a record.
    pub const fn slot(self, pointer: Pointer) -> u64 {
        pointer.bits() | (self.fingerprint() << POINTER_BITS)
    }

    /// Whether a slot may be this key's.
    #[inline]
    pub const fn may_match(self, slot: u64) -> bool {
        slot >> POINTER_BITS == self.fingerprint() && !Pointer::from_bits(slot).is_null()
    }

    /// The first byte, within a subtable, of the key's probe.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn probe_offset(self) -> u64 {
        (self.group() * GROUP_BYTES + if self.second() { BUCKET_BYTES } else { 0 }) as u64
    }
}

/// A subtable, as the directory knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subtable {
    pub address: u64,
    pub depth: u32,
    /// The lowest `depth` bits of the hashes that it serves.
    pub suffix: u64,
    pub incarnation: Incarnation,
}

impl Subtable {
    /// The subtable at an address whose buckets have this header; `None` if the header is invalid.
    pub const fn of_header(address: u64, header: u64) -> Option<Subtable> {
        let (depth, suffix) = ((header & 63) as u32, (header >> 6) & ((1 << DEPTH_MAX) - 1));
        if header >> 48 != MAGIC
            || (header >> 40) & 0xff != 0
            || depth > DEPTH_MAX
            || suffix >> depth != 0
            || address == 0
        {
            return None;
        }
        Some(Subtable { address, depth, suffix, incarnation: Incarnation::new(header >> 32) })
    }

    /// The lowest bits of a hash that lead to the subtable whose buckets have this header; `None` if the header is
    /// invalid.
    pub const fn suffix_of(header: u64) -> Option<KeyHash> {
        if header >> 48 != MAGIC { None } else { Some(KeyHash((header >> 6) & ((1 << DEPTH_MAX) - 1))) }
    }

    /// The header of each of its buckets.
    pub const fn header(&self) -> u64 {
        self.depth as u64 | (self.suffix << 6) | (self.incarnation.bits() << 32) | (MAGIC << 48)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn group_address(&self, group: usize) -> u64 {
        self.address + (group * GROUP_BYTES) as u64
    }

    /// Its bytes without entries.
    pub fn empty(&self) -> BytesMut {
        let mut bytes = BytesMut::with_capacity(SUBTABLE_BYTES);
        for _ in 0..GROUPS * 3 {
            bytes.extend_from_slice(&self.header().to_le_bytes());
            bytes.extend_from_slice(&[0; BUCKET_BYTES - 8]);
        }
        bytes
    }
}

/// The buckets that a read of a key returned.
#[derive(Clone, Copy)]
pub struct BucketProbe<'a>(&'a [u8]);

impl<'a> BucketProbe<'a> {
    /// `None` if the bytes are not buckets of that subtable: the directory is stale, or the bytes are not of the index.
    #[inline]
    pub fn new(bytes: &'a [u8], subtable: &Subtable) -> Option<BucketProbe<'a>> {
        let header = subtable.header();
        let fits = bytes.len() == PROBE_BYTES && word(bytes, 0) == header && word(bytes, BUCKET_WORDS) == header;
        fits.then_some(BucketProbe(bytes))
    }

    /// The pointers that may lead to the key's record.
    #[inline]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn candidates(self, hash: KeyHash) -> impl Iterator<Item = Pointer> + 'a {
        // Without a branch per slot: which slot matches is unpredictable.
        let mut fits = (0..2 * BUCKET_WORDS)
            .map(|at| u32::from(hash.may_match(word(self.0, at))) << at)
            .fold(0, |all, one| all | one);
        fits &= !(1 | 1 << BUCKET_WORDS);
        std::iter::from_fn(move || {
            let at = (fits != 0).then(|| fits.trailing_zeros())?;
            fits &= fits - 1;
            Some(Pointer::from_bits(word(self.0, at as usize)))
        })
    }
}

#[inline]
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn word(bytes: &[u8], at: usize) -> u64 {
    wire::u64_at(bytes, 8 * at)
}

/// Marks a slot in the primary's own copy that it is going to use. Never stored: nothing is at address 16.
pub const RESERVED: u64 = 1;

/// A group as the primary works on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketGroup([u64; GROUP_WORDS]);

/// The position of a slot in a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SlotIndex(usize);

impl SlotIndex {
    /// The slot's address, in the group at `group`.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn address(self, group: u64) -> u64 {
        group + 8 * self.0 as u64
    }
}

impl BucketGroup {
    /// `None` if the bytes are not a group of that subtable.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn new(bytes: &[u8], subtable: &Subtable) -> Option<BucketGroup> {
        if bytes.len() != GROUP_BYTES {
            return None;
        }
        let group = BucketGroup(std::array::from_fn(|at| word(bytes, at)));
        let fits = (0..3).all(|bucket| group.0[bucket * BUCKET_WORDS] == subtable.header());
        fits.then_some(group)
    }

    pub fn encode(&self, into: &mut BytesMut) {
        self.0.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    }

    /// Gives every bucket the header of another subtable.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn set_header(&mut self, subtable: &Subtable) {
        (0..3).for_each(|bucket| self.0[bucket * BUCKET_WORDS] = subtable.header());
    }

    /// The slots that a key may have: its main bucket first.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn slots(hash: KeyHash) -> impl Iterator<Item = SlotIndex> {
        let main = if hash.second() { 2 * BUCKET_WORDS } else { 0 };
        let slots = |bucket: usize| (bucket + 1..bucket + BUCKET_WORDS).map(SlotIndex);
        slots(main).chain(slots(BUCKET_WORDS))
    }

    /// The slots and pointers that may lead to the key's record.
    pub fn candidates(&self, hash: KeyHash) -> impl Iterator<Item = (SlotIndex, Pointer)> + '_ {
        BucketGroup::slots(hash)
            .map(|place| (place, self.0[place.0]))
            .filter(move |(_, slot)| hash.may_match(*slot))
            .map(|(place, slot)| (place, Pointer::from_bits(slot)))
    }

    /// A slot for a key that is empty, or that leads into a section that is gone.
    pub fn vacant_slot(&self, hash: KeyHash, is_leased: impl Fn(u64) -> bool) -> Option<SlotIndex> {
        BucketGroup::slots(hash).find(|place| {
            let slot = self.0[place.0];
            slot == 0 || (slot != RESERVED && !is_leased(Pointer::from_bits(slot).address()))
        })
    }

    /// The position of a slot's content, among those that the key may have.
    pub fn find(&self, hash: KeyHash, slot: u64) -> Option<SlotIndex> {
        BucketGroup::slots(hash).find(|place| self.0[place.0] == slot)
    }

    pub fn slot(&self, place: SlotIndex) -> u64 {
        self.0[place.0]
    }

    pub fn set(&mut self, place: SlotIndex, slot: u64) {
        self.0[place.0] = slot;
    }

    /// Every slot with an entry.
    pub fn entries(&self) -> impl Iterator<Item = (SlotIndex, Pointer)> + '_ {
        let places = (0..GROUP_WORDS).filter(|at| at % BUCKET_WORDS != 0 && self.0[*at] != 0);
        places.map(|at| (SlotIndex(at), Pointer::from_bits(self.0[at])))
    }
}
