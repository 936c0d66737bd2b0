//! The primary lease: a primary's permission to answer. It lasts for one lease period, counted from the moment at which
//! the primary asked the storage node whether its epoch is still the newest.
//!
//! 1. The primary asks the storage node to confirm its epoch, every [`RENEWAL_PERIOD`]. A confirmation extends the
//!    lease from the time of the question, not from the time of the answer.
//! 2. A snapshot is taken only while the primary lease is [held](PrimaryLease::wait_until_held).
//! 3. A later primary waits, from the start of its epoch, longer than a primary lease lasts ([`crate::lease`]). Only
//!    then can a client see a commit of the later primary, and by then the lease of the earlier one has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::ErrorKind;
use base::rt::sync::Notify;
use base::rt::{self, CancellationToken, Instant};
use storage::StateStore;

use crate::Error;
use crate::followers::LEASELESS_TIMEOUT;
use crate::lease::LEASE;

/// How often the primary asks the storage node.
const RENEWAL_PERIOD: Duration = Duration::from_millis(15);
/// How long a request for a snapshot waits for the renewal of a lease that has lapsed: storage, or this node, may be short of
/// processor time for a moment.
const LAPSE_MAX: Duration = LEASELESS_TIMEOUT;
/// A primary that has had no confirmation for this long after its lease ended is not shown as the primary.
const UNSEEN_AFTER: Duration = Duration::from_secs(1);
/// How long a confirmation waits at its fault point: longer than a lease.
const HELD_UP: Duration = Duration::from_millis(150);

/// A primary's right to answer.
#[derive(Default)]
pub struct PrimaryLease {
    /// When the lease ends, in nanoseconds of this node's clock.
    ends: AtomicU64,
    renewed: Notify,
    over: CancellationToken,
}

impl PrimaryLease {
    /// Returns once the lease is held. If it has lapsed, waits for its renewal for at most [`LAPSE_MAX`].
    ///
    /// # Errors
    /// `Retry` if the lease was not renewed in time; `Fenced` if another epoch has started.
    pub async fn wait_until_held(&self) -> Result<(), Error> {
        let since = rt::now();
        loop {
            let renewed = self.renewed.notified();
            if self.over.is_cancelled() {
                return Err(Error::Fenced);
            }
            if self.is_held() {
                return Ok(());
            }
            let waited = since.elapsed();
            if waited >= LAPSE_MAX {
                return Err(Error::NoLease);
            }
            let _woken = rt::timeout(LAPSE_MAX - waited, renewed).await;
        }
    }

    fn is_held(&self) -> bool {
        rt::now().nanos() < self.ends.load(Ordering::Acquire) || rt::fault_point("chain.failover.mutant.lease")
    }

    /// Whether the lease is held, or ended only a short while ago.
    pub(super) fn is_seen(&self) -> bool {
        let ends = Instant::from_nanos(self.ends.load(Ordering::Acquire));
        !self.over.is_cancelled() && rt::now() < ends + UNSEEN_AFTER
    }

    /// Completes when another epoch has started.
    pub(super) async fn lost(&self) {
        self.over.cancelled().await;
    }

    /// Renews the lease until another epoch has started.
    pub(super) async fn renew(self: Arc<Self>, rows: Arc<dyn StateStore>) {
        loop {
            let asked = rt::now();
            match rt::timeout(LEASE, rows.confirm()).await {
                Ok(Ok(())) => {
                    rt::fault::hold_up("chain.failover.confirmed", HELD_UP).await;
                    self.ends.fetch_max((asked + LEASE).nanos(), Ordering::AcqRel);
                    self.renewed.notify_waiters();
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => {
                    self.over.cancel();
                    self.renewed.notify_waiters();
                    return;
                }
                outcome => tracing::debug!(?outcome, "storage does not confirm the primary for now"),
            }
            rt::sleep(RENEWAL_PERIOD).await;
        }
    }
}
