//! The executor: one thread, one task at a time, chosen at random.
//!
//! 1. Woken tasks become ready. Tasks of a paused node are parked until the node resumes.
//! 2. Timers that are due fire. If a timer calls a function, the function runs now, between tasks, on the node
//!    `driver`.
//! 3. If no task is ready, the clock jumps to the next timer; if there is no timer either, the run is deadlocked.
//! 4. Otherwise one ready task is chosen at random, the clock advances a little, and the task is polled.
//!
//! Ready tasks are kept in the order of their numbers, so that the order of wake-ups within a step has no influence. A
//! wake-up from another thread fails the run, since the seed could not control it.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use super::failure::FailureReason;
use super::ids::{DRIVER, Incarnation, NodeId, TaskId};
use super::task::message_of;
use super::timer::{TimerCallback, nanos_of};
use super::trace::TraceEvent;
use super::world::{World, WorldCore};
use crate::collections::Map;
use crate::rt::context::{self, AmbientContext};

/// The most virtual time that one poll takes, in nanoseconds.
const POLL_NANOS_MAX: u64 = 2_000;

pub(super) type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All tasks of a world.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Map<TaskId, TaskSlot>,
    made: u64,
    /// Sorted.
    ready: Vec<TaskId>,
    /// Panics of tasks that were not joined yet.
    pub panics: BTreeMap<TaskId, String>,
}

struct TaskSlot {
    incarnation: Incarnation,
    label: &'static str,
    /// `None` while it is polled.
    future: Option<BoxedFuture>,
    waker: Arc<TaskWaker>,
    /// To be dropped instead of polled.
    aborted: bool,
}

/// Tasks woken since the executor last checked.
pub(super) struct WakeQueue {
    tasks: Mutex<Vec<TaskId>>,
    thread: ThreadId,
    foreign: AtomicBool,
}

struct TaskWaker {
    task: TaskId,
    queued: AtomicBool,
    woken: Arc<WakeQueue>,
}

impl WakeQueue {
    pub(super) fn new() -> Arc<WakeQueue> {
        let thread = std::thread::current().id();
        Arc::new(WakeQueue { tasks: Mutex::default(), thread, foreign: AtomicBool::new(false) })
    }

    fn push(&self, task: TaskId) {
        if std::thread::current().id() != self.thread {
            self.foreign.store(true, Ordering::SeqCst);
        }
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Moves them into `taken`, which must be empty.
    fn take_into(&self, taken: &mut Vec<TaskId>) {
        std::mem::swap(taken, &mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.woken.push(self.task);
        }
    }
}

/// A task chosen to be polled, or to be dropped.
struct ChosenTask {
    task: TaskId,
    life: Incarnation,
    future: BoxedFuture,
    waker: Waker,
    dropped: bool,
}

/// The next action.
enum SchedulerStep {
    Poll(ChosenTask),
    Call(Vec<TimerCallback>),
    Again,
    Stop,
}

impl World {
    /// Starts a task on a node; `None` when that incarnation of the node is over, and the future is then dropped.
    pub(super) fn start_task(
        self: &Arc<Self>,
        life: Incarnation,
        label: &'static str,
        future: impl FnOnce(TaskId) -> BoxedFuture,
    ) -> Option<TaskId> {
        let task = self.with(|core| {
            core.is_alive(life).then(|| {
                let task = TaskId(core.tasks.made);
                core.tasks.made += 1;
                task
            })
        })?;
        let future = future(task);
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), woken: Arc::clone(&self.woken) });
        self.with(|core| {
            core.record(TraceEvent::Spawned { task, node: life.node });
            let slot =
                TaskSlot { incarnation: life, label, future: Some(future), waker: Arc::clone(&waker), aborted: false };
            core.tasks.slots.insert(task, slot);
        });
        waker.wake();
        Some(task)
    }

    /// Requests that a task's future is dropped when it is next chosen.
    pub(super) fn abort_task(&self, task: TaskId) {
        self.with(|core| {
            if let Some(slot) = core.tasks.slots.get_mut(&task) {
                slot.aborted = true;
                let waker = Waker::from(Arc::clone(&slot.waker));
                core.deferred.push(waker);
            }
        });
    }

    /// Polls tasks until `is_done` returns true or the run fails.
    pub(super) fn execute(self: &Arc<Self>, mut is_done: impl FnMut() -> bool) {
        let mut woken = Vec::new();
        loop {
            self.woken.take_into(&mut woken);
            let step = self.with(|core| {
                woken.drain(..).for_each(|task| core.admit(task));
                if self.woken.foreign.load(Ordering::SeqCst) {
                    core.fail(FailureReason::ForeignWake);
                }
                core.choose(is_done())
            });
            match step {
                SchedulerStep::Poll(chosen) => self.poll_task(chosen),
                SchedulerStep::Call(calls) => calls.into_iter().for_each(|call| self.call(call)),
                SchedulerStep::Again => {}
                SchedulerStep::Stop => return,
            }
        }
    }

    /// Calls a function on the driver. Its panic fails the run.
    pub(super) fn call(self: &Arc<Self>, call: TimerCallback) {
        // The driver has only one incarnation.
        let life = Incarnation { node: DRIVER, incarnation: 0 };
        let _entered = context::enter(AmbientContext { world: Arc::clone(self), incarnation: life });
        // The function is dropped after a panic, so nothing observes its broken state.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
            let text = format!("a timer's function panicked: {}", message_of(&*payload));
            self.with(|core| core.fail(FailureReason::Panic(text)));
        }
    }

    fn poll_task(self: &Arc<Self>, chosen: ChosenTask) {
        let ChosenTask { task, life, mut future, waker, dropped } = chosen;
        let _entered = context::enter(AmbientContext { world: Arc::clone(self), incarnation: life });
        // The future catches the panics of the task within it; see `task::supervise`.
        let finished = dropped || future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let leftover = self.with(|core| {
            let alive = core.is_alive(life);
            let Entry::Occupied(mut slot) = core.tasks.slots.entry(task) else {
                return Some(future);
            };
            if finished || !alive {
                slot.remove();
                core.record(TraceEvent::Ended { task });
                return Some(future);
            }
            slot.get_mut().future = Some(future);
            None
        });
        drop(leftover);
    }

    /// Drops every task of `node` (of all nodes for `None`) except the one that is being polled.
    pub(super) fn drop_tasks(self: &Arc<Self>, node: Option<NodeId>) {
        loop {
            // One by one: dropping a future may spawn, wake or drop others.
            let doomed = self.with(|core| {
                let found =
                    core.tasks.slots.iter().filter(|(_, slot)| {
                        slot.future.is_some() && node.is_none_or(|node| slot.incarnation.node == node)
                    });
                let task = *found.map(|(task, _)| task).min()?;
                let slot = core.tasks.slots.remove(&task).expect("the task was just found");
                core.record(TraceEvent::Ended { task });
                Some((slot.incarnation, slot.future))
            });
            let Some((life, future)) = doomed else { return };
            let _entered = context::enter(AmbientContext { world: Arc::clone(self), incarnation: life });
            drop(future);
        }
    }
}

impl WorldCore {
    /// Makes a woken task ready, or parks it when its node is paused.
    fn admit(&mut self, task: TaskId) {
        let Some(slot) = self.tasks.slots.get(&task) else { return };
        let node = &mut self.nodes[slot.incarnation.node.index()];
        if node.paused {
            node.parked.push(task);
        } else if let Err(place) = self.tasks.ready.binary_search(&task) {
            self.tasks.ready.insert(place, task);
        }
    }

    /// Parks the ready tasks of a node that has been paused.
    pub(super) fn park(&mut self, node: NodeId) {
        let slots = &self.tasks.slots;
        let of_node = |task: &TaskId| slots.get(task).is_some_and(|slot| slot.incarnation.node == node);
        let parked: Vec<TaskId> = self.tasks.ready.iter().copied().filter(of_node).collect();
        self.tasks.ready.retain(|task| !of_node(task));
        self.node(node).parked.extend(parked);
    }

    /// Makes the parked tasks of a node ready.
    pub(super) fn unpark(&mut self, node: NodeId) {
        let parked = std::mem::take(&mut self.node(node).parked);
        parked.into_iter().for_each(|task| self.admit(task));
    }

    fn choose(&mut self, done: bool) -> SchedulerStep {
        if done || self.failure.is_some() {
            return SchedulerStep::Stop;
        }
        if self.fire_due() {
            let calls = std::mem::take(&mut self.calls);
            return if calls.is_empty() { SchedulerStep::Again } else { SchedulerStep::Call(calls) };
        }
        if self.clock > nanos_of(self.settings.time_max) {
            self.fail(FailureReason::TimeLimit(self.settings.time_max));
            return SchedulerStep::Stop;
        }
        if self.tasks.ready.is_empty() {
            match self.next_deadline() {
                Some(deadline) => self.clock = deadline,
                None => {
                    let waiting = self.waiting();
                    self.fail(FailureReason::Deadlock(waiting));
                }
            }
            return SchedulerStep::Again;
        }
        let place = self.rng.index(self.tasks.ready.len());
        let task = self.tasks.ready.remove(place);
        let Some(slot) = self.tasks.slots.get_mut(&task) else { return SchedulerStep::Again };
        slot.waker.queued.store(false, Ordering::SeqCst);
        let future = slot.future.take().expect("only one task is polled at a time");
        let waker = Waker::from(Arc::clone(&slot.waker));
        let chosen = ChosenTask { task, life: slot.incarnation, future, waker, dropped: slot.aborted };
        self.steps += 1;
        if self.steps > self.settings.steps_max {
            self.fail(FailureReason::StepLimit(self.settings.steps_max));
        }
        self.clock += 1 + self.rng.below(POLL_NANOS_MAX);
        self.record(TraceEvent::Polled { task });
        SchedulerStep::Poll(chosen)
    }

    /// Node, number and code of every task.
    fn waiting(&self) -> Vec<String> {
        let mut tasks: Vec<TaskId> = self.tasks.slots.keys().copied().collect();
        tasks.sort_unstable();
        tasks.into_iter().map(|task| self.task_name(task)).collect()
    }

    pub(super) fn task_name(&self, task: TaskId) -> String {
        match self.tasks.slots.get(&task) {
            Some(slot) => format!("{} {task} ({})", self.node_name(slot.incarnation.node), slot.label),
            None => task.to_string(),
        }
    }
}

/// Lets a future be polled once more after all tasks that are ready now have run.
pub(in crate::rt) async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
