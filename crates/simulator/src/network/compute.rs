//! Compute nodes of a disaggregated peer: a peer over pooled memory and a storage node, as production composes it.
//!
//! 1. The node waits until it is to be the primary ([`super::succession`] says so).
//! 2. It asks the storage node for the newest epoch and opens the channel under the next one, then the memory, which fences
//!    whoever was primary before; then it replays what the savepoint does not cover.
//! 3. It commits until it is fenced or fails. Nothing else tells it that it has been replaced.
//!
//! Where the compute nodes of a peer find out by themselves who is the primary, all of this is [`chain::succession`]'s matter, and the
//! node that is not the primary answers proposals too ([`take_part`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{AbortOnDrop, Stop};
use base::{Bytes, Epoch, ErrorKind, rt};
use chain::endorse::Endorse as _;
use chain::stores::begin_epoch;
use chain::succession::{ComputeNode, ComputeNodeOptions, PeerMemory};
use chain::view::PeerView;
use chain::{NodeStores, Peer, States, Stores};
use pool::{AddressSpace, Donor, LentSpace, LentSpaceOptions, SpaceOptions};
use prost::Message as _;
use state::disaggregated::memory::{LentMemory, Memory, MemoryError};
use state::disaggregated::readers::Patience;
use state::{Disaggregated, DisaggregatedSettings, WorldState};
use storage::node::RemoteOptions;
use storage::{StateStore, WatermarkFile};

use super::Network;
use super::members::CHANNEL;
use super::nodes::{Ended, NodeParts, answer_of, node_parts, notes, observe, peer_address, peer_options, serve_peer};
use super::pools::{MEMORY_TOKEN, STORAGE_TOKEN, storage_address};
use super::service::{Answer, Kind, serve};
use crate::mutant::{LyingStores, Mutant};
use crate::scenario;
use crate::witness::Shower;

/// How often a spare looks whether it is to be the primary.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long such a node does without a lease while nobody is the primary.
const GONE_PATIENCE: Duration = Duration::from_millis(50);
/// And while the primary is silent; the peer's own patience comes on top. Leases are late on slow links and disks.
const SILENT_PATIENCE_MIN: Duration = Duration::from_millis(150);
/// How often a node is looked at that finds its place by itself.
const LOOK_OFTEN: Duration = crate::witness::NOTICED_WITHIN;

/// The name by which memory nodes know a peer.
pub fn owner(place: usize) -> String {
    format!("org{}.peer", place + 1)
}

/// The memory of a compute node's time as primary.
pub struct Pooled {
    network: Arc<Network>,
    place: usize,
    epoch: Epoch,
    opened: Mutex<Option<(AddressSpace, Arc<Disaggregated>)>>,
}

fn space_options(network: &Network, place: usize, epoch: Epoch) -> SpaceOptions {
    let pools = network.scenario.forms[place].pools().expect("only disaggregated peers have memory");
    SpaceOptions {
        owner: owner(place),
        epoch,
        fabric: Arc::new(network.fabric.clone()),
        donors: donors(network, place),
        section_bytes: pools.section_bytes,
        budget_bytes: pools.sections_max * pools.section_bytes,
    }
}

fn donors(network: &Network, place: usize) -> Vec<Donor> {
    let donor = |address: String| Donor { address, token: MEMORY_TOKEN };
    network.scenario.memory_nodes(place).into_iter().map(donor).collect()
}

fn state_settings(network: &Network, place: usize) -> DisaggregatedSettings {
    let pools = network.scenario.forms[place].pools().expect("only disaggregated peers have memory");
    DisaggregatedSettings {
        metadata_cache_bytes: pools.metadata_cache_bytes,
        data_cache_bytes: pools.data_cache_bytes,
        delta_bytes_max: network.scenario.delta_bytes,
        view_lag_blocks_max: pools.view_lag_blocks_max,
        savepoint_lag_blocks_max: pools.savepoint_lag_blocks_max,
        ..DisaggregatedSettings::default()
    }
}

fn refused(error: pool::Error) -> chain::Error {
    chain::Error::Io { what: "pooled memory".to_owned(), cause: error.to_string(), kind: error.kind() }
}

impl Pooled {
    /// The memory and the state in it, once they are open.
    pub fn opened(&self) -> Option<(AddressSpace, Arc<Disaggregated>)> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// [`Pooled`] as a peer asks for it.
struct Opens(Arc<Pooled>);

#[async_trait]
impl States for Opens {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        let Pooled { network, place, epoch, opened } = &*self.0;
        let options = space_options(network, *place, *epoch);
        let settings = state_settings(network, *place);
        let space = AddressSpace::open(options).await.map_err(refused)?;
        let state = Arc::new(Disaggregated::open(Arc::new(space.clone()), rows, settings).await?);
        *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some((space, Arc::clone(&state)));
        Ok(state)
    }
}

/// Where this node has noted how far the channel has come at its storage node.
async fn watermark(network: &Network) -> Result<Option<Arc<WatermarkFile>>, Ended> {
    let Some(notes) = notes(network).await? else { return Ok(None) };
    Ok(Some(Arc::new(WatermarkFile::open(notes, CHANNEL)?)))
}

/// A compute node's role.
pub async fn endorse_and_commit(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.place(&name);
    while network.primary(place) != name {
        rt::sleep(LOOK_AGAIN).await;
    }
    let (address, token) = (storage_address(&scenario::storage(place)), Bytes::from_static(STORAGE_TOKEN));
    let watermark = watermark(&network).await?;
    let kept = match Mutant::EpochKept.is_in(&network, place) {
        true => storage::node::newest_epoch(&address, &token, CHANNEL).await?,
        false => Epoch(0),
    };
    let epoch = match kept {
        Epoch(0) => {
            let remote = RemoteOptions {
                address: address.clone(),
                token: token.clone(),
                channel: CHANNEL.to_owned(),
                epoch: kept,
            };
            begin_epoch(remote, None, watermark.as_deref()).await?
        }
        kept => kept,
    };
    let pooled = Pooled { network: Arc::clone(&network), place, epoch, opened: Mutex::default() };
    let pooled = Arc::new(pooled);
    let states = Arc::new(Opens(Arc::clone(&pooled)));
    let stores: Arc<dyn Stores> = Arc::new(NodeStores { address, token, epoch, states, watermark });
    let stores = LyingStores::over(&network, place, stores);
    let _handle = network.pooled.show(&name, Arc::clone(&pooled));
    let peer = Peer::open(peer_options(&network, &name, place, stores)).await?;
    let close = async |in_order| {
        let opened = pooled.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((space, _)) = opened.filter(|_| in_order) {
            // Others may have the memory at once.
            space.close().await;
        }
    };
    serve_peer(&network, &name, place, Some(epoch), peer, close).await.map_err(|ended| match ended.kind {
        // Only a later epoch fences.
        ErrorKind::Fenced => Ended { reason: format!("it is fenced: {}", ended.reason), ..ended },
        _ => ended,
    })
}

/// A compute node that finds its place by itself, and how it is told to stop in order.
pub struct Taking {
    pub node: ComputeNode,
    pub stop: Stop,
    memory: Arc<Reached>,
}

impl Taking {
    /// The memory and the state in it, at the primary.
    pub fn opened(&self) -> Option<(AddressSpace, Arc<Disaggregated>)> {
        let state = self.node.primary()?.state;
        Some((self.memory.space.lock().unwrap_or_else(PoisonError::into_inner).clone()?, state))
    }
}

/// A peer's memory as one of its compute nodes reaches it.
struct Reached {
    network: Arc<Network>,
    place: usize,
    space: Mutex<Option<AddressSpace>>,
}

#[async_trait]
impl PeerMemory for Reached {
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn Memory>, chain::Error> {
        let space = AddressSpace::open(space_options(&self.network, self.place, epoch)).await.map_err(refused)?;
        *self.space.lock().unwrap_or_else(PoisonError::into_inner) = Some(space.clone());
        Ok(Arc::new(space))
    }

    async fn lend(&self) -> Result<Arc<dyn LentMemory>, MemoryError> {
        let SpaceOptions { owner, fabric, donors, section_bytes, .. } =
            space_options(&self.network, self.place, Epoch(0));
        let lent = LentSpace::open(LentSpaceOptions { owner, fabric, donors, section_bytes }).await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn close(&self) {
        let space = self.space.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(space) = space {
            space.close().await;
        }
    }
}

/// The role of a compute node that finds its place by itself.
pub async fn take_part(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.place(&name);
    let among = |name: &str| format!("{name} among");
    let memory = Arc::new(Reached { network: Arc::clone(&network), place, space: Mutex::default() });
    let pools = network.scenario.forms[place].pools().expect("only disaggregated peers have several nodes");
    let others = network.scenario.compute_nodes(place).into_iter().filter(|other| *other != name);
    // Their stores are made from the rest.
    let NodeParts { signer, registry, definitions, orderers, settings } = node_parts(&network, place);
    let node = ComputeNode::start(ComputeNodeOptions {
        parties: base::rt::net::Parties::anyone(),
        name: name.clone(),
        signer,
        registry,
        definitions,
        genesis: network.members.genesis.clone(),
        orderers,
        settings,
        storage: storage_address(&scenario::storage(place)),
        token: Bytes::from_static(STORAGE_TOKEN),
        address: among(&name),
        others: others.map(|other| among(&other)).collect(),
        watermark: watermark(&network).await?,
        memory: memory.clone(),
        state: state_settings(&network, place),
        patience: Patience { gone: GONE_PATIENCE, silent: SILENT_PATIENCE_MIN + pools.patience },
    })?;
    let taking = Arc::new(Taking { node, stop: Stop::new(), memory });
    let _handle = network.computes.show(&name, Arc::clone(&taking));
    let _watching = rt::spawn(watch(Arc::clone(&network), name.clone(), place, Arc::clone(&taking))).abort_on_drop();
    let handler = {
        let taking = Arc::clone(&taking);
        move |kind, body| answer_as(Arc::clone(&taking), kind, body)
    };
    let service: AbortOnDrop<()> = serve(&peer_address(&name), handler).await?;
    let failed = taking.stop.or_stopped(taking.node.failed()).await;
    drop(service);
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

/// Shows the witness each time as the primary, and what is committed then.
async fn watch(network: Arc<Network>, name: String, place: usize, taking: Arc<Taking>) {
    let mut seen = Epoch(0);
    let mut observer = None;
    loop {
        if let Some(primary) = taking.node.primary().filter(|primary| primary.epoch > seen) {
            seen = primary.epoch;
            if seen > Epoch(1) {
                network.succession.taken_over();
            }
            let shown = Shower { peer: scenario::peer(place), node: name.clone(), epoch: Some(seen) };
            network.witness.opened(&shown, primary.found);
            let observing = observe(Arc::clone(&network), shown, primary.channel);
            observer = Some(rt::spawn(observing).abort_on_drop());
        }
        if observer.as_ref().is_some_and(AbortOnDrop::is_finished) {
            observer = None;
        }
        rt::sleep(LOOK_OFTEN).await;
    }
}

async fn answer_as(taking: Arc<Taking>, kind: Kind, body: Bytes) -> Answer {
    match (kind, PeerView::channel(&taking.node, CHANNEL)) {
        (Kind::Endorse, _) => match taking.node.process(body).await {
            Ok(response) => Answer::done(response.encode_to_vec()),
            Err(error) if error.kind() == ErrorKind::Rejected => Answer::refused(error),
            Err(error) => Answer::later(error),
        },
        (_, Some(channel)) => answer_of(channel, kind, body).await,
        (_, None) => Answer::later("it is not the primary"),
    }
}
