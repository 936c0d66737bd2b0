//! Several compute nodes of one peer in a channel. One of them is the primary and the others follow it. When the
//! primary fails, one of the followers takes over.
//!
//! The compute nodes need no coordinator besides the storage node. A compute node knows the address of its storage node,
//! and the address at which each other node would answer as the primary. The newest epoch at the storage node decides which
//! node is the primary.
//!
//! Following:
//! 1. The node asks the storage node for the newest epoch and connects to the addresses of the other compute nodes. Only
//!    the primary listens at its address, and it first sends its epoch ([`primary_locator`]). The node follows the primary
//!    that has the newest epoch, as [`state::Follower`] describes.
//! 2. Meanwhile the node runs proposals, for queries and for endorsements, on the state that it follows and on the
//!    blocks that the storage node keeps ([`FollowedChannel`]).
//!
//! Taking over:
//! 3. A follower waits until it has had no lease for [`FAILOVER_TIMEOUTS`]: the short time if every other node rejects the
//!    connection, the long time if one of them does not answer. The storage node must answer, and its newest epoch must not
//!    have changed for the short time. Then the follower asks the storage node to start the next epoch, unless the storage
//!    node has fewer blocks than this node has [noted](storage::watermark). If several followers ask, the storage node
//!    accepts one of them; the others return to step 1 and find the new primary.
//! 4. From then on the storage node rejects writes of the old primary. The new primary listens, so that the other nodes see
//!    that an epoch has started. It opens blocks, rows and memory under its epoch, replays the blocks above the savepoint,
//!    and receives blocks from the orderers.
//! 5. The new primary waits until every lease that the old primary can have granted or held has ended. Then it raises
//!    heights (the state enforces this order), admits followers, and shows its channel. The wait is needed even if there is
//!    nothing to replay: until the leases end, a follower of the old primary may answer from a height below that of the
//!    storage node.
//!
//! Serving:
//! 6. The primary commits blocks. It answers proposals only while it [holds its primary lease](PrimaryLease): the storage
//!    node has confirmed that no newer epoch exists, and less than one lease has passed since the primary asked. Hence a
//!    primary that resumes after a pause returns no stale answer, even if no message about the new primary has reached it.
//! 7. When the primary is fenced, or fails in a way that another start may repair, it ends its channel and returns to step
//!    1.
//!
//! Invariants:
//! * Of the compute nodes of a peer, only the one with the newest epoch appends blocks. A failover loses no
//!   acknowledged block: a commit is acknowledged only once its block is durable at the storage node, and every primary
//!   starts with all durable blocks.
//! * After a client was notified of a commit, every compute node answers its later proposals from a state that contains the
//!   commit.
//!
//! During a failover, proposals may fail with `Retry` until new leases are granted. A client that waits for a commit keeps
//! waiting, and the new primary answers it ([`crate::remote`]).

mod followed;
mod primary_lease;
mod primary_locator;
mod primary_session;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::rt::{self, AbortOnDrop, CancellationToken, Task};
use base::{Bytes, Epoch, ErrorKind};
use block_transport::SourceAddresses;
use contract::ContractRegistry;
use identity::{SignatureVerifier, Signer};
use ledger::{Block, ChannelConfig};
use proto::protos::{ProposalResponse, Response};
use state::disaggregated::followers::FailoverTimeouts;
use state::disaggregated::memory::{Memory, MemoryError, ReadOnlyMemory};
use state::{Disaggregated, DisaggregatedConfig, Follower};
use storage::WatermarkFile;
use storage::node::RemoteStoreConfig;

use crate::access::{ChannelPolicies, ContractDefinitions};
use crate::endorse::{Endorse, EndorseError, Endorser, EndorsingChannel, EndorsingChannels};
use crate::peer::{PeerConfig, define};
use crate::stores::begin_epoch;
use crate::validate::offload::OffloadCounts;
use crate::view::{ChannelView, PeerView};
use crate::{Channel, Error, Peer, events};
pub use followed::FollowedChannel;
pub use primary_lease::PrimaryLease;
use primary_locator::PrimaryLocator;
use primary_session::PrimarySession;

/// How long a follower may be without a lease before it takes over.
pub const FAILOVER_TIMEOUTS: FailoverTimeouts =
    FailoverTimeouts { gone: Duration::from_millis(50), silent: Duration::from_secs(1) };
/// The largest number of compute nodes of one peer.
pub const NODES_MAX: usize = state::disaggregated::followers::FOLLOWERS_MAX + 1;
/// The factor by which a node that has followed no primary yet waits longer. A node that has followed one is a better
/// primary than a node that has just started, such as the restarted old primary.
const NEVER_FOLLOWED_FACTOR: u32 = 4;
/// The pause after a primary has ended or has failed to start.
const RESTART_PAUSE: Duration = Duration::from_millis(20);
/// How often the gauges are updated.
const GAUGE_PERIOD: Duration = Duration::from_millis(100);

/// The remote memory of a peer, as one of its compute nodes reaches it.
#[async_trait]
pub trait PeerMemory: Send + Sync + 'static {
    /// Opens the memory for writing, and revokes all access that was given under earlier epochs.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn Memory>, Error>;

    /// Opens the memory for reading, with no section yet.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open_read_only(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError>;

    /// Closes the memory that was opened last.
    async fn close(&self);
}

/// What a compute node needs to run beside the other compute nodes of its peer.
#[derive(Clone)]
pub struct ComputeNodeSetup {
    /// For logs.
    pub name: String,
    /// Signs endorsements: the same identity at all compute nodes of the peer.
    pub signer: Signer,
    /// The contracts that this node can run.
    pub registry: ContractRegistry,
    /// The contracts of the channel, as [`crate::PeerSetup::definitions`].
    pub definitions: ContractDefinitions,
    /// The genesis block of the one channel that the node takes part in.
    pub genesis: Block,
    /// Where orderers serve blocks.
    pub orderers: SourceAddresses,
    /// How the peer checks proposals and commits blocks.
    pub settings: PeerConfig,
    /// The peer's storage node.
    pub storage: String,
    /// The token that the storage node requires.
    pub token: Bytes,
    /// Where this node answers the others while it is the primary.
    pub address: String,
    /// Where the other compute nodes answer while they are the primary.
    pub others: Vec<String>,
    /// The node's durable note of how far the channel has come. The node does not take over if the storage node has
    /// less than the note.
    pub watermark: Option<Arc<WatermarkFile>>,
    /// The other compute nodes, by the names that their links prove. Only these may follow the state, and only these
    /// may verify transactions for this node.
    pub parties: Parties,
    /// The peer's remote memory, as this node reaches it.
    pub memory: Arc<dyn PeerMemory>,
    /// The settings of the world state in that memory.
    pub state: DisaggregatedConfig,
    /// How long the node may be without a lease before it takes over; see [`FAILOVER_TIMEOUTS`].
    pub failover_timeouts: FailoverTimeouts,
}

/// The role of a compute node in its peer at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeRole {
    /// It looks for a primary, or is starting as the primary.
    Waiting,
    /// It follows the primary, and may answer.
    Follower,
    /// It is the primary under this epoch.
    Primary(Epoch),
}

/// A compute node that is the primary.
#[derive(Clone)]
pub struct ActivePrimary {
    /// The epoch under which it is the primary.
    pub epoch: Epoch,
    /// Number of blocks in the channel when the epoch started.
    pub start_height: u64,
    /// The peer, with its one channel.
    pub peer: Arc<Peer>,
    /// The channel.
    pub channel: Arc<Channel>,
    /// The channel's world state in remote memory.
    pub state: Arc<Disaggregated>,
}

/// The first block that a new primary applied: the end of a failover, as measurements count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverSample {
    /// The epoch of the new primary.
    pub epoch: Epoch,
    /// The number of the block.
    pub number: u64,
    /// When the block was applied.
    pub at: rt::WallTime,
}

/// A running compute node.
pub struct ComputeNode {
    shared: Arc<ComputeNodeCore>,
    task: Mutex<Option<Task<()>>>,
    _counting: AbortOnDrop<()>,
}

struct ComputeNodeCore {
    options: ComputeNodeSetup,
    policies: Arc<ChannelPolicies>,
    channel_name: String,
    active_role: Arc<ActiveRole>,
    endorser: Endorser,
    failover_sample: Mutex<Option<FailoverSample>>,
    failure: Mutex<Option<Arc<Error>>>,
    failed: CancellationToken,
    stop: CancellationToken,
}

/// The role from which the node answers now.
#[derive(Default)]
struct ActiveRole(RwLock<ServingRole>);

#[derive(Clone, Default)]
enum ServingRole {
    #[default]
    None,
    Following(Arc<FollowedChannel>),
    Primary(Arc<PrimarySession>),
}

impl ActiveRole {
    fn get(&self) -> ServingRole {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, role: ServingRole) {
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), role);
        // Dropped after the lock is released.
        drop(before);
    }
}

impl EndorsingChannels for ActiveRole {
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        self.all().pop().filter(|channel| channel.policies().channel().as_str() == name)
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        match self.get() {
            ServingRole::None => Vec::new(),
            ServingRole::Following(channel) => vec![channel],
            ServingRole::Primary(session) => vec![session.channel().clone()],
        }
    }
}

impl ComputeNode {
    /// Starts the node, which begins by looking for a primary.
    ///
    /// # Errors
    /// If the channel's policies cannot be read from its genesis block.
    pub fn start(mut options: ComputeNodeSetup) -> Result<ComputeNode, Error> {
        define(&options.registry, &mut options.definitions);
        // The caller may give the same settings to several nodes; each node counts for itself.
        options.settings.commit.offload.counts = Arc::default();
        let config = Arc::new(ChannelConfig::from_block(&options.genesis)?);
        let policies = ChannelPolicies::new(config, options.definitions.clone())?;
        let policies =
            Arc::new(policies.verified_by(options.settings.verifier.unwrap_or_else(SignatureVerifier::of_process)));
        let active_role = Arc::new(ActiveRole::default());
        let endorser = Endorser::new(
            options.signer.clone(),
            options.registry.clone(),
            options.settings.endorse.clone(),
            active_role.clone(),
        );
        let shared = Arc::new(ComputeNodeCore {
            channel_name: policies.channel().to_string(),
            options,
            policies,
            active_role,
            endorser,
            failover_sample: Mutex::default(),
            failure: Mutex::default(),
            failed: CancellationToken::new(),
            stop: CancellationToken::new(),
        });
        let task = Mutex::new(Some(rt::spawn(Arc::clone(&shared).run())));
        let counting = rt::spawn(update_gauges(Arc::clone(&shared))).abort_on_drop();
        Ok(ComputeNode { shared, task, _counting: counting })
    }

    /// The node's current role.
    pub fn role(&self) -> ComputeRole {
        self.shared.role()
    }

    /// The height that the node shows: 0 while it waits.
    pub fn height(&self) -> u64 {
        self.shared.height()
    }

    /// The first new block that the node applied after it last became the primary. Blocks that existed before do not
    /// count.
    pub fn failover_sample(&self) -> Option<FailoverSample> {
        *self.shared.failover_sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel and stores of the primary, while this node is it.
    pub fn primary(&self) -> Option<ActivePrimary> {
        match self.shared.active_role.get() {
            ServingRole::Primary(session) => Some(ActivePrimary {
                epoch: session.epoch(),
                start_height: session.start_height(),
                peer: session.peer().clone(),
                channel: session.channel().clone(),
                state: session.state()?,
            }),
            ServingRole::None | ServingRole::Following(_) => None,
        }
    }

    /// How many transactions followers have verified for this node, and this node for its primary.
    pub fn offload_counts(&self) -> &Arc<OffloadCounts> {
        &self.shared.options.settings.commit.offload.counts
    }

    /// Why the node has ended by itself, if it has.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Completes when the node has ended by itself.
    pub async fn failed(&self) {
        self.shared.failed.cancelled().await;
    }

    /// Why the node can neither answer nor commit now; `None` if it can.
    pub fn stalled(&self) -> Option<String> {
        match self.shared.active_role.get() {
            ServingRole::Primary(session) => session.channel().stalled(),
            ServingRole::Following(channel) if channel.is_live() => None,
            ServingRole::None | ServingRole::Following(_) => {
                Some("it follows no primary of its peer for now".to_owned())
            }
        }
    }

    /// Stops the node. A primary finishes the blocks that it has validated, and makes them durable.
    ///
    /// # Errors
    /// The primary's errors; the node has stopped nevertheless.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task that panicked has reported it already.
            let _ = task.await;
        }
        Ok(())
    }
}

impl Drop for ComputeNode {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl PeerView for ComputeNode {
    /// The channel at the primary, and `None` at a follower: clients that want to see commits ask the primary.
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        self.channels().pop().filter(|channel| channel.policies().channel().as_str() == name)
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        match self.shared.active_role.get() {
            ServingRole::Primary(session) if session.is_seen() => vec![session.channel().clone()],
            _ => Vec::new(),
        }
    }

    fn knows_channels(&self) -> bool {
        !self.channels().is_empty()
    }
}

#[async_trait]
impl Endorse for ComputeNode {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        self.shared.endorser.process(signed_proposal).await.map_err(|error| self.shared.unavailable(error))
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        self.shared.endorser.evaluate(signed_proposal).await.map_err(|error| self.shared.unavailable(error))
    }
}

impl ComputeNodeCore {
    fn role(&self) -> ComputeRole {
        match self.active_role.get() {
            ServingRole::Following(channel) if channel.is_live() => ComputeRole::Follower,
            ServingRole::None | ServingRole::Following(_) => ComputeRole::Waiting,
            ServingRole::Primary(session) => ComputeRole::Primary(session.epoch()),
        }
    }

    fn height(&self) -> u64 {
        match self.active_role.get() {
            ServingRole::None => 0,
            ServingRole::Following(channel) => ChannelView::height(&*channel),
            ServingRole::Primary(session) => session.channel().height(),
        }
    }

    fn remote(&self, epoch: Epoch) -> RemoteStoreConfig {
        RemoteStoreConfig {
            address: self.options.storage.clone(),
            token: self.options.token.clone(),
            channel: self.channel_name.clone(),
            epoch,
        }
    }

    /// A channel that cannot be shown for now is not an unknown channel: the error says `Retry`.
    fn unavailable(&self, error: EndorseError) -> EndorseError {
        match error {
            EndorseError::UnknownChannel(name) if name == self.channel_name => EndorseError::State {
                kind: ErrorKind::Retry,
                message: "this compute node has no primary to follow for now; retry, here or at another one".to_owned(),
            },
            error => error,
        }
    }

    async fn run(self: Arc<Self>) {
        while !self.stop.is_cancelled() {
            let name = &self.options.name;
            let epoch = match self.stop.run_until_cancelled(self.follow_primary()).await {
                Some(Ok(epoch)) => epoch,
                Some(Err(error)) => {
                    self.active_role.set(ServingRole::None);
                    self.fail(error);
                    break;
                }
                None => break,
            };
            tracing::info!(node = name, epoch = epoch.get(), "takes the primary's place");
            events::Promotions.add(1);
            let Err(error) = self.run_primary(epoch).await else { break };
            events::Demotions.add(1);
            match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Rejected => {
                    self.fail(error);
                    break;
                }
                ErrorKind::Fenced => tracing::info!(node = name, "another compute node is the primary now"),
                _ => tracing::warn!(node = name, %error, "is the primary no longer, or not yet"),
            }
            let _stopped = self.stop.run_until_cancelled(rt::sleep(RESTART_PAUSE)).await;
        }
        self.active_role.set(ServingRole::None);
    }

    /// Ends the node for good; its operator reads the reason in [`ComputeNode::failure`].
    fn fail(&self, error: Error) {
        tracing::error!(node = self.options.name, %error, "the compute node cannot go on");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
        self.failed.cancel();
    }

    /// Steps 1 to 3: returns when this node has an epoch of its own.
    ///
    /// # Errors
    /// If the storage node holds data on which no primary can start: damaged data, or blocks and tables that do not
    /// belong together.
    async fn follow_primary(self: &Arc<Self>) -> Result<Epoch, Error> {
        let options = &self.options;
        let locator = Arc::new(PrimaryLocator::new(self));
        let reader = Follower::start(locator.clone(), options.state.clone());
        let channel = Arc::new(FollowedChannel::new(self.policies.clone(), reader, self.remote(Epoch(0))));
        self.active_role.set(ServingRole::Following(channel.clone()));
        let since = rt::now();
        loop {
            channel.follower().orphaned(options.failover_timeouts).await;
            let has_followed = ChannelView::height(&*channel) > 0;
            if !has_followed && since.elapsed() < options.failover_timeouts.gone * NEVER_FOLLOWED_FACTOR {
                continue;
            }
            let Some(newest) = locator.stable_epoch(options.failover_timeouts.gone) else { continue };
            match begin_epoch(self.remote(Epoch(0)), Some(newest), options.watermark.as_deref()).await {
                Ok(epoch) => {
                    self.active_role.set(ServingRole::None);
                    return Ok(epoch);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => return Err(error),
                Err(error) => {
                    locator.forget_epoch();
                    tracing::debug!(node = options.name, %error, "does not take the primary's place");
                }
            }
        }
    }

    /// Steps 4 to 7. `Ok` if the node was asked to stop.
    async fn run_primary(self: &Arc<Self>, epoch: Epoch) -> Result<(), Error> {
        let session = match self.stop.run_until_cancelled(PrimarySession::start(self, epoch)).await {
            None => {
                self.options.memory.close().await;
                return Ok(());
            }
            Some(Err(error)) => {
                self.options.memory.close().await;
                return Err(error);
            }
            Some(Ok(session)) => Arc::new(session),
        };
        self.active_role.set(ServingRole::Primary(session.clone()));
        let noting = rt::spawn(record_failover(Arc::clone(self), session.clone())).abort_on_drop();
        let ended = self.stop.run_until_cancelled(session.ended()).await;
        drop(noting);
        self.active_role.set(ServingRole::None);
        let stopped = session.stop().await;
        drop(session);
        self.options.memory.close().await;
        match ended {
            None => {
                stopped.inspect_err(|error| tracing::warn!(node = self.options.name, %error, "it stops")).or(Ok(()))
            }
            Some(error) => Err(error),
        }
    }
}

/// The last values that one node has added to the gauges.
#[derive(Default)]
struct RoleGauges {
    primaries: i64,
    followers: i64,
}

impl RoleGauges {
    fn update(&mut self, role: Option<ComputeRole>) {
        let primaries = i64::from(matches!(role, Some(ComputeRole::Primary(_))));
        let readers = i64::from(matches!(role, Some(ComputeRole::Follower)));
        events::PrimaryNodes.add(primaries - self.primaries);
        events::FollowerNodes.add(readers - self.followers);
        (self.primaries, self.followers) = (primaries, readers);
    }
}

impl Drop for RoleGauges {
    fn drop(&mut self) {
        self.update(None);
    }
}

/// Updates the gauges.
async fn update_gauges(shared: Arc<ComputeNodeCore>) {
    let (mut counted, mut height) = (RoleGauges::default(), 0);
    loop {
        counted.update(Some(shared.role()));
        let before = std::mem::replace(&mut height, shared.height());
        if before != height {
            events::ComputeHeight.set(height as i64);
        }
        rt::sleep(GAUGE_PERIOD).await;
    }
}

/// Notes when the first block of an epoch was applied.
async fn record_failover(shared: Arc<ComputeNodeCore>, session: Arc<PrimarySession>) {
    let number = session.start_height();
    if session.channel().committed().wait_for(|height| *height > number).await.is_ok() {
        let first = FailoverSample { epoch: session.epoch(), number, at: rt::wall_now() };
        *shared.failover_sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
    }
}
