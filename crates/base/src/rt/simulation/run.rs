//! A simulation: a seed, the nodes, and the loop that runs their tasks.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::failure::{FailureReason, SimulationFailure};
use super::report::SimulationReport;
use super::sim::Sim;
use super::task::spawn;
use super::world::World;
use crate::rt::context;
use crate::rt::context::AmbientContext;

/// A run before it starts: its seed and its limits.
#[derive(Clone, Debug)]
pub struct Simulation {
    settings: super::world::WorldConfig,
}

impl Simulation {
    /// A run for `seed`, with limits that suit a test: ten million steps, one day.
    pub fn new(seed: u64) -> Simulation {
        Simulation {
            settings: super::world::WorldConfig {
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
