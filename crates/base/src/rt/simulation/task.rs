//! A simulated task's handle, and what stands around its future.
//!
//! A panic is given to whoever joins the task. A panic that nobody joins fails the run: when the handle is dropped
//! without joining, or when the run ends.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::failure::Reason;
use super::ids::{Life, TaskId};
use super::world::World;
use crate::rt::task::Aborted;

/// How a task ended.
enum Outcome<T> {
    Completed(T),
    Panicked(Box<dyn Any + Send>),
    Aborted,
}

struct Join<T> {
    state: Mutex<JoinState<T>>,
}

struct JoinState<T> {
    outcome: Option<Outcome<T>>,
    ended: bool,
    joiner: Option<Waker>,
    detached: bool,
}

impl<T> Join<T> {
    fn new() -> Arc<Join<T>> {
        Arc::new(Join { state: Mutex::new(JoinState { outcome: None, ended: false, joiner: None, detached: false }) })
    }

    fn lock(&self) -> MutexGuard<'_, JoinState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first outcome.
    fn end(&self, outcome: Outcome<T>) {
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
    join: Arc<Join<T>>,
}

/// Starts a task in a life of a node; in a life that is over, the task is aborted at once.
///
/// `label` names it in traces.
pub(in crate::rt) fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    life: Life,
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    label: &'static str,
) -> Task<T> {
    let join = Join::new();
    let ending = Ending { join: Arc::clone(&join) };
    let weak = Arc::downgrade(world);
    let task = world.start_task(life, label, move |task| {
        Box::pin(async move {
            let outcome = supervise(future).await;
            if let (Outcome::Panicked(payload), Some(world)) = (&outcome, weak.upgrade()) {
                world.panicked(task, message_of(&**payload), ending.join.lock().detached);
            }
            ending.join.end(outcome);
        })
    });
    Task { world: Arc::clone(world), task, join }
}

/// Ends a join whose task is dropped before it completes.
struct Ending<T> {
    join: Arc<Join<T>>,
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.join.end(Outcome::Aborted);
    }
}

/// Runs a future and catches its panic.
async fn supervise<F: Future>(future: F) -> Outcome<F::Output> {
    let mut future = pin!(future);
    // Nothing of the future is touched after a panic, but for dropping it.
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Outcome::Completed),
        Err(payload) => Poll::Ready(Outcome::Panicked(payload)),
    })
    .await
}

/// What a panic says.
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
                core.fail(Reason::Panic(text));
            } else {
                core.tasks.panics.insert(task, text);
            }
        });
    }

    /// Fails the run when a panic was not joined.
    pub(super) fn fail_on_unjoined_panics(&self) {
        self.with(|core| {
            if let Some((_, text)) = core.tasks.panics.pop_first() {
                core.fail(Reason::Panic(text));
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

    /// The output, if the task has completed; for whoever does not await.
    pub(super) fn take_output(&mut self) -> Option<T> {
        let mut state = self.join.lock();
        match state.outcome.take() {
            Some(Outcome::Completed(output)) => Some(output),
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
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.join.lock();
        let Some(outcome) = state.outcome.take() else {
            assert!(!state.ended, "a task is not polled again after it was joined");
            let _replaced = state.joiner.replace(cx.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        match outcome {
            Outcome::Completed(output) => Poll::Ready(Ok(output)),
            Outcome::Aborted => Poll::Ready(Err(Aborted)),
            Outcome::Panicked(payload) => {
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
        if let (_, Some(Outcome::Panicked(_))) = unjoined {
            let task = self.task;
            self.world.with(|core| {
                if let Some(text) = task.and_then(|task| core.tasks.panics.remove(&task)) {
                    core.fail(Reason::Panic(text));
                }
            });
        }
    }
}
