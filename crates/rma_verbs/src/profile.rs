//! What the provider guarantees.

use rma::{Atomicity, ProviderProfile, VerbOrdering};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "adapters do atomics in the host's byte order, and words are little-endian"
);

/// Adapters place the packets of a message in any order, and execute the work of one queue pair in the order of posting; a work
/// request that could overtake an earlier read waits for it.
pub const PROFILE: ProviderProfile = ProviderProfile {
    provider: "verbs",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};
