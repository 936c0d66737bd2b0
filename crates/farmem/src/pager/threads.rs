//! The threads of one region.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use base::rt::production::{Runtime, RuntimeHandle};

use super::core::PagerCore;
use super::evictor::{self, EvictionPath};
use super::{handler, prefetcher};
use crate::error::Error;
use crate::kernel::signals::SignalsBlocked;

/// The handler, the prefetcher and the evictor of a region.
pub(crate) struct PagerThreads {
    threads: Vec<JoinHandle<()>>,
}

impl PagerThreads {
    /// None yet.
    pub(crate) fn new() -> PagerThreads {
        PagerThreads { threads: Vec::new() }
    }

    /// Starts all three.
    ///
    /// # Errors
    /// [`Error::System`]; those that were started go on.
    pub(crate) fn start(&mut self, core: &Arc<PagerCore>, path: Box<dyn EvictionPath>) -> Result<(), Error> {
        let runtime = self.run("farmem-handler", core, handler::run(Arc::clone(core)))?;
        if let Some(threads) = &core.threads {
            threads.set_runtime(runtime);
        }
        self.run("farmem-prefetcher", core, prefetcher::run(Arc::clone(core)))?;
        self.run("farmem-evictor", core, evictor::run(Arc::clone(core), path))?;
        Ok(())
    }

    /// How many were started.
    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Waits for their end.
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // The home has dealt with a panic.
            let _ = thread.join();
        }
    }

    /// Starts a thread with a single-threaded runtime, on which it awaits the store.
    #[allow(clippy::disallowed_methods)] // There is no simulation of page faults, and a task could not block in the kernel.
    fn run(
        &mut self,
        name: &str,
        core: &Arc<PagerCore>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<RuntimeHandle, Error> {
        let core = Arc::clone(core);
        let failed = |error: std::io::Error| Error::from_io("cannot start a thread of far memory", &error);
        let runtime = Runtime::current_thread().map_err(failed)?;
        let handle = runtime.handle();
        // A handler of the program may touch the region, and must not do so on the thread that serves it.
        let _blocked = SignalsBlocked::new();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(task)));
            core.home.thread_ended(&core, outcome);
        });
        self.threads.push(started.map_err(failed)?);
        Ok(handle)
    }
}
