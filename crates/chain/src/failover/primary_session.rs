//! The session of a compute node that is the primary, under one epoch.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use base::Epoch;
use base::rt::channel::{WatchReceiver, watch};
use base::rt::net::{Link, LinkAcceptor, Parties};
use base::rt::{self, AbortOnDrop};
use futures_util::future::{Either, select};
use state::{Disaggregated, WorldState};
use std::pin::pin;
use storage::{StateStore, Watermark};

use super::primary_locator::greeting;
use super::{ComputeNodeCore, ComputeNodeSetup, NODES_MAX, PrimaryLease};
use crate::stores::{ChannelStores, NodeStores, PeerStores, WorldStateFactory};
use crate::{Channel, Error, Peer, PeerSetup};

/// The largest number of links from other nodes at a time.
const LINKS_MAX: usize = 2 * NODES_MAX;

/// A primary.
pub(super) struct PrimarySession {
    epoch: Epoch,
    peer: Arc<Peer>,
    channel: Arc<Channel>,
    /// Number of blocks in the channel when the epoch started.
    start_height: u64,
    session_state: Arc<SessionState>,
    lease: Arc<PrimaryLease>,
    _tasks: Vec<AbortOnDrop<()>>,
}

/// The peer's stores under this epoch, restricted to the one channel that the epoch belongs to.
struct PrimarySessionStores {
    stores: NodeStores,
    channel: String,
    office: Arc<PrimaryLease>,
}

#[async_trait]
impl PeerStores for PrimarySessionStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = self.stores.channels().await?;
        channels.retain(|channel| *channel == self.channel);
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        self.stores.open(channel).await
    }

    fn primary_lease(&self) -> Option<Arc<PrimaryLease>> {
        Some(self.office.clone())
    }

    async fn stopped(&self, channel: &str, durable: Watermark) {
        self.stores.stopped(channel, durable).await;
    }
}

/// A state, and the rows over which it was opened.
type OpenedState = (Weak<Disaggregated>, Arc<dyn StateStore>);

/// The state of this epoch, once it is open.
struct SessionState {
    options: ComputeNodeSetup,
    epoch: Epoch,
    found: Mutex<Option<OpenedState>>,
}

#[async_trait]
impl WorldStateFactory for SessionState {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        let memory = self.options.memory.open(self.epoch).await?;
        let state = Disaggregated::open(memory, rows.clone(), self.options.state.clone()).await?;
        let state = Arc::new(state);
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some((Arc::downgrade(&state), rows));
        Ok(state)
    }
}

impl SessionState {
    fn state(&self) -> Option<Arc<Disaggregated>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.0.upgrade()
    }

    fn rows(&self) -> Option<Arc<dyn StateStore>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, rows)| rows.clone())
    }
}

impl PrimarySession {
    /// Steps 4 and 5. If it fails or is dropped, the peer that it has opened so far ends.
    pub(super) async fn start(shared: &Arc<ComputeNodeCore>, epoch: Epoch) -> Result<PrimarySession, Error> {
        let options = &shared.options;
        let (state_is_open, open) = watch(None);
        let serving = serve(&options.address, &options.parties, epoch, open).await?;
        let lease = Arc::new(PrimaryLease::default());
        let opened = Arc::new(SessionState { options: options.clone(), epoch, found: Mutex::default() });
        let stores = NodeStores {
            address: options.storage.clone(),
            token: options.token.clone(),
            epoch,
            states: opened.clone(),
            watermark: options.watermark.clone(),
        };
        let peer = Peer::open(PeerSetup {
            name: options.name.clone(),
            signer: options.signer.clone(),
            stores: Arc::new(PrimarySessionStores {
                stores,
                channel: shared.channel_name.clone(),
                office: lease.clone(),
            }),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            orderers: options.orderers.clone(),
            settings: options.settings.clone(),
        })
        .await?;
        let channel = peer.join(&options.genesis).await?;
        let (state, rows) = (opened.state(), opened.rows());
        let (Some(state), Some(rows)) = (state, rows) else { return Err(Error::Stopped) };
        let first = channel.height();
        state.admit_followers().await;
        state_is_open.send(Some(Arc::downgrade(&state)));
        let keeping = rt::spawn(lease.clone().renew(rows)).abort_on_drop();
        Ok(PrimarySession {
            epoch,
            peer,
            channel,
            start_height: first,
            session_state: opened,
            lease,
            _tasks: vec![serving, keeping],
        })
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    pub(super) fn state(&self) -> Option<Arc<Disaggregated>> {
        self.session_state.state()
    }

    /// Number of blocks in the channel when the epoch started.
    pub(super) fn start_height(&self) -> u64 {
        self.start_height
    }

    /// Whether the node is to be shown as the primary.
    pub(super) fn is_seen(&self) -> bool {
        self.lease.is_seen() && self.channel.failure().is_none()
    }

    /// Completes when the epoch is over, and returns the reason.
    pub(super) async fn ended(&self) -> Error {
        match select(pin!(self.lease.lost()), pin!(self.channel.stopped())).await {
            Either::Left(_) => Error::State(state::Error::Fenced),
            Either::Right(_) => match self.channel.failure() {
                Some(failure) => Error::Rejected {
                    name: "the channel's pipeline".to_owned(),
                    kind: failure.kind(),
                    reason: failure.to_string(),
                },
                None => Error::Stopped,
            },
        }
    }

    /// Finishes the blocks that were validated, unless the node is fenced.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        self.peer.stop().await
    }
}

/// Serves the other compute nodes. A node receives the epoch at once, so that it sees that there is a new primary, and
/// the state once it is open.
async fn serve(
    address: &str,
    parties: &Parties,
    epoch: Epoch,
    open: WatchReceiver<Option<Weak<Disaggregated>>>,
) -> Result<AbortOnDrop<()>, Error> {
    let mut door = LinkAcceptor::open(address, parties, LINKS_MAX).await.map_err(|error| Error::io(address, &error))?;
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

async fn serve_one(link: Link, epoch: Epoch, mut open: WatchReceiver<Option<Weak<Disaggregated>>>) {
    if link.send(greeting(epoch)).await.is_err() {
        return;
    }
    let Ok(state) = open.wait_for(Option::is_some).await else { return };
    let Some(state) = state.and_then(|state| state.upgrade()) else { return };
    // The follower finds out by itself why the link ended.
    let _ended = state.serve_follower(link).await;
}
