//! Long computations, beside the tasks on which leases and commits depend.
//!
//! A runtime polls its tasks in turn, and looks at timers and sockets only now and then. A few dozen computations of tens of
//! milliseconds, each cut into short slices, so delay every other task by all of their slices. They therefore run on threads
//! with a lower scheduling priority, which take only the processor time that the other threads leave. If the process has a
//! quota of processor time, they also leave a part of the quota ([`pacing`]).

mod pacing;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use rustix::time::ClockId;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use self::pacing::processor_time;
pub use self::pacing::set_compute_quota;
use super::context;
use super::task::Task;

/// What is added to the niceness of threads that compute.
const NICENESS: i32 = 10;
/// The processor time after which a computation lets another one go on that waits.
const TURN: Duration = Duration::from_millis(20);

/// Started at the first computation and never ended. `None` if threads cannot be started.
static COMPUTING: OnceLock<Option<ComputePool>> = OnceLock::new();

/// The threads that compute.
struct ComputePool {
    runtime: Runtime,
    /// One for each thread. Waiting computations get them in the order of their arrival.
    turns: Semaphore,
    threads: u32,
}

/// Runs a future that computes for more than about a millisecond, and waits for nothing meanwhile. It yields now and then
/// ([`super::yield_now`]), so that it can be stopped. In simulation it runs in place.
///
/// There are as many computations in progress as threads, or one under a quota below one processor. Others wait in the order
/// of their arrival: if all went on at the same time, all would end late. One that has computed for [`TURN`] goes to the end
/// of the queue.
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
    let Some(pool) = COMPUTING.get_or_init(ComputePool::start) else { return future.await };
    match Task::on(&pool.runtime, pool.run(future)).abort_on_drop().await {
        Ok(output) => output,
        // Nothing ends the threads, and nobody else has the task's handle.
        Err(_) => std::future::pending().await,
    }
}

impl ComputePool {
    fn start() -> Option<ComputePool> {
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
        let turns = Semaphore::new(threads);
        Some(ComputePool { runtime: runtime.ok()?, turns, threads: u32::try_from(threads).unwrap_or(u32::MAX) })
    }

    async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let turns = if pacing::is_below_one_processor() { self.threads } else { 1 };
            let _turn = self.turns.acquire_many(turns).await.expect("it is never closed");
            let mut computed = Duration::ZERO;
            let turn = poll_fn(|context| {
                pacing::wait_for_credit();
                let before = processor_time(ClockId::ThreadCPUTime);
                let outcome = future.as_mut().poll(context);
                let used = processor_time(ClockId::ThreadCPUTime).saturating_sub(before);
                pacing::used(used);
                computed += used;
                match outcome {
                    Poll::Ready(output) => Poll::Ready(Some(output)),
                    Poll::Pending if computed >= TURN => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            if let Some(output) = turn.await {
                return output;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

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
    fn as_many_computations_as_threads_are_in_progress() {
        production::run(async {
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let computations = (0..50).map(|_| {
                let (now, most) = (now.clone(), most.clone());
                rt::spawn(compute(async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..20 {
                        yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                }))
            });
            for computation in computations.collect::<Vec<_>>() {
                computation.await.expect("it ends");
            }
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            assert!((1..=threads).contains(&most.load(Ordering::SeqCst)), "{most:?} of {threads}");
        });
    }

    #[test]
    fn long_computations_take_turns() {
        production::run(async {
            // More than there are threads: none of them ends before the last one has begun.
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let begun = Arc::new(AtomicUsize::new(0));
            let computations = (0..=threads).map(|_| {
                let begun = begun.clone();
                rt::spawn(compute(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    while begun.load(Ordering::SeqCst) <= threads {
                        yield_now().await;
                    }
                }))
            });
            for computation in computations.collect::<Vec<_>>() {
                computation.await.expect("it ends");
            }
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
