//! What must not end before its process does: listeners, the threads behind memory, tasks that a role relies on.
//!
//! 1. A role hands each of them to [`Services::watch`]. One that ends while the process has not been asked to, by a panic or
//!    because what it served is gone, is noted with its name.
//! 2. Health says so from then on ([`Services::problem`]), and [`Services::failed`] ends the process with an exit code of its
//!    own, so that whoever supervises it starts it again. A process that lives and serves nothing helps nobody.
//! 3. [`log_panics`] has every panic logged and counted, those too that cost one connection and nothing else.

use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};

use base::rt::Stop;
use tokio::task::JoinHandle;

base::events! {
    /// Panics: mistakes of the program, each of which is in the log with its place.
    counter Panics("heddle_panics_total");
}

/// The services of a process. Clones share them.
#[derive(Clone)]
pub(crate) struct Services {
    /// The process ends: services may.
    stop: Stop,
    first: Arc<OnceLock<String>>,
    noted: Stop,
}

impl Services {
    /// Services that may end once `stop` is stopped.
    pub(crate) fn new(stop: Stop) -> Services {
        Services { stop, first: Arc::default(), noted: Stop::new() }
    }

    /// Runs a service in a task of its own, and notes its end.
    pub(crate) fn watch(
        &self,
        name: impl Into<String>,
        service: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let ending = Ending { services: self.clone(), name: name.into(), has_returned: false };
        tokio::spawn(async move {
            // All of it, not the one field that changes.
            let mut ending = ending;
            service.await;
            ending.has_returned = true;
        })
    }

    /// As [`Services::watch`], for a task that was started already.
    pub(crate) fn watch_task(&self, name: &str, task: JoinHandle<()>) -> JoinHandle<()> {
        self.watch(name, async move {
            // That it panicked the log says.
            let _ = task.await;
        })
    }

    /// What has ended, if something has that should not have.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// Completes when something has ended that should not have, and says what.
    pub(crate) async fn failed(&self) -> String {
        self.noted.stopped().await;
        self.problem().unwrap_or_default().to_owned()
    }
}

/// Notes the end of a service when it is dropped, unless the runtime has ended and the service with it.
struct Ending {
    services: Services,
    name: String,
    has_returned: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Services { stop, first, noted } = &self.services;
        let how = match (self.has_returned, std::thread::panicking()) {
            _ if stop.is_stopped() => return,
            (true, _) => "has ended",
            (false, true) => "has panicked",
            (false, false) => return,
        };
        let text = format!("{} {how}", self.name);
        tracing::error!("{text}, which it must not; this process cannot go on without it");
        let _ = first.set(text);
        noted.stop();
    }
}

/// From now on every panic of this process is logged with its thread, its place and its message, and counted.
pub fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        Panics.add(1);
        // Before logging has been started there is standard error.
        if tracing::dispatcher::has_been_set() { log(panic) } else { before(panic) }
    }));
}

fn log(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(thread, place, message, "a panic");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_service_that_panics_is_named() {
        let services = Services::new(Stop::new());
        drop(services.watch("the port of others", async { panic!("told to") }));
        assert_eq!(services.failed().await, "the port of others has panicked");
        assert_eq!(services.problem(), Some("the port of others has panicked"));
    }

    #[tokio::test]
    async fn a_service_that_returns_is_named() {
        let services = Services::new(Stop::new());
        services.watch("memory-1", async {}).await.expect("it does not panic");
        assert_eq!(services.failed().await, "memory-1 has ended");
    }

    #[tokio::test]
    async fn services_may_end_with_their_process() {
        let stop = Stop::new();
        let services = Services::new(stop.clone());
        let waits = stop.clone();
        let service = services.watch("a port", async move { waits.stopped().await });
        stop.stop();
        service.await.expect("it does not panic");
        assert_eq!(services.problem(), None);
    }

    #[test]
    fn panics_are_counted() {
        log_panics();
        let before = Panics.value();
        let panicked = std::thread::spawn(|| panic!("told to")).join();
        assert!(panicked.is_err() && Panics.value() > before);
    }
}
