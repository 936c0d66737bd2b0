//! Tasks: spawning, awaiting and aborting them, in production and in simulation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(debug_assertions)]
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::context::{self, AmbientContext};
use super::simulation;
#[cfg(debug_assertions)]
use super::simulation::{Incarnation, World};
use super::{random_below, sleep};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A spawned task. Awaiting it returns its output; dropping it lets the task continue by itself.
///
/// A panic of the task is raised again in the task that awaits it.
pub struct Task<T> {
    inner: TaskInner<T>,
}

enum TaskInner<T> {
    Production(tokio::task::JoinHandle<T>),
    Simulation(simulation::Task<T>),
}

/// The task was stopped before it completed: by [`Task::abort`], by the end of its runtime, or by its node's crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the task was stopped before it completed")]
pub struct TaskAborted;

impl<T> Task<T> {
    /// Asks the task to stop: its future is dropped at its next point of suspension, soon but not at once.
    pub fn abort(&self) {
        match &self.inner {
            TaskInner::Production(handle) => handle.abort(),
            TaskInner::Simulation(task) => task.abort(),
        }
    }

    /// Whether the task has completed, panicked or been stopped.
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            TaskInner::Production(handle) => handle.is_finished(),
            TaskInner::Simulation(task) => task.is_finished(),
        }
    }

    /// Ties the task's lifetime to the returned handle.
    pub fn abort_on_drop(self) -> AbortOnDrop<T> {
        AbortOnDrop(self)
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskAborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().inner {
            TaskInner::Production(handle) => Pin::new(handle).poll(cx).map(|joined| match joined {
                Ok(output) => Ok(output),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(TaskAborted),
            }),
            TaskInner::Simulation(task) => Pin::new(task).poll(cx),
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish()
    }
}

/// A task that is aborted when this handle is dropped. Awaiting it awaits the task.
#[derive(Debug)]
#[must_use = "dropping this handle aborts the task"]
pub struct AbortOnDrop<T>(Task<T>);

impl<T> AbortOnDrop<T> {
    /// Asks the task to stop.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has completed, panicked or been stopped.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, TaskAborted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a task that runs concurrently with the caller; in simulation, on the caller's node.
///
/// Panics when neither a simulation nor tokio runs on this thread.
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_boxed(Box::pin(future), std::any::type_name::<F>())
}

/// Compiled once for each type of output, not for each task: the runtimes wrap a task in much code.
fn spawn_boxed<T: Send + 'static>(future: BoxFuture<T>, label: &'static str) -> Task<T> {
    let inner = match context::ambient() {
        Some(AmbientContext { world, incarnation: life }) => {
            TaskInner::Simulation(simulation::spawn(&world, life, future, label))
        }
        None => TaskInner::Production(tokio::spawn(future)),
    };
    Task { inner }
}

impl<T: Send + 'static> Task<T> {
    /// Starts a task on other threads than those of the current runtime.
    pub(super) fn on<F>(runtime: &tokio::runtime::Runtime, future: F) -> Task<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        Task { inner: TaskInner::Production(runtime.spawn(future)) }
    }
}

/// Whether [`spawn`] works here: false on a thread that runs neither a simulation nor tokio, for example when something is
/// dropped after its runtime.
pub fn is_running() -> bool {
    context::is_simulation() || tokio::runtime::Handle::try_current().is_ok()
}

#[cfg(debug_assertions)]
impl<T: Send + 'static> Task<T> {
    /// Starts a task in one incarnation of a simulated node.
    pub(super) fn simulated<F>(world: &Arc<World>, life: Incarnation, future: F) -> Task<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let label = std::any::type_name::<F>();
        Task { inner: TaskInner::Simulation(simulation::spawn(world, life, Box::pin(future), label)) }
    }
}

/// Lets other ready tasks run first.
pub async fn yield_now() {
    match context::is_simulation() {
        true => simulation::yield_once().await,
        false => tokio::task::yield_now().await,
    }
}

/// Runs a function that may block (an fsync, a call of a storage engine) outside the tasks' threads; in simulation, in place
/// after a seeded delay. A panic of the function is raised again here.
///
/// Dropping the future does not stop a function that has started.
pub async fn blocking<T, F>(function: F) -> T
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    if context::is_simulation() {
        let delay = random_below(simulation::BLOCKING_DELAY_MAX.as_nanos() as u64);
        sleep(Duration::from_nanos(delay)).await;
        return function();
    }
    let function: Box<dyn FnOnce() -> T + Send> = Box::new(function);
    match tokio::task::spawn_blocking(function).await {
        Ok(output) => output,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down: no task sees this future complete.
        Err(_) => std::future::pending().await,
    }
}
