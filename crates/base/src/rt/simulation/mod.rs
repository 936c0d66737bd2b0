//! The simulated world: a seeded executor on one thread, with its own clock, chance, disks and network.
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
//! 1. [`Simulation::run`] makes a world from a seed and runs a future in it, on a node called `driver`. The run ends when
//!    that future does; tasks that are left are dropped.
//! 2. [`Sim::node`] names further nodes. Tasks spawned from a node's task live on that node, and so do the directories
//!    that they open and the links that they make.
//! 3. Faults come from the [`Sim`] and [`Node`] handles, from a [`Plan`] in text or by chance, or at [fault
//!    points](crate::rt::fault_point) in the code.
//! 4. The [`Report`] has a digest of everything that happened. [`Simulation::check`] runs a seed twice and compares.
//!
//! What each model does to the code under test is written at the head of `disk` and `net` in this folder.
//!
//! Each node has a clock of its own, which shows the true time unless [`Node::set_clock_drift_ppm`] or a plan lets it drift;
//! `rt::now`, `rt::sleep` and time-outs of its tasks follow it, links and disks do not.
//!
//! Invariants: the seed and the code decide everything. Worlds on different threads know nothing of one another.
//!
//! Left to the caller: nodes share nothing but links; a Rust channel or an `Arc` between two nodes would outlive what a
//! crash ends.

mod chance;
mod clock;
mod disk;
mod executor;
mod failure;
mod ids;
mod net;
mod node;
mod plan;
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

use crate::event::Value;
use crate::rt::context::{self, Ambient};

pub use chance::Chance;
pub use clock::CLOCK_DRIFT_PPM_MAX;
pub use disk::{Disk, DiskCopy, DiskOperation, SECTOR_BYTES};
pub use failure::{Failure, Reason};
pub use node::Node;
pub use plan::{Bounds, Fault, FaultKind, ParsePlanError, Plan, Step};
pub use sim::Sim;
pub use trace::Digest;

pub(in crate::rt) use disk::{Directory, File};
pub(in crate::rt) use executor::yield_once;
pub(in crate::rt) use ids::Life;
pub(in crate::rt) use net::{LinkReceiver, LinkSender, Listener, connect, listen};
pub(in crate::rt) use task::{Task, spawn};
pub(in crate::rt) use timer::Sleep;
pub(in crate::rt) use world::World;

/// What the wall clock shows when a run begins: 2025-01-01T00:00:00Z, in nanoseconds since the Unix epoch.
pub const WALL_START_NANOS: u64 = 1_735_689_600_000_000_000;
/// The most virtual time that a call of `rt::blocking` takes before its function runs.
pub(in crate::rt) const BLOCKING_DELAY_MAX: Duration = Duration::from_micros(200);

/// A run to be made: its seed and its limits.
#[derive(Clone, Debug)]
pub struct Simulation {
    settings: world::Settings,
}

/// A run that succeeded.
#[derive(Clone, Debug)]
pub struct Report<T> {
    /// What the run's future returned.
    pub value: T,
    /// Repeats the run.
    pub seed: u64,
    /// Of everything that happened.
    pub digest: Digest,
    /// Tasks polled.
    pub steps: u64,
    /// Virtual time.
    pub elapsed: Duration,
    /// Fault points reached.
    pub fault_points: BTreeMap<&'static str, FaultPoint>,
    /// Events counted.
    pub events: BTreeMap<&'static str, Value>,
}

/// How often a run came by a fault point.
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
            settings: world::Settings {
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

    /// How long messages on links take.
    #[must_use]
    pub fn link_delay(mut self, delay: Range<Duration>) -> Simulation {
        self.settings.link_delay = delay;
        self
    }

    /// How long disks take to make something durable.
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
    /// When a task panicked and nobody joined it, nothing can happen any more, or a limit was reached. The error's text
    /// names the seed.
    pub fn run<F, Fut>(self, f: F) -> Result<Report<Fut::Output>, Box<Failure>>
    where
        F: FnOnce(Sim) -> Fut,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        assert!(!context::is_simulation(), "a simulation does not run within another");
        let world = World::new(self.settings);
        let driver = world.node("driver");
        let life = world.current_life(driver.id());
        let mut root = {
            let _entered = context::enter(Ambient { world: Arc::clone(&world), life });
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
            let report = Report {
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
    /// As [`Simulation::run`]; and [`Reason::Diverged`] when the seed did not decide everything.
    pub fn check<F, Fut>(self, f: F) -> Result<Report<Fut::Output>, Box<Failure>>
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
        let reason = Reason::Diverged(first.digest, second.digest);
        Err(Box::new(second.into_failure(reason, Vec::new())))
    }
}

impl<T> Report<T> {
    fn with_value<U>(self, value: U) -> Report<U> {
        let Report { value: _, seed, digest, steps, elapsed, fault_points, events } = self;
        Report { value, seed, digest, steps, elapsed, fault_points, events }
    }

    fn into_failure(self, reason: Reason, recent: Vec<String>) -> Failure {
        let Report { seed, digest, steps, elapsed, .. } = self;
        Failure { seed, reason, digest, steps, elapsed, recent }
    }
}
