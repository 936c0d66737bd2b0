//! A `tcp` host, and the endpoints that it accepted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use async_trait::async_trait;
use base::rt::channel::{Receiver, bounded};
use base::{Bytes, BytesMut, Set};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::client::total;
use super::memory::Regions;
use super::peer::{Peer, TURN_BYTES_MAX};
use super::{PROFILE, TcpOptions, server, start_thread};
use crate::{
    Capability, Completion, Connection, Endpoint, Error, Host, HostOptions, Incoming, MESSAGE_BYTES_MAX, NodeId,
    Profile, RegionId, Rights, Tokens,
};

/// Connections that nobody has accepted yet; one more is refused.
const BACKLOG_MAX: usize = 64;

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
    accepted: base::rt::sync::Mutex<Receiver<Endpoint>>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        });
        let (sender, accepted) = bounded(BACKLOG_MAX);
        let progress = server::Progress::new(listener, Arc::clone(&shared), sender)
            .map_err(|error| Error::system("preparing the progress thread", &error))?;
        let thread = start_thread("rma-tcp", move || progress.run())
            .map_err(|error| Error::system("starting the progress thread", &error))?;
        Ok(TcpHost {
            shared,
            address,
            accepted: base::rt::sync::Mutex::new(accepted),
            thread: Mutex::new(Some(thread)),
        })
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

    fn grant(&self, region: RegionId, rights: Rights) -> Result<Capability, Error> {
        if self.shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.shared.regions.grant(region, rights)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        self.shared.regions.revoke(capability)
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.shared.regions.deregister(region)
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.accepted.lock().await.recv().await.ok_or(Error::Closed)
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn close(&self) {
        if let Some(thread) = self.stop() {
            // A panic of the thread was reported when it happened.
            let _ = base::rt::blocking(move || thread.join()).await;
        }
    }
}

/// An endpoint that a host accepted: messages only, since the one that connected has no regions.
pub struct Accepted {
    pub peer: Arc<Peer>,
    pub shared: Arc<Shared>,
    pub connection: u64,
    pub name: String,
    /// Set when the last handle is dropped.
    pub dropped: Arc<AtomicBool>,
}

impl Accepted {
    fn write_out(&self) {
        let mut outgoing = self.peer.outgoing();
        // The progress thread sees an error as well, and writes the rest. No more than its own turn: it may wait for this.
        let left = outgoing.pump(&self.peer.pipe, TURN_BYTES_MAX).unwrap_or(true);
        drop(outgoing);
        if left {
            self.shared.attend(self.connection);
        }
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
        let (incoming, credit) = std::task::ready!(self.peer.poll_receive(cx))?;
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
        self.dropped.store(true, Ordering::Release);
        self.shared.attend(self.connection);
    }
}
