//! The parts that both ends of a connection have: the queue of outgoing bytes, the received messages, and the
//! flow-control window.
//!
//! 1. The queue copies small pieces into one buffer and keeps long pieces without a copy; one system call writes many
//!    of both.
//! 2. The receiver gives the sender credit as its application takes messages. At most [`WINDOW_MESSAGES`] sent messages
//!    may lack credit; while such messages have [`WINDOW_BYTES`] or more, no further message is sent. A message beyond
//!    this window waits in the sender's queue, and so does everything posted after it; replies and credit do not wait.
//!    So the window never makes an end stop reading, and verbs in flight complete while messages wait.
//! 3. A write with immediate data counts as a message of no bytes.
//! 4. At a host, untaken messages and the buffers of unwritten replies count against the budget of the connection's
//!    name ([`super::budget`]). Therefore a host may stop reading; a client never does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::time::Instant;

use super::budget::NameBudget;
use super::inbox::{MessageInbox, SMALL_BYTES_MAX};
use super::outgoing::OutgoingQueue;
use super::pipe::SocketPipe;
use super::window::{WINDOW_BYTES, WINDOW_MESSAGES};
use super::wire::{FrameHeader, FrameKind, HEADER_BYTES};
use crate::{Error, IncomingEvent};

/// The receiver gives credit once it owes this number of messages.
const CREDIT_MESSAGES: usize = WINDOW_MESSAGES / 4;
/// The receiver gives credit once it owes this number of bytes.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;

/// Bytes that one turn of a host's connection writes; the rest waits for its next turn, behind the other connections.
pub const TURN_BYTES_MAX: usize = 2 << 20;
/// Attempts to take the queue's lock before a thread sleeps: about as long as a system call that writes takes.
const LOCK_SPINS_MAX: usize = 200;

/// The state that both ends of a connection need.
pub struct ConnectionQueues {
    pub pipe: SocketPipe,
    outgoing: Mutex<OutgoingQueue>,
    inbox: Mutex<MessageInbox>,
    /// The budget of the connection's name, at a host that knows it.
    budget: OnceLock<Arc<NameBudget>>,
    /// The application waits for a message: the inbox has a waker. Written under the inbox's lock.
    awaited: AtomicBool,
    /// An endpoint has left its queue for the progress thread to write.
    write_requested: AtomicBool,
}

impl ConnectionQueues {
    pub fn new(pipe: SocketPipe) -> ConnectionQueues {
        let outgoing = Mutex::new(OutgoingQueue::new());
        let [awaited, asked] = [false; 2].map(AtomicBool::new);
        ConnectionQueues {
            pipe,
            outgoing,
            inbox: Mutex::new(MessageInbox::new()),
            budget: OnceLock::new(),
            awaited,
            write_requested: asked,
        }
    }

    /// From now on what waits here counts against this budget. No message is delivered before this call.
    pub fn set_budget(&self, budget: &Arc<NameBudget>) {
        self.outgoing().set_budget(Arc::clone(budget));
        let _ = self.budget.set(Arc::clone(budget));
    }

    /// Updates the account to what waits in the inbox now.
    fn count(&self, mut inbox: MutexGuard<'_, MessageInbox>) {
        if let Some(budget) = self.budget.get() {
            let (before, now) = inbox.count();
            drop(inbox);
            budget.hold(before, now);
        }
    }

    /// Asks the progress thread to write the queue.
    pub fn request_write(&self) {
        self.write_requested.store(true, Ordering::SeqCst);
    }

    /// Takes that request, if there is one.
    #[inline]
    pub fn take_write_request(&self) -> bool {
        self.write_requested.load(Ordering::SeqCst) && self.write_requested.swap(false, Ordering::SeqCst)
    }

    /// Locks the queue. A writer holds the lock for some microseconds, so the caller spins first: sleeping takes longer.
    #[inline]
    pub fn outgoing(&self) -> MutexGuard<'_, OutgoingQueue> {
        for _ in 0..LOCK_SPINS_MAX {
            match self.outgoing.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the other end has probably not received yet what was written, so that it pays to poll longer than usual for the
    /// answer.
    pub fn is_being_taken(&self, now: Instant) -> bool {
        let mut outgoing = self.outgoing();
        let is = outgoing.expected_taken_at.is_some_and(|taken_by| now < taken_by);
        if !is {
            outgoing.expected_taken_at = None;
        }
        is
    }

    fn inbox(&self) -> MutexGuard<'_, MessageInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another message of `length` bytes is within the window that we granted; if so, counts it.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn admit(&self, length: usize) -> Result<(), Error> {
        self.inbox().admit(length)
    }

    /// Counts an admitted message of no bytes as taken; it is not delivered.
    pub fn discard_admitted(&self) {
        let mut inbox = self.inbox();
        inbox.outstanding -= 1;
        drop(inbox);
        self.outgoing().push_copied(&FrameHeader::new(FrameKind::Credit, 1, 0).encode());
    }

    /// Delivers an admitted message.
    pub fn deliver(&self, incoming: IncomingEvent) {
        let mut inbox = self.inbox();
        // Once our end has closed, the application receives no more.
        if !inbox.closed {
            inbox.push_whole(incoming);
        }
        self.notify(inbox);
    }

    /// Admits and delivers a message of at most [`SMALL_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`ConnectionQueues::admit`].
    pub fn deliver_small(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut inbox = self.inbox();
        inbox.admit(bytes.len())?;
        if !inbox.closed {
            inbox.push_small(bytes);
        }
        self.notify(inbox);
        Ok(())
    }

    /// Wakes the receiver that waits for a message.
    fn notify(&self, mut inbox: MutexGuard<'_, MessageInbox>) {
        let waker = inbox.waker.take();
        self.awaited.store(false, Ordering::Release);
        self.count(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next message, and whether credit was queued that should now be written.
    pub fn poll_receive(&self, cx: &Context<'_>) -> Poll<Result<(IncomingEvent, bool), Error>> {
        let mut inbox = self.inbox();
        let Some(incoming) = inbox.next() else {
            if inbox.closed {
                return Poll::Ready(Err(Error::Closed));
            }
            inbox.waker = Some(cx.waker().clone());
            self.awaited.store(true, Ordering::Release);
            return Poll::Pending;
        };
        inbox.taken += 1;
        if let IncomingEvent::Message(message) = &incoming {
            inbox.taken_bytes += message.len();
        }
        if inbox.taken < CREDIT_MESSAGES && inbox.taken_bytes < CREDIT_BYTES {
            self.count(inbox);
            return Poll::Ready(Ok((incoming, false)));
        }
        let (messages, bytes) = (std::mem::take(&mut inbox.taken), std::mem::take(&mut inbox.taken_bytes));
        inbox.outstanding -= messages;
        inbox.outstanding_bytes -= bytes;
        self.count(inbox);
        let mut outgoing = self.outgoing();
        if !outgoing.is_closed() {
            outgoing.push_copied(&FrameHeader::new(FrameKind::Credit, messages as u32, bytes as u64).encode());
        }
        Poll::Ready(Ok((incoming, true)))
    }

    /// Whether a piece of a message of `length` bytes is read although the name's budget is full: because the inbox is closed
    /// and keeps no bytes, or because the inbox is empty and the message is short or a receiver waits for it.
    pub fn takes_regardless(&self, length: usize) -> bool {
        let inbox = self.inbox();
        inbox.closed || (inbox.messages.is_empty() && (length <= SMALL_BYTES_MAX || inbox.waker.is_some()))
    }

    /// Whether connections of the name wait for messages to be taken.
    pub fn has_waiting(&self) -> bool {
        self.budget.get().is_some_and(|budget| budget.has_waiting())
    }

    /// The application receives no more: drops the messages that came in, and those that still come.
    pub fn discard(&self) {
        let mut inbox = self.inbox();
        inbox.discard();
        self.notify(inbox);
    }

    /// Whether a receiver waits for a message.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Ends sending; messages that came in can still be received.
    pub fn close(&self) {
        self.outgoing().close();
        self.end_inbox();
    }

    /// Ends receiving.
    pub fn end_inbox(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        self.notify(inbox);
    }
}

/// The header at the start of a buffer, if its bytes are there.
#[inline]
pub fn header_of(filled: &[u8]) -> Option<Result<FrameHeader, Error>> {
    filled.first_chunk::<HEADER_BYTES>().map(FrameHeader::decode)
}
