//! Long computations, beside the tasks on which leases and commits depend.
//!
//! A runtime polls its tasks in turn, and looks at timers and sockets only now and then. A few dozen computations of tens of
//! milliseconds, each cut into short slices, so delay every other task by all of their slices. They therefore run on threads
//! with a lower scheduling priority, which take only the processor time that the other threads leave.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

use super::context;
use super::task::Task;

/// What is added to the niceness of threads that compute.
const NICENESS: i32 = 10;

/// The threads that compute, started at the first computation and never ended. `None` if they cannot be started.
static COMPUTING: OnceLock<Option<Runtime>> = OnceLock::new();

/// Runs a future that computes for more than about a millisecond. The future yields now and then ([`super::yield_now`]), so
/// that several computations share the threads, and each can be stopped. In simulation it runs in place.
///
/// A panic of the future is raised again here. Dropping the returned future stops the computation where it yields.
pub async fn compute<T, F>(future: F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    if context::is_simulation() {
        return future.await;
    }
    let Some(runtime) = COMPUTING.get_or_init(start) else { return future.await };
    match Task::on(runtime, future).abort_on_drop().await {
        Ok(output) => output,
        // Nothing ends the threads, and nobody else has the task's handle.
        Err(_) => std::future::pending().await,
    }
}

fn start() -> Option<Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("heddle-compute")
        .on_thread_start(|| {
            // On Linux the priority is one of the calling thread. Anybody may lower it.
            if let Ok(own) = rustix::process::getpriority_process(None) {
                let _ = rustix::process::setpriority_process(None, own + NICENESS);
            }
        })
        .enable_time()
        .build();
    runtime.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::rt::channel::oneshot;
    use crate::rt::simulation::Simulation;
    use crate::rt::{self, production, yield_now};

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).expect("Linux tells it")
    }

    #[test]
    fn a_computation_runs_on_threads_that_give_way() {
        production::run(async {
            let caller = niceness();
            let (name, computing) = compute(async {
                yield_now().await;
                (std::thread::current().name().map(str::to_owned), niceness())
            })
            .await;
            assert_eq!(name.as_deref(), Some("heddle-compute"));
            assert_eq!(computing, (caller + NICENESS).min(19));
            assert_eq!(niceness(), caller);
        });
    }

    #[test]
    fn a_computation_ends_with_its_caller() {
        production::run(async {
            let (kept, ended) = oneshot::<()>();
            let (started, running) = oneshot();
            let waiting = rt::spawn(compute(async move {
                let _kept = kept;
                let _ = started.send(());
                loop {
                    yield_now().await;
                }
            }));
            running.await.expect("it starts");
            waiting.abort();
            ended.await.expect_err("the computation is dropped");
        });
    }

    #[test]
    fn a_panic_reaches_the_caller() {
        let failed = std::panic::catch_unwind(|| production::run(compute(async { panic!("not a number") })));
        let panic = failed.expect_err("it panics");
        assert_eq!(panic.downcast_ref(), Some(&"not a number"));
    }

    #[test]
    fn a_simulated_computation_takes_no_other_thread() {
        let here = Arc::new(std::thread::current().id());
        let run = Simulation::new(1).run(|_| async move {
            compute(async move {
                rt::sleep(Duration::from_millis(1)).await;
                assert_eq!(*here, std::thread::current().id());
            })
            .await;
        });
        run.expect("it runs in place");
    }
}
