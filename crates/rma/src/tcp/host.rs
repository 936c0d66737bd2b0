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
use super::memory::Regions;
use super::peer::{Peer, TURN_BYTES_MAX};
use super::spin::Spin;
use super::{PROFILE, TcpOptions, clock, server, start_thread};
use crate::failure::Failure;
use crate::{
    Capability, Completion, Connection, Endpoint, Error, Host, HostOptions, Incoming, MESSAGE_BYTES_MAX, NodeId,
    Profile, RegionId, Rights, Tokens,
};

/// Connections that nobody has accepted yet; one more is refused.
const BACKLOG_MAX: usize = 64;
/// Pauses between two looks at what the progress thread delivers, which must not wait for whoever looks.
const LOOK_PAUSES: usize = 4;

/// What a host's handles, endpoints and progress thread share.
pub struct Shared {
    pub node: NodeId,
    pub tokens: Tokens,
    pub options: TcpOptions,
    pub regions: Regions,
    /// Wakes the progress thread.
    pub wake: OwnedFd,
    /// Connections that the progress thread is to look at, each once.
    pub attention: Mutex<Set<u64>>,
    pub stopping: AtomicBool,
    /// Other certificates may be denied than before: the progress thread is to look at all connections.
    pub denials_changed: AtomicBool,
    /// A defect of the progress thread.
    pub failure: Failure,
    /// Of names that have connections.
    pub budgets: Mutex<Map<Arc<str>, Weak<NameBudget>>>,
    /// The connection at which the progress thread looks again and again; 0 when it does not.
    pub looked_at: AtomicU64,
}

impl Shared {
    /// Has the progress thread look at a connection.
    pub fn attend(&self, connection: u64) {
        let is_new = self.attention.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        if is_new {
            self.wake();
        }
    }

    fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

pub struct TcpHost {
    shared: Arc<Shared>,
    address: String,
    accepted: rt::sync::Mutex<Receiver<Endpoint>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Tells the progress thread when other certificates are denied.
    _watching: Option<AbortOnDrop<()>>,
}

impl TcpHost {
    /// Binds the port and starts the progress thread.
    pub fn start(address: &str, host: HostOptions, options: TcpOptions) -> Result<TcpHost, Error> {
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
        let shared = Arc::new(Shared {
            node: host.node,
            tokens: host.tokens,
            options,
            regions: Regions::new(host.node),
            wake,
            attention: Mutex::new(Set::default()),
            stopping: AtomicBool::new(false),
            denials_changed: AtomicBool::new(false),
            failure: Failure::default(),
            budgets: Mutex::new(Map::default()),
            looked_at: AtomicU64::new(0),
        });
        let (sender, accepted) = bounded(BACKLOG_MAX);
        let progress = server::Progress::new(listener, Arc::clone(&shared), sender)
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

    /// Has connections end whose certificates are denied from now on, by a task on the current runtime.
    pub fn watching(mut self) -> TcpHost {
        self._watching = self.shared.options.tls.as_ref().map(|tls| {
            let (denials, shared) = (Arc::clone(tls.denials()), Arc::clone(&self.shared));
            let watching = rt::spawn(async move {
                loop {
                    // From before the look, so that a change during it is not missed.
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
    pub fn shared(&self) -> &Arc<Shared> {
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
        // It ends by itself, within one turn of its loop.
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

/// An endpoint that a host accepted: messages only, since the one that connected has no regions.
pub struct Accepted {
    pub peer: Arc<Peer>,
    pub shared: Arc<Shared>,
    pub connection: u64,
    pub name: Arc<str>,
    /// Set when the last handle is dropped.
    pub dropped: Arc<AtomicBool>,
    pub spin: Spin,
}

impl Accepted {
    /// Writes the queue, or has the progress thread do so if it looks at this socket all the time: two that use one socket
    /// at once keep each other waiting for the kernel's lock, asleep.
    fn write_out(&self) {
        // In this order, and the other way round at the thread: it sees the request, or we that it looks no more.
        self.peer.ask();
        if self.shared.looked_at.load(Ordering::SeqCst) == self.connection {
            return;
        }
        self.peer.take_asked();
        let mut outgoing = self.peer.outgoing();
        // The progress thread sees an error as well, and writes the rest. No more than its own turn: it may wait for this.
        let left = outgoing.pump(&self.peer.pipe, TURN_BYTES_MAX).map_or(true, |pumped| pumped.left);
        drop(outgoing);
        if left {
            self.shared.attend(self.connection);
        }
    }
}

impl Accepted {
    /// Looks for a short while whether the progress thread delivers something. False when it did not.
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

impl Connection for Accepted {
    fn node(&self) -> NodeId {
        // Numbers of connections are never used again and a host does not live to see 2^32 of them.
        NodeId(self.connection as u32)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> Profile {
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

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        let mut polled = self.peer.poll_receive(cx);
        if polled.is_pending() {
            if self.peer.has_waiting() {
                // It may be this connection. Now that somebody receives, it is read.
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

impl Drop for Accepted {
    fn drop(&mut self) {
        self.peer.discard();
        self.dropped.store(true, Ordering::Release);
        self.shared.attend(self.connection);
    }
}
