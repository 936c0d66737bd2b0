//! Endorses and commits for one organisation.
//!
//! The disaggregated form owns nothing durable. It starts in these steps:
//! 1. Ask the storage node for the channel's epoch, and open blocks and rows under the next one: from then on the storage
//!    node refuses whoever was primary before.
//! 2. Open the address space under the same epoch, which takes the memory of an earlier primary back.
//! 3. Replay the blocks behind the savepoint, then follow the orderer.
//!
//! The monolithic form has block store and tables of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, disk::Directory};
use base::{Bytes, Epoch, ErrorKind};
use chain::access::Definitions;
use chain::peer::Settings;
use chain::stores::{NodeStores, States, Stores};
use chain::{Channel, LocalStores, Peer, PeerOptions};
use contract::Registry;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use pool::{AddressSpace, Donor, SpaceOptions, VerbCounts};
use rma::Fabric;
use state::{Disaggregated, DisaggregatedSettings, Usage, WorldState};
use storage::tables::TablesEngine;
use storage::{DataDirectory, GroupSync, StateStore};

use crate::config::Config;
use crate::control::{HitRate, MemoryReport, NodeMemory, budget};
use crate::network::NodeError;

/// The wait before a storage node that does not answer is asked again; it doubles.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(50);
/// The longest such wait.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(2);

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
    pub orderers: Vec<String>,
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
    /// Where it keeps another budget that its operator gave it.
    pub folder: PathBuf,
    /// Whether other peers run in the same process.
    pub shares_process: bool,
    pub settings: DisaggregatedSettings,
}

/// A peer that runs.
pub(crate) struct Compute {
    name: String,
    peer: Arc<Peer>,
    channel: Arc<Channel>,
    memory: Option<Arc<Pooled>>,
    /// One budget is set at a time: what was kept last is what counts.
    setting: rt::sync::Mutex<()>,
    _data: Option<DataDirectory>,
}

/// States in pooled memory.
struct Pooled {
    elsewhere: Elsewhere,
    epoch: Epoch,
    opened: Mutex<Option<(AddressSpace, Weak<Disaggregated>)>>,
}

#[async_trait]
impl States for Pooled {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        let failed = |cause: String, kind| chain::Error::Io { what: "pooled memory".to_owned(), cause, kind };
        let Elsewhere { owner, fabric, donors, section_bytes, budget_bytes, folder, settings, .. } =
            self.elsewhere.clone();
        if self.space().is_some() {
            return Err(failed("an owner's memory is that of one channel".to_owned(), ErrorKind::Rejected));
        }
        let budget_bytes = budget::load(&folder, budget_bytes, section_bytes)
            .map_err(|error| failed(error.to_string(), error.kind()))?;
        let options = SpaceOptions { owner, epoch: self.epoch, fabric, donors, section_bytes, budget_bytes };
        let space = AddressSpace::open(options).await.map_err(|error| failed(error.to_string(), error.kind()))?;
        let state = Arc::new(Disaggregated::open(Arc::new(space.clone()), rows, settings).await?);
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some((space, Arc::downgrade(&state)));
        Ok(state)
    }
}

impl Pooled {
    fn space(&self) -> Option<AddressSpace> {
        Some(self.opened.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.0.clone())
    }

    /// What is there while the channel is open.
    fn opened(&self) -> Result<(AddressSpace, Arc<Disaggregated>), String> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opened = opened.and_then(|(space, state)| Some((space, state.upgrade()?)));
        opened.ok_or_else(|| "the peer is not open yet, or is ending; try again".to_owned())
    }
}

/// How a peer behaves, as the configuration says.
pub(crate) fn settings(config: &Config) -> Settings {
    let mut settings = Settings::default();
    settings.endorse.concurrency_max = config.limits.proposals;
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
        let mut wait = ASK_AGAIN_MIN;
        loop {
            let error = match Compute::attempt(&options, &elsewhere).await {
                Err(error) if error.kind() == ErrorKind::Retry => error,
                outcome => return outcome,
            };
            tracing::warn!(peer = options.name, %error, "cannot start yet");
            rt::sleep(wait).await;
            wait = (wait * 2).min(ASK_AGAIN_MAX);
        }
    }

    async fn attempt(options: &Options<'_>, elsewhere: &Elsewhere) -> Result<Compute, NodeError> {
        let (address, token) = (elsewhere.storage.clone(), Bytes::new());
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        let epoch = storage::node::begin_epoch(&address, &token, &channel).await?;
        let memory = Arc::new(Pooled { elsewhere: elsewhere.clone(), epoch, opened: Mutex::default() });
        let stores = NodeStores { address, token, epoch, states: memory.clone() };
        Compute::open(options, Arc::new(stores), Some(memory)).await
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
        Ok(Compute { name, peer, channel, memory, setting: rt::sync::Mutex::new(()), _data: None })
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
        let (space, state) = memory.opened()?;
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
        let (space, state) = memory.opened()?;
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

    /// The memory nodes that it misses. It goes on without them, on storage and other memory.
    pub(crate) fn missed(&self) -> impl Fn() -> Vec<String> + Send + Sync + 'static {
        let memory = self.memory.clone();
        move || {
            let space = memory.as_ref().and_then(|memory| memory.space());
            let donors = space.map(|space| space.donors()).unwrap_or_default();
            let missed = donors.into_iter().filter(|donor| !donor.connected);
            missed
                .map(|donor| {
                    let problem = donor.problem.unwrap_or_else(|| "it is not connected yet".to_owned());
                    format!("the memory node at {} is missed: {problem}", donor.address)
                })
                .collect()
        }
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Completes when it has stopped by itself, and says why.
    pub(crate) async fn failed(&self) -> String {
        self.channel.stopped().await;
        super::said(&self.name, self.channel.failure())
    }

    /// Finishes what was judged, makes it durable and ends.
    pub(crate) async fn stop(&self) -> Result<(), NodeError> {
        let stopped = self.peer.stop().await;
        if let Some(space) = self.memory.as_ref().and_then(|memory| memory.space()) {
            // Others may have the memory at once.
            space.close().await;
        }
        stopped.map_err(|source| NodeError::Chain { who: self.name.clone(), source })
    }
}
