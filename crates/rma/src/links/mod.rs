//! Links over the messages of endpoints: control inside one organisation runs over the fabric that its data runs over.
//!
//! 1. [`RmaLinks`] is the transport of a scheme of [`base::rt::net`]: listening is being a host without regions, connecting
//!    is an endpoint of its own for each link, and both ends prove themselves with the fabric's credential.
//! 2. A message of a link is a message of the endpoint behind one byte that says what it is:
//!
//!    ```text
//!    kind:u8 (0 message, 1 sender dropped, 2 receiver dropped, 3 heard that the sender was dropped) | the message
//!    ```
//! 3. A dropped half says so to the other side, behind what was sent before. A side that dropped both closes the endpoint
//!    when the other has heard so, or after [`LINGER`].
//!
//! Invariants: one link has one endpoint and nothing else uses it; what a side sent before it dropped the link arrives.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base::rt::channel::{Closed, TrySendError};
use base::rt::net::{BoxFuture, LINK_MESSAGES_MAX, Link, Listen, Parts, ReceiveHalf, SendHalf, Transport};
use base::{Bytes, ErrorKind};

use crate::{
    Completion, Credential, Endpoint, Error, Fabric, Host, HostOptions, Incoming, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX,
    Tokens,
};

const KIND_MESSAGE: Bytes = Bytes::from_static(&[0]);
const KIND_SENDER_DROPPED: Bytes = Bytes::from_static(&[1]);
const KIND_RECEIVER_DROPPED: Bytes = Bytes::from_static(&[2]);
const KIND_HEARD: Bytes = Bytes::from_static(&[3]);
/// Bytes of one message of a link.
pub const LINK_MESSAGE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 1;
/// How long a link that was dropped here waits for the other side to have received what was sent.
const LINGER: Duration = Duration::from_secs(5);

/// A transport of links over a fabric. See the module.
#[derive(Clone)]
pub struct RmaLinks {
    fabric: Arc<dyn Fabric>,
    credential: Credential,
    tokens: Tokens,
}

impl RmaLinks {
    /// Connects with `credential`, and accepts whoever bears one of `tokens`.
    pub fn new(fabric: Arc<dyn Fabric>, credential: Credential, tokens: Tokens) -> RmaLinks {
        RmaLinks { fabric, credential, tokens }
    }
}

impl Transport for RmaLinks {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listen>>> {
        Box::pin(async move {
            let options = HostOptions { node: NodeId(0), tokens: Arc::clone(&self.tokens) };
            let host = self.fabric.host(rest, options).await.map_err(io_error)?;
            Ok(Box::new(Accepting { host, next: None }) as Box<dyn Listen>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(async move { Ok(link(self.fabric.connect(rest, &self.credential).await.map_err(io_error)?)) })
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::Unreachable { .. } => io::ErrorKind::ConnectionRefused,
        Error::Refused(_) | Error::Version { .. } => io::ErrorKind::PermissionDenied,
        Error::System { .. } if error.kind() == ErrorKind::Rejected => io::ErrorKind::AddrInUse,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

type NextEndpoint = Pin<Box<dyn Future<Output = Result<Endpoint, Error>> + Send>>;

struct Accepting {
    host: Arc<dyn Host>,
    next: Option<NextEndpoint>,
}

impl Listen for Accepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        let host = &self.host;
        let next = self.next.get_or_insert_with(|| {
            let host = Arc::clone(host);
            Box::pin(async move { host.accept().await })
        });
        let accepted = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(accepted.map(link).map_err(|_| Closed))
    }

    fn address(&self) -> String {
        self.host.address()
    }
}

/// A link that owns the endpoint.
pub fn link(endpoint: Endpoint) -> Link {
    let peer = endpoint.name().to_owned();
    let shared = Arc::new(Shared {
        endpoint,
        refused: AtomicBool::new(false),
        sender_dropped: AtomicBool::new(false),
        heard: AtomicBool::new(false),
        underway: Mutex::new(VecDeque::new()),
    });
    let receiver = LinkReceiver { shared: Arc::clone(&shared), ended: false };
    Link::new(Box::new(LinkSender { shared }), Box::new(receiver), Some(&peer))
}

/// What both halves of one end share.
struct Shared {
    endpoint: Endpoint,
    /// The other side receives no more, or the connection is lost.
    refused: AtomicBool,
    /// Our sender was dropped.
    sender_dropped: AtomicBool,
    /// The other side has heard of that, so that it has received everything.
    heard: AtomicBool,
    /// Messages that the endpoint has not taken yet, [`LINK_MESSAGES_MAX`] at most.
    underway: Mutex<VecDeque<Completion<()>>>,
}

impl Shared {
    /// Posts a message. The outcome of earlier ones is looked at first.
    fn post(&self, parts: &[Bytes]) -> Result<(), Posting> {
        if self.refused.load(Ordering::Acquire) {
            return Err(Posting::Closed);
        }
        let mut underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = underway.pop_front() {
            match first.now() {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    self.refused.store(true, Ordering::Release);
                    return Err(Posting::Closed);
                }
                Err(waiting) if underway.len() + 1 < LINK_MESSAGES_MAX => {
                    underway.push_front(waiting);
                    break;
                }
                Err(waiting) => return Err(Posting::Full(waiting)),
            }
        }
        match self.endpoint.send(parts).now() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::Retry => match underway.pop_front() {
                Some(waiting) => Err(Posting::Full(waiting)),
                None => Err(Posting::Closed),
            },
            Ok(Err(_)) => {
                self.refused.store(true, Ordering::Release);
                Err(Posting::Closed)
            }
            Err(waiting) => {
                underway.push_back(waiting);
                Ok(())
            }
        }
    }
}

enum Posting {
    /// Wait for this, then try again.
    Full(Completion<()>),
    Closed,
}

struct LinkSender {
    shared: Arc<Shared>,
}

impl LinkSender {
    /// Posts, or gives what to wait for.
    fn attempt(&self, message: &Parts) -> Result<(), Posting> {
        if message.len() > LINK_MESSAGE_BYTES_MAX {
            return Err(Posting::Closed);
        }
        match message.as_slice() {
            [one] => self.shared.post(&[KIND_MESSAGE, one.clone()]),
            parts if parts.len() < PARTS_MAX => {
                let parts: Vec<Bytes> = iter::once(KIND_MESSAGE).chain(parts.iter().cloned()).collect();
                self.shared.post(&parts)
            }
            _ => self.shared.post(&[KIND_MESSAGE, message.clone().concat()]),
        }
    }
}

impl SendHalf for LinkSender {
    fn try_send(&self, message: Parts) -> Result<(), TrySendError<Parts>> {
        match self.attempt(&message) {
            Ok(()) => Ok(()),
            Err(Posting::Closed) => Err(TrySendError::Closed(message)),
            Err(Posting::Full(waiting)) => {
                let mut underway = self.shared.underway.lock().unwrap_or_else(PoisonError::into_inner);
                underway.push_front(waiting);
                Err(TrySendError::Full(message))
            }
        }
    }

    fn send(&self, message: Parts) -> BoxFuture<'_, Result<(), Closed>> {
        Box::pin(async move {
            loop {
                match self.attempt(&message) {
                    Ok(()) => return Ok(()),
                    Err(Posting::Closed) => return Err(Closed),
                    Err(Posting::Full(waiting)) => {
                        if waiting.await.is_err() {
                            self.shared.refused.store(true, Ordering::Release);
                        }
                    }
                }
            }
        })
    }
}

impl Drop for LinkSender {
    fn drop(&mut self) {
        self.shared.sender_dropped.store(true, Ordering::Release);
        // What the endpoint has not taken yet stands before this in its queue. A completion that nobody awaits is
        // carried out all the same.
        drop(self.shared.endpoint.send(&[KIND_SENDER_DROPPED]));
        self.shared.endpoint.flush();
    }
}

struct LinkReceiver {
    shared: Arc<Shared>,
    ended: bool,
}

impl Shared {
    /// What a received message means to a link; `None` for what concerns the link alone. An error ends the receiving.
    fn understand(&self, incoming: Result<Incoming, Error>) -> Result<Option<Bytes>, Closed> {
        match incoming {
            Ok(Incoming::Message(message)) => match message.first() {
                Some(0) => return Ok(Some(message.slice(1..))),
                Some(1) => {
                    drop(self.endpoint.send(&[KIND_HEARD]));
                    self.endpoint.flush();
                    return Err(Closed);
                }
                Some(2) => self.refused.store(true, Ordering::Release),
                Some(3) => self.heard.store(true, Ordering::Release),
                // Not a message of links: this one is broken in both directions.
                _ => {
                    self.refused.store(true, Ordering::Release);
                    self.endpoint.close();
                    return Err(Closed);
                }
            },
            // A link has no regions: nothing can have been written.
            Ok(Incoming::Immediate { .. }) => {}
            Err(_) => {
                self.refused.store(true, Ordering::Release);
                self.heard.store(true, Ordering::Release);
                return Err(Closed);
            }
        }
        Ok(None)
    }

    /// Receives on for a receiver that was dropped: until nothing is left to be done for our sender.
    async fn drain(&self) {
        let heard = async {
            while !(self.sender_dropped.load(Ordering::Acquire) && self.heard.load(Ordering::Acquire)) {
                let incoming = self.endpoint.receive().await;
                let _ = self.understand(incoming);
                if self.refused.load(Ordering::Acquire) && self.heard.load(Ordering::Acquire) {
                    return;
                }
            }
        };
        let patience = async {
            while !self.sender_dropped.load(Ordering::Acquire) {
                base::rt::sleep(LINGER).await;
            }
            base::rt::sleep(LINGER).await;
        };
        let (mut heard, mut patience) = (std::pin::pin!(heard), std::pin::pin!(patience));
        std::future::poll_fn(|cx| match heard.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => patience.as_mut().poll(cx),
        })
        .await;
    }
}

impl ReceiveHalf for LinkReceiver {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>> {
        while !self.ended {
            let incoming = ready!(self.shared.endpoint.poll_receive(cx));
            match self.shared.understand(incoming) {
                Ok(Some(message)) => return Poll::Ready(Ok(message)),
                Ok(None) => {}
                Err(Closed) => self.ended = true,
            }
        }
        Poll::Ready(Err(Closed))
    }
}

impl Drop for LinkReceiver {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        drop(shared.endpoint.send(&[KIND_RECEIVER_DROPPED]));
        shared.endpoint.flush();
        // Without a runtime nobody is left to wait; the endpoint closes with its last handle.
        if base::rt::is_running() {
            base::rt::spawn(async move { shared.drain().await });
        }
    }
}
