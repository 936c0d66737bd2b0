//! What a primary knows of its role: its lease, and the followers to which it can offload work.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use base::rt::net::Link;

use super::PrimaryLease;
use crate::Error;
use crate::followers::WorkPermit;
use crate::load::ReportedNode;
use crate::offload::WorkPlacement;

/// What a primary's channel needs to know of the node's role: whether it may answer, and who may work for it.
#[derive(Default)]
pub struct PrimaryRole {
    pub(super) lease: Arc<PrimaryLease>,
    /// Set once followers may join.
    pub(super) state: OnceLock<Weak<dyn ReplicatedState>>,
}

impl PrimaryRole {
    /// As [`PrimaryLease::wait_until_held`].
    ///
    /// # Errors
    /// As [`PrimaryLease::wait_until_held`].
    pub async fn wait_until_held(&self) -> Result<(), Error> {
        self.lease.wait_until_held().await
    }

    fn state(&self) -> Option<Arc<dyn ReplicatedState>> {
        self.state.get()?.upgrade()
    }

    /// The followers, as they have reported themselves.
    pub fn reported(&self) -> Vec<ReportedNode> {
        self.state().map_or_else(Vec::new, |state| state.reported())
    }
}

impl WorkPlacement for PrimaryRole {
    fn followers(&self) -> usize {
        self.state().map_or(0, |state| state.followers())
    }

    fn work_permit(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<WorkPermit> {
        self.state()?.work_permit(load_max, trusts)
    }
}

/// The state of a peer at its primary.
#[async_trait]
pub trait ReplicatedState: WorkPlacement + Send + Sync + 'static {
    /// Lets followers join, once every lease that an earlier primary can have granted has ended. Until then that
    /// primary's followers may answer at lower heights, so the caller must not show this state to anybody. Call it
    /// after every durable block has been applied: otherwise a follower would show heights below those that an earlier
    /// primary has shown.
    async fn admit_followers(&self);

    /// The followers, as they have reported themselves ([`crate::FollowerTable::reported`]).
    fn reported(&self) -> Vec<ReportedNode>;

    /// Serves a follower over a link until the link ends ([`crate::followers`]). Dropping the future ends it.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::Busy`] when there are too many followers, or joining took too long.
    async fn serve_follower(&self, link: Link) -> Result<(), Error>;
}
