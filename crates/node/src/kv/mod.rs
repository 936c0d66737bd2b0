//! A replicated key-value store as a program: memory nodes, processors and a port, composed.
//!
//! 1. [`KeyValues::start`] makes memory nodes within the process, and on them a group for each store, which it formats unless it
//!    was used before. Each store has one processor of its own, and all of them share a pool of backups
//!    ([`consensus::BackupPool`]). One is elected and serves the store; when it ends another takes over.
//! 2. Each store has a port that speaks gRPC over TLS ([`service`]). The certificate is made at the start; `ca.pem` in the directory
//!    is what clients trust, and `kv.json`, which is written last, says where the ports are.
//! 3. What is kept is as [`Persistence`] says: in the memory of this process alone, which ends with it; by memory nodes on disk,
//!    each in a folder of its own, with which the next start goes on; or by whoever coordinates in the folder `tables`, from which
//!    the next start fills new memory nodes.
//!
//! Memory nodes and processors may also be processes of their own ([`KvPlan`], [`KvPart`]).
//!
//! Clients prove no identity. Whoever bears the port's token reads and writes; without one, whoever reaches the port does, which
//! is why such a port listens on the loopback address alone.

mod client;
mod part;
mod service;
mod stores;
mod token;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::{Directory, File};
use base::rt::{self, Stop};
use consensus::kv::{Options, Persistent, Store};
use consensus::{Error, Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Timing};
use gateway::client::{Target, Tls};
use gateway::rpc::Settings;
use gateway::server;
use identity::issue::{Organization, Terms, TlsIdentity};
use identity::{KeyKind, Role};
use rma::shm::Shm;
use rma::{Fabric, HostOptions, NodeId, Token};
use serde::{Deserialize, Serialize};
use storage::tables::{FjallEngine, FjallOptions, TablesEngine as _};
use tokio::net::TcpListener;

use crate::network::{NodeError, write};
use crate::{Boxed, plan};
use service::Port;
use stores::{Processors, Stores};

pub use client::{KvClient, KvExchange, KvWatch};
pub use consensus::kv::Sizes;
pub use part::{KvPart, KvPlan, KvProcess, KvProcessEndpoint, KvRole};
pub use token::KvToken;

const FILE: &str = "kv.json";
const AUTHORITY: &str = "ca.pem";
const HOST: &str = "localhost";
/// What processors are called at memory nodes.
const NAME: &str = "kv";
/// The folder of the coordinators' tables.
const TABLES: &str = "tables";
/// Held while a process uses a directory.
const LOCK: &str = "lock";
/// Pauses before a memory node is started again whose disk has failed.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// After so long a memory node that is started again counts as sound.
const STEADY_AFTER: Duration = Duration::from_secs(60);
/// Where the first port is set.
const LISTEN: &str = "the port of --listen";
/// Stores of one process.
pub const STORES_MAX: u32 = 64;
/// Bytes of a group's own log, where its store does not need more.
const GROUP_LOG_BYTES: u64 = 4 << 20;
/// How long the first coordinator may take.
const START_MAX: Duration = Duration::from_secs(30);
/// How often it is asked whether all can go on.
const LOOK: Duration = Duration::from_millis(200);

/// What outlives the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// What the coordinator has in tables of the storage engine.
    Coordinator {
        /// A change is answered when the tables have it, so that everything outlives the process that a client was told. Else
        /// the last changes before the end may be missing.
        is_synchronous: bool,
    },
    /// Everything that a client was told: a change is answered when F+1 memory nodes have it on disk.
    Nodes,
}

/// What stores are to be.
#[derive(Clone, Debug)]
pub struct KvOptions {
    /// Where clients find `kv.json` and `ca.pem`.
    pub directory: PathBuf,
    /// The first store's port, the next store's is the next; 0 for any that are free.
    pub listen: SocketAddr,
    /// The file with the token that clients bear; needed where `listen` is not the loopback address.
    pub token_file: Option<PathBuf>,
    /// How many stores.
    pub stores: u32,
    /// Backup processors that all stores share.
    pub backups: u32,
    /// What outlives the process.
    pub persistence: Persistence,
    /// How many memory nodes: an odd number.
    pub memory_nodes: u32,
    /// Each store's sizes.
    pub sizes: Sizes,
    /// Bytes of each coordinator's cache.
    pub cache_bytes: usize,
}

impl KvOptions {
    /// Where a memory node keeps what outlives it.
    fn kept_by(&self, slot: usize) -> PathBuf {
        self.directory.join(format!("memory-{slot}"))
    }

    /// How many memory nodes may be missing at a start: F of 2F+1 that are persistent.
    pub fn missing_max(&self) -> usize {
        match self.persistence {
            Persistence::Nodes => self.memory_nodes as usize / 2,
            Persistence::None | Persistence::Coordinator { .. } => 0,
        }
    }

    /// What to do about a memory node that does not start.
    pub fn remedy(&self, slot: usize, error: &dyn std::fmt::Display) -> String {
        let path = self.kept_by(slot);
        format!(
            "memory-{slot} does not start: {error}\nthe stores go on with the other memory nodes; move {} away, and memory-{slot} \
             is made again from their copies",
            path.display()
        )
    }
}

/// Where a store is: `kv.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvEndpoint {
    /// Where the first store's port is.
    pub address: SocketAddr,
    /// Where each store's port is.
    #[serde(default)]
    pub stores: Vec<SocketAddr>,
    /// Of stores whose parts are processes: what runs, processors with a port for each store, any of which may serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<KvProcessEndpoint>,
    /// The name in its certificate.
    pub host: String,
    /// The authority that clients trust, relative to the directory.
    pub authority: PathBuf,
    /// The file with the token that clients bear, if they need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The process.
    pub process: u32,
}

impl KvEndpoint {
    /// Reads where the store of a directory is; nothing where none runs.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub fn load(directory: &Path) -> Result<Option<KvEndpoint>, NodeError> {
        let path = directory.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(NodeError::file("read", &path)(error)),
        };
        let damaged = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        serde_json::from_slice(&bytes).map(Some).map_err(|error| NodeError::file("understand", &path)(damaged(error)))
    }

    /// Writes it, last of all that a client needs.
    fn write(&self, directory: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("an endpoint has a JSON form");
        write(&directory.join(FILE), (text + "\n").as_bytes())
    }

    /// Everywhere that a store, counted from 0, may be served.
    pub fn addresses_of(&self, store: usize) -> Vec<SocketAddr> {
        let parts: Vec<SocketAddr> = self.parts.iter().filter_map(|part| part.stores.get(store).copied()).collect();
        match parts.is_empty() {
            false => parts,
            true => self.stores.get(store).or((store == 0).then_some(&self.address)).copied().into_iter().collect(),
        }
    }

    /// The token that clients bear, if they need one.
    ///
    /// # Errors
    /// As [`KvToken::read`].
    pub fn token(&self) -> Result<Option<KvToken>, NodeError> {
        self.token_file.as_deref().map(KvToken::read).transpose()
    }

    /// How a client reaches the first store.
    ///
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn target(&self, directory: &Path) -> Result<Target, NodeError> {
        self.target_of(directory, self.address)
    }

    /// How a client reaches one of the stores' ports.
    ///
    /// # Errors
    /// As [`KvEndpoint::target`].
    pub fn target_of(&self, directory: &Path, address: SocketAddr) -> Result<Target, NodeError> {
        let path = directory.join(&self.authority);
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
        Ok(Target { address: address.to_string(), tls: Some(Tls { roots_pem, server_name: self.host.clone() }) })
    }
}

/// Stores that run in this process.
pub struct KeyValues {
    directory: PathBuf,
    endpoint: KvEndpoint,
    stores: Arc<Stores>,
    stop: Stop,
    serving: Vec<tokio::task::JoinHandle<()>>,
    nodes: Vec<tokio::task::JoinHandle<()>>,
    missing: Vec<String>,
    _lock: File,
}

/// Times of groups whose nodes are one process on a machine with much else to do.
fn timing(persistence: Persistence) -> Timing {
    let timing = Timing {
        lease: Duration::from_millis(60),
        election_timeout: Duration::from_millis(40),
        attempt_max: Duration::from_millis(100),
        ..Timing::default()
    };
    match persistence {
        Persistence::None | Persistence::Coordinator { .. } => timing,
        // A disk may take its time, and a node compares all of its memory with it at a takeover.
        Persistence::Nodes => {
            Timing { answer_max: Duration::from_secs(20), grace: Duration::from_millis(100), ..timing }
        }
    }
}

/// Takes a directory for this process alone.
async fn lock(directory: &Path) -> Result<(Directory, File), NodeError> {
    let opened = Directory::open(directory).await.map_err(NodeError::file("make", directory))?;
    let path = directory.join(LOCK);
    let lock = opened.open_file(LOCK, true).map_err(NodeError::file("open", &path))?;
    match lock.try_lock().map_err(NodeError::file("lock", &path))? {
        true => Ok((opened, lock)),
        false => {
            Err(Error::Invalid(format!("another process runs key-value stores in {}", directory.display())).into())
        }
    }
}

/// Sizes of each store's group.
fn layout(options: &KvOptions) -> Result<Layout, NodeError> {
    let KvOptions { stores, sizes, .. } = options;
    sizes.check_sizes()?;
    if !(1..=STORES_MAX).contains(stores) {
        return Err(Error::Invalid(format!("{stores} stores: choose 1 to {STORES_MAX}")).into());
    }
    // Twice what it needs at least, so that transactions follow one another.
    let group_log = GROUP_LOG_BYTES.max((sizes.block_bytes * 128).next_multiple_of(4096));
    Ok(sizes.group_layout(group_log)?)
}

/// The group of each store.
fn groups(options: &KvOptions, layout: Layout, places: &[Place], fabric: &Arc<dyn Fabric>) -> Vec<Group> {
    let timing = timing(options.persistence);
    let group = |id| Group { id, layout, nodes: places.to_vec(), fabric: Arc::clone(fabric), timing };
    (1..=u64::from(options.stores)).map(|id| group(GroupId(id))).collect()
}

/// Makes groups that were never used. Of nodes that keep groups on disk a minority may be missing, where the others know that
/// the group was used; a new one is made on all nodes alone.
async fn format(options: &KvOptions, groups: &[Group], missing: usize) -> Result<(), NodeError> {
    for group in groups {
        if missing > 0 && consensus::is_used(group).await? {
            continue;
        }
        match consensus::format(group).await {
            // It goes on with what the nodes have kept.
            Err(Error::AlreadyFormatted(_)) if options.persistence == Persistence::Nodes => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// A memory node of all groups.
async fn memory_node(
    options: &KvOptions,
    layout: Layout,
    slot: usize,
    place: &Place,
    fabric: &Arc<dyn Fabric>,
    stop: &Stop,
) -> Result<Arc<MemoryNode>, NodeError> {
    let token = place.token.clone();
    let host_options = HostOptions { node: NodeId(slot as u32), tokens: Arc::new(move |_| Some(token.clone())) };
    let failed = |source| NodeError::Fabric { who: "a memory node".to_owned(), source };
    let host = fabric.host(&place.address, host_options).await.map_err(failed)?;
    let groups = (1..=u64::from(options.stores)).map(|id| GroupMemory { id: GroupId(id), layout }).collect();
    let node_options = MemoryNodeOptions { host, groups, stop: stop.clone() };
    let host = Arc::clone(&node_options.host);
    let started = async {
        match options.persistence {
            Persistence::None | Persistence::Coordinator { .. } => Ok(MemoryNode::start(node_options).await?),
            Persistence::Nodes => {
                let path = options.kept_by(slot);
                let kept = Directory::open(&path).await.map_err(NodeError::file("make", &path))?;
                Ok(MemoryNode::start_persistent(node_options, &kept).await?)
            }
        }
    };
    let outcome = started.await;
    if outcome.is_err() {
        // The next attempt has the same address.
        host.close().await;
    }
    outcome
}

/// A memory node of this process, started again after its disk or its host has failed.
struct KeptNode {
    options: KvOptions,
    layout: Layout,
    slot: usize,
    place: Place,
    fabric: Arc<dyn Fabric>,
}

impl KeptNode {
    async fn run(self, mut node: Option<Arc<MemoryNode>>, stop: Stop) {
        let KeptNode { options, layout, slot, place, fabric } = self;
        let mut pause = RESTART_PAUSE_MIN;
        loop {
            if let Some(node) = node.take() {
                let since = rt::now();
                let failed = stop.or_stopped(node.failed()).await;
                node.stop().await;
                let Some(error) = failed else { return };
                tracing::error!(slot, %error, "a memory node has failed and is started again");
                if since.elapsed() > STEADY_AFTER {
                    pause = RESTART_PAUSE_MIN;
                }
            }
            if stop.or_stopped(rt::sleep(pause)).await.is_none() {
                return;
            }
            pause = (pause * 2).min(RESTART_PAUSE_MAX);
            match memory_node(&options, layout, slot, &place, &fabric, &stop).await {
                Ok(again) => node = Some(again),
                Err(error) => tracing::error!("{}", options.remedy(slot, &error)),
            }
        }
    }
}

/// The token that clients are to bear.
///
/// # Errors
/// There is none, and others than this machine's users reach the port; it cannot be read.
fn token(options: &KvOptions) -> Result<Option<KvToken>, NodeError> {
    if options.token_file.is_none() && !options.listen.ip().is_loopback() {
        let reason = format!(
            "--listen {} lets whoever reaches it read and write: add --token-file FILE, with a secret of 16 characters or \
             more in FILE that clients are to bear, or listen on 127.0.0.1",
            options.listen
        );
        return Err(Error::Invalid(reason).into());
    }
    options.token_file.as_deref().map(KvToken::read).transpose()
}

/// What proves to clients whom they reach.
fn certificate(listen: SocketAddr) -> Result<TlsIdentity, NodeError> {
    let organization = Organization::found("HeddleKv", "kv.heddle", &Terms::starting_now(KeyKind::P256))?;
    let ip = listen.ip().to_string();
    Ok(organization.issue_tls(Role::Peer, "kv", &[HOST, "127.0.0.1", "::1", &ip])?)
}

/// A path that clients in other working directories find, too.
fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file("find", path))
}

/// A port for each store, from one on; any that are free where that is 0.
async fn bind(listen: SocketAddr, stores: u32) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), NodeError> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for store in 0..stores as usize {
        let address = SocketAddr::new(listen.ip(), plan::port_behind(listen.port(), store, LISTEN)?);
        let cannot_listen = |source| NodeError::Listen { address, source };
        let listener = server::bind(address).await.map_err(cannot_listen)?;
        addresses.push(listener.local_addr().map_err(cannot_listen)?);
        listeners.push(listener);
    }
    Ok((listeners, addresses))
}

/// Answers clients at the ports.
fn serve(
    options: &KvOptions,
    listeners: Vec<TcpListener>,
    stores: &Arc<Stores>,
    (certificate_pem, key_pem): (&[u8], &[u8]),
    token: Option<KvToken>,
    stop: &Stop,
) -> Result<Vec<tokio::task::JoinHandle<()>>, NodeError> {
    let KvOptions { sizes, memory_nodes, persistence, .. } = *options;
    let message_bytes_max = 2 * sizes.value_bytes_max() + (64 << 10);
    let token = token.map(Arc::new);
    let mut serving = Vec::new();
    for (store, listener) in listeners.into_iter().enumerate() {
        let tls = server::tls(certificate_pem, key_pem)?;
        let port = Port {
            stores: Arc::clone(stores),
            store,
            sizes,
            memory_nodes,
            persistence,
            places: Arc::new(service::places()),
            token: token.clone(),
            stop: stop.clone(),
        };
        let (settings, limits) = (Settings { message_bytes_max, ..Settings::default() }, server::Limits::default());
        serving.push(tokio::spawn(server::serve(listener, Some(tls), port, settings, limits, stop.clone())));
    }
    Ok(serving)
}

impl KeyValues {
    /// Starts stores, empty ones or those that are in the directory; on return they serve.
    ///
    /// # Errors
    /// Sizes that make no sense or differ from what is there, no memory, no port, no file.
    pub fn start(options: KvOptions) -> Boxed<'static, Result<KeyValues, NodeError>> {
        Box::pin(KeyValues::start_all(options))
    }

    async fn start_all(options: KvOptions) -> Result<KeyValues, NodeError> {
        let layout = layout(&options)?;
        let directory = options.directory.clone();
        let (_, lock) = lock(&directory).await?;
        let client_token = token(&options)?;
        let identity = certificate(options.listen)?;
        let (listeners, addresses) = bind(options.listen, options.stores).await?;

        let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
        let (token, name) = (Token::random(), rt::random_u64());
        let place =
            |slot| Place { address: format!("local:kv-{name:x}-{slot}"), name: NAME.to_owned(), token: token.clone() };
        let places: Vec<Place> = (0..options.memory_nodes).map(place).collect();
        let stop = Stop::new();
        let (mut started, mut missing) = (Vec::new(), Vec::new());
        for (slot, place) in places.iter().enumerate() {
            let node = memory_node(&options, layout, slot, place, &fabric, &stop).await;
            started.push(match node {
                Ok(node) => Some(node),
                Err(error) if missing.len() < options.missing_max() => {
                    missing.push(options.remedy(slot, &error));
                    None
                }
                Err(error) => return Err(error),
            });
        }
        let groups = groups(&options, layout, &places, &fabric);
        format(&options, &groups, missing.len()).await?;
        let mut nodes = Vec::new();
        for (slot, (node, place)) in started.into_iter().zip(places).enumerate() {
            let kept = KeptNode { options: options.clone(), layout, slot, place, fabric: Arc::clone(&fabric) };
            nodes.push(tokio::spawn(kept.run(node, stop.clone())));
        }

        let mut kept = Vec::new();
        if let Persistence::Coordinator { is_synchronous } = options.persistence {
            let engine = FjallEngine::open(&directory.join(TABLES), FjallOptions::default()).await?;
            for group in &groups {
                let tables = engine.tables(&format!("store-{}", group.id.0)).await?;
                kept.push(Persistent { tables, is_synchronous });
            }
        }
        let processors = Processors { own: true, backups: options.backups, number: 0 };
        let cache = Options { cache_bytes: options.cache_bytes };
        let stores = Stores::start(groups, kept, options.sizes, cache, processors, &stop)?;
        stores.served(START_MAX).await.inspect_err(|_| stop.stop())?;
        let proof = (&identity.certificate_pem[..], &identity.key_pem[..]);
        let serving = serve(&options, listeners, &stores, proof, client_token, &stop)?;
        let authority = PathBuf::from(AUTHORITY);
        let (address, process) = (addresses[0], std::process::id());
        let (host, parts) = (HOST.to_owned(), Vec::new());
        let token_file = options.token_file.as_deref().map(absolute).transpose()?;
        let endpoint = KvEndpoint { address, stores: addresses, parts, host, authority, token_file, process };
        write(&directory.join(AUTHORITY), &identity.authority_pem)?;
        endpoint.write(&directory)?;
        Ok(KeyValues { directory, endpoint, stores, stop, serving, nodes, missing, _lock: lock })
    }

    /// Where it is.
    pub fn endpoint(&self) -> &KvEndpoint {
        &self.endpoint
    }

    /// What to do about memory nodes that did not start; the stores go on without them.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The first store, without gRPC; for measurements. None when nobody serves for a while.
    pub async fn store(&self) -> Option<Store> {
        self.stores.current(0).serving(START_MAX).await
    }

    /// Completes when one of them cannot go on, with the reason.
    pub async fn failed(&self) -> Error {
        loop {
            rt::sleep(LOOK).await;
            if let Some(error) = self.stores.failed() {
                return error;
            }
        }
    }

    /// Ends it, and what was kept in memory alone.
    pub fn stop(self) -> Boxed<'static, ()> {
        Box::pin(self.stop_all())
    }

    async fn stop_all(self) {
        // Whoever looks for a store from now on is to find none.
        if let Err(error) = std::fs::remove_file(self.directory.join(FILE)) {
            tracing::warn!(%error, "kv.json is left behind");
        }
        self.stop.stop();
        for serving in self.serving {
            // A panic there has been logged, and nothing depends on it any more.
            let _ = serving.await;
        }
        self.stores.stop().await;
        for node in self.nodes {
            let _ = node.await;
        }
    }
}
