//! Delays that a simulation asks for.

use std::time::Duration;

/// How long a step waits when a simulation delays it.
const HOLD_UP_TIME: Duration = Duration::from_millis(100);

/// A named fault point: a simulation may delay a step here, so that crashes, cuts and newer primaries fall between two
/// steps.
#[inline(always)]
pub(super) fn hold_up(name: &'static str) -> impl Future<Output = ()> + Send {
    base::rt::fault::hold_up(name, HOLD_UP_TIME)
}
