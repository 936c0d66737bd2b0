//! What the provider guarantees, and its time limits.

use std::time::Duration;

use crate::{Atomicity, ProviderProfile, VerbOrdering};

pub const PROFILE: ProviderProfile = ProviderProfile {
    provider: "tcp",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Words,
    immediate: true,
    synchronous: false,
    host_progress: true,
};

/// A host drops a connection whose handshake is not complete after this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection that was closed locally waits until the other end has received all that was sent.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
