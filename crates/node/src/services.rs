//! What must not end before its process does: listeners, the threads behind memory, tasks that a role relies on.
//!
//! 1. A role hands each of them to [`Services::watch`], and makes hosts of remote memory with [`Watched`]. One that ends while
//!    the process has not been asked to, by a panic or because what it served is gone, is noted with its name.
//! 2. Health says so from then on ([`Services::problem`]), and [`Services::failed`] ends the process with an exit code of its
//!    own, so that whoever supervises it starts it again. A process that lives and serves nothing helps nobody.
//! 3. [`log_panics`] has every panic logged and counted, those too that cost one connection and nothing else.

use std::panic::PanicHookInfo;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use base::BytesMut;
use base::rt::Stop;
use rma::{Capability, Credential, Endpoint, Error, Fabric, Host, HostOptions, NodeId, RegionId, Rights};
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

    /// Notes that something has ended which must not, unless the process has been asked to end.
    pub(crate) fn note(&self, text: String) {
        if self.stop.is_stopped() {
            return;
        }
        if self.problem() != Some(&text) {
            tracing::error!("{text}, which it must not; this process cannot go on without it");
        }
        let _ = self.first.set(text);
        self.noted.stop();
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
        let how = match (self.has_returned, std::thread::panicking()) {
            (true, _) => "has ended",
            (false, true) => "has panicked",
            (false, false) => return,
        };
        self.services.note(format!("{} {how}", self.name));
    }
}

/// A provider whose hosts are services: a defect that ends one of them is noted, and with it the process ends.
pub(crate) struct Watched {
    fabric: Arc<dyn Fabric>,
    services: Services,
}

impl Watched {
    pub(crate) fn new(fabric: Arc<dyn Fabric>, services: Services) -> Watched {
        Watched { fabric, services }
    }
}

#[async_trait]
impl Fabric for Watched {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        self.fabric.connect(address, credential).await
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let host = self.fabric.host(address, options).await?;
        let (watched, services) = (Arc::clone(&host), self.services.clone());
        let watching = tokio::spawn(async move {
            let reason = watched.failed().await;
            services.note(failed(&*watched, &reason));
        });
        Ok(Arc::new(WatchedHost { host, watching, services: self.services.clone() }))
    }

    fn provider(&self) -> &'static str {
        self.fabric.provider()
    }
}

fn failed(host: &dyn Host, reason: &str) -> String {
    format!("what answers at {} has failed: {reason}", host.address())
}

struct WatchedHost {
    host: Arc<dyn Host>,
    watching: JoinHandle<()>,
    services: Services,
}

impl Drop for WatchedHost {
    fn drop(&mut self) {
        // It has a handle of the host, which ends with the last one.
        self.watching.abort();
        // Whoever accepted from a host that has failed may let go of it before the task above has run.
        if let Poll::Ready(reason) = pin!(self.host.failed()).poll(&mut Context::from_waker(Waker::noop())) {
            self.services.note(failed(&*self.host, &reason));
        }
    }
}

#[async_trait]
impl Host for WatchedHost {
    fn node(&self) -> NodeId {
        self.host.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        self.host.register(name, bytes).await
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        self.host.grant(region, rights, holder)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        self.host.revoke(capability).await
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.host.deregister(region).await
    }

    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        self.host.load(region, offset, length)
    }

    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.host.store(region, offset, bytes)
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.host.accept().await
    }

    async fn failed(&self) -> String {
        self.host.failed().await
    }

    fn address(&self) -> String {
        self.host.address()
    }

    async fn close(&self) {
        self.host.close().await;
    }
}

/// Faults that a test of real processes asks this one for, while it runs: `FOLDER/NAME` holds the name of a
/// [fault point](base::rt::fault_point) and is removed when that is to happen, once. FOLDER is in [`FAULTS`]; without it nothing
/// looks for files.
pub(crate) async fn inject_faults(folder: std::path::PathBuf, name: String, stop: Stop) {
    tracing::warn!(folder = %folder.display(), "{FAULTS} is set: whoever writes there can have this process fail");
    let path = folder.join(name);
    while stop.or_stopped(tokio::time::sleep(FAULTS_PERIOD)).await.is_some() {
        if let Ok(fault) = std::fs::read_to_string(&path)
            && std::fs::remove_file(&path).is_ok()
        {
            base::rt::inject_fault(fault.trim());
        }
    }
}

/// The variable of the environment that says where tests ask for faults.
pub(crate) const FAULTS: &str = "HEDDLE_FAULTS";
const FAULTS_PERIOD: std::time::Duration = std::time::Duration::from_millis(20);

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

    /// A host that has failed, and whose failure nobody has awaited yet.
    struct Failed;

    #[async_trait]
    impl Fabric for Failed {
        async fn connect(&self, _: &str, _: &Credential) -> Result<Endpoint, Error> {
            Err(Error::Closed)
        }

        async fn host(&self, _: &str, _: HostOptions) -> Result<Arc<dyn Host>, Error> {
            Ok(Arc::new(Failed))
        }

        fn provider(&self) -> &'static str {
            "failed"
        }
    }

    #[async_trait]
    impl Host for Failed {
        fn node(&self) -> NodeId {
            NodeId(0)
        }

        async fn register(&self, _: &str, _: u64) -> Result<RegionId, Error> {
            Err(Error::Closed)
        }

        fn grant(&self, _: RegionId, _: Rights, _: &str) -> Result<Capability, Error> {
            Err(Error::Closed)
        }

        async fn revoke(&self, _: &Capability) -> Result<(), Error> {
            Err(Error::Closed)
        }

        async fn deregister(&self, _: RegionId) -> Result<(), Error> {
            Err(Error::Closed)
        }

        async fn accept(&self) -> Result<Endpoint, Error> {
            Err(Error::Closed)
        }

        async fn failed(&self) -> String {
            "it panicked".to_owned()
        }

        fn address(&self) -> String {
            "here".to_owned()
        }

        async fn close(&self) {}
    }

    /// The task of a Raft node that accepts links saw that its host was gone, and let go of it, before anybody had heard why:
    /// the orderer's process lived on without a port.
    #[tokio::test]
    async fn a_host_that_has_failed_is_named_also_when_it_is_dropped_at_once() {
        let services = Services::new(Stop::new());
        let options = HostOptions { node: NodeId(0), tokens: Arc::new(|_| None) };
        let host = Watched::new(Arc::new(Failed), services.clone()).host("here", options).await.expect("it is made");
        drop(host);
        assert_eq!(services.problem(), Some("what answers at here has failed: it panicked"));
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
