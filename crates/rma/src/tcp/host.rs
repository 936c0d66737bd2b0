//! A `tcp` host, and the endpoints that it accepted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use async_trait::async_trait;
use base::rt::channel::{Receiver, bounded};
use base::rt::{self, AbortOnDrop};
use base::{BytesMut, Map};
use rustix::event::{EventfdFlags, eventfd};

use super::attention::AttentionQueue;
use super::host_core::HostCore;
use super::memory::HostRegions;
use super::{TcpConfig, server, start_thread};
use crate::failure::HostFailure;
use crate::{Capability, Endpoint, Error, Host, HostConfig, NodeId, RegionId, Rights};

/// Connections that the application has not accepted yet; one more is rejected.
const BACKLOG_MAX: usize = 64;

pub struct TcpHost {
    shared: Arc<HostCore>,
    address: String,
    accepted: rt::sync::Mutex<Receiver<Endpoint>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Notifies the progress thread when the set of denied certificates changes.
    _watching: Option<AbortOnDrop<()>>,
}

impl TcpHost {
    /// Binds the port and starts the progress thread.
    pub fn start(address: &str, host: HostConfig, options: TcpConfig) -> Result<TcpHost, Error> {
        let doing = |error: &std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::System {
                doing: "listening for rma over tcp",
                reason: format!("{address} is in use; choose another port or stop what uses it"),
                kind: base::ErrorKind::Rejected,
            },
            _ => Error::System {
                doing: "listening for rma over tcp",
                reason: format!("{address}: {error}"),
                kind: base::ErrorKind::of_io(error),
            },
        };
        let listener = TcpListener::bind(address).map_err(|error| doing(&error))?;
        listener.set_nonblocking(true).map_err(|error| doing(&error))?;
        let address = listener.local_addr().map_err(|error| doing(&error))?.to_string();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::system("making an event descriptor", &error.into()))?;
        let shared = Arc::new(HostCore {
            node: host.node,
            tokens: host.tokens,
            options,
            regions: HostRegions::new(host.node),
            attention: Arc::new(AttentionQueue::new(wake)),
            stopping: AtomicBool::new(false),
            denials_changed: AtomicBool::new(false),
            failure: HostFailure::default(),
            budgets: Mutex::new(Map::default()),
            looked_at: AtomicU64::new(0),
        });
        let (sender, accepted) = bounded(BACKLOG_MAX);
        let progress = server::ProgressEngine::new(listener, Arc::clone(&shared), sender)
            .map_err(|error| Error::system("preparing the progress thread", &error))?;
        let thread = start_thread("rma-tcp", move || progress.run())
            .map_err(|error| Error::system("starting the progress thread", &error))?;
        Ok(TcpHost {
            shared,
            address,
            accepted: rt::sync::Mutex::new(accepted),
            thread: Mutex::new(Some(thread)),
            _watching: None,
        })
    }

    /// Starts a task on the current runtime that has connections end when their certificates become denied.
    pub fn watching(mut self) -> TcpHost {
        self._watching = self.shared.options.tls.as_ref().map(|tls| {
            let (denials, shared) = (Arc::clone(tls.denials()), Arc::clone(&self.shared));
            let watching = rt::spawn(async move {
                loop {
                    // Obtained before the check, so that a change during the check is not missed.
                    let changed = denials.changed();
                    shared.denials_changed.store(true, Ordering::Release);
                    shared.attention.wake();
                    changed.await;
                }
            });
            watching.abort_on_drop()
        });
        self
    }

    #[cfg(test)]
    pub fn shared(&self) -> &Arc<HostCore> {
        &self.shared
    }

    fn stop(&self) -> Option<JoinHandle<()>> {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.attention.wake();
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for TcpHost {
    fn drop(&mut self) {
        // The thread ends by itself, within one turn of its loop.
        drop(self.stop());
    }
}

#[async_trait]
impl Host for TcpHost {
    fn node(&self) -> NodeId {
        self.shared.node
    }

    async fn register(&self, _name: &str, bytes: u64) -> Result<RegionId, Error> {
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.shared.regions.register(bytes)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.shared.regions.grant(region, rights, holder)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        self.shared.regions.revoke(capability)
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.shared.regions.deregister(region)
    }

    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        self.shared.regions.owned(region, offset, length, |bytes| BytesMut::from(&*bytes))
    }

    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.shared.regions.owned(region, offset, bytes.len(), |owned| owned.copy_from_slice(bytes))
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.accepted.lock().await.recv().await.ok_or(Error::Closed)
    }

    async fn failed(&self) -> String {
        self.shared.failure.wait().await
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn close(&self) {
        if let Some(thread) = self.stop() {
            // A panic of the thread was reported when it happened.
            let _ = rt::blocking(move || thread.join()).await;
        }
    }
}
