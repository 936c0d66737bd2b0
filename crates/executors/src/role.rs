//! A running role, seen from the process that it is in.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::ExecutorsError;
use crate::published::{EndGuard, Published};
use crate::server::Server;
use crate::settings::ExecutorsSettings;
use crate::view::{ExecutorCondition, RoleView};

/// A running role. It stops when this is dropped.
pub struct ExecutorsRole {
    published: Arc<Published>,
}

impl ExecutorsRole {
    /// Starts the role.
    ///
    /// # Errors
    /// [`ExecutorsError`] says what is missing, and how to have it.
    #[allow(
        clippy::disallowed_methods,
        reason = "the thread waits in the kernel, and there is no simulation of processes"
    )]
    pub fn start(settings: ExecutorsSettings) -> Result<ExecutorsRole, ExecutorsError> {
        base::event::register(crate::events::EVENTS);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake: OwnedFd = wake.map_err(ExecutorsError::system("an event"))?;
        let published = Arc::new(Published::new(wake));
        let server = Server::new(settings, Arc::clone(&published))?;
        // The kernel kills executors when this thread ends, so it is one of the role's own.
        let guard = EndGuard(Arc::clone(&published));
        let thread = std::thread::Builder::new().name("executors".to_owned()).spawn(move || {
            // Dropped last: a thread that waits finds the socket and all executors gone.
            let _guard = guard;
            let mut server = server;
            server.run();
        });
        thread.map_err(|source| ExecutorsError::System { what: "a thread", source })?;
        Ok(ExecutorsRole { published })
    }

    /// All executors.
    pub fn view(&self) -> RoleView {
        self.published.view()
    }

    /// The metrics by owner ([`OWNER_METRICS`](crate::OWNER_METRICS)), in Prometheus' text format.
    pub fn owner_metrics(&self) -> String {
        self.published.owner_metrics()
    }

    /// Executors that do not answer, one a line.
    pub fn sick(&self) -> Vec<String> {
        let view = self.view();
        let sick = view.executors.iter().filter(|executor| executor.condition == ExecutorCondition::Sick);
        sick.map(|executor| {
            format!(
                "executor {} of user {} (program {} {}) has not answered for {} ms",
                executor.process, executor.owner, executor.program, executor.name, executor.silence_ms
            )
        })
        .collect()
    }

    /// Has the role stop: it admits nobody any more, and ends once no function runs, or when its grace is over.
    pub fn begin_stop(&self) {
        self.published.stop();
    }

    /// Blocks until the role has ended. Returns whether it has stopped in order, and not by a panic.
    pub fn wait(&self) -> bool {
        self.published.wait()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.published.has_ended()
    }

    /// Stops the role, and blocks until it has ended.
    pub fn stop(&self) -> bool {
        self.begin_stop();
        self.wait()
    }
}

impl Drop for ExecutorsRole {
    fn drop(&mut self) {
        self.published.end();
        self.wait();
    }
}
