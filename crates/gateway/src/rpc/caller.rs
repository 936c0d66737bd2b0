//! The other side of a connection: who it has proved to be, and what its calls hold.
//!
//! 1. A connection begins as a stranger's. The first of its calls whose creator's signature a handler has verified makes
//!    it a member's ([`Caller::authenticate`]).
//! 2. Bytes of unfinished messages are claimed from the port's [`Admission`](base::admission::Admission): a stranger's
//!    from its address, a member's from its organisation, of which one connection takes no more than half unless a
//!    single message needs it.
//! 3. A call may be answered before its client has ended its side: clients send END_STREAM in a frame of its own. The rest
//!    of such a call is waited for ([`Caller::linger`]), because a stream that is reset instead leaves its number behind
//!    in `h2`, which ends a connection after a thousand of them.
//!
//! Invariant: a call that lingers has a limit on its time and on the bytes that it may still send, and is paid for like
//! an unfinished message.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::admission::{Admitted, Principal, Reservation};
use base::rt::Stop;
use h2::RecvStream;
use tokio::time::Instant;

use super::status::{Code, Status};
use crate::events::{CallsLingering, CallsReset};

/// What a client may still send on an answered call; one that sends more has the call reset.
const LINGER_BYTES_MAX: usize = 32 << 10;
/// What a call without its message costs: headers, state of the stream, state of the handler.
pub(crate) const CALL_BYTES: usize = 4 << 10;

/// The other side of one connection.
pub struct Caller {
    peer: SocketAddr,
    admitted: Admitted,
    principal: OnceLock<Principal>,
    /// Bytes of unfinished messages.
    unfinished_bytes: AtomicU64,
    /// Bytes of messages that have arrived since the connection began.
    arrived_bytes: AtomicU64,
    member_bytes_max: u64,
    /// Bodies of calls that were answered just now, whose client has not ended its side.
    unended: Mutex<Vec<RecvStream>>,
    /// Places that its calls hold at the service; the service says what the kinds are.
    pub(crate) places: [AtomicUsize; 3],
    /// Calls of its organisation, once it is a member's.
    pub(crate) organization_calls: OnceLock<Arc<AtomicUsize>>,
}

/// Bytes of an unfinished message, as claimed.
pub(crate) struct Claim {
    caller: Arc<Caller>,
    reservations: Vec<Reservation>,
    bytes: u64,
}

impl Caller {
    /// A stranger. Of its organisation's budget it takes no more than `member_bytes_max` once it is a member.
    pub(crate) fn new(peer: SocketAddr, admitted: Admitted, member_bytes_max: u64) -> Arc<Caller> {
        Arc::new(Caller {
            peer,
            admitted,
            principal: OnceLock::new(),
            unfinished_bytes: AtomicU64::new(0),
            arrived_bytes: AtomicU64::new(0),
            member_bytes_max,
            unended: Mutex::default(),
            places: Default::default(),
            organization_calls: OnceLock::new(),
        })
    }

    /// Its address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether a call of this connection has proved who makes it.
    pub fn is_member(&self) -> bool {
        self.principal.get().is_some()
    }

    /// Who it proved to be.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.get()
    }

    /// Says whose the connection is, now that one of its calls has proved it. The first proof counts: later calls may be
    /// signed by others of the client's users.
    pub fn authenticate(&self, principal: impl FnOnce() -> Principal) {
        if !self.is_member() {
            let principal = principal();
            self.admitted.authenticate(principal.clone());
            // Failing means that another call was faster.
            let _ = self.principal.set(principal);
        }
    }

    /// Bytes of messages that have arrived on the connection.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes of a message. All calls of a connection are polled by one task, so a load and a store lose nothing.
    pub(crate) fn arrived(&self, bytes: usize) {
        self.arrived_bytes.store(self.arrived_bytes().wrapping_add(bytes as u64), Ordering::Relaxed);
    }

    /// Fires when the connection is to make room for another one.
    pub(crate) fn displaced(&self) -> &Stop {
        self.admitted.displaced()
    }

    /// Bytes that the connection is better with, if its organisation can spare them.
    pub(crate) fn spare(&self, bytes: usize) -> Option<Reservation> {
        self.admitted.reserve_spare(bytes).ok()
    }

    /// Leaves the body of a call that was answered to [`Caller::linger`].
    pub(crate) fn leave(&self, body: RecvStream) {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner).push(body);
    }

    /// Waits until the client has ended its side of the call that was just answered, and resets the call after `time_max`.
    /// Called by the task that dropped the call's messages, at once after that.
    pub(crate) async fn linger(&self, time_max: Duration) {
        // Taken in a statement of its own: the lock is not held while waiting.
        let body = self.unended.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mut body) = body else { return };
        let Ok(_cost) = self.admitted.reserve(CALL_BYTES) else { return CallsReset.add(1) };
        CallsLingering.add(1);
        let (until, mut discarded) = (Instant::now() + time_max, 0);
        while let Ok(more) = tokio::time::timeout_at(until, body.data()).await {
            let Some(Ok(chunk)) = more else { break };
            discarded += chunk.len();
            // Failing means that the stream has gone, which the next read says.
            let _ = body.flow_control().release_capacity(chunk.len());
            if discarded > LINGER_BYTES_MAX {
                break;
            }
        }
        CallsLingering.add(-1);
        if !body.is_end_stream() {
            CallsReset.add(1);
        }
    }
}

impl Claim {
    pub(crate) fn new(caller: Arc<Caller>) -> Claim {
        Claim { caller, reservations: Vec::new(), bytes: 0 }
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Claims `bytes` more.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), Status> {
        let refused = |problem: String| Err(Status::new(Code::ResourceExhausted, problem));
        let caller = &self.caller;
        let more = bytes as u64;
        let before = caller.unfinished_bytes.load(Ordering::Relaxed);
        // All calls of a connection are polled by one task, so nobody adds in between.
        if caller.is_member() && before.saturating_add(more) > caller.member_bytes_max {
            return refused(format!(
                "{more} more bytes would exceed the {} of unfinished messages that one connection may have; retry later",
                caller.member_bytes_max
            ));
        }
        match caller.admitted.claim(bytes) {
            Ok(reservation) => {
                caller.unfinished_bytes.fetch_add(more, Ordering::Relaxed);
                self.bytes += more;
                self.reservations.push(reservation);
                Ok(())
            }
            Err(over) if caller.is_member() => refused(over.to_string()),
            Err(over) => refused(format!(
                "{over}; a client whose connection has had one successful call may send longer messages"
            )),
        }
    }

    /// Gives everything back.
    pub(crate) fn release(&mut self) {
        self.reservations.clear();
        self.caller.unfinished_bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("peer", &self.peer).field("principal", &self.principal()).finish()
    }
}
