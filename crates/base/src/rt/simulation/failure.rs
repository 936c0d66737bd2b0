//! The ways in which a run fails.

use std::fmt;
use std::time::Duration;

use super::trace::TraceDigest;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailureReason {
    /// A task panicked and was not joined: its name and message.
    Panic(String),
    /// No task can make progress, but the run has not ended: the waiting tasks.
    Deadlock(Vec<String>),
    /// More steps than allowed.
    StepLimit(u64),
    /// More virtual time than allowed.
    TimeLimit(Duration),
    /// A thread outside the simulation woke one of its tasks.
    ForeignWake,
    /// The same seed produced another run: the digests of both.
    Diverged(TraceDigest, TraceDigest),
}

/// A failed run. Its text names the seed, which repeats the run.
#[derive(Clone)]
pub struct SimulationFailure {
    /// Repeats the run.
    pub seed: u64,
    /// Why it failed.
    pub reason: FailureReason,
    /// The digest of all events until then.
    pub digest: TraceDigest,
    /// Number of polls until then.
    pub steps: u64,
    /// Virtual time until then.
    pub elapsed: Duration,
    /// The last events, oldest first.
    pub recent: Vec<String>,
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailureReason::Panic(text) => f.write_str(text),
            FailureReason::Deadlock(tasks) => {
                write!(f, "deadlock: no task is ready and no timer is set; waiting:")?;
                tasks.iter().try_for_each(|task| write!(f, "\n    {task}"))
            }
            FailureReason::StepLimit(steps) => write!(f, "not ended after {steps} steps"),
            FailureReason::TimeLimit(time) => write!(f, "not ended after {time:?} of virtual time"),
            FailureReason::ForeignWake => f.write_str("a thread outside of the simulation woke a task of it"),
            FailureReason::Diverged(one, two) => write!(f, "the same seed gave two runs, {one} and {two}"),
        }
    }
}

impl fmt::Display for SimulationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimulationFailure { seed, reason, digest, steps, elapsed, recent } = self;
        writeln!(f, "simulation with seed {seed} failed: {reason}")?;
        write!(f, "  after {elapsed:?} of virtual time and {steps} steps, digest {digest}; last events:")?;
        recent.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Debug for SimulationFailure {
    /// The same as its text, so that the message of `expect` is readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for SimulationFailure {}
