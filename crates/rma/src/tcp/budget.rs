//! What all connections of one name hold at a host together: messages that arrived and wait to be taken, and copied replies that
//! wait to go out.
//!
//! 1. A connection that has proved its name shares the name's [`NameBudget`] with the name's other connections.
//! 2. **Messages.** The progress thread adds each message that it delivers, and whoever receives one takes it off again. While the
//!    name's messages hold [`TcpOptions::untaken_bytes_max`](super::TcpOptions) or more, the thread reads no piece of a further one:
//!    the connection [waits](NameBudget::wait), and is not read. Connections of the name that bring verbs and credit alone are.
//! 3. Once an eighth of the budget is free again, the receiver that made it so has the thread serve the connection that has waited
//!    longest. After its turn the thread serves the next one, for as long as there is room ([`NameBudget::next_waiting`]). A
//!    connection whose messages were all taken, and from which somebody receives, waits for no room.
//! 4. **Replies.** Each queue says how much its buffers take. While those of the name take
//!    [`TcpOptions::reply_bytes_max`](super::TcpOptions) or more, a connection is read only when its own queue is empty.
//!
//! Invariants:
//! * A name's messages hold at most the budget and its unfinished ones together, beside one for each receiver that waits: a piece of
//!   any other is read only while those that wait to be taken are below the budget, and the unfinished ones have a bound of their own
//!   ([`super::server`]).
//! * Nobody waits for ever: the bytes that fill the budget are those of messages that can be taken. An unfinished message is none of
//!   them, so connections in the middle of a message do not wait for one another. Whoever receives from one connection before it takes
//!   from the others gets what it waits for, and a message of at most [`SMALL_BYTES_MAX`](super::peer::SMALL_BYTES_MAX) comes to an
//!   empty inbox in any case. Credit stands behind the messages before it: where all receivers of a name take nothing until something
//!   that they sent has credit, and all of the budget is used, connections are lost after
//!   [`TcpOptions::dead_after`](super::TcpOptions).
//! * Queues wait for nobody but the other side of their own connection.
//! * A connection waits only while it has something to bring, and no wake-up is lost: it enters the queue before it looks at the
//!   budget, and a receiver takes off bytes before it looks at the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::host::Shared;

/// The account of one name.
pub struct NameBudget {
    shared: Arc<Shared>,
    untaken: AtomicUsize,
    replies: AtomicUsize,
    /// Some connection waits. Written under the lock of the queue.
    has_waiting: AtomicBool,
    /// Those that have something to bring, the longest waiting first.
    waiting: Mutex<VecDeque<u64>>,
}

impl NameBudget {
    /// The account of this name at a host.
    pub fn of(shared: &Arc<Shared>, name: &Arc<str>) -> Arc<NameBudget> {
        let mut budgets = shared.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = budgets.get(name).and_then(Weak::upgrade) {
            return budget;
        }
        // So that there are as many as there are names with connections.
        budgets.retain(|_, budget| budget.strong_count() > 0);
        let budget = Arc::new(NameBudget {
            shared: Arc::clone(shared),
            untaken: AtomicUsize::new(0),
            replies: AtomicUsize::new(0),
            has_waiting: AtomicBool::new(false),
            waiting: Mutex::default(),
        });
        budgets.insert(Arc::clone(name), Arc::downgrade(&budget));
        budget
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection whose messages held `before` bytes holds `after` now.
    pub fn hold(&self, before: usize, after: usize) {
        if after > before {
            self.untaken.fetch_add(after - before, Ordering::SeqCst);
        } else if after < before {
            self.untaken.fetch_sub(before - after, Ordering::SeqCst);
            if let Some(next) = self.next_waiting() {
                self.shared.attend(next);
            }
        }
    }

    /// Whether no further piece of a message is to be read.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) >= self.shared.options.untaken_bytes_max
    }

    /// Whether some connection waits.
    pub fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::SeqCst)
    }

    fn has_room_again(&self) -> bool {
        let most = self.shared.options.untaken_bytes_max;
        self.untaken.load(Ordering::SeqCst) <= most - most / 8
    }

    /// Enters a connection into the queue. False when there is room again.
    pub fn wait(&self, connection: u64) -> bool {
        let mut waiting = self.waiting();
        if !waiting.contains(&connection) {
            waiting.push_back(connection);
        }
        self.has_waiting.store(true, Ordering::SeqCst);
        drop(waiting);
        if !self.has_room_again() {
            return true;
        }
        self.leave(connection);
        false
    }

    /// Takes a connection out of the queue.
    pub fn leave(&self, connection: u64) {
        let mut waiting = self.waiting();
        waiting.retain(|other| *other != connection);
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
    }

    /// Takes the connection that has waited longest out of the queue, if there is room for what it brings.
    #[inline]
    pub fn next_waiting(&self) -> Option<u64> {
        if !self.has_waiting() || !self.has_room_again() {
            return None;
        }
        let mut waiting = self.waiting();
        let next = waiting.pop_front();
        self.has_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        next
    }

    /// A queue whose buffers took `before` bytes takes `after` now.
    pub fn queue(&self, before: usize, after: usize) {
        if after > before {
            self.replies.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.replies.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Whether replies are to wait until those before them on the same connection are out.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.replies.load(Ordering::Relaxed) >= self.shared.options.reply_bytes_max
    }

    /// Whether empty queues are to keep no large buffer: half of the budget is used.
    pub fn is_scarce(&self) -> bool {
        self.replies.load(Ordering::Relaxed) >= self.shared.options.reply_bytes_max / 2
    }
}

#[cfg(test)]
mod tests;
