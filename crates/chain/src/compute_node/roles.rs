//! What a compute node does as a follower and as the primary: see [`PeerRoles`].

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::rt::net::Link;
use base::{Epoch, ErrorKind};
use replica::failover::{
    FollowedPeer, PeerError, PeerRoles, PrimaryLocator, PrimaryPeer, PrimaryRole, ReplicatedState,
};
use replica::followers::message::Announcement;
use replica::load::{NodeAddresses, ReportedNode};
use replica::{FailoverTimeouts, FindPrimary, WorkHandler};
use rules::access::{ChannelPolicies, CurrentPolicies};
use state::disaggregated::followers::FollowerEnvironment;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Disaggregated, Follower, WorldState};
use storage::node::RemoteStateStore;
use storage::{StateStore, Watermark};
use storage_copies::{CopiedReads, CopySet};

use super::{ComputeNodeSetup, FollowedChannel, PeerMemory};
use crate::stores::{ChannelStores, NodeStores, PeerStores, WorldStateFactory};
use crate::view::ChannelView;
use crate::{Channel, Error, Peer, PeerSetup};
use validation::offload::VerificationWorker;

/// The roles of a node in its one channel.
pub(super) struct ChannelRoles {
    options: ComputeNodeSetup,
    /// Those that followers know: of the genesis block until the state shows others.
    policies: Arc<CurrentPolicies>,
}

impl ChannelRoles {
    pub(super) fn new(options: ComputeNodeSetup, policies: Arc<ChannelPolicies>) -> ChannelRoles {
        ChannelRoles { options, policies: Arc::new(CurrentPolicies::new(policies)) }
    }

    pub(super) fn setup(&self) -> &ComputeNodeSetup {
        &self.options
    }

    /// The channel's name.
    pub(super) fn channel(&self) -> &str {
        self.policies.channel().as_str()
    }

    fn reads(&self) -> CopiedReads {
        CopiedReads::new(self.options.storage.clone(), self.channel())
    }
}

#[async_trait]
impl PeerRoles for ChannelRoles {
    type Error = Error;
    type Followed = FollowedChannel;
    type Primary = CommittingPeer;

    fn follow(&self, locator: Arc<PrimaryLocator>) -> Arc<FollowedChannel> {
        let (offload, reads) = (self.options.settings.commit.offload.clone(), self.reads());
        let environment = PeerEnvironment {
            locator,
            verification_worker: Arc::new(VerificationWorker::new(self.policies.clone(), offload)),
            addresses: self.options.addresses.clone(),
            processors: self.options.settings.commit.offload.load.processors().clone(),
            memory: self.options.memory.clone(),
            storage: self.options.storage.clone(),
            reads: reads.clone(),
            channel: self.channel().to_owned(),
        };
        let follower = Follower::start(Arc::new(environment), self.options.state.clone());
        let (own, members) = (self.options.signer.msp_id().clone(), self.options.members.clone());
        Arc::new(FollowedChannel::new(self.policies.clone(), follower, own, members, reads))
    }

    async fn open_primary(&self, epoch: Epoch, role: Arc<PrimaryRole>) -> Result<CommittingPeer, Error> {
        let options = &self.options;
        let opened = Arc::new(EpochStates { options: options.clone(), epoch, found: Mutex::default() });
        let stores = NodeStores {
            storage: options.storage.clone(),
            epoch,
            states: opened.clone(),
            watermark: options.watermark.clone(),
        };
        let peer = Peer::open(PeerSetup {
            name: options.name.clone(),
            signer: options.signer.clone(),
            stores: Arc::new(PrimaryStores { stores, channel: self.channel().to_owned(), role: role.clone() }),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            orderers: options.orderers.clone(),
            members: options.members.clone(),
            settings: options.settings.clone(),
        })
        .await?;
        let channel = peer.join(&options.genesis).await?;
        let found = opened.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (state, rows) = found.ok_or(Error::Stopped)?;
        Ok(CommittingPeer { peer, channel, state, rows, role })
    }

    async fn close_memory(&self) {
        self.options.memory.close().await;
    }
}

impl PeerError for Error {
    fn kind(&self) -> ErrorKind {
        Error::kind(self)
    }

    fn fenced() -> Error {
        Error::State(state::Error::Fenced)
    }

    fn cannot_listen(address: &str, error: &io::Error) -> Error {
        Error::io(address, error)
    }
}

/// What a follower needs to join its primary.
struct PeerEnvironment {
    locator: Arc<PrimaryLocator>,
    /// Verifies signatures for the primary.
    verification_worker: Arc<VerificationWorker>,
    addresses: NodeAddresses,
    processors: Arc<str>,
    memory: Arc<dyn PeerMemory>,
    storage: CopySet,
    reads: CopiedReads,
    channel: String,
}

#[async_trait]
impl FindPrimary for PeerEnvironment {
    async fn primary(&self) -> io::Result<Link> {
        self.locator.find().await
    }

    fn work_handler(&self) -> Option<Arc<dyn WorkHandler>> {
        Some(self.verification_worker.clone())
    }

    fn announcement(&self) -> Announcement {
        let processors = self.processors.to_string();
        Announcement { addresses: self.addresses.clone(), processors, is_draining: false }
    }
}

#[async_trait]
impl FollowerEnvironment for PeerEnvironment {
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        self.memory.open_read_only().await
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        if self.storage.is_single() {
            let remote = self.storage.first_remote(&self.channel, Epoch(0));
            return Ok(Arc::new(RemoteStateStore::open_read_only(remote).await?));
        }
        Ok(Arc::new(self.reads.rows()))
    }
}

#[async_trait]
impl FollowedPeer for FollowedChannel {
    fn height(&self) -> u64 {
        ChannelView::height(self)
    }

    fn is_live(&self) -> bool {
        FollowedChannel::is_live(self)
    }

    async fn orphaned(&self, timeouts: FailoverTimeouts) {
        self.follower().orphaned(timeouts).await;
    }
}

/// The peer's stores under this epoch, restricted to the one channel that the epoch belongs to.
struct PrimaryStores {
    stores: NodeStores,
    channel: String,
    role: Arc<PrimaryRole>,
}

#[async_trait]
impl PeerStores for PrimaryStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = self.stores.channels().await?;
        channels.retain(|channel| *channel == self.channel);
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        self.stores.open(channel).await
    }

    fn primary_role(&self) -> Option<Arc<PrimaryRole>> {
        Some(self.role.clone())
    }

    async fn stopped(&self, channel: &str, durable: Watermark) {
        self.stores.stopped(channel, durable).await;
    }
}

/// A state, and the rows over which it was opened.
type OpenedState = (Weak<Disaggregated>, Arc<dyn StateStore>);

/// The state of this epoch, once it is open.
struct EpochStates {
    options: ComputeNodeSetup,
    epoch: Epoch,
    found: Mutex<Option<OpenedState>>,
}

#[async_trait]
impl WorldStateFactory for EpochStates {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        let memory = self.options.memory.open(self.epoch).await?;
        let state = Disaggregated::open(memory, rows.clone(), self.options.state.clone()).await?;
        let state = Arc::new(state);
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some((Arc::downgrade(&state), rows));
        Ok(state)
    }
}

/// A peer that commits, under one epoch.
pub(super) struct CommittingPeer {
    peer: Arc<Peer>,
    channel: Arc<Channel>,
    state: Weak<Disaggregated>,
    rows: Arc<dyn StateStore>,
    role: Arc<PrimaryRole>,
}

impl CommittingPeer {
    /// The followers, as they have reported themselves.
    pub(super) fn reported(&self) -> Vec<ReportedNode> {
        self.role.reported()
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// The world state in remote memory; `None` once the peer has ended.
    pub(super) fn world_state(&self) -> Option<Arc<Disaggregated>> {
        self.state.upgrade()
    }
}

#[async_trait]
impl PrimaryPeer for CommittingPeer {
    type Error = Error;

    fn height(&self) -> u64 {
        self.channel.height()
    }

    fn committed(&self) -> WatchReceiver<u64> {
        self.channel.committed()
    }

    fn state(&self) -> Weak<dyn ReplicatedState> {
        self.state.clone()
    }

    fn store(&self) -> Arc<dyn StateStore> {
        self.rows.clone()
    }

    fn has_failed(&self) -> bool {
        self.channel.failure().is_some()
    }

    async fn stopped(&self) -> Error {
        self.channel.stopped().await;
        match self.channel.failure() {
            Some(failure) => Error::Rejected {
                name: "the channel's pipeline".to_owned(),
                kind: failure.kind(),
                reason: failure.to_string(),
            },
            None => Error::Stopped,
        }
    }

    async fn stop(&self) -> Result<(), Error> {
        self.peer.stop().await
    }
}
