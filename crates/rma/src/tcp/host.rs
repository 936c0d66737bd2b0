//! A `tcp` host, and the endpoints that it accepted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use async_trait::async_trait;
use base::rt::channel::{Receiver, bounded};
use base::rt::{self, AbortOnDrop};
use base::{Bytes, BytesMut, Map, Set};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::budget::NameBudget;
use super::client::total;
use super::memory::HostRegions;
use super::peer::{ConnectionQueues, TURN_BYTES_MAX};
use super::spin::AdaptiveSpin;
use super::{PROFILE, TcpConfig, clock, server, start_thread};
use crate::failure::HostFailure;
use crate::{
    Capability, Completion, Connection, Endpoint, Error, Host, HostConfig, IncomingEvent, MESSAGE_BYTES_MAX, NodeId,
    ProviderProfile, RegionId, Rights, TokenLookup,
};

/// Connections that the application has not accepted yet; one more is rejected.
const BACKLOG_MAX: usize = 64;
/// Pauses between two polls of what the progress thread delivers, so that polling does not slow that thread down.
const LOOK_PAUSES: usize = 4;

/// State that a host's handles, endpoints and progress thread share.
pub struct HostCore {
    pub node: NodeId,
    pub tokens: TokenLookup,
    pub options: TcpConfig,
    pub regions: HostRegions,
    /// Wakes the progress thread.
    pub wake: OwnedFd,
    /// Connections that the progress thread is asked to serve, each once.
    pub attention: Mutex<Set<u64>>,
    pub stopping: AtomicBool,
    /// The set of denied certificates may have changed: the progress thread must check all connections.
    pub denials_changed: AtomicBool,
    /// A defect of the progress thread.
    pub failure: HostFailure,
    /// The budgets of names that have connections.
    pub budgets: Mutex<Map<Arc<str>, Weak<NameBudget>>>,
    /// The connection that the progress thread polls; 0 when it polls none.
    pub looked_at: AtomicU64,
}

impl HostCore {
    /// Asks the progress thread to serve a connection.
    pub fn attend(&self, connection: u64) {
        let is_new = self.attention.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        if is_new {
            self.wake();
        }
    }

    fn wake(&self) {
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

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
            wake,
            attention: Mutex::new(Set::default()),
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
                    shared.wake();
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
        self.shared.wake();
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

/// An endpoint that a host accepted: messages only, since a client has no regions.
pub struct AcceptedConnection {
    pub peer: Arc<ConnectionQueues>,
    pub shared: Arc<HostCore>,
    pub connection: u64,
    pub name: Arc<str>,
    /// Set when the last handle is dropped.
    pub dropped: Arc<AtomicBool>,
    pub spin: AdaptiveSpin,
}

impl AcceptedConnection {
    /// Writes the queue. If the progress thread is polling this socket, it writes the queue instead: two threads that use one
    /// socket at once wait for each other's kernel lock, asleep.
    fn write_out(&self) {
        // Ask first, then check, and the thread does both in the opposite order: either it sees the request, or we see that it
        // no longer polls.
        self.peer.request_write();
        if self.shared.looked_at.load(Ordering::SeqCst) == self.connection {
            return;
        }
        self.peer.take_write_request();
        let mut outgoing = self.peer.outgoing();
        // The progress thread sees an error as well, and writes the rest. Write no more than its own turn would: it may wait
        // for this lock.
        let left = outgoing.pump(&self.peer.pipe, TURN_BYTES_MAX).map_or(true, |pumped| pumped.left);
        drop(outgoing);
        if left {
            self.shared.attend(self.connection);
        }
    }
}

impl AcceptedConnection {
    /// Polls for a short time for a delivery by the progress thread. Returns false when there was none.
    fn spins(&self) -> bool {
        let spin = self.shared.options.spin;
        if spin.is_zero() || !self.spin.is_worth_it() {
            return false;
        }
        let until = clock() + spin;
        loop {
            if !self.peer.is_awaited() {
                self.spin.succeeded();
                return true;
            }
            let now = clock();
            if now >= until && !self.peer.is_being_taken(now) {
                break;
            }
            (0..LOOK_PAUSES).for_each(|_| std::hint::spin_loop());
        }
        self.spin.failed();
        false
    }
}

impl Connection for AcceptedConnection {
    fn node(&self) -> NodeId {
        // Numbers of connections are never reused, and no host runs long enough to see 2^32 of them.
        NodeId(self.connection as u32)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
        PROFILE
    }

    fn read(&self, _: &Capability, _: u64, _: usize, _: BytesMut) -> Completion<BytesMut> {
        Completion::ready(Err(Error::Unknown))
    }

    fn write(&self, _: &Capability, _: u64, _: &[Bytes], _: Option<u32>) -> Completion<()> {
        Completion::ready(Err(Error::Unknown))
    }

    fn compare_swap(&self, _: &Capability, _: u64, _: u64, _: u64) -> Completion<u64> {
        Completion::ready(Err(Error::Unknown))
    }

    fn fetch_add(&self, _: &Capability, _: u64, _: u64) -> Completion<u64> {
        Completion::ready(Err(Error::Unknown))
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let length = match total(parts, MESSAGE_BYTES_MAX) {
            Ok(length) => length,
            Err(error) => return Completion::ready(Err(error)),
        };
        let completion = self.peer.outgoing().post_message(parts, length);
        self.write_out();
        completion
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let mut polled = self.peer.poll_receive(cx);
        if polled.is_pending() {
            if self.peer.has_waiting() {
                // It may be this connection that waits. Now that the application is receiving, it is read.
                self.shared.attend(self.connection);
            }
            if self.spins() {
                polled = self.peer.poll_receive(cx);
            }
        }
        let (incoming, credit) = std::task::ready!(polled)?;
        if credit {
            self.write_out();
        }
        Poll::Ready(Ok(incoming))
    }

    fn flush(&self) {}

    fn close(&self) {
        self.peer.outgoing().end();
        self.peer.end_inbox();
        self.dropped.store(true, Ordering::Release);
        self.shared.attend(self.connection);
    }
}

impl Drop for AcceptedConnection {
    fn drop(&mut self) {
        self.peer.discard();
        self.dropped.store(true, Ordering::Release);
        self.shared.attend(self.connection);
    }
}
