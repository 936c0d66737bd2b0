//! Options of the provider.

use std::time::Duration;

/// Bytes of a name in a credential.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// How long a revocation waits for verbs in flight before it kills the process that posted them. For a caller within the
    /// host's own process, how long it waits before it fails.
    pub drain: Duration,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { drain: Duration::from_secs(2) }
    }
}
