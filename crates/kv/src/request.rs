//! The requests of a store's clients, and the answers.

use base::Bytes;

/// Entries that are posted and whose callers have not been answered.
pub const IN_FLIGHT_MAX: usize = 1024;

/// How a store is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvConfig {
    /// Bytes of the cache, in addition to the unapplied entries.
    pub cache_bytes: usize,
}

impl Default for KvConfig {
    fn default() -> KvConfig {
        KvConfig { cache_bytes: 256 << 20 }
    }
}

/// A value and its version: the index of the entry that wrote it. Versions of all keys grow together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VersionedValue {
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: u64,
}

/// The condition of a compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// The key has no value.
    Absent,
    /// It has this version.
    Version(u64),
    /// It has this value.
    Value(Bytes),
    /// It has some value.
    Present,
}

impl Precondition {
    pub(crate) fn holds(&self, found: Option<&VersionedValue>) -> bool {
        match (self, found) {
            (Precondition::Absent, None) | (Precondition::Present, Some(_)) => true,
            (Precondition::Version(version), Some(found)) => found.version == *version,
            (Precondition::Value(value), Some(found)) => found.value == *value,
            _ => false,
        }
    }
}

/// The outcome of a compare-and-set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapOutcome {
    /// The key was changed; this is the new version.
    Done(u64),
    /// The condition did not hold; this is the current value.
    Mismatch(Option<VersionedValue>),
}

/// The state of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvStatus {
    /// The last entry.
    pub last: u64,
    /// The last entry that is applied.
    pub applied: u64,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Bytes of the cache.
    pub cache_bytes: usize,
    /// Buckets of the index that are loaded here.
    pub buckets_known: u64,
    /// Entries that the takeover found in the log.
    pub recovered: usize,
    /// The last entry in the tables, if the store is kept in tables.
    pub persisted: Option<u64>,
}
