//! A record that may be evicted from remote memory.

use super::index::KeyHash;
use super::pointer::Pointer;

/// A record that may be evicted, as sent to the compute nodes in step 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictionCandidate {
    /// The pointer under which a compute node that uses the record has it cached.
    pub pointer: Pointer,
    /// Selects the shard of the caches to look into.
    pub hash: KeyHash,
}
