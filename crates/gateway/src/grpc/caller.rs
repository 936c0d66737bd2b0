//! The server's view of the client of one connection: the identity that it has proved, and the resources that its calls
//! hold.
//!
//! 1. At first the connection is unauthenticated: its client is a *stranger*. When a handler has verified the signature
//!    on one of its calls, the client becomes a *member* of the signer's organisation ([`Caller::authenticate`]). The
//!    first verified call decides the organisation.
//! 2. The connection claims memory for unfinished messages from the port's [`Admission`](base::admission::Admission). A
//!    stranger's bytes count against the budget of its address, a member's bytes against the budget of its
//!    organisation. One connection takes at most half of the organisation's budget, unless a single message needs more.
//! 3. Clients may send END_STREAM in a separate frame, so the server may answer a call before the client has closed its
//!    half of the stream. The server then reads the stream to its end ([`Caller::drain_unended`]). It does not reset
//!    the stream, because `h2` remembers the streams that were reset, and closes the connection after a thousand of
//!    them.
//!
//! Invariant: after the answer, a client has a limited time to end its side and may send a limited number of bytes.
//! Until the client has ended its side, the call is charged like an unfinished message.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::admission::{AdmissionPermit, Principal, Reservation};
use base::rt::CancellationToken;
use h2::RecvStream;
use tokio::time::Instant;

use super::status::{GrpcCode, GrpcStatus};
use crate::events::{CallsLingering, CallsReset};
use crate::grpc::PresentedCertificate;

/// Bytes that a client may still send on an answered call; if it sends more, the call is reset.
const LINGER_BYTES_MAX: usize = 32 << 10;
/// The charge for a call whose message has not arrived: headers, state of the stream, state of the handler.
pub(crate) const CALL_BYTES: usize = 4 << 10;

/// The client's side of one connection.
pub struct Caller {
    peer: SocketAddr,
    admitted: AdmissionPermit,
    principal: OnceLock<Principal>,
    /// Set once the handshake is over; not set without TLS.
    certificate: OnceLock<PresentedCertificate>,
    /// Bytes of unfinished messages.
    unfinished_bytes: AtomicU64,
    /// Bytes of messages that have arrived since the connection began.
    arrived_bytes: AtomicU64,
    member_bytes_max: u64,
    /// Bodies of calls that were just answered, whose client has not ended its side.
    unended: Mutex<Vec<RecvStream>>,
    /// Permits that its calls hold at the service, by kind.
    pub(crate) permits_held: [AtomicUsize; 3],
    /// Counts the calls of its organisation, once it is a member's.
    pub(crate) organization_calls: OnceLock<Arc<AtomicUsize>>,
}

/// The claim on bytes for an unfinished message.
pub(crate) struct BufferClaim {
    caller: Arc<Caller>,
    reservations: Vec<Reservation>,
    bytes: u64,
}

impl Caller {
    /// A stranger. Once it is a member, it takes at most `member_bytes_max` of its organisation's budget.
    pub(crate) fn new(peer: SocketAddr, admitted: AdmissionPermit, member_bytes_max: u64) -> Arc<Caller> {
        Arc::new(Caller {
            peer,
            admitted,
            principal: OnceLock::new(),
            certificate: OnceLock::new(),
            unfinished_bytes: AtomicU64::new(0),
            arrived_bytes: AtomicU64::new(0),
            member_bytes_max,
            unended: Mutex::default(),
            permits_held: Default::default(),
            organization_calls: OnceLock::new(),
        })
    }

    /// The client's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What the client presented in the TLS handshake; `None` on a connection without TLS.
    pub fn certificate(&self) -> Option<&PresentedCertificate> {
        self.certificate.get()
    }

    pub(crate) fn set_certificate(&self, certificate: PresentedCertificate) {
        // Set once: a connection has one handshake.
        let _ = self.certificate.set(certificate);
    }

    /// Whether a call of this connection has proved its signer.
    pub fn is_member(&self) -> bool {
        self.principal.get().is_some()
    }

    /// The identity that it has proved.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.get()
    }

    /// Sets the connection's identity, once one of its calls has proved it. The first proof counts: other users of the
    /// client may sign later calls.
    pub fn authenticate(&self, principal: impl FnOnce() -> Principal) {
        if !self.is_member() {
            let principal = principal();
            self.admitted.authenticate(principal.clone());
            // If this fails, another call was faster.
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

    /// Fires when the connection must give way to another one.
    pub(crate) fn displaced(&self) -> &CancellationToken {
        self.admitted.displaced()
    }

    /// Extra bytes for the connection, if its organisation's budget can spare them.
    pub(crate) fn reserve_spare(&self, bytes: usize) -> Option<Reservation> {
        self.admitted.reserve_spare(bytes).ok()
    }

    /// Hands the body of an answered call over to [`Caller::drain_unended`].
    pub(crate) fn defer_drain(&self, body: RecvStream) {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner).push(body);
    }

    /// Waits until the client has ended its side of the call that was just answered, and resets the call after `time_max`.
    /// The task that dropped the call's messages must call this immediately afterwards.
    pub(crate) async fn drain_unended(&self, time_max: Duration) {
        // Taken in a separate statement, so that the lock is not held while waiting.
        let body = self.unended.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mut body) = body else { return };
        let Ok(_cost) = self.admitted.reserve(CALL_BYTES) else { return CallsReset.add(1) };
        CallsLingering.add(1);
        let (until, mut discarded) = (Instant::now() + time_max, 0);
        while let Ok(more) = tokio::time::timeout_at(until, body.data()).await {
            let Some(Ok(chunk)) = more else { break };
            discarded += chunk.len();
            // If this fails, the stream has gone, which the next read reports.
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

impl BufferClaim {
    pub(crate) fn new(caller: Arc<Caller>) -> BufferClaim {
        BufferClaim { caller, reservations: Vec::new(), bytes: 0 }
    }

    pub(crate) fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Claims `bytes` more.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), GrpcStatus> {
        let refused = |problem: String| Err(GrpcStatus::new(GrpcCode::ResourceExhausted, problem));
        let caller = &self.caller;
        let more = bytes as u64;
        let before = caller.unfinished_bytes.load(Ordering::Relaxed);
        // One task polls all calls of a connection, so no other call adds in between.
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

    /// Releases the whole claim.
    pub(crate) fn release(&mut self) {
        self.reservations.clear();
        self.caller.unfinished_bytes.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for BufferClaim {
    fn drop(&mut self) {
        self.release();
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("peer", &self.peer).field("principal", &self.principal()).finish()
    }
}
