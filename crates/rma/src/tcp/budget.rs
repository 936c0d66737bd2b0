//! The budget of one name at a host, over all of the name's connections. It covers untaken messages, which have arrived
//! and wait until the application receives them, and copied replies that wait to be written.
//!
//! 1. A connection that has proved its name shares the name's [`NameBudget`] with the name's other connections.
//! 2. **Messages.** The progress thread adds each message that it delivers; the receiver subtracts each message that it
//!    takes. While the name's messages hold [`TcpConfig::untaken_bytes_max`](super::TcpConfig) or more, the thread
//!    reads no piece of a further message: a connection whose next frame is a message [waits](NameBudget::wait), and is
//!    not read. Connections of the name that bring only verbs and credit are still read.
//! 3. Once an eighth of the budget is free again, the receiver that freed it asks the thread to serve the connection
//!    that has waited longest. After the turn of that connection the thread serves the next one, as long as there is
//!    space ([`NameBudget::next_waiting`]). A connection does not wait for space if all of its messages were taken and
//!    the application is receiving from it.
//! 4. **Replies.** The queue of each connection reports the size of its buffers. While the buffers of the name's queues
//!    take [`TcpConfig::reply_bytes_max`](super::TcpConfig) or more, a connection is read only when its own queue is
//!    empty.
//!
//! Invariants:
//! * The messages of a name hold at most its budget and its unfinished messages together, plus one message for each
//!   receiver that waits: a piece of any other message is read only while the untaken messages are below the budget,
//!   and the unfinished messages have a bound of their own ([`super::server`]).
//! * No connection waits for ever: only messages that an application can take fill the budget. Unfinished messages do
//!   not count, so connections in the middle of a message do not wait for one another. An application that receives
//!   from one connection before it takes from the others gets the message that it waits for, and an empty inbox always
//!   accepts a message of at most [`SMALL_BYTES_MAX`](super::inbox::SMALL_BYTES_MAX). One deadlock remains, because the
//!   credit for a message of the host arrives behind the messages that the other end sent earlier. If the budget is
//!   used up, and the application takes no message of the name before one of its own messages has credit, the
//!   connections are lost after [`TcpConfig::dead_after`](super::TcpConfig).
//! * A reply queue waits only for the other end of its own connection.
//! * A connection waits only while it has a message to deliver, and no wake-up is lost: the connection enters the queue
//!   before it checks the budget, and a receiver subtracts bytes before it checks the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::TcpConfig;
use super::attention::AttentionQueue;

/// The account of one name.
pub struct NameBudget {
    untaken_bytes_max: usize,
    reply_bytes_max: usize,
    attention: Arc<AttentionQueue>,
    untaken: AtomicUsize,
    replies: AtomicUsize,
    /// Some connection waits. Written under the lock of the queue.
    has_waiting: AtomicBool,
    /// Connections that have something to bring, the longest waiting first.
    waiting: Mutex<VecDeque<u64>>,
}

impl NameBudget {
    /// With the limits of these options; a connection that waited is served again through `attention`.
    pub fn new(options: &TcpConfig, attention: Arc<AttentionQueue>) -> NameBudget {
        NameBudget {
            untaken_bytes_max: options.untaken_bytes_max,
            reply_bytes_max: options.reply_bytes_max,
            attention,
            untaken: AtomicUsize::new(0),
            replies: AtomicUsize::new(0),
            has_waiting: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the account of one connection's messages from `before` to `after` bytes.
    pub fn hold(&self, before: usize, after: usize) {
        if after > before {
            self.untaken.fetch_add(after - before, Ordering::SeqCst);
        } else if after < before {
            self.untaken.fetch_sub(before - after, Ordering::SeqCst);
            if let Some(next) = self.next_waiting() {
                self.attention.attend(next);
            }
        }
    }

    /// Whether no further piece of a message may be read.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) >= self.untaken_bytes_max
    }

    /// Whether some connection waits.
    pub fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::SeqCst)
    }

    fn has_space_again(&self) -> bool {
        let most = self.untaken_bytes_max;
        self.untaken.load(Ordering::SeqCst) <= most - most / 8
    }

    /// Enters a connection into the queue. Returns false when there is space again.
    pub fn wait(&self, connection: u64) -> bool {
        let mut waiting = self.waiting();
        if !waiting.contains(&connection) {
            waiting.push_back(connection);
        }
        self.has_waiting.store(true, Ordering::SeqCst);
        drop(waiting);
        if !self.has_space_again() {
            return true;
        }
        self.leave(connection);
        false
    }

    /// Removes a connection from the queue.
    pub fn leave(&self, connection: u64) {
        let mut waiting = self.waiting();
        waiting.retain(|other| *other != connection);
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
    }

    /// Removes the connection that has waited longest from the queue, if there is space for what it brings.
    #[inline]
    pub fn next_waiting(&self) -> Option<u64> {
        if !self.has_waiting() || !self.has_space_again() {
            return None;
        }
        let mut waiting = self.waiting();
        let next = waiting.pop_front();
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        next
    }

    /// Changes the account of one queue's buffers from `before` to `after` bytes.
    pub fn queue(&self, before: usize, after: usize) {
        if after > before {
            self.replies.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.replies.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Whether a reply must wait until the replies before it on the same connection are written.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.replies.load(Ordering::Relaxed) >= self.reply_bytes_max
    }

    /// Whether empty queues must free large buffers: half of the budget is used.
    pub fn is_scarce(&self) -> bool {
        self.replies.load(Ordering::Relaxed) >= self.reply_bytes_max / 2
    }
}

#[cfg(test)]
mod tests;
