//! The state of a simulated world, and the thread's way to it.
//!
//! Everything sits behind one lock that only the simulation's thread takes. Wakers are called, and futures are polled
//! and dropped, only while it is free, because each of these may run code that comes back here.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::FaultPoint;
use super::chance::Chance;
use super::executor::{Tasks, Woken};
use super::failure::Reason;
use super::ids::{Life, NodeId};
use super::net::Net;
use super::node::NodeState;
use super::timer::{Call, Timers};
use super::trace::{Event, Trace};
use crate::collections::Map;
use crate::event::Value;

/// What a run may take, and how slow its world is.
#[derive(Clone, Debug)]
pub(in crate::rt) struct Settings {
    pub seed: u64,
    pub steps_max: u64,
    pub time_max: Duration,
    pub trace_lines_max: usize,
    pub link_delay: Range<Duration>,
    pub sync_delay: Range<Duration>,
}

/// A simulated world.
pub(in crate::rt) struct World {
    pub(super) settings: Settings,
    pub(super) woken: Arc<Woken>,
    core: Mutex<Core>,
    events: Mutex<Map<&'static str, Value>>,
}

/// All that changes while a world runs.
pub(super) struct Core {
    pub settings: Settings,
    pub chance: Chance,
    /// Nanoseconds since the run began.
    pub clock: u64,
    pub steps: u64,
    pub trace: Trace,
    pub tasks: Tasks,
    pub timers: Timers,
    /// By their numbers.
    pub nodes: Vec<NodeState>,
    pub net: Net,
    pub fault_points: Map<&'static str, FaultPoint>,
    pub injections: Map<String, Injection>,
    /// Called when the lock is free again.
    pub deferred: Vec<Waker>,
    /// Called by the executor, between tasks.
    pub calls: Vec<Call>,
    /// Why the run cannot go on.
    pub failure: Option<Reason>,
}

/// How a fault point is to behave.
#[derive(Clone, Copy, Default)]
pub(super) struct Injection {
    pub probability: f64,
    pub next_times: u64,
}

impl World {
    pub(super) fn new(settings: Settings) -> Arc<World> {
        let core = Core {
            chance: Chance::new(settings.seed),
            clock: 0,
            steps: 0,
            trace: Trace::new(settings.trace_lines_max),
            tasks: Tasks::default(),
            timers: Timers::default(),
            nodes: Vec::new(),
            net: Net::default(),
            fault_points: Map::default(),
            injections: Map::default(),
            deferred: Vec::new(),
            calls: Vec::new(),
            failure: None,
            settings: settings.clone(),
        };
        Arc::new(World { settings, woken: Woken::new(), core: Mutex::new(core), events: Mutex::default() })
    }

    /// Runs `access` on the state, then calls the wakers that it deferred.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut Core) -> T) -> T {
        // After a panic of ours in here the run is reported as failed; until then the state is still read.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let result = access(&mut core);
        let deferred = std::mem::take(&mut core.deferred);
        drop(core);
        deferred.into_iter().for_each(Waker::wake);
        result
    }

    /// Runs `access` on the values of events.
    pub(in crate::rt) fn with_events<T>(&self, access: impl FnOnce(&mut Map<&'static str, Value>) -> T) -> T {
        access(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::rt) fn clock(&self) -> u64 {
        self.with(|core| core.clock)
    }

    /// What the clock of a node shows.
    pub(in crate::rt) fn clock_of(&self, node: NodeId) -> u64 {
        self.with(|core| core.clock_of(node))
    }

    pub(in crate::rt) fn fill_random(&self, bytes: &mut [u8]) {
        self.with(|core| core.chance.fill(bytes));
    }

    pub(in crate::rt) fn fault_point(&self, name: &'static str) -> bool {
        self.with(|core| core.fault_point(name))
    }
}

impl Core {
    pub(super) fn record(&mut self, event: Event) {
        self.trace.record(self.clock, event);
    }

    /// The first failure is the one that counts.
    pub(super) fn fail(&mut self, reason: Reason) {
        self.failure.get_or_insert(reason);
    }

    pub(super) fn node(&mut self, node: NodeId) -> &mut NodeState {
        &mut self.nodes[node.index()]
    }

    pub(super) fn node_name(&self, node: NodeId) -> String {
        self.nodes[node.index()].name.to_string()
    }

    /// Whether this life of its node has not ended.
    pub(super) fn is_alive(&self, life: Life) -> bool {
        let node = &self.nodes[life.node.index()];
        node.up && node.incarnation == life.incarnation
    }

    fn fault_point(&mut self, name: &'static str) -> bool {
        let injected = match self.injections.get_mut(name) {
            Some(injection) if injection.next_times > 0 => {
                injection.next_times -= 1;
                true
            }
            Some(injection) => injection.probability > 0.0 && self.chance.with_probability(injection.probability),
            None => false,
        };
        let counted = self.fault_points.entry(name).or_default();
        counted.reached += 1;
        if injected {
            counted.injected += 1;
            self.record(Event::FaultPoint { name });
        }
        injected
    }
}
