//! The configuration of a simulated network: times and guarantees.

use std::ops::Range;
use std::time::Duration;

use crate::{Atomicity, ProviderProfile, VerbOrdering};

/// The weakest guarantees of any provider.
pub const WEAKEST: ProviderProfile = ProviderProfile {
    provider: "sim",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};

/// The distributions of simulated times.
#[derive(Clone, Debug)]
pub struct SimDelays {
    /// Time of a verb to the host, and of its completion back.
    pub delay: Range<Duration>,
    /// Time between two bursts of one verb.
    pub tear: Range<Duration>,
    /// The same for a slow verb.
    pub tear_slow: Range<Duration>,
    /// Time between rejecting new verbs and the fence.
    pub fence: Range<Duration>,
    /// One delay in this many is slow.
    pub slow_one_in: u64,
    /// Slow delays are longer by this factor.
    pub slow_factor: u32,
}

impl Default for SimDelays {
    /// The times of a fast network that is sometimes busy.
    fn default() -> SimDelays {
        SimDelays {
            delay: Duration::from_micros(1)..Duration::from_micros(8),
            tear: Duration::ZERO..Duration::from_micros(3),
            tear_slow: Duration::from_micros(10)..Duration::from_micros(500),
            fence: Duration::ZERO..Duration::from_micros(20),
            slow_one_in: 50,
            slow_factor: 20,
        }
    }
}
