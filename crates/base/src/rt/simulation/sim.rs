//! The handle that a run's future gets: nodes, faults, plans.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::FaultPoint;
use super::chance::Chance;
use super::node::Node;
use super::plan::{Fault, Plan};
use super::timer::{Alarm, Sleep};
use super::trace::{Digest, Event};
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

    /// A generator of its own for a workload, seeded from the run's chance.
    pub fn chance(&self) -> Chance {
        self.world.with(|core| Chance::new(core.chance.number()))
    }

    /// The node of a name, made at its first use.
    pub fn node(&self, name: &str) -> Node {
        self.world.node(name)
    }

    /// The digest of all that has happened so far.
    pub fn digest(&self) -> Digest {
        self.world.with(|core| core.trace.digest())
    }

    /// Writes a line into the trace, and so into the digest: what an observer saw, say.
    pub fn note(&self, line: impl fmt::Display) {
        let line = line.to_string();
        self.world.with(|core| core.record(Event::Note(line)));
    }

    /// Stops all messages between two nodes, both ways, until [`Sim::heal`]. Links that are cut for long break.
    pub fn cut(&self, one: &str, other: &str) {
        self.mute(one, other);
        self.mute(other, one);
    }

    /// Stops messages from one node to another, and not the other way, until [`Sim::heal`].
    pub fn mute(&self, from: &str, to: &str) {
        let (source, target) = (self.node(from).id(), self.node(to).id());
        self.world.with(|core| {
            core.record(Event::Fault(format!("mute {from} {to}")));
            core.cut(source, target);
        });
    }

    /// Lets messages between two nodes through again. What stalled on links that did not break goes on.
    pub fn heal(&self, one: &str, other: &str) {
        let (first, second) = (self.node(one).id(), self.node(other).id());
        self.world.with(|core| {
            core.record(Event::Fault(format!("heal {one} {other}")));
            core.heal(first, second);
            core.heal(second, first);
        });
    }

    /// Whether messages from one node to another are stopped.
    pub fn is_cut(&self, from: &str, to: &str) -> bool {
        let (source, target) = (self.node(from).id(), self.node(to).id());
        self.world.with(|core| core.is_cut(source, target))
    }

    /// Calls a function, on the driver, when so much true time has passed, whatever has become of the caller's node by then:
    /// for models of what goes on outside of nodes. It runs between tasks; its panic fails the run.
    pub fn call_after(&self, delay: Duration, call: impl FnOnce() + Send + 'static) {
        self.world.with(|core| core.after(delay, Alarm::Call(Box::new(call))));
    }

    /// The true time since the run began, whatever the clock of the caller's node shows.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.clock())
    }

    /// Writes numbers into the trace, and so into the digest, at little cost.
    pub fn mark(&self, what: &'static str, numbers: [u64; 3]) {
        self.world.with(|core| core.record(Event::Mark { what, numbers }));
    }

    /// Heals every cut.
    pub fn heal_all(&self) {
        self.world.with(|core| {
            core.record(Event::Fault("heal all".to_owned()));
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

    /// Breaks all links between two nodes at once; new ones can be made.
    pub fn break_links(&self, one: &str, other: &str) {
        let (first, second) = (self.node(one).id(), self.node(other).id());
        self.world.with(|core| {
            core.record(Event::Fault(format!("break {one} {other}")));
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

    /// How often a fault point was reached and injected so far.
    pub fn fault_point(&self, name: &str) -> FaultPoint {
        self.world.with(|core| core.fault_points.get(name).copied().unwrap_or_default())
    }

    /// Makes a fault happen now.
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

    /// Makes the faults of a plan happen, each at its time counted from this call. Completes after the last.
    pub async fn run_plan(&self, plan: &Plan) {
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
