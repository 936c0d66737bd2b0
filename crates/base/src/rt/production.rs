//! The production runtime: tokio's threads and timers, the machine's clocks and files.

use std::future::Future;
use std::io;

/// A wrapped tokio runtime. Dropping it stops its tasks, and waits for blocking calls that have started.
#[derive(Debug)]
pub struct Runtime {
    inner: tokio::runtime::Runtime,
}

impl Runtime {
    /// Starts `worker_threads` threads that run tasks.
    ///
    /// # Errors
    /// When the operating system refuses threads or timers.
    pub fn new(worker_threads: usize) -> io::Result<Runtime> {
        let inner = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(worker_threads.max(1))
            .thread_name("heddle-worker")
            .enable_all()
            .build()?;
        Ok(Runtime { inner })
    }

    /// A runtime whose tasks run on the thread that calls [`Runtime::block_on`], and only during that call.
    ///
    /// # Errors
    /// When the operating system refuses timers.
    pub fn current_thread() -> io::Result<Runtime> {
        let inner = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Runtime { inner })
    }

    /// Has other threads use this runtime's timers and tasks.
    pub fn handle(&self) -> RuntimeHandle {
        RuntimeHandle(self.inner.handle().clone())
    }

    /// Runs `future` to its end, with this runtime as the ambient one.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.inner.block_on(future)
    }
}

/// A reference to a runtime, for threads outside it. The runtime ends when its [`Runtime`] is dropped, whatever refers to it.
#[derive(Clone, Debug)]
pub struct RuntimeHandle(tokio::runtime::Handle);

impl RuntimeHandle {
    /// Makes the runtime the ambient one of the calling thread until the guard is dropped: for polling futures that may need
    /// timers. A runtime of one thread fires them only while that thread is idle in [`Runtime::block_on`].
    pub fn enter(&self) -> RuntimeGuard<'_> {
        RuntimeGuard { _entered: self.0.enter() }
    }
}

/// See [`RuntimeHandle::enter`].
#[derive(Debug)]
pub struct RuntimeGuard<'a> {
    _entered: tokio::runtime::EnterGuard<'a>,
}

/// Runs `future` to its end on a new runtime with two workers: for tests and small tools.
///
/// Panics when no runtime can be started.
pub fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(2).expect("the machine has threads and timers for a runtime").block_on(future)
}
