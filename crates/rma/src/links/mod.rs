//! Links carried by the messages of RMA endpoints, so that control traffic inside an organisation uses the same network as its
//! data.
//!
//! 1. [`RmaTransport`] is registered as a transport of [`base::rt::net`] for one scheme of addresses. Listening starts a host
//!    without regions; connecting opens a new endpoint for each link. The provider's handshake authenticates both ends.
//! 2. Each message of a link is one message of the endpoint, preceded by one byte for its kind:
//!
//!    ```text
//!    kind:u8 (0 message, 1 sender dropped, 2 receiver dropped, 3 confirms kind 1) | the message
//!    ```
//! 3. An end that drops a half sends a notice of kind 1 or 2, behind the messages that it sent before. An end that has dropped
//!    both halves closes the endpoint when the other end has confirmed kind 1, or after [`LINGER`].
//!
//! Invariants: each link has its own endpoint, which nothing else uses; messages that an end sent before it dropped the link
//! arrive.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base::rt::channel::{Closed, TrySendError};
use base::rt::net::{
    BoxFuture, GatherList, LINK_MESSAGES_MAX, Link, ReceiveHalf, SendHalf, Transport, TransportListener,
};
use base::{Bytes, ErrorKind};

use crate::{
    Completion, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX,
    Provider, TokenLookup,
};

const KIND_MESSAGE: Bytes = Bytes::from_static(&[0]);
const KIND_SENDER_DROPPED: Bytes = Bytes::from_static(&[1]);
const KIND_RECEIVER_DROPPED: Bytes = Bytes::from_static(&[2]);
const KIND_HEARD: Bytes = Bytes::from_static(&[3]);
/// Bytes of one message of a link.
pub const LINK_MESSAGE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 1;
/// How long a link that was dropped locally waits until the other end has received all that was sent.
const LINGER: Duration = Duration::from_secs(5);

/// A transport of links over a provider. See the module.
#[derive(Clone)]
pub struct RmaTransport {
    provider: Arc<dyn Provider>,
    credential: Credential,
    tokens: TokenLookup,
}

impl RmaTransport {
    /// Connects with `credential`, and accepts clients that know one of `tokens`.
    pub fn new(provider: Arc<dyn Provider>, credential: Credential, tokens: TokenLookup) -> RmaTransport {
        RmaTransport { provider, credential, tokens }
    }
}

impl Transport for RmaTransport {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let options = HostConfig { node: NodeId(0), tokens: Arc::clone(&self.tokens) };
            let host = self.provider.host(rest, options).await.map_err(io_error)?;
            Ok(Box::new(RmaListener { host, next: None }) as Box<dyn TransportListener>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(async move { Ok(link(self.provider.connect(rest, &self.credential).await.map_err(io_error)?)) })
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::Unreachable { .. } => io::ErrorKind::ConnectionRefused,
        Error::Rejected(_) | Error::Version { .. } => io::ErrorKind::PermissionDenied,
        Error::System { .. } if error.kind() == ErrorKind::Rejected => io::ErrorKind::AddrInUse,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

type NextEndpoint = Pin<Box<dyn Future<Output = Result<Endpoint, Error>> + Send>>;

struct RmaListener {
    host: Arc<dyn Host>,
    next: Option<NextEndpoint>,
}

impl TransportListener for RmaListener {
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
    let shared = Arc::new(LinkCore {
        endpoint,
        refused: AtomicBool::new(false),
        sender_dropped: AtomicBool::new(false),
        heard: AtomicBool::new(false),
        underway: Mutex::new(VecDeque::new()),
    });
    let receiver = RmaLinkReceiver { shared: Arc::clone(&shared), ended: false };
    Link::new(Box::new(RmaLinkSender { shared }), Box::new(receiver), Some(&peer))
}

/// State that both halves of one end share.
struct LinkCore {
    endpoint: Endpoint,
    /// The other end receives no more, or the connection is lost.
    refused: AtomicBool,
    /// Our sender was dropped.
    sender_dropped: AtomicBool,
    /// The other end has confirmed that, so it has received everything.
    heard: AtomicBool,
    /// Messages that the endpoint has not accepted yet, [`LINK_MESSAGES_MAX`] at most.
    underway: Mutex<VecDeque<Completion<()>>>,
}

impl LinkCore {
    /// Posts a message. Checks the outcomes of earlier ones first.
    fn post(&self, parts: &[Bytes]) -> Result<(), PostError> {
        if self.refused.load(Ordering::Acquire) {
            return Err(PostError::Closed);
        }
        let mut underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(first) = underway.pop_front() {
            match first.now() {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    self.refused.store(true, Ordering::Release);
                    return Err(PostError::Closed);
                }
                Err(waiting) if underway.len() + 1 < LINK_MESSAGES_MAX => {
                    underway.push_front(waiting);
                    break;
                }
                Err(waiting) => return Err(PostError::Full(waiting)),
            }
        }
        match self.endpoint.send(parts).now() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::Retry => match underway.pop_front() {
                Some(waiting) => Err(PostError::Full(waiting)),
                None => Err(PostError::Closed),
            },
            Ok(Err(_)) => {
                self.refused.store(true, Ordering::Release);
                Err(PostError::Closed)
            }
            Err(waiting) => {
                underway.push_back(waiting);
                Ok(())
            }
        }
    }
}

enum PostError {
    /// Wait for this, then try again.
    Full(Completion<()>),
    Closed,
}

struct RmaLinkSender {
    shared: Arc<LinkCore>,
}

impl RmaLinkSender {
    /// Posts the message, or returns the completion to wait for.
    fn try_post(&self, message: &GatherList) -> Result<(), PostError> {
        if message.len() > LINK_MESSAGE_BYTES_MAX {
            return Err(PostError::Closed);
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

impl SendHalf for RmaLinkSender {
    fn try_send(&self, message: GatherList) -> Result<(), TrySendError<GatherList>> {
        match self.try_post(&message) {
            Ok(()) => Ok(()),
            Err(PostError::Closed) => Err(TrySendError::Closed(message)),
            Err(PostError::Full(waiting)) => {
                let mut underway = self.shared.underway.lock().unwrap_or_else(PoisonError::into_inner);
                underway.push_front(waiting);
                Err(TrySendError::Full(message))
            }
        }
    }

    fn send(&self, message: GatherList) -> BoxFuture<'_, Result<(), Closed>> {
        Box::pin(async move {
            loop {
                match self.try_post(&message) {
                    Ok(()) => return Ok(()),
                    Err(PostError::Closed) => return Err(Closed),
                    Err(PostError::Full(waiting)) => {
                        if waiting.await.is_err() {
                            self.shared.refused.store(true, Ordering::Release);
                        }
                    }
                }
            }
        })
    }
}

impl Drop for RmaLinkSender {
    fn drop(&mut self) {
        self.shared.sender_dropped.store(true, Ordering::Release);
        // Messages that the endpoint has not accepted yet stand before this one in its queue. A completion that is not awaited
        // is executed all the same.
        drop(self.shared.endpoint.send(&[KIND_SENDER_DROPPED]));
        self.shared.endpoint.flush();
    }
}

struct RmaLinkReceiver {
    shared: Arc<LinkCore>,
    ended: bool,
}

impl LinkCore {
    /// Handles a received message; returns `None` if it concerns only the link itself. An error ends receiving.
    fn understand(&self, incoming: Result<IncomingEvent, Error>) -> Result<Option<Bytes>, Closed> {
        match incoming {
            Ok(IncomingEvent::Message(message)) => match message.first() {
                Some(0) => return Ok(Some(message.slice(1..))),
                Some(1) => {
                    drop(self.endpoint.send(&[KIND_HEARD]));
                    self.endpoint.flush();
                    return Err(Closed);
                }
                Some(2) => self.refused.store(true, Ordering::Release),
                Some(3) => self.heard.store(true, Ordering::Release),
                // Not a message of a link: the link is broken in both directions.
                _ => {
                    self.refused.store(true, Ordering::Release);
                    self.endpoint.close();
                    return Err(Closed);
                }
            },
            // A link has no regions, so nothing can have been written.
            Ok(IncomingEvent::Immediate { .. }) => {}
            Err(_) => {
                self.refused.store(true, Ordering::Release);
                self.heard.store(true, Ordering::Release);
                return Err(Closed);
            }
        }
        Ok(None)
    }

    /// Receives in place of a dropped receiver, until our sender has nothing left to do.
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

impl ReceiveHalf for RmaLinkReceiver {
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

impl Drop for RmaLinkReceiver {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        drop(shared.endpoint.send(&[KIND_RECEIVER_DROPPED]));
        shared.endpoint.flush();
        // Without a runtime no task can wait; the endpoint closes with its last handle.
        if base::rt::is_running() {
            base::rt::spawn(async move { shared.drain().await });
        }
    }
}
