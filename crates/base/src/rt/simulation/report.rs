//! The report of a simulation: how it ended, and what happened at its fault points.

use std::collections::BTreeMap;
use std::time::Duration;

use super::failure::{FailureReason, SimulationFailure};
use super::trace::TraceDigest;
use crate::event::EventValue;

/// The wall clock at the start of a run: 2025-01-01T00:00:00Z, in nanoseconds since the Unix epoch.
pub const WALL_START_NANOS: u64 = 1_735_689_600_000_000_000;
/// The most virtual time that a call of `rt::blocking` takes before its function runs.
pub(in crate::rt) const BLOCKING_DELAY_MAX: Duration = Duration::from_micros(200);

/// A run that succeeded.
#[derive(Clone, Debug)]
pub struct SimulationReport<T> {
    /// What the run's future returned.
    pub value: T,
    /// The seed, which repeats the run.
    pub seed: u64,
    /// The digest of all events.
    pub digest: TraceDigest,
    /// Number of polls.
    pub steps: u64,
    /// Virtual time of the run.
    pub elapsed: Duration,
    /// Fault points that were reached.
    pub fault_points: BTreeMap<&'static str, FaultPoint>,
    /// Values of the events.
    pub events: BTreeMap<&'static str, EventValue>,
}

/// Statistics of a fault point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPoint {
    /// How often it was reached.
    pub reached: u64,
    /// How often the fault was injected.
    pub injected: u64,
}

impl<T> SimulationReport<T> {
    pub(super) fn with_value<U>(self, value: U) -> SimulationReport<U> {
        let SimulationReport { value: _, seed, digest, steps, elapsed, fault_points, events } = self;
        SimulationReport { value, seed, digest, steps, elapsed, fault_points, events }
    }

    pub(super) fn into_failure(self, reason: FailureReason, recent: Vec<String>) -> SimulationFailure {
        let SimulationReport { seed, digest, steps, elapsed, .. } = self;
        SimulationFailure { seed, reason, digest, steps, elapsed, recent }
    }
}
