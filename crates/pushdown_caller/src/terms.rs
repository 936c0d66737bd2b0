//! On what terms a call is made: when it is cancelled and what happens then, how long its function may run, and the ticket by which other
//! threads cancel it (section 3.2).

use std::num::NonZeroU32;
use std::time::Duration;

use page_coherence::CoherenceMode;

/// The terms of a call.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Terms {
    /// How coherent memory is meanwhile.
    pub(crate) mode: CoherenceMode,
    /// After which time the call is cancelled.
    pub(crate) timeout: Option<Duration>,
    /// For how many milliseconds the function may run.
    pub(crate) limit: Option<NonZeroU32>,
    /// Whether a function that has not run is pushed down again.
    pub(crate) again: bool,
    /// By which the call can be cancelled.
    pub(crate) ticket: Option<u64>,
}

/// How far the cancelling of a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Cancelling {
    #[default]
    No,
    /// The executor was asked.
    Asked,
    /// The function runs, or has ended.
    Declined,
}
