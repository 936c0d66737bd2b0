//! The limits and pauses of the tasks of a disaggregated world state.

use std::time::Duration;

/// Fills in progress at once.
pub const FILLS_MAX: usize = 64;

/// How long to wait before asking the pool again after it had no section to grant.
pub const EXHAUSTED_PAUSE: Duration = Duration::from_secs(1);

/// The pause after storage failed to carry out a request.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);
