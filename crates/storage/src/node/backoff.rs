//! Pauses between attempts.

use std::time::Duration;

/// The back-off before the first new attempt to connect; it doubles.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest back-off between two attempts to connect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The back-off between attempts, with jitter: clients that lost the same node do not reconnect all at once.
pub(super) fn retry_backoff() -> base::rt::Backoff {
    base::rt::Backoff::spread(BACKOFF_MIN, BACKOFF_MAX)
}
