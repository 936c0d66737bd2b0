//! One link over an endpoint: its two halves and the state that they share.

use std::collections::VecDeque;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base::rt::channel::{Closed, TrySendError};
use base::rt::net::{BoxFuture, GatherList, LINK_MESSAGES_MAX, Link, ReceiveHalf, SendHalf};
use base::{Bytes, ErrorKind};

use crate::{Completion, Endpoint, Error, IncomingEvent, MESSAGE_BYTES_MAX, PARTS_MAX};

const KIND_MESSAGE: Bytes = Bytes::from_static(&[0]);
const KIND_SENDER_DROPPED: Bytes = Bytes::from_static(&[1]);
const KIND_RECEIVER_DROPPED: Bytes = Bytes::from_static(&[2]);
const KIND_HEARD: Bytes = Bytes::from_static(&[3]);
/// Bytes of one message of a link.
pub const LINK_MESSAGE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 1;
/// How long a link that was dropped locally waits until the other end has received all that was sent.
const LINGER: Duration = Duration::from_secs(5);

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
