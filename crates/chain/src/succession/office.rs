//! The right of a primary to answer: for a lease from the moment at which it asked storage whether it still is the primary.
//!
//! 1. The primary asks storage to confirm its epoch, every [`RENEWAL`]. An answer counts from the time of the question on.
//! 2. Whoever wants a snapshot has to [hold](Office::held) the office when it is taken.
//! 3. A later primary waits, from the beginning of its epoch on, for longer than any such right lasts ([`lease`]). Nothing that it
//!    commits can have been told to anybody before the earlier one's right has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::ErrorKind;
use base::rt::sync::Notify;
use base::rt::{self, Instant, Stop};
use state::disaggregated::lease::{self, LEASE};
use storage::StateStore;

use crate::Error;
use crate::fault::hold_up;

/// How often storage is asked.
const RENEWAL: Duration = Duration::from_millis(15);
/// How long a question for a snapshot waits for an office that has lapsed.
const LAPSE_MAX: Duration = lease::LEASE;
/// A primary that has not heard of storage for so long is not shown as one.
const UNSEEN_AFTER: Duration = Duration::from_secs(1);

/// A primary's right to answer.
#[derive(Default)]
pub struct Office {
    /// Nanoseconds of this node's clock.
    ends: AtomicU64,
    renewed: Notify,
    over: Stop,
}

impl Office {
    /// Waits a little where it has lapsed.
    ///
    /// # Errors
    /// `Retry` and `Fenced`.
    pub async fn held(&self) -> Result<(), Error> {
        let since = rt::now();
        loop {
            let renewed = self.renewed.notified();
            if self.over.is_stopped() {
                return Err(Error::State(state::Error::Fenced));
            }
            if self.is_held() {
                return Ok(());
            }
            let waited = since.elapsed();
            if waited >= LAPSE_MAX {
                return Err(Error::State(state::Error::NoLease));
            }
            let _woken = rt::timeout(LAPSE_MAX - waited, renewed).await;
        }
    }

    fn is_held(&self) -> bool {
        rt::now().nanos() < self.ends.load(Ordering::Acquire) || rt::fault_point("chain.succession.mutant.office")
    }

    /// Whether it is held, or was a short while ago.
    pub(super) fn is_seen(&self) -> bool {
        let ends = Instant::from_nanos(self.ends.load(Ordering::Acquire));
        !self.over.is_stopped() && rt::now() < ends + UNSEEN_AFTER
    }

    /// Completes when another epoch has begun.
    pub(super) async fn lost(&self) {
        self.over.stopped().await;
    }

    /// Asks, until the office is lost.
    pub(super) async fn keep(self: Arc<Self>, rows: Arc<dyn StateStore>) {
        loop {
            let asked = rt::now();
            match rt::timeout(LEASE, rows.confirm()).await {
                Ok(Ok(())) => {
                    hold_up("chain.succession.confirmed").await;
                    self.ends.fetch_max((asked + LEASE).nanos(), Ordering::AcqRel);
                    self.renewed.notify_waiters();
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => {
                    self.over.stop();
                    self.renewed.notify_waiters();
                    return;
                }
                outcome => tracing::debug!(?outcome, "storage does not confirm the primary for now"),
            }
            rt::sleep(RENEWAL).await;
        }
    }
}
