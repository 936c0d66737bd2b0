//! A cached version of a record.

use base::{Bytes, Version};

use crate::Versioned;
use crate::disaggregated::fault::{Mutant, mutant};
use crate::disaggregated::pointer::Pointer;
use crate::disaggregated::record::Record;

/// Identifies the data of one version: its pointer, or a unique number if it has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionTag(pub(super) u64);

impl VersionTag {
    pub(super) const LOCAL: u64 = 1 << 63;

    pub(super) fn of(pointer: Pointer) -> VersionTag {
        // Under the mutant, incarnations are ignored, and the bytes of one are taken for those of another.
        let mask = if mutant(Mutant::NoIncarnation) { (1 << 40) - 1 } else { u64::MAX };
        VersionTag(pointer.bits() & mask)
    }
}

/// The newest applied version of a key, without its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedVersion {
    /// Null if remote memory does not hold it.
    pub pointer: Pointer,
    pub version: Version,
    pub kind: VersionKind,
    /// Bytes of its record.
    pub bytes: u32,
}

/// What a version says about its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionKind {
    Live,
    Deleted,
    /// The key does not exist up to this version, which no transaction wrote.
    Absent,
}

impl CachedVersion {
    /// Neither remote memory nor delta nor storage had the key for a reader at `height`, which is not 0. Followers at
    /// lower heights may have to see a version that was deleted since, and of which storage has kept nothing.
    pub const fn absent(height: u64) -> CachedVersion {
        let version = Version { block: height - 1, tx: u32::MAX };
        CachedVersion { pointer: Pointer::NULL, version, kind: VersionKind::Absent, bytes: 0 }
    }

    /// Whether the version is visible at this height.
    #[inline]
    pub fn is_seen(&self, height: u64) -> bool {
        self.version.block < height
    }
}

/// A version with its value.
#[derive(Clone, Debug)]
pub struct CachedValue {
    pub version: Version,
    /// `None` for a deletion.
    pub value: Option<Bytes>,
    /// The version before it, in remote memory.
    pub prev: Pointer,
    /// Bytes that caching it costs, besides the cache's own.
    pub bytes: usize,
}

impl CachedValue {
    /// From a record whose buffer has `bytes` bytes.
    pub fn of(record: Record, bytes: usize) -> CachedValue {
        CachedValue { version: record.version, prev: record.prev, value: record.into_value(), bytes }
    }

    pub fn into_versioned(self) -> Option<Versioned> {
        let version = self.version;
        self.value.map(|value| Versioned { value, version })
    }
}
