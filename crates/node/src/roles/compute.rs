//! Endorses and commits for one organisation.
//!
//! The disaggregated form owns nothing durable. It starts in these steps:
//! 1. Ask the storage node for the channel's epoch, and open blocks and rows under the next one: from then on the storage
//!    node refuses whoever was primary before.
//! 2. Open the address space under the same epoch, which takes the memory of an earlier primary back.
//! 3. Replay the blocks behind the savepoint, then follow the orderer.
//!
//! A peer may have several compute nodes. Then each of them follows the one that is the primary, or is it: who that is, and how
//! another takes its place, is [`chain::succession`]'s matter.
//!
//! The monolithic form has block store and tables of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::rt::{self, disk::Directory};
use base::{Bytes, Epoch, ErrorKind};
use chain::access::Definitions;
use chain::endorse::{Endorse, EndorseError};
use chain::peer::Settings;
use chain::stores::{NodeStores, States, Stores};
use chain::succession::{ComputeNode, ComputeNodeOptions, PATIENCE, PeerMemory, Standing};
use chain::validate::borrow::Borrowing;
use chain::view::{ChannelView, PeerView};
use chain::{BlockSources, Channel, LocalStores, Peer, PeerOptions};
use contract::Registry;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use pool::{AddressSpace, Donor, LentSpace, LentSpaceOptions, SpaceOptions, VerbCounts};
use proto::protos::{ProposalResponse, Response};
use rma::Fabric;
use state::disaggregated::memory::{LentMemory, MemoryError};
use state::{Disaggregated, DisaggregatedSettings, Usage, WorldState};
use storage::node::RemoteOptions;
use storage::tables::TablesEngine;
use storage::{DataDirectory, GroupSync, StateStore, WatermarkFile};

use crate::config::Config;
use crate::control::{ComputeReport, FirstBlockReport, HitRate, MemoryReport, NodeMemory, budget};
use crate::load;
use crate::metrics;
use crate::network::NodeError;
use crate::process::Ended;

/// The wait before a storage node that does not answer is asked again; it doubles.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(50);
/// The longest such wait.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(2);
/// How often one of several compute nodes is looked at until it has found its place.
const READY_PERIOD: Duration = Duration::from_millis(5);
/// How often memory nodes are asked whether they still answer.
const PROBE_PERIOD: Duration = Duration::from_secs(2);
/// What a compute node is that has no memory of its own to show.
const READER: &str = "a reader: the peer's primary, another compute node, holds its memory";

/// What a compute node is made of, wherever its state lies.
pub(crate) struct Options<'a> {
    /// For logs and errors.
    pub name: &'a str,
    /// Signs endorsements.
    pub signer: Signer,
    pub registry: Registry,
    pub definitions: Definitions,
    /// Of the channel that it takes part in.
    pub genesis: &'a Block,
    /// Where orderers stream blocks.
    pub orderers: BlockSources,
    pub settings: Settings,
}

/// A disk of its own.
pub(crate) struct Local {
    /// Nobody else uses it as long as the peer runs.
    pub data: DataDirectory,
    pub directory: Directory,
    pub sync: GroupSync,
    pub tables: Arc<dyn TablesEngine>,
    pub state: state::Settings,
}

/// Memory and a storage node, wherever they are.
#[derive(Clone)]
pub(crate) struct Elsewhere {
    /// Where the storage node answers.
    pub storage: String,
    /// The name by which memory nodes know this peer.
    pub owner: String,
    pub fabric: Arc<dyn Fabric>,
    pub donors: Vec<Donor>,
    pub section_bytes: u64,
    /// Bytes of memory that the peer may have, as the configuration says.
    pub budget_bytes: u64,
    /// Where it keeps another budget that its operator gave it. Compute nodes of a peer share it, where they can.
    pub folder: PathBuf,
    /// Its own folder, where it notes how far the channel had come at the storage node.
    pub notes: PathBuf,
    /// How it finds the peer's other compute nodes, if it has others.
    pub among: Option<Among>,
    /// Whether other peers run in the same process.
    pub shares_process: bool,
    pub settings: DisaggregatedSettings,
}

/// The compute nodes of a peer that has several.
#[derive(Clone)]
pub(crate) struct Among {
    /// Where this one answers the others while it is the primary.
    pub address: String,
    /// Where they do.
    pub others: Vec<String>,
    /// The others, by the names that their links prove.
    pub parties: Parties,
}

/// A peer that runs, or one of its compute nodes.
pub(crate) struct Compute {
    name: String,
    node: Node,
    memory: Option<Arc<Pooled>>,
    /// One budget is set at a time: what was kept last is what counts.
    setting: rt::sync::Mutex<()>,
    _data: Option<DataDirectory>,
}

enum Node {
    /// The only one of its peer.
    Alone { peer: Arc<Peer>, channel: Arc<Channel> },
    /// One of several.
    Among(ComputeNode),
}

/// Pooled memory.
struct Pooled {
    elsewhere: Elsewhere,
    space: Mutex<Option<AddressSpace>>,
    /// Of a compute node that is the only one of its peer.
    state: Mutex<Weak<Disaggregated>>,
}

/// States in pooled memory, under one epoch.
struct PooledStates {
    memory: Arc<Pooled>,
    epoch: Epoch,
}

#[async_trait]
impl States for PooledStates {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        if self.memory.space().is_some() {
            return Err(failed("an owner's memory is that of one channel".to_owned(), ErrorKind::Rejected));
        }
        let memory = PeerMemory::open(&*self.memory, self.epoch).await?;
        let state = Arc::new(Disaggregated::open(memory, rows, self.memory.elsewhere.settings.clone()).await?);
        *self.memory.state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&state);
        Ok(state)
    }
}

fn failed(cause: String, kind: ErrorKind) -> chain::Error {
    chain::Error::Io { what: "pooled memory".to_owned(), cause, kind }
}

#[async_trait]
impl PeerMemory for Pooled {
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn state::disaggregated::memory::Memory>, chain::Error> {
        let Elsewhere { owner, fabric, donors, section_bytes, budget_bytes, folder, .. } = self.elsewhere.clone();
        let budget_bytes = budget::load(&folder, budget_bytes, section_bytes)
            .map_err(|error| failed(error.to_string(), error.kind()))?;
        let options = SpaceOptions { owner, epoch, fabric, donors, section_bytes, budget_bytes };
        let space = AddressSpace::open(options).await.map_err(|error| failed(error.to_string(), error.kind()))?;
        *self.lock() = Some(space.clone());
        Ok(Arc::new(space))
    }

    async fn lend(&self) -> Result<Arc<dyn LentMemory>, MemoryError> {
        let Elsewhere { owner, fabric, donors, section_bytes, .. } = self.elsewhere.clone();
        let lent = LentSpace::open(LentSpaceOptions { owner, fabric, donors, section_bytes }).await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn close(&self) {
        let space = self.lock().take();
        if let Some(space) = space {
            // Others may have the memory at once.
            space.close().await;
        }
    }
}

impl Pooled {
    /// Sees to it that a memory node which hangs shows in health, also while nobody asks it for memory.
    async fn probe(memory: Weak<Pooled>) {
        loop {
            rt::sleep(PROBE_PERIOD).await;
            let Some(memory) = memory.upgrade() else { return };
            if let Some(space) = memory.space() {
                space.probe().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<AddressSpace>> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> Option<AddressSpace> {
        self.lock().clone()
    }
}

/// How a peer behaves, as the configuration says.
pub(crate) fn settings(config: &Config) -> Settings {
    let mut settings = Settings::default();
    settings.endorse.concurrency_max = config.limits.proposals;
    settings.commit.persist_interval_blocks = config.storage.savepoint_blocks;
    settings.commit.replay_blocks_max = 2 * config.storage.savepoint_blocks;
    settings.commit.borrowing = Borrowing {
        when: config.pool.borrow.when(),
        spot_check_one_in: config.pool.spot_check_one_in,
        meter: load::meter(),
        ..Borrowing::default()
    };
    settings
}

/// The memory of a monolithic peer's state.
pub(crate) fn local_state(storage: &crate::config::Storage) -> state::Settings {
    state::Settings {
        cache_bytes: storage.cache_bytes,
        delta_bytes_max: storage.delta_bytes,
        ..state::Settings::default()
    }
}

/// How often this process has found what it looked for.
fn hits() -> Vec<HitRate> {
    use state::events::{DataCacheHits, DataCacheMisses, MetadataCacheHits, MetadataCacheMisses, StorageReads};
    let (found, looked) = (MetadataCacheHits.value(), MetadataCacheMisses.value());
    let rate = |place: &str, hits, misses| HitRate { place: place.to_owned(), hits, misses };
    vec![
        rate("metadata cache", found, looked),
        rate("data cache", DataCacheHits.value(), DataCacheMisses.value()),
        // Whoever knows a key's version or finds it in remote memory does not ask storage.
        rate("all memory", (found + looked).saturating_sub(StorageReads.value()), StorageReads.value()),
    ]
}

impl Compute {
    /// Opens the monolithic form.
    pub(crate) async fn monolithic(options: Options<'_>, local: Local) -> Result<Compute, NodeError> {
        let mut stores = LocalStores::new(options.name, local.directory, local.sync, local.tables);
        stores.state = local.state;
        Ok(Compute { _data: Some(local.data), ..Compute::open(&options, Arc::new(stores), None).await? })
    }

    /// Opens the disaggregated form. A storage node that does not answer is asked until it does.
    pub(crate) async fn disaggregated(options: Options<'_>, elsewhere: Elsewhere) -> Result<Compute, NodeError> {
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        // One for all attempts.
        let watermark = Arc::new(WatermarkFile::open(super::watermarks(&elsewhere.notes).await?, &channel)?);
        let mut wait = ASK_AGAIN_MIN;
        loop {
            let error = match Compute::attempt(&options, &elsewhere, &channel, &watermark).await {
                Err(error) if error.kind() == ErrorKind::Retry => error,
                outcome => return outcome,
            };
            tracing::warn!(peer = options.name, %error, "cannot start yet");
            rt::sleep(wait).await;
            wait = (wait * 2).min(ASK_AGAIN_MAX);
        }
    }

    async fn attempt(
        options: &Options<'_>,
        elsewhere: &Elsewhere,
        channel: &str,
        watermark: &Arc<WatermarkFile>,
    ) -> Result<Compute, NodeError> {
        let (address, token) = (elsewhere.storage.clone(), Bytes::new());
        let (space, state) = Default::default();
        let memory = Arc::new(Pooled { elsewhere: elsewhere.clone(), space, state });
        drop(rt::spawn(Pooled::probe(Arc::downgrade(&memory))));
        if let Some(among) = &elsewhere.among {
            return Compute::among(options, among.clone(), watermark.clone(), memory);
        }
        let (epoch, channel) = (Epoch(0), channel.to_owned());
        let remote = RemoteOptions { address: address.clone(), token: token.clone(), channel, epoch };
        let begun = chain::stores::begin_epoch(remote, None, Some(watermark.as_ref())).await;
        let epoch = begun.map_err(|source| NodeError::Chain { who: options.name.to_owned(), source })?;
        let states = Arc::new(PooledStates { memory: memory.clone(), epoch });
        let stores = NodeStores { address, token, epoch, states, watermark: Some(watermark.clone()) };
        Compute::open(options, Arc::new(stores), Some(memory)).await
    }

    /// One of several, which finds its place by itself.
    fn among(
        options: &Options<'_>,
        among: Among,
        watermark: Arc<WatermarkFile>,
        memory: Arc<Pooled>,
    ) -> Result<Compute, NodeError> {
        let name = options.name.to_owned();
        let node = ComputeNode::start(ComputeNodeOptions {
            name: name.clone(),
            signer: options.signer.clone(),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            genesis: options.genesis.clone(),
            orderers: options.orderers.clone(),
            settings: options.settings.clone(),
            storage: memory.elsewhere.storage.clone(),
            token: Bytes::new(),
            address: among.address,
            others: among.others,
            watermark: Some(watermark),
            parties: among.parties,
            state: memory.elsewhere.settings.clone(),
            memory: memory.clone(),
            patience: PATIENCE,
        })
        .map_err(|source| NodeError::Chain { who: name.clone(), source })?;
        let setting = rt::sync::Mutex::new(());
        Ok(Compute { name, node: Node::Among(node), memory: Some(memory), setting, _data: None })
    }

    async fn open(
        options: &Options<'_>,
        stores: Arc<dyn Stores>,
        memory: Option<Arc<Pooled>>,
    ) -> Result<Compute, NodeError> {
        let name = options.name.to_owned();
        let failed = |source| NodeError::Chain { who: name.clone(), source };
        let peer = Peer::open(PeerOptions {
            name: name.clone(),
            signer: options.signer.clone(),
            stores,
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            orderers: options.orderers.clone(),
            settings: options.settings.clone(),
        })
        .await
        .map_err(failed)?;
        let channel = peer.join(options.genesis).await.map_err(failed)?;
        let node = Node::Alone { peer, channel };
        Ok(Compute { name, node, memory, setting: rt::sync::Mutex::new(()), _data: None })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The verbs that its state has posted; `None` in the monolithic form.
    pub(crate) fn verbs(&self) -> Option<VerbCounts> {
        Some(self.memory.as_ref()?.space()?.verbs())
    }

    /// How its remote memory is used.
    ///
    /// # Errors
    /// Why that cannot be said, and what to do.
    pub(crate) async fn memory_report(&self) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let (space, state) = self.opened()?;
        let Usage { allowed, leased, free, live, quarantined, evicted_records, evicted_bytes, sections_drained } =
            state.usage().await;
        let sections = space.sections();
        let nodes = space.donors().into_iter().map(|donor| {
            let own = sections.iter().filter(|section| space.donor_of(section.id) == Some(donor.address.as_str()));
            NodeMemory {
                sections: own.count() as u64,
                address: donor.address,
                connected: donor.connected,
                budget_bytes: donor.budget_bytes,
                free_bytes: donor.free_bytes,
                problem: donor.problem,
            }
        });
        Ok(MemoryReport {
            name: self.name.clone(),
            budget_bytes: space.budget_bytes(),
            configured_bytes: memory.elsewhere.budget_bytes,
            section_bytes: space.section_bytes(),
            allowed_bytes: allowed,
            leased_bytes: leased,
            used_bytes: live,
            waiting_bytes: quarantined,
            free_bytes: free,
            nodes: nodes.collect(),
            evicted_records,
            evicted_bytes,
            sections_drained,
            hits: hits(),
            hits_of_process: memory.elsewhere.shares_process,
        })
    }

    /// Gives it another budget of remote memory, from now on and at later starts.
    ///
    /// # Errors
    /// Why not, and what to do; nothing has changed then.
    pub(crate) async fn set_memory(&self, bytes: u64) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let _one_at_a_time = self.setting.lock().await;
        let (space, state) = self.opened()?;
        let section = space.section_bytes();
        if bytes < section {
            return Err(state::Error::BudgetTooSmall { bytes, section_bytes: section }.to_string());
        }
        let donors = space.donors();
        let there: u64 = donors.iter().map(|donor| donor.budget_bytes).sum();
        if bytes > space.budget_bytes() && bytes > there {
            let missed: Vec<&str> =
                donors.iter().filter(|donor| !donor.connected).map(|donor| donor.address.as_str()).collect();
            let missed = match missed.is_empty() {
                true => String::new(),
                false => format!(" (without {}, which cannot be reached)", missed.join(", ")),
            };
            return Err(format!(
                "a budget of {bytes} bytes is more than the memory nodes have, which is {there} bytes{missed}; start more \
                 memory nodes, raise their pool.memory_bytes, or give less"
            ));
        }
        let folder = memory.elsewhere.folder.clone();
        let configured = memory.elsewhere.budget_bytes;
        let stored = rt::blocking({
            let folder = folder.clone();
            move || budget::store(&folder, bytes, configured)
        });
        stored.await.map_err(|error| {
            let (file, advice) = (folder.join(budget::FILE), storage::advice(&error));
            let what = "the budget stays as it was, because it cannot be kept for the next start";
            format!("{what}: {}: {error}{advice}", file.display())
        })?;
        state.set_budget(bytes).map_err(|error| error.to_string())?;
        self.memory_report().await
    }

    fn pooled(&self) -> Result<&Arc<Pooled>, String> {
        self.memory.as_ref().ok_or_else(|| {
            let name = &self.name;
            format!(
                "{name} is monolithic and has no remote memory; its own is storage.cache_bytes of the configuration, which \
                 is read at a start"
            )
        })
    }

    /// The memory nodes that it misses, without which it goes on, on storage and other memory; and the compute nodes of its
    /// peer that lied to it.
    pub(crate) fn notes(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let memory = self.memory.clone();
        let counts = match &self.node {
            Node::Alone { .. } => Arc::default(),
            Node::Among(node) => node.borrowing().clone(),
        };
        move || {
            let liars = counts.liars().into_iter().map(|liar| {
                format!(
                    "{liar} lied about signatures and is asked nothing more; take it out of the peer and renew its keys"
                )
            });
            let space = memory.as_ref().and_then(|memory| memory.space());
            let donors = space.map(|space| space.donors()).unwrap_or_default();
            let missed = donors.into_iter().filter(|donor| !donor.answers);
            let missed = missed.map(|donor| {
                let problem = donor.problem.unwrap_or_else(|| "it is not connected yet".to_owned());
                format!("the memory node at {} is missed: {problem}", donor.address)
            });
            liars.chain(missed).collect()
        }
    }

    /// The memory and the state in it, while there is a channel here that commits.
    fn opened(&self) -> Result<(AddressSpace, Arc<Disaggregated>), String> {
        let memory = self.pooled()?;
        let state = match &self.node {
            Node::Alone { .. } => memory.state.lock().unwrap_or_else(PoisonError::into_inner).upgrade(),
            Node::Among(node) => match (node.standing(), node.primary()) {
                (_, Some(primary)) => Some(primary.state),
                (Standing::Reader, None) => return Err(format!("{} is {READER}; ask that one", self.name)),
                (_, None) => None,
            },
        };
        let opened = memory.space().and_then(|space| Some((space, state?)));
        opened.ok_or_else(|| "the peer is not open yet, or is ending; try again".to_owned())
    }

    /// What it is to its peer.
    pub(crate) fn report(&self) -> ComputeReport {
        let role = |standing| match standing {
            Standing::Waiting => ("waiting", None),
            Standing::Reader => ("reader", None),
            Standing::Primary(epoch) => ("primary", Some(epoch.get())),
        };
        let (name, process) = (self.name.clone(), std::process::id());
        match &self.node {
            Node::Alone { channel, .. } => {
                let (role, height) = ("alone".to_owned(), channel.height());
                let (borrowed, lent, liars) = (0, 0, Vec::new());
                ComputeReport { name, process, role, epoch: None, height, first_block: None, borrowed, lent, liars }
            }
            Node::Among(node) => {
                let (role, epoch) = role(node.standing());
                let first_block = node.first_block().map(|first| FirstBlockReport {
                    epoch: first.epoch.get(),
                    number: first.number,
                    at_unix_ns: first.at.nanos(),
                });
                let (role, height) = (role.to_owned(), node.height());
                let (borrowed, lent) = (node.borrowing().borrowed(), node.borrowing().lent());
                let liars = node.borrowing().liars().iter().map(|liar| liar.to_string()).collect();
                ComputeReport { name, process, role, epoch, height, first_block, borrowed, lent, liars }
            }
        }
    }

    /// The peer, where it commits.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        match &self.node {
            Node::Alone { peer, .. } => Some(peer.clone()),
            Node::Among(node) => node.primary().map(|primary| primary.peer),
        }
    }

    /// The channel, where it commits.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        match &self.node {
            Node::Alone { channel, .. } => Some(channel.clone()),
            Node::Among(node) => node.primary().map(|primary| primary.channel),
        }
    }

    /// Waits until it answers proposals.
    pub(crate) async fn ready(&self) {
        if let Node::Among(node) = &self.node {
            while node.standing() == Standing::Waiting {
                rt::sleep(READY_PERIOD).await;
            }
        }
    }

    /// Completes when it has stopped by itself, and says why.
    pub(crate) async fn failed(&self) -> Ended {
        match &self.node {
            Node::Alone { channel, .. } => channel.stopped().await,
            Node::Among(node) => node.failed().await,
        }
        super::said(&self.name, metrics::Part::failure(self))
    }

    /// Finishes what was judged, makes it durable and ends.
    pub(crate) async fn stop(&self) -> Result<(), NodeError> {
        let stopped = match &self.node {
            Node::Alone { peer, .. } => peer.stop().await,
            Node::Among(node) => node.stop().await,
        };
        if let Some(memory) = &self.memory {
            memory.close().await;
        }
        stopped.map_err(|source| NodeError::Chain { who: self.name.clone(), source })
    }
}

impl PeerView for Compute {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        match &self.node {
            Node::Alone { peer, .. } => PeerView::channel(&**peer, name),
            Node::Among(node) => node.channel(name),
        }
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        match &self.node {
            Node::Alone { peer, .. } => PeerView::channels(&**peer),
            Node::Among(node) => node.channels(),
        }
    }

    fn knows_channels(&self) -> bool {
        match &self.node {
            Node::Alone { peer, .. } => PeerView::knows_channels(&**peer),
            Node::Among(node) => node.knows_channels(),
        }
    }
}

#[async_trait]
impl Endorse for Compute {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        match &self.node {
            Node::Alone { peer, .. } => peer.process(signed_proposal).await,
            Node::Among(node) => node.process(signed_proposal).await,
        }
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        match &self.node {
            Node::Alone { peer, .. } => peer.evaluate(signed_proposal).await,
            Node::Among(node) => node.evaluate(signed_proposal).await,
        }
    }
}

impl metrics::Part for Compute {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        match &self.node {
            Node::Alone { channel, .. } => channel.failure(),
            Node::Among(node) => node.failure(),
        }
    }

    fn stalled(&self) -> Option<String> {
        match &self.node {
            Node::Alone { channel, .. } => channel.stalled(),
            Node::Among(node) => node.stalled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savepoints_are_as_far_apart_as_the_configuration_says() {
        let mut config = Config::default();
        assert_eq!(settings(&config).commit.persist_interval_blocks, 32);
        config.storage.savepoint_blocks = 7;
        let commit = settings(&config).commit;
        assert_eq!((commit.persist_interval_blocks, commit.replay_blocks_max), (7, 14));
    }
}
