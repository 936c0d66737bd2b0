//! What runs on the nodes: the orderers and the peers, each under a supervisor. [`super::compute`] and [`super::pools`] have
//! the nodes of disaggregated peers.
//!
//! A supervisor starts its node's role, and starts it again a little later when the role ends by an error of its own: a
//! full disk, a failed fsync. A crash ends the supervisor too; the node's restart runs it anew on what the disk has left.
//! What must never happen is that a role finds its data corrupt: no fault of the simulator's plans changes durable bytes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::sync::Notify;
use base::rt::{self, AbortOnDrop};
use base::{Bytes, Epoch, ErrorKind, TxId};
use chain::access::Definitions;
use chain::endorse::Endorse;
use chain::order::{Acknowledge, Broadcast, Engines, Orderer, OrdererOptions};
use chain::validate::borrow::{Borrowing, Meter, When};
use chain::view::ChannelView;
use chain::{BlockSources, Channel, LocalStores, Peer, PeerOptions, Stores, commit, order, peer};
use contract::Registry;
use identity::Signer;
use ledger::Block;
use prost::Message;
use storage::blocks::BlockOptions;
use storage::tables::{ModelEngine, TablesEngine};
use storage::{DataDirectory, GroupSync};

use super::Network;
use super::members::CHANNEL;
use super::ordering::{self, OrdererEngines, Up};
use super::service::{Answer, Commit, Kind, serve};
use crate::mutant::{LyingEngine, Mutant};
use crate::scenario::{self, ORDERER, Ordering};
use crate::witness::Shower;

/// Where an orderer serves blocks.
pub fn blocks_address(orderer: &str) -> String {
    format!("{orderer} blocks")
}

/// Where an orderer takes envelopes.
pub fn order_address(orderer: &str) -> String {
    format!("{orderer} service")
}

/// The data directory of every node.
pub const DATA: &str = "/data";
/// The directory of an orderer's logs, and of a peer's ledgers.
pub const BLOCKS: &str = "blocks";
pub const TABLES: &str = "tables";
/// Where orderers and compute nodes note how far their channel has come, apart from the data.
pub const NOTES: &str = "/notes";

/// How long a role that failed waits before it is started again.
const RESTART_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long the observer waits before it asks for a block again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a peer holds a question for a commit before it says that there is none yet.
const COMMIT_WAIT: Duration = Duration::from_millis(400);

/// Where a peer endorses and answers.
pub fn peer_address(name: &str) -> String {
    format!("{name} service")
}

/// Why a role ended.
pub struct Ended {
    pub kind: ErrorKind,
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

ended_from!(chain::Error, storage::Error, pool::Error, rma::Error, consensus::Error);

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Ended {
        Ended { kind: ErrorKind::of_io(&error), reason: error.to_string() }
    }
}

/// Runs a role for as long as the node lives.
pub async fn supervise<F>(network: Arc<Network>, name: String, role: impl Fn(Arc<Network>, String) -> F)
where
    F: Future<Output = Result<(), Ended>>,
{
    loop {
        match role(Arc::clone(&network), name.clone()).await {
            Ok(()) => return,
            Err(Ended { kind: ErrorKind::Corrupt, reason }) => {
                network.witness.accuse(format_args!("{name} finds its data corrupt: {reason}"));
                return;
            }
            // What a compute node asks of pools is never wrong.
            Err(Ended { kind: ErrorKind::Rejected, reason }) => {
                network.witness.accuse(format_args!("{name} is refused for good: {reason}"));
                return;
            }
            Err(Ended { reason, .. }) => network.witness.tell(format_args!("{name} ends: {reason}")),
        }
        rt::sleep(Duration::from_nanos(rt::random_below(RESTART_WAIT_MAX.as_nanos() as u64))).await;
    }
}

/// Where a node notes how far its data has come. None where a mistake is planted that others are to notice: what they hold against it
/// would come first.
pub async fn notes(network: &Network) -> Result<Option<Directory>, Ended> {
    match network.mutant {
        None | Some(Mutant::OrdererGoesBack | Mutant::StorageGoesBack) => Ok(Some(Directory::open(NOTES).await?)),
        Some(_) => Ok(None),
    }
}

/// An orderer's role.
pub async fn order(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let data = DataDirectory::open(DATA).await?;
    let number = network.scenario.orderers().iter().position(|orderer| *orderer == name);
    let engines = OrdererEngines::new(&network, &name);
    let acknowledge =
        if network.scenario.durable_acknowledgements { Acknowledge::Durable } else { Acknowledge::Queued };
    let orderer = Orderer::open(OrdererOptions {
        watermarks: notes(&network).await?,
        signer: network.members.orderers[number.expect("an orderer's node")].clone(),
        directory: data.subdirectory(BLOCKS).await?,
        sync: GroupSync::new(),
        engines: Arc::clone(&engines) as Arc<dyn Engines>,
        settings: order::Settings { acknowledge, cutting: network.scenario.cutting, ..order::Settings::default() },
    })
    .await?;
    orderer.join(&network.members.genesis).await?;
    let chain = orderer.chain(CHANNEL).expect("the channel was just joined");
    let _up = Up::new(&network, &name, &chain);
    match network.scenario.ordering {
        Ordering::Solo => network.witness.opened(&Shower::node(&name), chain.height()),
        // What peers have, most of the others have. It shows that once it knows again that it may.
        _ => network.witness.tell(format_args!("{name} starts with {} blocks", chain.store().height())),
    }
    let watching = ordering::watch(Arc::clone(&network), name.clone(), Arc::clone(&chain), engines);
    let _watching = rt::spawn(watching).abort_on_drop();
    let _handle = network.orderer.show(&name, Arc::clone(&orderer));
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

async fn take_envelope(orderer: Arc<Orderer>, broken: Arc<Notify>, kind: Kind, body: Bytes) -> Answer {
    if kind != Kind::Order {
        return Answer::refused("an orderer only orders");
    }
    match orderer.broadcast(CHANNEL, body).await {
        Ok(()) => Answer::done(Bytes::new()),
        Err(error) if error.kind() == ErrorKind::Rejected => Answer::refused(error),
        Err(error) => {
            if error.kind() == ErrorKind::Closed {
                broken.notify_one();
            }
            Answer::later(error)
        }
    }
}

/// A monolithic peer's role.
pub async fn endorse_and_commit(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let scenario = &network.scenario;
    let data = DataDirectory::open(DATA).await?;
    let tables: Arc<dyn TablesEngine> = ModelEngine::open(data.subdirectory(TABLES).await?).await?;
    let place = network.place(&name);
    let stores = Arc::new(LocalStores {
        name: name.clone(),
        directory: data.subdirectory(BLOCKS).await?,
        sync: GroupSync::new(),
        tables: LyingEngine::over(&network, place, tables),
        blocks: BlockOptions { segment_bytes: scenario.segment_bytes, ..BlockOptions::default() },
        state: state::Settings {
            cache_bytes: scenario.cache_bytes,
            delta_bytes_max: scenario.delta_bytes,
            ..state::Settings::default()
        },
    });
    let peer = Peer::open(peer_options(&network, &name, place, stores)).await?;
    serve_peer(&network, &name, place, None, peer, async |_| {}).await
}

/// What every node of an organisation's peer is made of.
pub struct NodeParts {
    pub signer: Signer,
    pub registry: Registry,
    pub definitions: Definitions,
    pub orderers: BlockSources,
    pub settings: peer::Settings,
}

/// What a node of an organisation's peer is made of, whatever its stores.
pub fn node_parts(network: &Network, place: usize) -> NodeParts {
    let persist_interval_blocks = network.scenario.persist_interval_blocks;
    let replay_blocks_max = persist_interval_blocks + 8;
    let meter = Meter::new(|| rt::random_below(101) as u8);
    let when = network.scenario.forms[place].pools().map_or(When::Never, |pools| pools.borrow);
    // Readers lie here: a forgery must not slip by, since the oracle says what each transaction is.
    let borrowing = Borrowing { when, spot_check_one_in: 1, meter, ..Borrowing::default() };
    let orderers = network.scenario.orderers().into_iter().map(|name| blocks_address(&name));
    NodeParts {
        signer: network.members.peers[place].clone(),
        registry: Registry::native(),
        definitions: Default::default(),
        orderers: orderers.collect::<Vec<String>>().into(),
        settings: peer::Settings {
            commit: commit::pipeline::Settings { persist_interval_blocks, replay_blocks_max, borrowing },
            verifier: Some(network.scenario.verifier(place)),
            ..peer::Settings::default()
        },
    }
}

/// What the peer of an organisation is made of, over whatever stores.
pub fn peer_options(network: &Network, name: &str, place: usize, stores: Arc<dyn Stores>) -> PeerOptions {
    let NodeParts { signer, registry, definitions, orderers, settings } = node_parts(network, place);
    PeerOptions { name: name.to_owned(), signer, stores, registry, definitions, orderers, settings }
}

/// Runs an open peer on its node until its channel stops. `end` is given whether that was in order.
pub async fn serve_peer(
    network: &Arc<Network>,
    name: &str,
    place: usize,
    epoch: Option<Epoch>,
    peer: Arc<Peer>,
    end: impl AsyncFnOnce(bool),
) -> Result<(), Ended> {
    let channel = match peer.channel(CHANNEL) {
        Some(channel) => channel,
        None => peer.join(&network.members.genesis).await?,
    };
    let shown = Shower { peer: scenario::peer(place), node: name.to_owned(), epoch };
    network.witness.opened(&shown, channel.height());
    let _handle = network.peers.show(name, Arc::clone(&peer));
    let observer = rt::spawn(observe(Arc::clone(network), shown, Arc::clone(&channel))).abort_on_drop();
    let handler = {
        let (peer, channel) = (Arc::clone(&peer), Arc::clone(&channel));
        move |kind, body| answer(Arc::clone(&peer), Arc::clone(&channel), kind, body)
    };
    let service: AbortOnDrop<()> = serve(&peer_address(name), handler).await?;
    channel.stopped().await;
    drop((service, observer));
    let stopped = peer.stop().await;
    end(channel.failure().is_none() && stopped.is_ok()).await;
    let (kind, reason) = match (channel.failure(), &stopped) {
        (Some(failure), _) => (failure.kind(), failure.to_string()),
        (None, Err(error)) => (error.kind(), error.to_string()),
        (None, Ok(())) => return Ok(()),
    };
    Err(Ended { kind, reason })
}

/// Shows the witness every block that the peer shows, from the first one on each time that the peer starts.
pub async fn observe(network: Arc<Network>, shower: Shower, channel: Arc<Channel>) {
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
                    rt::sleep(ASK_AGAIN).await;
                    continue;
                }
                // The disk may fail; a later start looks again.
                Err(error) if error.kind() != ErrorKind::Corrupt => return,
                Err(error) => Err(error.to_string()),
            };
            match block {
                Ok(block) => network.witness.committed(&shower, &block),
                Err(reason) => {
                    return network.witness.accuse(format_args!("{name} has committed block {next}, but {reason}"));
                }
            }
            next += 1;
        }
        if committed.changed().await.is_err() {
            return;
        }
    }
}

async fn answer(peer: Arc<Peer>, channel: Arc<Channel>, kind: Kind, body: Bytes) -> Answer {
    match kind {
        Kind::Endorse => match peer.process(body).await {
            Ok(response) => Answer::done(response.encode_to_vec()),
            Err(error) if error.kind() == ErrorKind::Rejected => Answer::refused(error),
            Err(error) => Answer::later(error),
        },
        kind => answer_of(channel, kind, body).await,
    }
}

/// What a peer answers that commits.
pub async fn answer_of(channel: Arc<dyn ChannelView>, kind: Kind, body: Bytes) -> Answer {
    match kind {
        Kind::Endorse => Answer::refused("a channel does not endorse"),
        Kind::Commit => {
            let tx_id = TxId::from(String::from_utf8_lossy(&body).into_owned());
            match rt::timeout(COMMIT_WAIT, channel.wait_committed(&tx_id)).await {
                Ok(Ok(status)) => Answer::done(Commit { code: status.code.0, block: status.block }.encode()),
                Ok(Err(error)) => Answer::later(error),
                Err(_) => Answer::later("not committed yet"),
            }
        }
        Kind::Order => Answer::refused(format_args!("a peer does not order; ask {ORDERER}")),
    }
}
