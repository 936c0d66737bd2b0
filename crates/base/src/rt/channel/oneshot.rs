//! A channel for one message.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Closed, TryReceiveError};
use tokio::sync::oneshot as inner;

/// A channel for one message: an answer to a request.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let (sender, receiver) = inner::channel();
    (OneshotSender { inner: sender }, OneshotReceiver { inner: receiver })
}

/// The sending end.
pub struct OneshotSender<T> {
    inner: inner::Sender<T>,
}

/// The receiving end: a future of the message.
pub struct OneshotReceiver<T> {
    inner: inner::Receiver<T>,
}

impl<T> OneshotSender<T> {
    /// Sends the message; never waits.
    ///
    /// # Errors
    /// The message, when the receiver was dropped.
    pub fn send(self, message: T) -> Result<(), T> {
        self.inner.send(message)
    }

    /// Whether the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Completes when the receiver is dropped.
    pub async fn closed(&mut self) {
        self.inner.closed().await;
    }
}

impl<T> OneshotReceiver<T> {
    /// The message, if it has arrived.
    ///
    /// # Errors
    /// Whether the message can still arrive.
    pub fn try_recv(&mut self) -> Result<T, TryReceiveError> {
        self.inner.try_recv().map_err(|error| match error {
            inner::error::TryRecvError::Empty => TryReceiveError::Empty,
            inner::error::TryRecvError::Closed => TryReceiveError::Closed,
        })
    }
}

impl<T> Future for OneshotReceiver<T> {
    /// [`Closed`] when the sender was dropped without sending.
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(cx).map(|received| received.map_err(|_| Closed))
    }
}

impl<T> fmt::Debug for OneshotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneshotSender")
    }
}

impl<T> fmt::Debug for OneshotReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneshotReceiver")
    }
}
