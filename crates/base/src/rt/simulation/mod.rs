//! The simulated world: a seeded executor on one thread, with its own clock, random generator, disks and network.
//!
//! ```
//! use base::rt::{self, simulation::Simulation};
//! use std::time::Duration;
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let peer = sim.node("peer");
//!     let answer = peer.spawn(async {
//!         rt::sleep(Duration::from_secs(3600)).await; // Takes no time.
//!         42
//!     });
//!     answer.await.expect("the peer does not crash")
//! });
//! assert_eq!(report.expect("the run succeeds").value, 42);
//! ```
//!
//! 1. [`Simulation::run`] creates a world from a seed and runs a future in it, on a node called `driver`. When that
//!    future completes, the run ends and all other tasks are dropped.
//! 2. [`Sim::node`] names further nodes. Tasks spawned from a node's task live on that node, and so do the directories that
//!    they open and the links that they make.
//! 3. Faults come from three sources: the [`Sim`] and [`SimNode`] handles; a [`FaultPlan`], written as text or random; and
//!    [fault points](crate::rt::fault_point) in the code.
//! 4. The [`SimulationReport`] has a digest of all events. [`Simulation::check`] runs a seed twice and compares the digests.
//!
//! The modules `disk` and `net` in this folder describe the faults of simulated disks and links.
//!
//! Each node has its own clock, which shows the true time unless [`SimNode::set_clock_drift_ppm`] or a plan lets it drift.
//! `rt::now`, `rt::sleep` and time-outs of the node's tasks follow its clock; links and disks follow the true time.
//!
//! Invariants: The seed and the code determine everything that happens in a world. Worlds on different threads are
//! independent.
//!
//! The caller must ensure that nodes share only links; a Rust channel or an `Arc` shared by two nodes would survive a crash
//! that should end it.

mod clock;
mod disk;
mod executor;
mod failure;
mod ids;
mod net;
mod node;
mod plan;
mod rng;
mod sim;
mod task;
mod timer;
mod trace;
mod world;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::event::EventValue;
use crate::rt::context::{self, AmbientContext};

pub use clock::CLOCK_DRIFT_PPM_MAX;
pub use disk::{DiskCopy, DiskOperation, SECTOR_BYTES, SimDisk};
pub use failure::{FailureReason, SimulationFailure};
pub use node::SimNode;
pub use plan::{Fault, FaultKind, FaultPlan, FaultPlanLimits, FaultStep, ParsePlanError};
pub use rng::Prng;
pub use sim::Sim;
pub use trace::TraceDigest;

pub(in crate::rt) use disk::{Directory, File};
pub(in crate::rt) use executor::yield_once;
pub(in crate::rt) use ids::Incarnation;
pub(in crate::rt) use net::{LinkReceiver, LinkSender, Listener, connect, listen};
pub(in crate::rt) use task::{Task, spawn};
pub(in crate::rt) use timer::Sleep;
pub(in crate::rt) use world::World;

/// The wall clock at the start of a run: 2025-01-01T00:00:00Z, in nanoseconds since the Unix epoch.
pub const WALL_START_NANOS: u64 = 1_735_689_600_000_000_000;
/// The most virtual time that a call of `rt::blocking` takes before its function runs.
pub(in crate::rt) const BLOCKING_DELAY_MAX: Duration = Duration::from_micros(200);

/// A run before it starts: its seed and its limits.
#[derive(Clone, Debug)]
pub struct Simulation {
    settings: world::WorldConfig,
}

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

impl Simulation {
    /// A run for `seed`, with limits that suit a test: ten million steps, one day.
    pub fn new(seed: u64) -> Simulation {
        Simulation {
            settings: world::WorldConfig {
                seed,
                steps_max: 10_000_000,
                time_max: Duration::from_secs(24 * 3600),
                trace_lines_max: 200,
                link_delay: Duration::from_micros(50)..Duration::from_micros(500),
                sync_delay: Duration::from_micros(50)..Duration::from_millis(2),
            },
        }
    }

    /// Fails the run after this many tasks were polled.
    #[must_use]
    pub fn steps_max(mut self, steps: u64) -> Simulation {
        self.settings.steps_max = steps;
        self
    }

    /// Fails the run after this much virtual time.
    #[must_use]
    pub fn time_max(mut self, time: Duration) -> Simulation {
        self.settings.time_max = time;
        self
    }

    /// Shows this many of the last events when the run fails.
    #[must_use]
    pub fn trace_lines_max(mut self, lines: usize) -> Simulation {
        self.settings.trace_lines_max = lines;
        self
    }

    /// Sets how long messages on links take.
    #[must_use]
    pub fn link_delay(mut self, delay: Range<Duration>) -> Simulation {
        self.settings.link_delay = delay;
        self
    }

    /// Sets how long disks take to make something durable.
    #[must_use]
    pub fn sync_delay(mut self, delay: Range<Duration>) -> Simulation {
        self.settings.sync_delay = delay;
        self
    }

    /// Runs a future in a new world until it ends.
    ///
    /// Panics when called within a simulation.
    ///
    /// # Errors
    /// When a task panicked and was not joined, no task can make progress, or a limit was reached. The error's text names the
    /// seed.
    pub fn run<F, Fut>(self, f: F) -> Result<SimulationReport<Fut::Output>, Box<SimulationFailure>>
    where
        F: FnOnce(Sim) -> Fut,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        assert!(!context::is_simulation(), "a simulation does not run within another");
        let world = World::new(self.settings);
        let driver = world.node("driver");
        let life = world.current_incarnation(driver.id());
        let mut root = {
            let _entered = context::enter(AmbientContext { world: Arc::clone(&world), incarnation: life });
            spawn(&world, life, Box::pin(f(Sim::new(Arc::clone(&world)))), std::any::type_name::<Fut>())
        };
        world.execute(|| root.is_finished());
        let value = root.take_output();
        world.fail_on_unjoined_panics();
        world.drop_tasks(None);
        world.forget_functions();
        let events = world.with_events(|events| events.clone().into_iter().collect());
        let (failure, report, recent) = world.with(|core| {
            let failure = core.failure.take();
            let recent = failure.as_ref().map(|_| core.trace.recent(|node| core.node_name(node)));
            let report = SimulationReport {
                value: (),
                seed: core.settings.seed,
                digest: core.trace.digest(),
                steps: core.steps,
                elapsed: Duration::from_nanos(core.clock),
                fault_points: core.fault_points.clone().into_iter().collect(),
                events,
            };
            (failure, report, recent)
        });
        match (failure, value) {
            (None, Some(value)) => Ok(report.with_value(value)),
            (reason, _) => {
                let reason = reason.expect("a run ends by its future or by a failure");
                Err(Box::new(report.into_failure(reason, recent.unwrap_or_default())))
            }
        }
    }

    /// Runs twice and compares the digests. Returns the second run's report.
    ///
    /// # Errors
    /// As [`Simulation::run`]; and [`FailureReason::Diverged`] when the seed did not decide the whole run.
    pub fn check<F, Fut>(self, f: F) -> Result<SimulationReport<Fut::Output>, Box<SimulationFailure>>
    where
        F: Fn(Sim) -> Fut,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        let first = self.clone().run(&f)?;
        let second = self.run(&f)?;
        if first.digest == second.digest {
            return Ok(second);
        }
        let reason = FailureReason::Diverged(first.digest, second.digest);
        Err(Box::new(second.into_failure(reason, Vec::new())))
    }
}

impl<T> SimulationReport<T> {
    fn with_value<U>(self, value: U) -> SimulationReport<U> {
        let SimulationReport { value: _, seed, digest, steps, elapsed, fault_points, events } = self;
        SimulationReport { value, seed, digest, steps, elapsed, fault_points, events }
    }

    fn into_failure(self, reason: FailureReason, recent: Vec<String>) -> SimulationFailure {
        let SimulationReport { seed, digest, steps, elapsed, .. } = self;
        SimulationFailure { seed, reason, digest, steps, elapsed, recent }
    }
}
