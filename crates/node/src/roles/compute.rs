//! Endorses and commits for one organisation.
//!
//! In the disaggregated form, blocks and rows lie at the storage node. A peer with one compute node starts in these
//! steps:
//! 1. Have the storage node start the channel's next epoch, and open blocks and rows under it. From then on the storage
//!    node rejects requests of an earlier primary.
//! 2. Open the address space under the same epoch. This reclaims the memory of an earlier primary.
//! 3. Replay the blocks above the savepoint, then follow the orderer.
//!
//! If a peer has several compute nodes, one is the primary and the others are its followers. [`replica::failover`]
//! chooses the primary and performs the takeover.
//!
//! The monolithic form has its own block store and tables.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, Backoff, disk::Directory};
use base::{Bytes, ErrorKind};
use block_transport::SourceAddresses;
use chain::compute_node::{ComputeNode, ComputeNodeSetup, PeerMemory as _};
use chain::endorse::{Endorse, EndorseError, EndorsingChannel, HostsChannels};
use chain::peer::PeerConfig;
use chain::stores::{NodeStores, PeerStores};
use chain::view::{ChannelView, PeerView};
use chain::{Channel, LocalStores, Peer, PeerSetup};
use contract::ContractRegistry;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use pool::VerbCounts;
use private_data::MemberPeers;
use proto::discovery::Peer as Description;
use proto::protos::{ProposalResponse, Response};
use replica::failover::begin_epoch;
use replica::load::{LoadReport, ReportedNode};
use replica::offload::OffloadConfig;
use replica::{ComputeRole, FAILOVER_TIMEOUTS};
use rules::definitions::ContractDefinitions;
use storage::tables::TablesEngine;
use storage::{DataDirectory, GroupSync, WatermarkFile};

use super::pooled_memory::{PeerNodes, PooledMemory, PooledStates, RemoteBackends};
use crate::config::HeddleConfig;
use crate::control::{ComputeReport, FailoverSampleReport, NodeLoadReport};
use crate::metrics;
use crate::network::NodeError;
use crate::process::ProcessEnd;

/// The pause before the first retry at a storage node that does not answer; it doubles with each retry.
const STORAGE_BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest such pause.
const STORAGE_BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How often a compute node that still waits for its role is polled.
const READY_PERIOD: Duration = Duration::from_millis(5);

/// What a compute node needs in either form.
pub(crate) struct ComputeConfig<'a> {
    /// For logs and errors.
    pub name: &'a str,
    /// Signs endorsements.
    pub signer: Signer,
    pub registry: ContractRegistry,
    pub definitions: ContractDefinitions,
    /// Genesis block of the channel that the node joins.
    pub genesis: &'a Block,
    /// Addresses from which orderers stream blocks.
    pub orderers: SourceAddresses,
    /// The peers of other organisations.
    pub members: Arc<MemberPeers>,
    pub settings: PeerConfig,
}

/// The local disk of a monolithic peer.
pub(crate) struct LocalBackends {
    /// Locks the data directory while the peer runs.
    pub data: DataDirectory,
    pub directory: Directory,
    pub sync: GroupSync,
    pub tables: Arc<dyn TablesEngine>,
    pub state: state::MonolithicConfig,
}

/// A running peer, or one of its compute nodes.
pub(crate) struct ComputeInstance {
    pub(super) name: String,
    pub(super) node: NodeMode,
    pub(super) memory: Option<Arc<PooledMemory>>,
    /// The channel of a peer with pooled memory.
    pub(super) channel_name: Option<String>,
    /// Serialises changes of the budget, so that the value stored last is the one in force.
    pub(super) budget_lock: rt::sync::Mutex<()>,
    _data: Option<DataDirectory>,
}

pub(super) enum NodeMode {
    /// The only compute node of its peer.
    SingleNode { peer: Arc<Peer>, channel: Arc<Channel> },
    /// One of several compute nodes.
    PeerNodes(Box<ComputeNode>),
}

/// The peer's settings, from the configuration and the address of its organisation's port for clients.
pub(crate) fn peer_config(config: &HeddleConfig, client_address: String) -> PeerConfig {
    let mut settings = PeerConfig::default();
    settings.endorse.client_address = client_address;
    settings.endorse.concurrency_max = config.limits.proposals;
    settings.commit.persist_interval_blocks = config.storage.savepoint_blocks;
    settings.commit.replay_blocks_max = 2 * config.storage.savepoint_blocks;
    settings.commit.conflicts = config.pool.validation.mode();
    settings.commit.early_abort = config.ordering.early_abort;
    settings.commit.offload = OffloadConfig {
        mode: config.pool.offload.offload_mode(),
        spot_check_one_in: config.pool.spot_check_one_in,
        load: utilisation::of_process(),
        ..OffloadConfig::default()
    };
    settings
}

/// The memory settings of a monolithic peer's state.
pub(crate) fn local_state(storage: &crate::config::StateStorageConfig) -> state::MonolithicConfig {
    state::MonolithicConfig {
        cache_bytes: storage.cache_bytes,
        delta_bytes_max: storage.delta_bytes,
        ..state::MonolithicConfig::default()
    }
}

impl ComputeInstance {
    /// Opens a monolithic peer.
    pub(crate) async fn monolithic(
        options: ComputeConfig<'_>,
        local: LocalBackends,
    ) -> Result<ComputeInstance, NodeError> {
        utilisation::pace_computations();
        let mut stores = LocalStores::new(options.name, local.directory, local.sync, local.tables);
        stores.state = local.state;
        Ok(ComputeInstance {
            _data: Some(local.data),
            ..ComputeInstance::open(&options, Arc::new(stores), None).await?
        })
    }

    /// Opens a disaggregated peer. Retries until the storage node answers.
    pub(crate) async fn disaggregated(
        options: ComputeConfig<'_>,
        remote: RemoteBackends,
    ) -> Result<ComputeInstance, NodeError> {
        utilisation::pace_computations();
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        // Opened once for all attempts.
        let watermark = Arc::new(WatermarkFile::open(super::watermarks(&remote.watermark_folder).await?, &channel)?);
        let mut backoff = Backoff::new(STORAGE_BACKOFF_MIN, STORAGE_BACKOFF_MAX);
        loop {
            let error = match ComputeInstance::try_start(&options, &remote, &channel, &watermark).await {
                Err(error) if error.kind() == ErrorKind::Retry => error,
                outcome => return outcome.map(|started| ComputeInstance { channel_name: Some(channel), ..started }),
            };
            tracing::warn!(peer = options.name, %error, "cannot start yet");
            backoff.wait().await;
        }
    }

    async fn try_start(
        options: &ComputeConfig<'_>,
        remote: &RemoteBackends,
        channel: &str,
        watermark: &Arc<WatermarkFile>,
    ) -> Result<ComputeInstance, NodeError> {
        let storage = remote.storage.clone();
        let memory = Arc::new(PooledMemory::new(remote.clone()));
        drop(rt::spawn(PooledMemory::probe(Arc::downgrade(&memory))));
        if let Some(among) = &remote.peer_nodes {
            return ComputeInstance::start_peer_node(options, among.clone(), watermark.clone(), memory);
        }
        let begun = begin_epoch(&storage, channel, None, Some(watermark.as_ref())).await;
        let epoch = begun.map_err(|source| NodeError::Chain { who: options.name.to_owned(), source: source.into() })?;
        let states = Arc::new(PooledStates { memory: memory.clone(), epoch });
        let stores = NodeStores { storage, epoch, states, watermark: Some(watermark.clone()) };
        ComputeInstance::open(options, Arc::new(stores), Some(memory)).await
    }

    /// Starts one of several compute nodes; it finds its role by itself.
    fn start_peer_node(
        options: &ComputeConfig<'_>,
        peer_nodes: PeerNodes,
        watermark: Arc<WatermarkFile>,
        memory: Arc<PooledMemory>,
    ) -> Result<ComputeInstance, NodeError> {
        let name = options.name.to_owned();
        let node = ComputeNode::start(ComputeNodeSetup {
            name: name.clone(),
            signer: options.signer.clone(),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            genesis: options.genesis.clone(),
            orderers: options.orderers.clone(),
            members: options.members.clone(),
            settings: options.settings.clone(),
            storage: memory.remote.storage.clone(),
            address: peer_nodes.address,
            others: peer_nodes.others,
            addresses: peer_nodes.addresses,
            watermark: Some(watermark),
            parties: peer_nodes.parties,
            state: memory.remote.state.clone(),
            memory: memory.clone(),
            failover_timeouts: FAILOVER_TIMEOUTS,
        })
        .map_err(|source| NodeError::Chain { who: name.clone(), source })?;
        let setting = rt::sync::Mutex::new(());
        Ok(ComputeInstance {
            name,
            node: NodeMode::PeerNodes(Box::new(node)),
            memory: Some(memory),
            channel_name: None,
            budget_lock: setting,
            _data: None,
        })
    }

    async fn open(
        options: &ComputeConfig<'_>,
        stores: Arc<dyn PeerStores>,
        memory: Option<Arc<PooledMemory>>,
    ) -> Result<ComputeInstance, NodeError> {
        let name = options.name.to_owned();
        let failed = |source| NodeError::Chain { who: name.clone(), source };
        let peer = Peer::open(PeerSetup {
            name: name.clone(),
            signer: options.signer.clone(),
            stores,
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            orderers: options.orderers.clone(),
            members: options.members.clone(),
            settings: options.settings.clone(),
        })
        .await
        .map_err(failed)?;
        let channel = peer.join(options.genesis).await.map_err(failed)?;
        let node = NodeMode::SingleNode { peer, channel };
        Ok(ComputeInstance {
            name,
            node,
            memory,
            channel_name: None,
            budget_lock: rt::sync::Mutex::new(()),
            _data: None,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The verbs that this node's state has posted; `None` in the monolithic form.
    pub(crate) fn verbs(&self) -> Option<VerbCounts> {
        Some(self.memory.as_ref()?.space()?.verbs())
    }

    /// Notes for health: the memory nodes that do not answer, which the peer replaces by storage and other memory; and
    /// the compute nodes of the peer that returned false verdicts.
    pub(crate) fn notes(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let memory = self.memory.clone();
        let counts = match &self.node {
            NodeMode::SingleNode { .. } => Arc::default(),
            NodeMode::PeerNodes(node) => node.offload_counts().clone(),
        };
        move || {
            let liars = counts.liars().into_iter().map(|liar| {
                format!(
                    "{liar} returned false verdicts and gets no more work; remove it from the peer and renew its keys"
                )
            });
            let space = memory.as_ref().and_then(|memory| memory.space());
            let donors = space.map(|space| space.donors()).unwrap_or_default();
            let missed = donors.into_iter().filter(|donor| !donor.answers);
            let missed = missed.map(|donor| {
                let problem = donor.problem.unwrap_or_else(|| "it is not connected yet".to_owned());
                format!("the memory node at {} does not answer: {problem}", donor.address)
            });
            liars.chain(missed).collect()
        }
    }

    /// The node's role in its peer.
    pub(crate) fn report(&self) -> ComputeReport {
        let role = |standing| match standing {
            ComputeRole::Waiting => ("waiting", None),
            ComputeRole::Follower => ("follower", None),
            ComputeRole::Primary(epoch) => ("primary", Some(epoch.get())),
        };
        let (name, process) = (self.name.clone(), std::process::id());
        match &self.node {
            NodeMode::SingleNode { channel, .. } => {
                let (role, height) = ("single".to_owned(), channel.height());
                let (offloaded, verified_for_primary, distrusted) = (0, 0, Vec::new());
                ComputeReport {
                    name,
                    process,
                    role,
                    epoch: None,
                    height,
                    first_block: None,
                    load: None,
                    offloaded,
                    verified_for_primary,
                    distrusted,
                }
            }
            NodeMode::PeerNodes(node) => {
                let (role, epoch) = role(node.role());
                let first_block = node.failover_sample().map(|first| FailoverSampleReport {
                    epoch: first.epoch.get(),
                    number: first.number,
                    at_unix_ns: first.at.nanos(),
                });
                let (role, height) = (role.to_owned(), node.height());
                let LoadReport { percent, queued } = node.load().report();
                let (offloaded, verified_for_primary) =
                    (node.offload_counts().offloaded(), node.offload_counts().verified_for_others());
                let distrusted = node.offload_counts().liars().iter().map(|liar| liar.to_string()).collect();
                ComputeReport {
                    name,
                    process,
                    role,
                    epoch,
                    height,
                    first_block,
                    load: Some(NodeLoadReport { percent, queued }),
                    offloaded,
                    verified_for_primary,
                    distrusted,
                }
            }
        }
    }

    /// The peer, if this node commits.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => Some(peer.clone()),
            NodeMode::PeerNodes(node) => node.primary().map(|primary| primary.peer),
        }
    }

    /// The channel, if this node commits.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        match &self.node {
            NodeMode::SingleNode { channel, .. } => Some(channel.clone()),
            NodeMode::PeerNodes(node) => node.primary().map(|primary| primary.channel),
        }
    }

    /// Waits until the node answers proposals.
    pub(crate) async fn ready(&self) {
        if let NodeMode::PeerNodes(node) = &self.node {
            while node.role() == ComputeRole::Waiting {
                rt::sleep(READY_PERIOD).await;
            }
        }
    }

    /// Completes when the node has stopped by itself, with the reason.
    pub(crate) async fn failed(&self) -> ProcessEnd {
        match &self.node {
            NodeMode::SingleNode { channel, .. } => channel.stopped().await,
            NodeMode::PeerNodes(node) => node.failed().await,
        }
        super::end_reason(&self.name, metrics::MonitoredPart::failure(self))
    }

    /// Has the node get nothing new, and returns once it has answered what it had accepted.
    pub(crate) async fn drain(&self) {
        if let NodeMode::PeerNodes(node) = &self.node {
            node.drain().await;
        }
    }

    /// Commits the blocks that are validated already, makes them durable, and stops.
    pub(crate) async fn stop(&self) -> Result<(), NodeError> {
        let stopped = match &self.node {
            NodeMode::SingleNode { peer, .. } => peer.stop().await,
            NodeMode::PeerNodes(node) => node.stop().await,
        };
        if let Some(memory) = &self.memory {
            memory.close().await;
        }
        stopped.map_err(|source| NodeError::Chain { who: self.name.clone(), source })
    }
}

impl HostsChannels for ComputeInstance {
    fn endorsing_channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => peer.endorsing_channel(name),
            NodeMode::PeerNodes(node) => node.endorsing_channel(name),
        }
    }
}

impl PeerView for ComputeInstance {
    fn nodes(&self) -> Vec<ReportedNode> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => PeerView::nodes(&**peer),
            NodeMode::PeerNodes(node) => node.nodes(),
        }
    }

    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => PeerView::channel(&**peer, name),
            NodeMode::PeerNodes(node) => node.channel(name),
        }
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => PeerView::channels(&**peer),
            NodeMode::PeerNodes(node) => node.channels(),
        }
    }

    fn knows_channels(&self) -> bool {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => PeerView::knows_channels(&**peer),
            NodeMode::PeerNodes(node) => node.knows_channels(),
        }
    }
}

#[async_trait]
impl Endorse for ComputeInstance {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => peer.process(signed_proposal).await,
            NodeMode::PeerNodes(node) => node.process(signed_proposal).await,
        }
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => peer.evaluate(signed_proposal).await,
            NodeMode::PeerNodes(node) => node.evaluate(signed_proposal).await,
        }
    }

    async fn describe(&self, channel: &str) -> Result<Description, EndorseError> {
        match &self.node {
            NodeMode::SingleNode { peer, .. } => peer.describe(channel).await,
            NodeMode::PeerNodes(node) => node.describe(channel).await,
        }
    }
}

impl metrics::MonitoredPart for ComputeInstance {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        match &self.node {
            NodeMode::SingleNode { channel, .. } => channel.failure(),
            NodeMode::PeerNodes(node) => node.failure(),
        }
    }

    fn stalled(&self) -> Option<String> {
        match &self.node {
            NodeMode::SingleNode { channel, .. } => channel.stalled(),
            NodeMode::PeerNodes(node) => node.stalled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savepoints_are_as_far_apart_as_the_configuration_says() {
        let mut config = HeddleConfig::default();
        assert_eq!(peer_config(&config, String::new()).commit.persist_interval_blocks, 32);
        config.storage.savepoint_blocks = 7;
        let commit = peer_config(&config, String::new()).commit;
        assert_eq!((commit.persist_interval_blocks, commit.replay_blocks_max), (7, 14));
    }
}
