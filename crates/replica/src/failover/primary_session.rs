//! The session of a compute node that is the primary, under one epoch.

use std::pin::pin;
use std::sync::{Arc, Weak};

use base::rt::AbortOnDrop;
use base::rt::channel::{WatchReceiver, watch};
use base::rt::net::{Link, LinkAcceptor, Parties};
use base::{Epoch, rt};
use futures_util::future::{Either, select};

use super::primary_locator::greeting;
use super::primary_role::PrimaryRole;
use super::{PeerError, PeerRoles, PrimaryLease};
use crate::failover::addresses::{NODES_MAX, PeerAddresses};
use crate::failover::peer::PrimaryPeer as _;
use crate::failover::primary_role::ReplicatedState;

/// The largest number of links from other nodes at a time.
const LINKS_MAX: usize = 2 * NODES_MAX;

/// A primary.
pub struct PrimarySession<P: PeerRoles> {
    epoch: Epoch,
    peer: P::Primary,
    /// Number of blocks in the channel when the epoch started.
    start_height: u64,
    lease: Arc<PrimaryLease>,
    _tasks: Vec<AbortOnDrop<()>>,
}

impl<P: PeerRoles> PrimarySession<P> {
    /// Steps 4 and 5. If it fails or is dropped, the peer that it has opened so far ends.
    pub(super) async fn start(roles: &P, addresses: &PeerAddresses, epoch: Epoch) -> Result<Self, P::Error> {
        let (state_is_open, open) = watch(None);
        let address = addresses.address.as_deref().expect("only a candidate starts an epoch");
        let serving = serve::<P::Error>(address, &addresses.parties, epoch, open).await?;
        let role = Arc::new(PrimaryRole::default());
        let lease = Arc::clone(&role.lease);
        let peer = roles.open_primary(epoch, Arc::clone(&role)).await?;
        let (state, store) = (peer.state(), peer.store());
        let start_height = peer.height();
        if let Some(state) = state.upgrade() {
            state.admit_followers().await;
        }
        role.state.get_or_init(|| state.clone());
        state_is_open.send(Some(state));
        let keeping = rt::spawn(Arc::clone(&lease).renew(store)).abort_on_drop();
        Ok(PrimarySession { epoch, peer, start_height, lease, _tasks: vec![serving, keeping] })
    }

    /// The epoch under which the node is the primary.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The peer that commits.
    pub fn peer(&self) -> &P::Primary {
        &self.peer
    }

    /// Number of blocks in the channel when the epoch started.
    pub fn start_height(&self) -> u64 {
        self.start_height
    }

    /// Whether the node is to be shown as the primary.
    pub fn is_seen(&self) -> bool {
        self.lease.is_seen() && !self.peer.has_failed()
    }

    /// Completes when the epoch is over, and returns the reason.
    pub(super) async fn ended(&self) -> P::Error {
        match select(pin!(self.lease.lost()), pin!(self.peer.stopped())).await {
            Either::Left(_) => P::Error::fenced(),
            Either::Right((reason, _)) => reason,
        }
    }

    /// Finishes the blocks that were validated, unless the node is fenced.
    pub(super) async fn stop(&self) -> Result<(), P::Error> {
        self.peer.stop().await
    }
}

/// Serves the other compute nodes. A node receives the epoch at once, so that it sees that there is a new primary, and
/// the state once it is open.
async fn serve<E: PeerError>(
    address: &str,
    parties: &Parties,
    epoch: Epoch,
    open: WatchReceiver<Option<Weak<dyn ReplicatedState>>>,
) -> Result<AbortOnDrop<()>, E> {
    let mut door =
        LinkAcceptor::open(address, parties, LINKS_MAX).await.map_err(|error| E::cannot_listen(address, &error))?;
    let task = rt::spawn(async move {
        // These tasks end with the listener.
        let mut serving: Vec<AbortOnDrop<()>> = Vec::new();
        while let Ok((link, permit)) = door.accept().await {
            serving.retain(|one| !one.is_finished());
            let open = open.clone();
            let one = async move {
                permit.displaced().run_until_cancelled(serve_one(link, epoch, open)).await;
            };
            serving.push(rt::spawn(one).abort_on_drop());
        }
    });
    Ok(task.abort_on_drop())
}

async fn serve_one(link: Link, epoch: Epoch, mut open: WatchReceiver<Option<Weak<dyn ReplicatedState>>>) {
    if link.send(greeting(epoch)).await.is_err() {
        return;
    }
    let Ok(state) = open.wait_for(Option::is_some).await else { return };
    let Some(state) = state.and_then(|state| state.upgrade()) else { return };
    // The follower finds out by itself why the link ended.
    let _ended = state.serve_follower(link).await;
}
