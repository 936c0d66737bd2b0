//! The state that a log's handle and tasks share: the leader, the deliverable entries, and the acceptor's queue.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base::rt::CancellationToken;
use base::rt::channel::WatchSender;
use sift::SiftGroup;

use super::acceptor::AcceptorQueue;
use super::config::CpuNode;
use super::leader::SiftLeader;
use crate::{CpuNodeId, Error, Leadership, LogStore};

pub(super) struct SiftLogCore {
    pub(super) group: SiftGroup,
    pub(super) me: CpuNodeId,
    pub(super) cpu_nodes: Vec<CpuNode>,
    pub(super) log_store: Arc<dyn LogStore>,
    pub(super) volatile: bool,
    pub(super) disk_timeout: Duration,
    pub(super) queue: AcceptorQueue,
    pub(super) leadership: Arc<WatchSender<Leadership>>,
    pub(super) deliverable: Arc<WatchSender<u64>>,
    /// The leader's own task keeps it alive, so that nothing outlives a task that is dropped.
    pub(super) leader: Mutex<Weak<SiftLeader>>,
    pub(super) ended: Mutex<Option<Error>>,
    /// Ends every task of this engine.
    pub(super) stop: CancellationToken,
}

impl SiftLogCore {
    /// The number of log stores that make a majority.
    pub(super) fn majority(&self) -> usize {
        self.cpu_nodes.len() / 2 + 1
    }

    pub(super) fn leader(&self) -> Option<Arc<SiftLeader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    pub(super) fn set_leader(&self, lead: Weak<SiftLeader>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = lead;
    }

    pub(super) fn end(&self, error: Error) {
        if !matches!(error, Error::Closed) {
            tracing::error!(cpu_node = %self.me, %error, "the ordering engine of this CPU node has ended");
        }
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.cancel();
    }

    /// Reports a follower without a known leader, unless a follower is reported already.
    pub(super) fn set_following(&self) {
        self.leadership.send_if_modified(|role| {
            let led = matches!(role, Leadership::Leading { .. });
            if led {
                *role = Leadership::Following { leader: None };
            }
            led
        });
    }
}
