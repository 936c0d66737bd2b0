//! The state of a simulated world, and access to it.
//!
//! The whole state is behind one lock, which only the simulation's thread takes. The thread must not hold the lock
//! while it calls a waker, or polls or drops a future: each of these may run code that takes the lock again.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::FaultPoint;
use super::executor::{Tasks, WakeQueue};
use super::failure::FailureReason;
use super::ids::{Incarnation, NodeId};
use super::net::NetworkState;
use super::node::NodeState;
use super::rng::Prng;
use super::timer::{TimerCallback, Timers};
use super::trace::{Trace, TraceEvent};
use crate::collections::Map;
use crate::event::EventValue;

/// The limits of a run, and the delays of its world.
#[derive(Clone, Debug)]
pub(in crate::rt) struct WorldConfig {
    pub seed: u64,
    pub steps_max: u64,
    pub time_max: Duration,
    pub trace_lines_max: usize,
    pub link_delay: Range<Duration>,
    pub sync_delay: Range<Duration>,
}

/// A simulated world.
pub(in crate::rt) struct World {
    pub(super) settings: WorldConfig,
    pub(super) woken: Arc<WakeQueue>,
    core: Mutex<WorldCore>,
    events: Mutex<Map<&'static str, EventValue>>,
}

/// The mutable state of a world.
pub(super) struct WorldCore {
    pub settings: WorldConfig,
    pub rng: Prng,
    /// Nanoseconds since the run began.
    pub clock: u64,
    pub steps: u64,
    pub trace: Trace,
    pub tasks: Tasks,
    pub timers: Timers,
    /// Indexed by their numbers.
    pub nodes: Vec<NodeState>,
    pub net: NetworkState,
    pub fault_points: Map<&'static str, FaultPoint>,
    pub injections: Map<String, FaultInjection>,
    /// Wakers to call when the lock is free again.
    pub deferred: Vec<Waker>,
    /// Functions that the executor calls between tasks.
    pub calls: Vec<TimerCallback>,
    /// The reason why the run has to stop.
    pub failure: Option<FailureReason>,
}

/// The configured behaviour of a fault point.
#[derive(Clone, Copy, Default)]
pub(super) struct FaultInjection {
    pub probability: f64,
    pub next_times: u64,
}

impl World {
    pub(super) fn new(settings: WorldConfig) -> Arc<World> {
        let core = WorldCore {
            rng: Prng::new(settings.seed),
            clock: 0,
            steps: 0,
            trace: Trace::new(settings.trace_lines_max),
            tasks: Tasks::default(),
            timers: Timers::default(),
            nodes: Vec::new(),
            net: NetworkState::default(),
            fault_points: Map::default(),
            injections: Map::default(),
            deferred: Vec::new(),
            calls: Vec::new(),
            failure: None,
            settings: settings.clone(),
        };
        Arc::new(World { settings, woken: WakeQueue::new(), core: Mutex::new(core), events: Mutex::default() })
    }

    /// Runs `access` on the state, then calls the wakers that it deferred.
    pub(super) fn with<T>(&self, access: impl FnOnce(&mut WorldCore) -> T) -> T {
        // After a panic in this code the run is reported as failed; until then the state is still read.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let result = access(&mut core);
        let deferred = std::mem::take(&mut core.deferred);
        drop(core);
        deferred.into_iter().for_each(Waker::wake);
        result
    }

    /// Runs `access` on the values of events.
    pub(in crate::rt) fn with_events<T>(&self, access: impl FnOnce(&mut Map<&'static str, EventValue>) -> T) -> T {
        access(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::rt) fn clock(&self) -> u64 {
        self.with(|core| core.clock)
    }

    /// The reading of a node's clock.
    pub(in crate::rt) fn clock_of(&self, node: NodeId) -> u64 {
        self.with(|core| core.clock_of(node))
    }

    pub(in crate::rt) fn fill_random(&self, bytes: &mut [u8]) {
        self.with(|core| core.rng.fill(bytes));
    }

    pub(in crate::rt) fn fault_point(&self, name: &'static str) -> bool {
        self.with(|core| core.fault_point(name))
    }
}

impl WorldCore {
    pub(super) fn record(&mut self, event: TraceEvent) {
        self.trace.record(self.clock, event);
    }

    /// Only the first failure is kept.
    pub(super) fn fail(&mut self, reason: FailureReason) {
        self.failure.get_or_insert(reason);
    }

    pub(super) fn node(&mut self, node: NodeId) -> &mut NodeState {
        &mut self.nodes[node.index()]
    }

    pub(super) fn node_name(&self, node: NodeId) -> String {
        self.nodes[node.index()].name.to_string()
    }

    /// Whether this incarnation of its node is still alive.
    pub(super) fn is_alive(&self, life: Incarnation) -> bool {
        let node = &self.nodes[life.node.index()];
        node.up && node.incarnation == life.incarnation
    }

    fn fault_point(&mut self, name: &'static str) -> bool {
        let injected = match self.injections.get_mut(name) {
            Some(injection) if injection.next_times > 0 => {
                injection.next_times -= 1;
                true
            }
            Some(injection) => injection.probability > 0.0 && self.rng.with_probability(injection.probability),
            None => false,
        };
        let counted = self.fault_points.entry(name).or_default();
        counted.reached += 1;
        if injected {
            counted.injected += 1;
            self.record(TraceEvent::FaultPoint { name });
        }
        injected
    }
}
