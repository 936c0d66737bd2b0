//! A bounded queue from many senders to one receiver.

use std::fmt;
use std::task::{Context, Poll};

use super::Closed;
use tokio::sync::mpsc;

/// A queue that holds at most `capacity` messages. Panics when `capacity` is 0.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity);
    (Sender { inner: sender }, Receiver { inner: receiver })
}

/// The sending end; clones send into the same queue.
pub struct Sender<T> {
    inner: mpsc::Sender<T>,
}

/// The receiving end.
pub struct Receiver<T> {
    inner: mpsc::Receiver<T>,
}

/// A message was not sent; it is returned.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The queue is full.
    #[error("the queue is full")]
    Full(T),
    /// The receiver was dropped.
    #[error("closed")]
    Closed(T),
}

/// No message was ready to be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TryReceiveError {
    /// The queue is empty for now.
    #[error("the queue is empty")]
    Empty,
    /// The queue is empty and all senders were dropped.
    #[error("closed")]
    Closed,
}

impl<T> TrySendError<T> {
    /// The message that was not sent.
    pub fn into_inner(self) -> T {
        match self {
            TrySendError::Full(message) | TrySendError::Closed(message) => message,
        }
    }

    /// Whether the queue was full.
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrySendError::Full(_) => "Full",
            TrySendError::Closed(_) => "Closed",
        })
    }
}

impl<T> Sender<T> {
    /// Waits for space, then sends. When the future is dropped before it completes, nothing was sent.
    ///
    /// # Errors
    /// [`Closed`] when the receiver was dropped; the message is dropped.
    pub async fn send(&self, message: T) -> Result<(), Closed> {
        self.inner.send(message).await.map_err(|_| Closed)
    }

    /// Sends if there is space now.
    ///
    /// # Errors
    /// The message, when the queue is full or the receiver was dropped.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.inner.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(message) => TrySendError::Full(message),
            mpsc::error::TrySendError::Closed(message) => TrySendError::Closed(message),
        })
    }

    /// Space for this many more messages at this moment.
    pub fn free_capacity(&self) -> usize {
        self.inner.capacity()
    }

    /// Whether the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Completes when the receiver is dropped.
    pub async fn closed(&self) {
        self.inner.closed().await;
    }
}

impl<T> Receiver<T> {
    /// The next message; `None` when the queue is empty and all senders were dropped. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<T> {
        self.inner.recv().await
    }

    /// The next message, if one is ready.
    ///
    /// # Errors
    /// When the queue is empty, and whether it can still fill.
    pub fn try_recv(&mut self) -> Result<T, TryReceiveError> {
        self.inner.try_recv().map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryReceiveError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryReceiveError::Closed,
        })
    }

    /// Waits for at least one message, then moves up to `limit` into `messages`. Returns the number; 0 when the queue is empty
    /// and all senders were dropped. Dropping the future loses nothing.
    pub async fn recv_many(&mut self, messages: &mut Vec<T>, limit: usize) -> usize {
        self.inner.recv_many(messages, limit).await
    }

    /// As [`Receiver::recv`], for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.inner.poll_recv(cx)
    }

    /// Rejects further messages; those in the queue can still be received.
    pub fn close(&mut self) {
        self.inner.close();
    }

    /// Messages in the queue.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { inner: self.inner.clone() }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
