//! A follower's right to answer during one session: its lease, and whether the session is over.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::channel::Sender;
use base::rt::sync::Notify;
use base::rt::{self, Instant};

use super::limits::LEASELESS_TIMEOUT;
use crate::fault::{Mutant, mutant};
use crate::lease::LEASE;

/// How long a read waits for the renewal of an expired lease: as long as the session lasts without one. A node that is short of
/// processor time loses a lease now and then, and what a contract has read and computed so far would be lost with the read.
const LAPSED_LEASE_TIMEOUT: Duration = LEASELESS_TIMEOUT;

/// The session of a follower between one joining and the next.
pub struct JoinedState {
    /// When the lease ends, in nanoseconds of this node's clock; 0 before the first lease.
    ends: AtomicU64,
    over: AtomicBool,
    renewed: Notify,
    /// Requests to the primary.
    requests: Sender<Bytes>,
}

impl JoinedState {
    pub(crate) fn new(requests: Sender<Bytes>) -> JoinedState {
        JoinedState { ends: AtomicU64::new(0), over: AtomicBool::new(false), renewed: Notify::new(), requests }
    }

    /// Whether the lease is live, so that answers count.
    #[inline]
    pub fn is_live(&self) -> bool {
        let ends = self.ends.load(Ordering::Acquire);
        (rt::now().nanos() < ends || (ends > 0 && mutant(Mutant::ServePastLease))) && !self.over.load(Ordering::Acquire)
    }

    /// Whether the lease is live, or will be soon.
    pub async fn is_live_soon(&self) -> bool {
        let since = rt::now();
        loop {
            let renewed = self.renewed.notified();
            if self.is_live() {
                return true;
            }
            let waited = since.elapsed();
            if waited >= LAPSED_LEASE_TIMEOUT || self.over.load(Ordering::Acquire) {
                return false;
            }
            let _woken = rt::timeout(LAPSED_LEASE_TIMEOUT - waited, renewed).await;
        }
    }

    /// Extends the lease: the primary granted one that counts from this time of this node's clock.
    pub(crate) fn renew(&self, counted_from: Instant) {
        self.ends.fetch_max((counted_from + LEASE).nanos(), Ordering::AcqRel);
        self.renewed.notify_waiters();
    }

    /// Ends the session: no answer counts from now on.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.renewed.notify_waiters();
    }

    /// Sends the primary a request of the state, which may be lost ([`crate::followers::message::request`]).
    pub fn ask(&self, request: Bytes) {
        // Nothing depends on the request.
        let _ = self.requests.try_send(request);
    }
}
