//! A simulated task's handle, and the wrapper of its future.
//!
//! If a task panics, the task that joins it panics too. If no task joins it, the panic fails the run, either when the
//! handle is dropped or when the run ends.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::failure::FailureReason;
use super::ids::{Incarnation, TaskId};
use super::world::World;
use crate::rt::task::TaskAborted;

/// How a task ended.
enum TaskOutcome<T> {
    Completed(T),
    Panicked(Box<dyn Any + Send>),
    Aborted,
}

struct TaskJoin<T> {
    state: Mutex<JoinState<T>>,
}

struct JoinState<T> {
    outcome: Option<TaskOutcome<T>>,
    ended: bool,
    joiner: Option<Waker>,
    detached: bool,
}

impl<T> TaskJoin<T> {
    fn new() -> Arc<TaskJoin<T>> {
        Arc::new(TaskJoin {
            state: Mutex::new(JoinState { outcome: None, ended: false, joiner: None, detached: false }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, JoinState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first outcome.
    fn end(&self, outcome: TaskOutcome<T>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.ended = true;
        state.outcome = Some(outcome);
        let joiner = state.joiner.take();
        // A detached output is dropped outside the lock.
        let dropped = if state.detached { state.outcome.take() } else { None };
        drop(state);
        drop(dropped);
        joiner.into_iter().for_each(Waker::wake);
    }
}

/// A handle of a simulated task.
pub(in crate::rt) struct Task<T> {
    world: Arc<World>,
    task: Option<TaskId>,
    join: Arc<TaskJoin<T>>,
}

/// Starts a task in one incarnation of a node; if that incarnation is over, the task is aborted at once.
///
/// `label` names it in traces.
pub(in crate::rt) fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    life: Incarnation,
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    label: &'static str,
) -> Task<T> {
    let join = TaskJoin::new();
    let ending = TaskEndGuard { join: Arc::clone(&join) };
    let weak = Arc::downgrade(world);
    let task = world.start_task(life, label, move |task| {
        Box::pin(async move {
            let outcome = supervise(future).await;
            if let (TaskOutcome::Panicked(payload), Some(world)) = (&outcome, weak.upgrade()) {
                world.panicked(task, message_of(&**payload), ending.join.lock().detached);
            }
            ending.join.end(outcome);
        })
    });
    Task { world: Arc::clone(world), task, join }
}

/// Ends a join whose task is dropped before it completes.
struct TaskEndGuard<T> {
    join: Arc<TaskJoin<T>>,
}

impl<T> Drop for TaskEndGuard<T> {
    fn drop(&mut self) {
        self.join.end(TaskOutcome::Aborted);
    }
}

/// Runs a future and catches its panic.
async fn supervise<F: Future>(future: F) -> TaskOutcome<F::Output> {
    let mut future = pin!(future);
    // After a panic the future is only dropped.
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(TaskOutcome::Completed),
        Err(payload) => Poll::Ready(TaskOutcome::Panicked(payload)),
    })
    .await
}

/// The message of a panic.
pub(super) fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a value that is not text".to_owned())
}

impl World {
    fn panicked(&self, task: TaskId, message: String, detached: bool) {
        self.with(|core| {
            let name = core.task_name(task);
            let text = format!("{name} panicked: {message}");
            if detached {
                core.fail(FailureReason::Panic(text));
            } else {
                core.tasks.panics.insert(task, text);
            }
        });
    }

    /// Fails the run when a panic was not joined.
    pub(super) fn fail_on_unjoined_panics(&self) {
        self.with(|core| {
            if let Some((_, text)) = core.tasks.panics.pop_first() {
                core.fail(FailureReason::Panic(text));
            }
        });
    }
}

impl<T> Task<T> {
    pub(in crate::rt) fn abort(&self) {
        if let Some(task) = self.task {
            self.world.abort_task(task);
        }
    }

    /// The output, if the task has completed; for a caller that does not await the task.
    pub(super) fn take_output(&mut self) -> Option<T> {
        let mut state = self.join.lock();
        match state.outcome.take() {
            Some(TaskOutcome::Completed(output)) => Some(output),
            other => {
                state.outcome = other;
                None
            }
        }
    }

    pub(in crate::rt) fn is_finished(&self) -> bool {
        self.join.lock().ended
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskAborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.join.lock();
        let Some(outcome) = state.outcome.take() else {
            assert!(!state.ended, "a task is not polled again after it was joined");
            let _replaced = state.joiner.replace(cx.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        match outcome {
            TaskOutcome::Completed(output) => Poll::Ready(Ok(output)),
            TaskOutcome::Aborted => Poll::Ready(Err(TaskAborted)),
            TaskOutcome::Panicked(payload) => {
                if let Some(task) = self.task {
                    self.world.with(|core| core.tasks.panics.remove(&task));
                }
                std::panic::resume_unwind(payload)
            }
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        let unjoined = {
            let mut state = self.join.lock();
            state.detached = true;
            (state.joiner.take(), state.outcome.take())
        };
        if let (_, Some(TaskOutcome::Panicked(_))) = unjoined {
            let task = self.task;
            self.world.with(|core| {
                if let Some(text) = task.and_then(|task| core.tasks.panics.remove(&task)) {
                    core.fail(FailureReason::Panic(text));
                }
            });
        }
    }
}
