//! Supervises the services of a process: listeners, the threads behind memory, and tasks that a role relies on.
//!
//! 1. A role passes each service to [`Services::watch`], and makes hosts of remote memory through [`WatchedProvider`].
//!    If a service ends before the process is asked to stop (because of a panic, or because the resource that it served
//!    is gone), [`Services`] records its name.
//! 2. From then on health reports the service ([`Services::problem`]). [`Services::failed`] completes, and the process
//!    ends with a separate exit code, so that the supervisor restarts it: a process without its services is useless.
//! 3. [`log_panics`] logs and counts every panic, including those that cost only one connection.

use std::panic::PanicHookInfo;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use base::BytesMut;
use base::rt::CancellationToken;
use rma::{Capability, Credential, Endpoint, Error, Host, HostConfig, NodeId, Provider, RegionId, Rights};
use tokio::task::JoinHandle;

base::events! {
    /// Panics: defects of the program; the log has each one with its location.
    counter Panics("heddle_panics_total");
}

/// The services of a process. Clones share them.
#[derive(Clone)]
pub(crate) struct Services {
    /// Set when the process is asked to stop: services may end then.
    stop: CancellationToken,
    first_failure: Arc<OnceLock<String>>,
    failed_token: CancellationToken,
}

impl Services {
    /// Services that may end once `stop` is set.
    pub(crate) fn new(stop: CancellationToken) -> Services {
        Services { stop, first_failure: Arc::default(), failed_token: CancellationToken::new() }
    }

    /// Runs a service in its own task, and records its end.
    pub(crate) fn watch(
        &self,
        name: impl Into<String>,
        service: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let ending = ServiceEndGuard { services: self.clone(), name: name.into(), has_returned: false };
        tokio::spawn(async move {
            // Move the whole guard into the task, not only the field that changes.
            let mut ending = ending;
            service.await;
            ending.has_returned = true;
        })
    }

    /// Records that a service has ended, unless the process has been asked to stop.
    pub(crate) fn record_failure(&self, text: String) {
        if self.stop.is_cancelled() {
            return;
        }
        if self.problem() != Some(&text) {
            tracing::error!("{text}; this process cannot run without it and stops");
        }
        let _ = self.first_failure.set(text);
        self.failed_token.cancel();
    }

    /// As [`Services::watch`], for a task that was started already.
    pub(crate) fn watch_task(&self, name: &str, task: JoinHandle<()>) -> JoinHandle<()> {
        self.watch(name, async move {
            // The log has its panic.
            let _ = task.await;
        })
    }

    /// The first service that ended too early, if any has.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.first_failure.get().map(String::as_str)
    }

    /// Completes when a service has ended too early, with its name.
    pub(crate) async fn failed(&self) -> String {
        self.failed_token.cancelled().await;
        self.problem().unwrap_or_default().to_owned()
    }
}

/// Records the end of a service when dropped, unless the runtime has ended and the service with it.
struct ServiceEndGuard {
    services: Services,
    name: String,
    has_returned: bool,
}

impl Drop for ServiceEndGuard {
    fn drop(&mut self) {
        let how = match (self.has_returned, std::thread::panicking()) {
            (true, _) => "has ended",
            (false, true) => "has panicked",
            (false, false) => return,
        };
        self.services.record_failure(format!("{} {how}", self.name));
    }
}

/// A provider whose hosts are services: a defect that ends a host is recorded, and ends the process.
pub(crate) struct WatchedProvider {
    provider: Arc<dyn Provider>,
    services: Services,
}

impl WatchedProvider {
    pub(crate) fn new(provider: Arc<dyn Provider>, services: Services) -> WatchedProvider {
        WatchedProvider { provider, services }
    }
}

#[async_trait]
impl Provider for WatchedProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        self.provider.connect(address, credential).await
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let host = self.provider.host(address, options).await?;
        let (watched, services) = (Arc::clone(&host), self.services.clone());
        let watching = tokio::spawn(async move {
            let reason = watched.failed().await;
            services.record_failure(failed(&*watched, &reason));
        });
        Ok(Arc::new(WatchedHost { host, watching, services: self.services.clone() }))
    }

    fn name(&self) -> &'static str {
        self.provider.name()
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
        // The task holds a handle of the host, and the host ends with its last handle.
        self.watching.abort();
        // The accepting task of a failed host may drop the host before the task above has run.
        if let Poll::Ready(reason) = pin!(self.host.failed()).poll(&mut Context::from_waker(Waker::noop())) {
            self.services.record_failure(failed(&*self.host, &reason));
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

/// Fault injection by a test of real processes: `FOLDER/NAME` holds the name of a [fault point](base::rt::fault_point).
/// This process polls the file, removes it and makes the fault happen once. FOLDER comes from [`FAULTS_VARIABLE`]; without that
/// variable the process looks for no files.
#[cfg(debug_assertions)]
pub(crate) async fn inject_faults(folder: std::path::PathBuf, name: String, stop: CancellationToken) {
    tracing::warn!(folder = %folder.display(), "{FAULTS_VARIABLE} is set: a user who can write there can make this process fail");
    let path = folder.join(name);
    while stop.run_until_cancelled(tokio::time::sleep(FAULTS_PERIOD)).await.is_some() {
        if let Ok(fault) = std::fs::read_to_string(&path)
            && std::fs::remove_file(&path).is_ok()
        {
            base::rt::inject_fault(fault.trim());
        }
    }
}

/// The environment variable with the folder of fault requests. The product does not read it.
#[cfg(debug_assertions)]
pub(crate) const FAULTS_VARIABLE: &str = "HEDDLE_FAULTS";
#[cfg(debug_assertions)]
const FAULTS_PERIOD: std::time::Duration = std::time::Duration::from_millis(20);

/// From now on every panic of this process is logged with its thread, location and message, and counted.
pub fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        Panics.add(1);
        // Before logging is set up, use standard error.
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
        let services = Services::new(CancellationToken::new());
        drop(services.watch("the port of others", async { panic!("told to") }));
        assert_eq!(services.failed().await, "the port of others has panicked");
        assert_eq!(services.problem(), Some("the port of others has panicked"));
    }

    #[tokio::test]
    async fn a_service_that_returns_is_named() {
        let services = Services::new(CancellationToken::new());
        services.watch("memory-1", async {}).await.expect("it does not panic");
        assert_eq!(services.failed().await, "memory-1 has ended");
    }

    /// A host that has failed, while no task has awaited its failure yet.
    struct Failed;

    #[async_trait]
    impl Provider for Failed {
        async fn connect(&self, _: &str, _: &Credential) -> Result<Endpoint, Error> {
            Err(Error::Closed)
        }

        async fn host(&self, _: &str, _: HostConfig) -> Result<Arc<dyn Host>, Error> {
            Ok(Arc::new(Failed))
        }

        fn name(&self) -> &'static str {
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

    /// Regression: the accepting task of a Raft node saw that its host was gone and dropped the host before its failure
    /// was reported, so the orderer's process lived on without a port.
    #[tokio::test]
    async fn a_host_that_has_failed_is_named_also_when_it_is_dropped_at_once() {
        let services = Services::new(CancellationToken::new());
        let options = HostConfig { node: NodeId(0), tokens: Arc::new(|_| None) };
        let host =
            WatchedProvider::new(Arc::new(Failed), services.clone()).host("here", options).await.expect("it is made");
        drop(host);
        assert_eq!(services.problem(), Some("what answers at here has failed: it panicked"));
    }

    #[tokio::test]
    async fn services_may_end_with_their_process() {
        let stop = CancellationToken::new();
        let services = Services::new(stop.clone());
        let waits = stop.clone();
        let service = services.watch("a port", async move { waits.cancelled().await });
        stop.cancel();
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
