//! The endpoints that a host accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use base::{Bytes, BytesMut};

use super::client::total;
use super::host_core::HostCore;
use super::peer::{ConnectionQueues, TURN_BYTES_MAX};
use super::spin::AdaptiveSpin;
use super::{PROFILE, clock};
use crate::{Capability, Completion, Connection, Error, IncomingEvent, MESSAGE_BYTES_MAX, NodeId, ProviderProfile};

/// Pauses between two polls of what the progress thread delivers, so that polling does not slow that thread down.
const LOOK_PAUSES: usize = 4;

/// An endpoint that a host accepted: messages only, since a client has no regions.
pub struct AcceptedConnection {
    pub peer: Arc<ConnectionQueues>,
    pub shared: Arc<HostCore>,
    pub connection: u64,
    pub name: Arc<str>,
    /// Set when the last handle is dropped.
    pub dropped: Arc<AtomicBool>,
    pub spin: AdaptiveSpin,
}

impl AcceptedConnection {
    /// Writes the queue. If the progress thread is polling this socket, it writes the queue instead: two threads that use one
    /// socket at once wait for each other's kernel lock, asleep.
    fn write_out(&self) {
        // Ask first, then check, and the thread does both in the opposite order: either it sees the request, or we see that it
        // no longer polls.
        self.peer.request_write();
        if self.shared.looked_at.load(Ordering::SeqCst) == self.connection {
            return;
        }
        self.peer.take_write_request();
        let mut outgoing = self.peer.outgoing();
        // The progress thread sees an error as well, and writes the rest. Write no more than its own turn would: it may wait
        // for this lock.
        let left = outgoing.pump(&self.peer.pipe, TURN_BYTES_MAX).map_or(true, |pumped| pumped.left);
        drop(outgoing);
        if left {
            self.shared.attention.attend(self.connection);
        }
    }
}

impl AcceptedConnection {
    /// Polls for a short time for a delivery by the progress thread. Returns false when there was none.
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

impl Connection for AcceptedConnection {
    fn node(&self) -> NodeId {
        // Numbers of connections are never reused, and no host runs long enough to see 2^32 of them.
        NodeId(self.connection as u32)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> ProviderProfile {
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

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let mut polled = self.peer.poll_receive(cx);
        if polled.is_pending() {
            if self.peer.has_waiting() {
                // It may be this connection that waits. Now that the application is receiving, it is read.
                self.shared.attention.attend(self.connection);
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
        self.shared.attention.attend(self.connection);
    }
}

impl Drop for AcceptedConnection {
    fn drop(&mut self) {
        self.peer.discard();
        self.dropped.store(true, Ordering::Release);
        self.shared.attention.attend(self.connection);
    }
}
