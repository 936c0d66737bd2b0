//! Nodes: named machines on which tasks live, and which can crash, pause and start again.

use std::future::Future;
use std::sync::Arc;

use super::clock::{CLOCK_DRIFT_PPM_MAX, NodeClock};
use super::disk::{DiskState, SimDisk};
use super::executor::BoxedFuture;
use super::ids::{DRIVER, Incarnation, NodeId, TaskId};
use super::timer::TimerCallback;
use super::trace::TraceEvent;
use super::world::{World, WorldCore};
use crate::rt::context::{self, AmbientContext};
use crate::rt::task::Task;

pub(super) type BootFunction = Arc<dyn Fn() -> BoxedFuture + Send + Sync>;

/// A node of the world.
pub(super) struct NodeState {
    pub name: Arc<str>,
    /// Counts crashes.
    pub incarnation: u64,
    pub up: bool,
    pub paused: bool,
    /// Tasks woken while the node was paused.
    pub parked: Vec<TaskId>,
    pub boot: Option<BootFunction>,
    pub disk: DiskState,
    pub clock: NodeClock,
    /// Functions to call when this incarnation ends.
    pub crash_calls: Vec<TimerCallback>,
}

/// A node of a simulation. Clones name the same node.
#[derive(Clone)]
pub struct SimNode {
    world: Arc<World>,
    id: NodeId,
    name: Arc<str>,
}

impl World {
    /// The node with this name, created at its first use.
    pub(super) fn node(self: &Arc<Self>, name: &str) -> SimNode {
        let (id, name) = self.with(|core| {
            let found = core.nodes.iter().position(|node| &*node.name == name);
            let id = NodeId(found.unwrap_or(core.nodes.len()) as u64);
            if let Some(place) = found {
                return (id, Arc::clone(&core.nodes[place].name));
            }
            let name: Arc<str> = name.into();
            let state = NodeState {
                name: Arc::clone(&name),
                incarnation: 0,
                up: true,
                paused: false,
                parked: Vec::new(),
                boot: None,
                disk: DiskState::default(),
                clock: NodeClock::default(),
                crash_calls: Vec::new(),
            };
            core.nodes.push(state);
            (id, name)
        });
        SimNode { world: Arc::clone(self), id, name }
    }

    /// Drops all functions that are still to be called: they may hold handles of the world, which would keep it alive for ever.
    pub(super) fn forget_functions(&self) {
        let boots = self.with(|core| core.nodes.iter_mut().map(|node| node.boot.take()).collect::<Vec<_>>());
        // Outside the lock, because dropping may call this code again.
        drop(boots);
        // Dropping one may set others, at most as often as handles nest.
        loop {
            let (alarms, calls) = self.with(|core| {
                let calls = core.nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.crash_calls));
                let calls: Vec<TimerCallback> = calls.chain(std::mem::take(&mut core.calls)).collect();
                (core.take_alarms(), calls)
            });
            if alarms.is_empty() && calls.is_empty() {
                return;
            }
        }
    }

    pub(super) fn current_incarnation(&self, node: NodeId) -> Incarnation {
        self.with(|core| Incarnation { node, incarnation: core.node(node).incarnation })
    }
}

impl WorldCore {
    fn note_fault(&mut self, text: String) {
        self.record(TraceEvent::Fault(text));
    }
}

impl SimNode {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a task on the node; a node that is down comes up, without running its boot function.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.world.with(|core| core.node(self.id).up = true);
        Task::simulated(&self.world, self.world.current_incarnation(self.id), future)
    }

    /// Sets the node's boot function and starts it; [`SimNode::restart`] runs it again.
    pub fn start<F, Fut>(&self, boot: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let boot: BootFunction = Arc::new(move || Box::pin(boot()));
        self.world.with(|core| core.node(self.id).boot = Some(Arc::clone(&boot)));
        self.boot(&boot);
    }

    fn boot(&self, boot: &BootFunction) {
        let future = {
            let life = self.world.current_incarnation(self.id);
            let _entered = context::enter(AmbientContext { world: Arc::clone(&self.world), incarnation: life });
            boot()
        };
        drop(self.spawn(future));
    }

    /// Ends everything on the node at once: its tasks are dropped; each write that it had not synced is randomly kept, lost or
    /// torn; its links break. A node that is down stays down.
    ///
    /// Panics for the driver, which cannot crash.
    pub fn crash(&self) {
        assert!(self.id != DRIVER, "the driver of a simulation does not crash");
        let crashed = self.world.with(|core| {
            let node = core.node(self.id);
            if !node.up {
                return None;
            }
            node.up = false;
            node.paused = false;
            node.parked.clear();
            node.incarnation += 1;
            let calls = std::mem::take(&mut node.crash_calls);
            core.note_fault(format!("crash {}", self.name));
            core.crash_links(self.id);
            core.crash_disk(self.id);
            Some(calls)
        });
        if let Some(calls) = crashed {
            self.world.drop_tasks(Some(self.id));
            calls.into_iter().for_each(|call| self.world.call(call));
        }
    }

    /// Brings the node up again, if it is down, and runs its boot function.
    pub fn restart(&self) {
        let boot = self.world.with(|core| {
            let node = core.node(self.id);
            if node.up {
                return None;
            }
            node.up = true;
            let boot = node.boot.clone();
            core.note_fault(format!("restart {}", self.name));
            boot
        });
        if let Some(boot) = boot {
            self.boot(&boot);
        }
    }

    /// Stops all tasks of the node until [`SimNode::resume`], as if it had no processor. Time continues.
    ///
    /// Panics for the driver.
    pub fn pause(&self) {
        assert!(self.id != DRIVER, "the driver of a simulation does not pause");
        self.world.with(|core| {
            let node = core.node(self.id);
            if node.up && !node.paused {
                node.paused = true;
                core.park(self.id);
                core.note_fault(format!("pause {}", self.name));
            }
        });
    }

    /// Lets the node's tasks run again.
    pub fn resume(&self) {
        self.world.with(|core| {
            if std::mem::take(&mut core.node(self.id).paused) {
                core.note_fault(format!("resume {}", self.name));
                core.unpark(self.id);
            }
        });
    }

    /// Whether the node has not crashed since it was last started.
    pub fn is_up(&self) -> bool {
        self.world.with(|core| core.node(self.id).up)
    }

    /// Whether its tasks are stopped by [`SimNode::pause`].
    pub fn is_paused(&self) -> bool {
        self.world.with(|core| core.node(self.id).paused)
    }

    /// Calls a function on the driver when this incarnation of the node ends by a crash, after its tasks were dropped: for
    /// models of parts of a machine other than tasks, disks and links. Calls it at once when the node is down.
    pub fn when_crashed(&self, call: impl FnOnce() + Send + 'static) {
        let call: TimerCallback = Box::new(call);
        let late = self.world.with(|core| {
            let node = core.node(self.id);
            if !node.up {
                return Some(call);
            }
            node.crash_calls.push(call);
            None
        });
        late.into_iter().for_each(|call| self.world.call(call));
    }

    /// Makes the node's clock run fast (above 0) or slow from now on, by `ppm` millionths of true time: at most
    /// [`CLOCK_DRIFT_PPM_MAX`] either way. The reading of the clock never jumps. The drift survives crashes.
    ///
    /// Panics for more, and for the driver, whose clock is the true one.
    pub fn set_clock_drift_ppm(&self, ppm: i64) {
        assert!(self.id != DRIVER, "the clock of a simulation's driver is the true one");
        assert!(ppm.abs() <= CLOCK_DRIFT_PPM_MAX, "no clock drifts by {ppm} millionths");
        self.world.with(|core| {
            let now = core.clock;
            if core.node(self.id).clock.set_drift(now, ppm) {
                core.note_fault(format!("drift {} {ppm}", self.name));
                core.rouse(self.id);
            }
        });
    }

    /// The drift set by [`SimNode::set_clock_drift_ppm`]; 0 at first.
    pub fn clock_drift_ppm(&self) -> i64 {
        self.world.with(|core| core.node(self.id).clock.drift_ppm())
    }

    /// The node on which the caller's task runs; `None` outside a simulation.
    pub fn current() -> Option<SimNode> {
        let AmbientContext { world, incarnation: life } = context::ambient()?;
        let name = world.with(|core| Arc::clone(&core.node(life.node).name));
        Some(SimNode { world, id: life.node, name })
    }

    /// The number of crashes of the node: the number of its present incarnation, or, while it is down, of its next.
    pub fn crashes(&self) -> u64 {
        self.world.with(|core| core.node(self.id).incarnation)
    }

    /// Whether messages from it to another node are stopped.
    pub fn is_cut_to(&self, other: &SimNode) -> bool {
        self.world.with(|core| core.is_cut(self.id, other.id))
    }

    /// Its disk, which survives crashes.
    pub fn disk(&self) -> SimDisk {
        SimDisk::new(Arc::clone(&self.world), self.id)
    }

    pub(super) fn id(&self) -> NodeId {
        self.id
    }
}

impl std::fmt::Debug for SimNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.name)
    }
}
