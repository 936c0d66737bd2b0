//! Compute nodes of a disaggregated peer, over pooled memory and a storage node, composed as in production.
//!
//! 1. The node waits until [`super::failover`] makes it the primary.
//! 2. It asks the storage node for the newest epoch and opens the channel under the next one. Then it opens the memory, which
//!    fences the previous primary. Then it replays the blocks that the savepoint does not cover.
//! 3. It commits until it is fenced or fails. Only a fence shows it that it was replaced.
//!
//! In some peers the compute nodes choose the primary themselves. There [`replica::failover`] does all these steps, and followers
//! answer proposals too ([`run_compute_node_with_failover`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{AbortOnDrop, CancellationToken};
use base::{Bytes, Epoch, ErrorKind, rt};
use chain::compute_node::{ComputeNode, ComputeNodeSetup, PeerMemory};
use chain::endorse::Endorse as _;
use chain::view::PeerView;
use chain::{NodeStores, Peer, PeerStores, WorldStateFactory};
use pool::{AddressSpace, AddressSpaceConfig, Donor, ReadOnlySpace, ReadOnlySpaceConfig};
use prost::Message as _;
use replica::FailoverTimeouts;
use replica::failover::begin_epoch;
use replica::load::NodeAddresses;
use state::disaggregated::memory::{Memory, MemoryError, ReadOnlyMemory};
use state::{ApplyWorkers, Disaggregated, DisaggregatedConfig, WorldState};
use storage::{StateStore, WatermarkFile};
use storage_copies::CopySet;

use super::Network;
use super::members::CHANNEL;
use super::nodes::{
    Ended, NodeParts, node_parts, observe, peer_address, peer_config, respond_for_channel, serve_peer,
    watermark_directory,
};
use super::pools::{MEMORY_TOKEN, STORAGE_TOKEN, storage_address};
use super::private_links::serve_others;
use super::service::{RequestKind, Response, serve};
use crate::mutant::{LyingStores, Mutant};
use crate::recorder::ObservedNode;
use crate::scenario;

/// How often a spare checks whether it is to be the primary.
const PRIMARY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a node that finds its role by itself waits without a lease while there is no primary.
const PRIMARY_GONE_TIMEOUT: Duration = Duration::from_millis(50);
/// The same while the primary is silent; the peer's own time-out is added. Leases are late on slow links and disks.
const PRIMARY_SILENT_TIMEOUT_MIN: Duration = Duration::from_millis(150);
/// How long a guest stays at least, and how much longer at most; the pause between two visits is as long.
const GUEST_STAY_MIN: Duration = Duration::from_millis(200);
const GUEST_STAY_SPREAD_MS: u64 = 1_000;
/// How often the role of such a node is checked.
const OBSERVE_INTERVAL: Duration = crate::recorder::OBSERVATION_DELAY_MAX;

/// The name by which memory nodes know a peer.
pub fn owner(organization: usize) -> String {
    format!("org{}.peer", organization + 1)
}

/// The memory of a compute node while it is primary.
pub struct PrimaryMemory {
    network: Arc<Network>,
    organization: usize,
    epoch: Epoch,
    opened: Mutex<Option<(AddressSpace, Arc<Disaggregated>)>>,
}

fn space_config(network: &Network, organization: usize, epoch: Epoch) -> AddressSpaceConfig {
    let pools = network.scenario.peer_modes[organization].pools().expect("only disaggregated peers have memory");
    AddressSpaceConfig {
        owner: owner(organization),
        epoch,
        provider: Arc::new(network.provider.clone()),
        donors: donors(network, organization),
        section_bytes: pools.section_bytes,
        budget_bytes: pools.sections_max * pools.section_bytes,
    }
}

fn donors(network: &Network, organization: usize) -> Vec<Donor> {
    let donor = |address: String| Donor { address, token: MEMORY_TOKEN };
    network.scenario.memory_nodes(organization).into_iter().map(donor).collect()
}

fn state_config(network: &Network, organization: usize) -> DisaggregatedConfig {
    let pools = network.scenario.peer_modes[organization].pools().expect("only disaggregated peers have memory");
    DisaggregatedConfig {
        metadata_cache_bytes: pools.metadata_cache_bytes,
        data_cache_bytes: pools.data_cache_bytes,
        delta_bytes_max: network.scenario.delta_bytes,
        view_lag_blocks_max: pools.view_lag_blocks_max,
        savepoint_lag_blocks_max: pools.savepoint_lag_blocks_max,
        // The peers of one network must agree in whichever way they apply.
        apply_workers: match organization % 2 {
            0 => ApplyWorkers { workers_max: 4, keys_per_worker: 0 },
            _ => ApplyWorkers::ONE,
        },
        ..DisaggregatedConfig::default()
    }
}

fn memory_error(error: pool::Error) -> chain::Error {
    chain::Error::Io { what: "pooled memory".to_owned(), cause: error.to_string(), kind: error.kind() }
}

impl PrimaryMemory {
    /// The memory and the state in it, once they are open.
    pub fn opened(&self) -> Option<(AddressSpace, Arc<Disaggregated>)> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// [`PrimaryMemory`] in the form in which a peer opens it.
struct PrimaryMemoryStates(Arc<PrimaryMemory>);

#[async_trait]
impl WorldStateFactory for PrimaryMemoryStates {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        let PrimaryMemory { network, organization, epoch, opened } = &*self.0;
        let options = space_config(network, *organization, *epoch);
        let settings = state_config(network, *organization);
        let space = AddressSpace::adopt_headed(options).await.map_err(memory_error)?;
        let state = Arc::new(Disaggregated::open(Arc::new(space.clone()), rows, settings).await?);
        *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some((space, Arc::clone(&state)));
        Ok(state)
    }
}

/// The file in which this node records how far the channel has advanced at its storage node.
async fn watermark(network: &Network) -> Result<Option<Arc<WatermarkFile>>, Ended> {
    let Some(notes) = watermark_directory(network).await? else { return Ok(None) };
    Ok(Some(Arc::new(WatermarkFile::open(notes, CHANNEL)?)))
}

/// A compute node's role.
pub async fn run_compute_node(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.organization_index(&name);
    while network.primary(place) != name {
        rt::sleep(PRIMARY_POLL_INTERVAL).await;
    }
    let storage = CopySet::single(storage_address(&scenario::storage(place)), Bytes::from_static(STORAGE_TOKEN));
    let watermark = watermark(&network).await?;
    let kept = match Mutant::EpochKept.is_in(&network, place) {
        true => storage_copies::newest_epoch(&storage, CHANNEL).await?,
        false => Epoch(0),
    };
    let epoch = match kept {
        Epoch(0) => begin_epoch(&storage, CHANNEL, None, watermark.as_deref()).await.map_err(chain::Error::from)?,
        kept => kept,
    };
    let pooled = PrimaryMemory { network: Arc::clone(&network), organization: place, epoch, opened: Mutex::default() };
    let pooled = Arc::new(pooled);
    let states = Arc::new(PrimaryMemoryStates(Arc::clone(&pooled)));
    let stores: Arc<dyn PeerStores> = Arc::new(NodeStores { storage, epoch, states, watermark });
    let stores = LyingStores::over(&network, place, stores);
    let _handle = network.primary_memory.register(&name, Arc::clone(&pooled));
    let peer = Peer::open(peer_config(&network, &name, place, stores)).await?;
    let close = async |in_order| {
        let opened = pooled.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((space, _)) = opened.filter(|_| in_order) {
            // Releases the memory for others at once.
            space.close().await;
        }
    };
    serve_peer(&network, &name, place, Some(epoch), peer, close).await.map_err(|ended| match ended.kind {
        // Only a later epoch fences.
        ErrorKind::Fenced => Ended { reason: format!("it is fenced: {}", ended.reason), ..ended },
        _ => ended,
    })
}

/// A compute node that finds its role by itself, and the handle that stops it in order.
pub struct RunningComputeNode {
    /// The compute node.
    pub node: Arc<ComputeNode>,
    /// Stops it in order.
    pub stop: CancellationToken,
    memory: Arc<SimulatedPeerMemory>,
}

impl RunningComputeNode {
    /// The memory and the state in it, at the primary.
    pub fn opened(&self) -> Option<(AddressSpace, Arc<Disaggregated>)> {
        let state = self.node.primary()?.state;
        Some((self.memory.space.lock().unwrap_or_else(PoisonError::into_inner).clone()?, state))
    }
}

/// A peer's memory as one of its compute nodes reaches it.
struct SimulatedPeerMemory {
    network: Arc<Network>,
    place: usize,
    space: Mutex<Option<AddressSpace>>,
}

#[async_trait]
impl PeerMemory for SimulatedPeerMemory {
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn Memory>, chain::Error> {
        let space =
            AddressSpace::adopt_headed(space_config(&self.network, self.place, epoch)).await.map_err(memory_error)?;
        *self.space.lock().unwrap_or_else(PoisonError::into_inner) = Some(space.clone());
        Ok(Arc::new(space))
    }

    async fn open_read_only(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let AddressSpaceConfig { owner, provider, donors, section_bytes, .. } =
            space_config(&self.network, self.place, Epoch(0));
        let find_donor = Arc::new(|_: &str| None);
        let options = ReadOnlySpaceConfig { owner, provider, donors, section_bytes, find_donor };
        let read_only = ReadOnlySpace::open(options).await;
        Ok(Arc::new(read_only.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn close(&self) {
        let space = self.space.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(space) = space {
            space.close().await;
        }
    }
}

/// Starts a compute node that finds its role by itself, or one that never becomes the primary.
async fn start_compute_node(
    network: &Arc<Network>,
    name: &str,
    is_candidate: bool,
    memory: Arc<SimulatedPeerMemory>,
) -> Result<ComputeNode, Ended> {
    let place = network.organization_index(name);
    let among = |name: &str| format!("{name} among");
    let pools = network.scenario.peer_modes[place].pools().expect("only disaggregated peers have several nodes");
    let others = network.scenario.compute_nodes(place).into_iter().filter(|other| *other != name);
    // Their stores are made from the rest.
    let NodeParts { signer, registry, definitions, orderers, members, settings } = node_parts(network, place);
    Ok(ComputeNode::start(ComputeNodeSetup {
        parties: base::rt::net::Parties::anyone(),
        name: name.to_owned(),
        signer,
        registry,
        definitions,
        genesis: network.members.genesis.clone(),
        orderers,
        members,
        settings,
        storage: CopySet::single(storage_address(&scenario::storage(place)), Bytes::from_static(STORAGE_TOKEN)),
        address: is_candidate.then(|| among(name)),
        addresses: NodeAddresses::default(),
        others: others.map(|other| among(&other)).collect(),
        watermark: if is_candidate { watermark(network).await? } else { None },
        memory,
        state: state_config(network, place),
        failover_timeouts: FailoverTimeouts {
            gone: PRIMARY_GONE_TIMEOUT,
            silent: PRIMARY_SILENT_TIMEOUT_MIN + pools.failover_timeout,
        },
    })?)
}

/// The role of a node that joins a peer and leaves it, again and again, until the checks at the end begin: it runs
/// proposals and verifies blocks, and never becomes the primary. It leaves in order, in haste, or not at all: it dies.
pub async fn run_guest(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.organization_index(&name);
    let visiting: Arc<Mutex<Option<Arc<RunningComputeNode>>>> = Arc::default();
    let handler = {
        let visiting = Arc::clone(&visiting);
        move |kind, body| {
            let running = visiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
            async move {
                match running {
                    Some(running) => respond_for_compute_node(running, kind, body).await,
                    None => Response::later("it is away"),
                }
            }
        }
    };
    let _service: AbortOnDrop<()> = serve(&peer_address(&name), handler).await?;
    let visit = |running| *visiting.lock().unwrap_or_else(PoisonError::into_inner) = running;
    while !network.guests.is_cancelled() {
        let memory = Arc::new(SimulatedPeerMemory { network: Arc::clone(&network), place, space: Mutex::default() });
        let node = Arc::new(start_compute_node(&network, &name, false, memory.clone()).await?);
        visit(Some(Arc::new(RunningComputeNode { node: node.clone(), stop: CancellationToken::new(), memory })));
        let stay = GUEST_STAY_MIN + Duration::from_millis(rt::random_below(GUEST_STAY_SPREAD_MS));
        let _ended = network.guests.run_until_cancelled(rt::sleep(stay)).await;
        match rt::random_below(3) {
            0 => {}
            1 => node.stop().await?,
            _ => {
                node.drain().await;
                node.stop().await?;
            }
        }
        visit(None);
        drop(node);
        rt::sleep(Duration::from_millis(rt::random_below(GUEST_STAY_SPREAD_MS))).await;
    }
    Ok(())
}

/// The role of a compute node that finds its role by itself.
pub async fn run_compute_node_with_failover(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.organization_index(&name);
    let memory = Arc::new(SimulatedPeerMemory { network: Arc::clone(&network), place, space: Mutex::default() });
    let node = start_compute_node(&network, &name, true, memory.clone()).await?;
    let taking = Arc::new(RunningComputeNode { node: Arc::new(node), stop: CancellationToken::new(), memory });
    let _handle = network.compute_nodes.register(&name, Arc::clone(&taking));
    let _watching =
        rt::spawn(observe_primary(Arc::clone(&network), name.clone(), place, Arc::clone(&taking))).abort_on_drop();
    let handler = {
        let taking = Arc::clone(&taking);
        move |kind, body| respond_for_compute_node(Arc::clone(&taking), kind, body)
    };
    let service: AbortOnDrop<()> = serve(&peer_address(&name), handler).await?;
    let others = serve_others(&network, &name, Arc::clone(&taking.node)).await?;
    let failed = taking.stop.run_until_cancelled(taking.node.failed()).await;
    drop((service, others));
    taking.node.stop().await?;
    match (failed, taking.node.failure()) {
        (None, _) => Ok(()),
        (Some(()), failure) => {
            let (kind, reason) = failure.map_or((ErrorKind::Closed, "no cause given".to_owned()), |failure| {
                (failure.kind(), failure.to_string())
            });
            Err(Ended { kind, reason })
        }
    }
}

/// Shows the witness each epoch as the primary, and the blocks that are committed in it.
async fn observe_primary(network: Arc<Network>, name: String, organization: usize, taking: Arc<RunningComputeNode>) {
    let mut seen = Epoch(0);
    let mut observer = None;
    loop {
        if let Some(primary) = taking.node.primary().filter(|primary| primary.epoch > seen) {
            seen = primary.epoch;
            if seen > Epoch(1) {
                network.failover.record_takeover();
            }
            let shown = ObservedNode { peer: scenario::peer(organization), node: name.clone(), epoch: Some(seen) };
            network.recorder.record_start(&shown, primary.start_height);
            let observing = observe(Arc::clone(&network), shown, primary.channel);
            observer = Some(rt::spawn(observing).abort_on_drop());
        }
        if observer.as_ref().is_some_and(AbortOnDrop::is_finished) {
            observer = None;
        }
        rt::sleep(OBSERVE_INTERVAL).await;
    }
}

async fn respond_for_compute_node(taking: Arc<RunningComputeNode>, kind: RequestKind, body: Bytes) -> Response {
    match (kind, PeerView::channel(&*taking.node, CHANNEL)) {
        (RequestKind::Endorse, _) => match taking.node.process(body).await {
            Ok(response) => Response::done(response.encode_to_vec()),
            Err(error) if error.kind() == ErrorKind::Rejected => Response::rejected(error),
            Err(error) => Response::later(error),
        },
        (_, Some(channel)) => respond_for_channel(channel, kind, body).await,
        (_, None) => Response::later("it is not the primary"),
    }
}
