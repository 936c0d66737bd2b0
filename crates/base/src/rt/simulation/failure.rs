//! How a run fails.

use std::fmt;
use std::time::Duration;

use super::trace::Digest;

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A task panicked, and nobody joined it: its name and message.
    Panic(String),
    /// Nothing can happen any more, yet the run has not ended: the tasks that wait.
    Deadlock(Vec<String>),
    /// More steps than allowed.
    StepLimit(u64),
    /// More virtual time than allowed.
    TimeLimit(Duration),
    /// A thread outside of the simulation woke a task of it.
    ForeignWake,
    /// The same seed gave another run: the digests of both.
    Diverged(Digest, Digest),
}

/// A run that failed. Its text names the seed, which repeats the run.
#[derive(Clone)]
pub struct Failure {
    /// Repeats the run.
    pub seed: u64,
    /// What went wrong.
    pub reason: Reason,
    /// Of everything until then.
    pub digest: Digest,
    /// Tasks polled until then.
    pub steps: u64,
    /// Virtual time until then.
    pub elapsed: Duration,
    /// The last events, oldest first.
    pub recent: Vec<String>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Panic(text) => f.write_str(text),
            Reason::Deadlock(tasks) => {
                write!(f, "deadlock: no task is ready and no timer is set; waiting:")?;
                tasks.iter().try_for_each(|task| write!(f, "\n    {task}"))
            }
            Reason::StepLimit(steps) => write!(f, "not ended after {steps} steps"),
            Reason::TimeLimit(time) => write!(f, "not ended after {time:?} of virtual time"),
            Reason::ForeignWake => f.write_str("a thread outside of the simulation woke a task of it"),
            Reason::Diverged(one, two) => write!(f, "the same seed gave two runs, {one} and {two}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, reason, digest, steps, elapsed, recent } = self;
        writeln!(f, "simulation with seed {seed} failed: {reason}")?;
        write!(f, "  after {elapsed:?} of virtual time and {steps} steps, digest {digest}; last events:")?;
        recent.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Debug for Failure {
    /// As its text, so that `expect` shows what a person needs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}
