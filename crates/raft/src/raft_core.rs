//! The state that the handles and tasks of a Raft node share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use base::rt::CancellationToken;
use base::rt::channel::{Sender, WatchSender};
use base::rt::sync::Semaphore;

use super::membership::RaftStatus;
use crate::engine::EngineEvent;
use crate::error::Error;
use crate::membership::RaftMember;

/// State that callers and the task share.
pub(crate) struct RaftCore<O> {
    pub(super) node: u64,
    /// The incarnation of its log.
    pub(super) incarnation: u64,
    pub(super) events: Sender<EngineEvent<O>>,
    pub(super) permits: Semaphore,
    pub(super) requests: Semaphore,
    /// Until when, by this node's clock, no other leader is elected; 0 without a lease.
    pub(super) lease_until: AtomicU64,
    pub(super) applied: AtomicU64,
    /// It does not lead in terms up to this one any more.
    pub(super) resigned: AtomicU64,
    /// Until when, by this node's clock, it does not stand for election while there is no leader.
    pub(super) abstains_until: AtomicU64,
    pub(super) role: WatchSender<RaftStatus>,
    pub(super) members: Mutex<Vec<RaftMember>>,
    pub(super) ended: Mutex<Option<Error>>,
    /// The task has ended.
    pub(super) stop: CancellationToken,
}

impl<O> RaftCore<O> {
    /// Called when the task has ended and no longer touches its directory.
    pub(super) fn end(&self, error: Error, stop: &CancellationToken) {
        if error != Error::Closed {
            tracing::error!(%error, node = self.node, "a Raft node ends");
        }
        self.lease_until.store(0, Ordering::SeqCst);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        let term = self.role.borrow().term;
        self.role.send(RaftStatus { term, leader: None, is_leading: false });
        stop.cancel();
        self.stop.cancel();
    }
}
