//! Orderers and peers as roles of nodes, each under a supervisor. [`super::compute`] and [`super::pools`] have the nodes of
//! disaggregated peers.
//!
//! A supervisor starts its node's role. When the role ends with an error, such as a full disk or a failed fsync, the supervisor
//! restarts it a little later. A crash of the node also ends the supervisor; when the node restarts, it runs on the bytes that
//! remain on the disk. A role must never find its data corrupt, because no fault in the simulator's plans changes durable
//! bytes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::sync::Notify;
use base::rt::{self, AbortOnDrop};
use base::{Bytes, Epoch, ErrorKind, TxId};
use block_transport::SourceAddresses;
use chain::early_abort::outdated_read;
use chain::endorse::Endorse;
use chain::order::{AcknowledgeMode, Broadcast, Orderer, OrdererSetup, OrderingEngines};
use chain::view::ChannelView;
use chain::{Channel, LocalStores, Peer, PeerSetup, PeerStores, commit, order, peer};
use contract::ContractRegistry;
use identity::Signer;
use ledger::Block;
use private_data::MemberPeers;
use prost::Message;
use replica::load::{LoadMeter, NodeLoad};
use replica::offload::{OffloadConfig, OffloadMode};
use rules::definitions::ContractDefinitions;
use storage::blocks::BlockStoreConfig;
use storage::tables::{ModelEngine, TablesEngine};
use storage::{DataDirectory, GroupSync};
use validation::block::ConflictCheckMode;
use validation::parallel::WorkersConfig;

use super::Network;
use super::members::CHANNEL;
use super::ordering::{self, OrdererEngines, RunningOrderer};
use super::private_links::{member_peers, serve_others};
use super::service::{RequestKind, Response, TransactionCommit, serve};
use crate::early_aborts;
use crate::mutant::{LyingEngine, Mutant};
use crate::recorder::ObservedNode;
use crate::scenario::{self, ORDERER, OrderingEngine};

/// The address at which an orderer serves blocks.
pub fn blocks_address(orderer: &str) -> String {
    format!("{orderer} blocks")
}

/// The address at which an orderer takes envelopes.
pub fn order_address(orderer: &str) -> String {
    format!("{orderer} service")
}

/// The data directory of every node.
pub const DATA: &str = "/data";
/// The directory of an orderer's logs, and of a peer's ledgers.
pub const BLOCKS: &str = "blocks";
/// The directory of the rows of world states.
pub const TABLES: &str = "tables";
/// The directory in which orderers and compute nodes record how far their channel has advanced, apart from the data.
pub const WATERMARKS: &str = "/notes";

/// How long a role that failed waits before it is restarted.
const RESTART_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long the observer waits before it asks for a block again.
const BLOCK_READ_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a peer holds a query for a commit before it answers that there is none yet.
const COMMIT_WAIT: Duration = Duration::from_millis(400);

/// The address at which a peer endorses and answers.
pub fn peer_address(name: &str) -> String {
    format!("{name} service")
}

/// Why a role ended.
pub struct Ended {
    /// What a restart can achieve; [`supervise`] reports `Corrupt` and `Rejected` as violations.
    pub kind: ErrorKind,
    /// The error's text.
    pub reason: String,
}

macro_rules! ended_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Ended {
            fn from(error: $error) -> Ended {
                Ended { kind: error.kind(), reason: error.to_string() }
            }
        })*
    };
}

ended_from!(chain::Error, storage::Error, pool::Error, rma::Error, sift::Error, ordered_log::Error);

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Ended {
        Ended { kind: ErrorKind::of_io(&error), reason: error.to_string() }
    }
}

/// Runs a role until the node crashes.
pub async fn supervise<F>(network: Arc<Network>, name: String, role: impl Fn(Arc<Network>, String) -> F)
where
    F: Future<Output = Result<(), Ended>>,
{
    loop {
        match role(Arc::clone(&network), name.clone()).await {
            Ok(()) => return,
            Err(Ended { kind: ErrorKind::Corrupt, reason }) => {
                network.recorder.report_violation(format_args!("{name} finds its data corrupt: {reason}"));
                return;
            }
            // A compute node's requests to pools are always valid.
            Err(Ended { kind: ErrorKind::Rejected, reason }) => {
                network.recorder.report_violation(format_args!("{name} is rejected for good: {reason}"));
                return;
            }
            Err(Ended { reason, .. }) => network.recorder.log(format_args!("{name} ends: {reason}")),
        }
        rt::sleep(Duration::from_nanos(rt::random_below(RESTART_WAIT_MAX.as_nanos() as u64))).await;
    }
}

/// The directory in which a node records how far its data has advanced. `None` if a mistake is planted that other checkers
/// must find: the comparison with these records would find it first.
pub async fn watermark_directory(network: &Network) -> Result<Option<Directory>, Ended> {
    match network.mutant {
        None | Some(Mutant::OrdererGoesBack | Mutant::StorageGoesBack) => Ok(Some(Directory::open(WATERMARKS).await?)),
        Some(_) => Ok(None),
    }
}

/// An orderer's role.
pub async fn run_orderer(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let data = DataDirectory::open(DATA).await?;
    let number = network.scenario.orderers().iter().position(|orderer| *orderer == name);
    let engines = OrdererEngines::new(&network, &name);
    let acknowledge =
        if network.scenario.durable_acknowledgements { AcknowledgeMode::Durable } else { AcknowledgeMode::Queued };
    let orderer = Orderer::open(OrdererSetup {
        watermarks: watermark_directory(&network).await?,
        signer: network.members.orderers[number.expect("an orderer's node")].clone(),
        directory: data.subdirectory(BLOCKS).await?,
        sync: GroupSync::new(),
        engines: Arc::clone(&engines) as Arc<dyn OrderingEngines>,
        settings: order::BroadcastConfig {
            acknowledge,
            cutting: network.scenario.cutting,
            reorder: network.scenario.reorder,
            ..order::BroadcastConfig::default()
        },
    })
    .await?;
    orderer.join(&network.members.genesis).await?;
    let chain = orderer.channel(CHANNEL).expect("the channel was just joined");
    let _up = RunningOrderer::new(&network, &name, &chain);
    match network.scenario.ordering {
        OrderingEngine::Solo => network.recorder.record_start(&ObservedNode::node(&name), chain.height()),
        // A majority of the others has every block that peers have. This orderer shows them once it knows again that they are
        // committed.
        _ => network.recorder.log(format_args!("{name} starts with {} blocks", chain.store().height())),
    }
    let watching = ordering::observe_orderer(Arc::clone(&network), name.clone(), Arc::clone(&chain), engines);
    let _watching = rt::spawn(watching).abort_on_drop();
    let _handle = network.running_orderers.register(&name, Arc::clone(&orderer));
    orderer.serve(&blocks_address(&name)).await?;
    let broken = Arc::new(Notify::new());
    let handler = {
        let (orderer, broken) = (Arc::clone(&orderer), Arc::clone(&broken));
        move |kind, body| take_envelope(Arc::clone(&orderer), Arc::clone(&broken), kind, body)
    };
    let service = serve(&order_address(&name), handler).await?;
    let (asked, stopped) = (pin!(broken.notified()), pin!(chain.stopped()));
    futures_util::future::select(asked, stopped).await;
    drop(service);
    orderer.stop().await;
    let (kind, reason) = match chain.failure() {
        Some(failure) => (failure.kind(), failure.to_string()),
        None => (ErrorKind::Closed, "no cause given".to_owned()),
    };
    Err(Ended { kind, reason: format!("it has stopped ordering: {reason}") })
}

async fn take_envelope(orderer: Arc<Orderer>, broken: Arc<Notify>, kind: RequestKind, body: Bytes) -> Response {
    if kind != RequestKind::Order {
        return Response::rejected("an orderer only orders");
    }
    match orderer.broadcast(CHANNEL, body).await {
        Ok(()) => Response::done(Bytes::new()),
        Err(error) if error.kind() == ErrorKind::Rejected => Response::rejected(error),
        Err(error) => {
            if error.kind() == ErrorKind::Closed {
                broken.notify_one();
            }
            Response::later(error)
        }
    }
}

/// A monolithic peer's role.
pub async fn run_monolithic_peer(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let scenario = &network.scenario;
    let data = DataDirectory::open(DATA).await?;
    let tables: Arc<dyn TablesEngine> = ModelEngine::open(data.subdirectory(TABLES).await?).await?;
    let place = network.organization_index(&name);
    let stores = Arc::new(LocalStores {
        name: name.clone(),
        directory: data.subdirectory(BLOCKS).await?,
        sync: GroupSync::new(),
        tables: LyingEngine::over(&network, place, tables),
        blocks: BlockStoreConfig { segment_bytes: scenario.segment_bytes, ..BlockStoreConfig::default() },
        state: state::MonolithicConfig {
            cache_bytes: scenario.cache_bytes,
            delta_bytes_max: scenario.delta_bytes,
            ..state::MonolithicConfig::default()
        },
    });
    let peer = Peer::open(peer_config(&network, &name, place, stores)).await?;
    serve_peer(&network, &name, place, None, peer, async |_| {}).await
}

/// The common parts of every node of an organisation's peer.
pub struct NodeParts {
    /// Signs endorsements.
    pub signer: Signer,
    /// The contracts that the node can run.
    pub registry: ContractRegistry,
    /// The contracts of the channel, the same at all peers.
    pub definitions: ContractDefinitions,
    /// Where the orderers serve blocks.
    pub orderers: SourceAddresses,
    /// The peers of other organisations.
    pub members: Arc<MemberPeers>,
    /// The peer's settings.
    pub settings: peer::PeerConfig,
}

/// Makes the parts of a node of an organisation's peer that do not depend on its stores.
pub fn node_parts(network: &Network, organization: usize) -> NodeParts {
    let persist_interval_blocks = network.scenario.persist_interval_blocks;
    let replay_blocks_max = persist_interval_blocks + 8;
    let load = NodeLoad::new(LoadMeter::new(|| rt::random_below(101) as u8), "");
    let when = network.scenario.peer_modes[organization].pools().map_or(OffloadMode::Never, |pools| pools.offload);
    // Followers lie here, and the oracle knows each transaction's verdict: no forgery may pass.
    let borrowing = OffloadConfig { mode: when, spot_check_one_in: 1, load, ..OffloadConfig::default() };
    // The peers of one network must agree in whichever way they check.
    let conflicts = match organization % 2 {
        0 => ConflictCheckMode::Parallel(WorkersConfig { workers_max: 4, scans_per_worker: 0 }),
        _ => ConflictCheckMode::Sequential,
    };
    let orderers = network.scenario.orderers().into_iter().map(|name| blocks_address(&name));
    NodeParts {
        signer: network.members.peers[organization].clone(),
        registry: network.registry(),
        definitions: network.definitions(),
        orderers: orderers.collect::<Vec<String>>().into(),
        members: member_peers(network, organization),
        settings: peer::PeerConfig {
            commit: commit::context::PipelineConfig {
                persist_interval_blocks,
                replay_blocks_max,
                offload: borrowing,
                conflicts,
                early_abort: network.scenario.early_abort,
            },
            verifier: Some(network.scenario.verifier(organization)),
            ..peer::PeerConfig::default()
        },
    }
}

/// The options of an organisation's peer over the given stores.
pub fn peer_config(network: &Network, name: &str, organization: usize, stores: Arc<dyn PeerStores>) -> PeerSetup {
    let NodeParts { signer, registry, definitions, orderers, members, settings } = node_parts(network, organization);
    PeerSetup { name: name.to_owned(), signer, stores, registry, definitions, orderers, members, settings }
}

/// Runs an open peer on its node until its channel stops. `end` gets whether that was in order.
pub async fn serve_peer(
    network: &Arc<Network>,
    name: &str,
    organization: usize,
    epoch: Option<Epoch>,
    peer: Arc<Peer>,
    end: impl AsyncFnOnce(bool),
) -> Result<(), Ended> {
    let channel = match peer.channel(CHANNEL) {
        Some(channel) => channel,
        None => peer.join(&network.members.genesis).await?,
    };
    let shown = ObservedNode { peer: scenario::peer(organization), node: name.to_owned(), epoch };
    network.recorder.record_start(&shown, channel.height());
    let _handle = network.peers.register(name, Arc::clone(&peer));
    let observer = rt::spawn(observe(Arc::clone(network), shown, Arc::clone(&channel))).abort_on_drop();
    let handler = {
        let (peer, channel) = (Arc::clone(&peer), Arc::clone(&channel));
        move |kind, body| respond(Arc::clone(&peer), Arc::clone(&channel), kind, body)
    };
    let service: AbortOnDrop<()> = serve(&peer_address(name), handler).await?;
    let others = serve_others(network, name, Arc::clone(&peer)).await?;
    channel.stopped().await;
    drop((service, others, observer));
    let stopped = peer.stop().await;
    end(channel.failure().is_none() && stopped.is_ok()).await;
    let (kind, reason) = match (channel.failure(), &stopped) {
        (Some(failure), _) => (failure.kind(), failure.to_string()),
        (None, Err(error)) => (error.kind(), error.to_string()),
        (None, Ok(())) => return Ok(()),
    };
    Err(Ended { kind, reason })
}

/// Shows the witness every block that the peer shows, from the first one on at each start of the peer.
pub async fn observe(network: Arc<Network>, shower: ObservedNode, channel: Arc<Channel>) {
    let name = &shower.node;
    let mut committed = channel.committed();
    let mut next = 0;
    loop {
        while next < channel.height() {
            let block = match channel.read_block(next).await {
                Ok(Some(bytes)) => Block::parse(&bytes).map_err(|error| error.to_string()),
                Ok(None) => Err("it is not there".to_owned()),
                // A storage node may be away for a while.
                Err(error) if error.kind() == ErrorKind::Retry => {
                    rt::sleep(BLOCK_READ_RETRY_INTERVAL).await;
                    continue;
                }
                // The disk may fail; a later start checks again.
                Err(error) if error.kind() != ErrorKind::Corrupt => return,
                Err(error) => Err(error.to_string()),
            };
            match block {
                Ok(block) => network.recorder.record_block(&shower, &block),
                Err(reason) => {
                    return network
                        .recorder
                        .report_violation(format_args!("{name} has committed block {next}, but {reason}"));
                }
            }
            next += 1;
        }
        if committed.changed().await.is_err() {
            return;
        }
    }
}

async fn respond(peer: Arc<Peer>, channel: Arc<Channel>, kind: RequestKind, body: Bytes) -> Response {
    match kind {
        RequestKind::Endorse => match peer.process(body).await {
            Ok(response) => Response::done(response.encode_to_vec()),
            Err(error) if error.kind() == ErrorKind::Rejected => Response::rejected(error),
            Err(error) => Response::later(error),
        },
        kind => respond_for_channel(channel, kind, body).await,
    }
}

/// The answer of a committing peer.
pub async fn respond_for_channel(channel: Arc<dyn ChannelView>, kind: RequestKind, body: Bytes) -> Response {
    match kind {
        RequestKind::Endorse => Response::rejected("a channel does not endorse"),
        RequestKind::Commit => {
            let tx_id = TxId::from(String::from_utf8_lossy(&body).into_owned());
            match rt::timeout(COMMIT_WAIT, channel.wait_committed(&tx_id)).await {
                Ok(Ok(status)) => {
                    Response::done(TransactionCommit { code: status.code.0, block: status.block }.encode())
                }
                Ok(Err(error)) => Response::later(error),
                Err(_) => Response::later("not committed yet"),
            }
        }
        RequestKind::Judge => match outdated_read(&*channel, &body).await {
            Some(outdated) => Response::done(early_aborts::encode(&outdated)),
            None => Response::later("it may be valid"),
        },
        RequestKind::Order => Response::rejected(format_args!("a peer does not order; ask {ORDERER}")),
    }
}
