//! Nodes: named places where tasks live, that can crash, pause and start again.

use std::future::Future;
use std::sync::Arc;

use super::clock::{CLOCK_DRIFT_PPM_MAX, Clock};
use super::disk::{Disk, DiskState};
use super::executor::BoxedFuture;
use super::ids::{DRIVER, Life, NodeId, TaskId};
use super::timer::Call;
use super::trace::Event;
use super::world::{Core, World};
use crate::rt::context::{self, Ambient};
use crate::rt::task::Task;

pub(super) type Boot = Arc<dyn Fn() -> BoxedFuture + Send + Sync>;

/// A node of the world.
pub(super) struct NodeState {
    pub name: Arc<str>,
    /// Counts crashes.
    pub incarnation: u64,
    pub up: bool,
    pub paused: bool,
    /// Woken while the node was paused.
    pub parked: Vec<TaskId>,
    pub boot: Option<Boot>,
    pub disk: DiskState,
    pub clock: Clock,
    /// Called when this life ends.
    pub crash_calls: Vec<Call>,
}

/// A node of a simulation. Clones name the same node.
#[derive(Clone)]
pub struct Node {
    world: Arc<World>,
    id: NodeId,
    name: Arc<str>,
}

impl World {
    /// The node of a name, made at its first use.
    pub(super) fn node(self: &Arc<Self>, name: &str) -> Node {
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
                clock: Clock::default(),
                crash_calls: Vec::new(),
            };
            core.nodes.push(state);
            (id, name)
        });
        Node { world: Arc::clone(self), id, name }
    }

    /// Drops all functions that are to be called: they may hold handles of the world, which would keep it alive for good.
    pub(super) fn forget_functions(&self) {
        let boots = self.with(|core| core.nodes.iter_mut().map(|node| node.boot.take()).collect::<Vec<_>>());
        // Outside of the lock, because dropping may come back here.
        drop(boots);
        // Dropping one may set others, as few times as handles nest.
        loop {
            let (alarms, calls) = self.with(|core| {
                let calls = core.nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.crash_calls));
                let calls: Vec<Call> = calls.chain(std::mem::take(&mut core.calls)).collect();
                (core.take_alarms(), calls)
            });
            if alarms.is_empty() && calls.is_empty() {
                return;
            }
        }
    }

    pub(super) fn current_life(&self, node: NodeId) -> Life {
        self.with(|core| Life { node, incarnation: core.node(node).incarnation })
    }
}

impl Core {
    fn note_fault(&mut self, text: String) {
        self.record(Event::Fault(text));
    }
}

impl Node {
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
        Task::simulated(&self.world, self.world.current_life(self.id), future)
    }

    /// Sets what the node runs and starts it; [`Node::restart`] runs it again.
    pub fn start<F, Fut>(&self, boot: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let boot: Boot = Arc::new(move || Box::pin(boot()));
        self.world.with(|core| core.node(self.id).boot = Some(Arc::clone(&boot)));
        self.boot(&boot);
    }

    fn boot(&self, boot: &Boot) {
        let future = {
            let life = self.world.current_life(self.id);
            let _entered = context::enter(Ambient { world: Arc::clone(&self.world), life });
            boot()
        };
        drop(self.spawn(future));
    }

    /// Ends everything on the node at once: its tasks are dropped, what it had not synced to disk is kept, lost or torn
    /// by chance, its links break. A node that is down stays so.
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

    /// Lets none of the node's tasks run until [`Node::resume`], as if its processor were taken away. Time goes on.
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

    /// Whether its tasks are held up by [`Node::pause`].
    pub fn is_paused(&self) -> bool {
        self.world.with(|core| core.node(self.id).paused)
    }

    /// Calls a function, on the driver, when this life of the node ends by a crash, after its tasks were dropped: for models
    /// of what a machine has besides tasks, disks and links. At once when the node is down.
    pub fn when_crashed(&self, call: impl FnOnce() + Send + 'static) {
        let call: Call = Box::new(call);
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

    /// Lets the node's clock go fast (above 0) or slow from now on, by so many millionths of true time: at most
    /// [`CLOCK_DRIFT_PPM_MAX`] either way. What the clock shows never jumps. It outlives crashes.
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

    /// What [`Node::set_clock_drift_ppm`] has set; 0 at first.
    pub fn clock_drift_ppm(&self) -> i64 {
        self.world.with(|core| core.node(self.id).clock.drift_ppm())
    }

    /// The node on which the caller's task runs; `None` outside of a simulation.
    pub fn current() -> Option<Node> {
        let Ambient { world, life } = context::ambient()?;
        let name = world.with(|core| Arc::clone(&core.node(life.node).name));
        Some(Node { world, id: life.node, name })
    }

    /// How often the node has crashed: the number of its present life, or, while it is down, of its next.
    pub fn crashes(&self) -> u64 {
        self.world.with(|core| core.node(self.id).incarnation)
    }

    /// Whether messages from it to another node are stopped.
    pub fn is_cut_to(&self, other: &Node) -> bool {
        self.world.with(|core| core.is_cut(self.id, other.id))
    }

    /// Its disk, which outlives crashes.
    pub fn disk(&self) -> Disk {
        Disk::new(Arc::clone(&self.world), self.id)
    }

    pub(super) fn id(&self) -> NodeId {
        self.id
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.name)
    }
}
