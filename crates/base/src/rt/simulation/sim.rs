//! The handle that a run's future receives, with which it creates nodes, injects faults and applies plans.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::FaultPoint;
use super::node::SimNode;
use super::plan::{Fault, FaultPlan};
use super::rng::Prng;
use super::timer::{Sleep, TimerAction};
use super::trace::{TraceDigest, TraceEvent};
use super::world::World;

/// A simulated world, from the inside. Clones are the same world.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
}

impl Sim {
    pub(super) fn new(world: Arc<World>) -> Sim {
        Sim { world }
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.world.settings.seed
    }

    /// A separate random generator for a workload, seeded from the run's generator.
    pub fn rng(&self) -> Prng {
        self.world.with(|core| Prng::new(core.rng.number()))
    }

    /// The node with this name, created at its first use.
    pub fn node(&self, name: &str) -> SimNode {
        self.world.node(name)
    }

    /// The digest of all events so far.
    pub fn digest(&self) -> TraceDigest {
        self.world.with(|core| core.trace.digest())
    }

    /// Adds a line to the trace, and so to the digest: an observation, for example.
    pub fn note(&self, line: impl fmt::Display) {
        let line = line.to_string();
        self.world.with(|core| core.record(TraceEvent::Note(line)));
    }

    /// Stops all messages between two nodes, both ways, until [`Sim::heal`]. Links that are cut for a long time break.
    pub fn cut(&self, one: &str, other: &str) {
        self.mute(one, other);
        self.mute(other, one);
    }

    /// Stops messages from one node to another, but not the other way, until [`Sim::heal`].
    pub fn mute(&self, from: &str, to: &str) {
        let (source, target) = (self.node(from).id(), self.node(to).id());
        self.world.with(|core| {
            core.record(TraceEvent::Fault(format!("mute {from} {to}")));
            core.cut(source, target);
        });
    }

    /// Lets messages between two nodes through again. Stalled messages of links that did not break continue.
    pub fn heal(&self, one: &str, other: &str) {
        let (first, second) = (self.node(one).id(), self.node(other).id());
        self.world.with(|core| {
            core.record(TraceEvent::Fault(format!("heal {one} {other}")));
            core.heal(first, second);
            core.heal(second, first);
        });
    }

    /// Whether messages from one node to another are stopped.
    pub fn is_cut(&self, from: &str, to: &str) -> bool {
        let (source, target) = (self.node(from).id(), self.node(to).id());
        self.world.with(|core| core.is_cut(source, target))
    }

    /// Calls a function on the driver after this much true time, whatever has happened to the caller's node by then: for models
    /// of things outside nodes. It runs between tasks; its panic fails the run.
    pub fn call_after(&self, delay: Duration, call: impl FnOnce() + Send + 'static) {
        self.world.with(|core| core.after(delay, TimerAction::Call(Box::new(call))));
    }

    /// The true time since the run started, whatever the clock of the caller's node shows.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.clock())
    }

    /// Adds numbers to the trace, and so to the digest, at little cost.
    pub fn trace_numbers(&self, what: &'static str, numbers: [u64; 3]) {
        self.world.with(|core| core.record(TraceEvent::Mark { what, numbers }));
    }

    /// Heals every cut.
    pub fn heal_all(&self) {
        self.world.with(|core| {
            core.record(TraceEvent::Fault("heal all".to_owned()));
            core.heal_all();
        });
    }

    /// Cuts a group of nodes off from all others.
    pub fn isolate(&self, group: &[&str]) {
        let names = self.world.with(|core| core.nodes.iter().map(|node| node.name.to_string()).collect::<Vec<_>>());
        for outsider in names.iter().filter(|name| !group.contains(&name.as_str())) {
            for insider in group {
                self.cut(insider, outsider);
            }
        }
    }

    /// Breaks all links between two nodes at once; new ones can be opened.
    pub fn break_links(&self, one: &str, other: &str) {
        let (first, second) = (self.node(one).id(), self.node(other).id());
        self.world.with(|core| {
            core.record(TraceEvent::Fault(format!("break {one} {other}")));
            core.break_links(first, second);
        });
    }

    /// Injects the fault at a fault point with a probability from 0 to 1.
    pub fn inject(&self, fault_point: &str, probability: f64) {
        self.world.with(|core| core.injections.entry(fault_point.to_owned()).or_default().probability = probability);
    }

    /// Injects the fault at a fault point the next `times` times.
    pub fn inject_next(&self, fault_point: &str, times: u64) {
        self.world.with(|core| core.injections.entry(fault_point.to_owned()).or_default().next_times = times);
    }

    /// How often a fault point was reached and its fault injected so far.
    pub fn fault_point(&self, name: &str) -> FaultPoint {
        self.world.with(|core| core.fault_points.get(name).copied().unwrap_or_default())
    }

    /// Triggers a fault now.
    pub fn fault(&self, fault: &Fault) {
        match fault {
            Fault::Crash(node) => self.node(node).crash(),
            Fault::Restart(node) => self.node(node).restart(),
            Fault::Pause(node) => self.node(node).pause(),
            Fault::Resume(node) => self.node(node).resume(),
            Fault::Cut(one, other) => self.cut(one, other),
            Fault::Mute(from, to) => self.mute(from, to),
            Fault::Heal(one, other) => self.heal(one, other),
            Fault::Break(one, other) => self.break_links(one, other),
            Fault::Fill(node) => self.node(node).disk().fill(),
            Fault::Free(node) => self.node(node).disk().set_capacity(None),
            Fault::Fail(node) => self.node(node).disk().set_failing(true),
            Fault::Mend(node) => self.node(node).disk().set_failing(false),
            Fault::Rot(node) => drop(self.node(node).disk().rot()),
            Fault::Drift(node, ppm) => self.node(node).set_clock_drift_ppm(*ppm),
        }
    }

    /// Triggers the faults of a plan, each at its time counted from this call. Completes after the last.
    pub async fn run_plan(&self, plan: &FaultPlan) {
        let start = Duration::from_nanos(self.world.clock());
        for (at, fault) in plan.timeline() {
            let deadline = start + at;
            Sleep::until_true(Arc::clone(&self.world), super::timer::nanos_of(deadline)).await;
            self.fault(&fault);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim(seed {})", self.seed())
    }
}
