//! The replicated key-value store as a program: memory nodes, CPU nodes and ports.
//!
//! 1. [`KeyValueServer::start`] starts memory nodes in this process and creates a consensus group on them for each
//!    store. A group is formatted unless it was used before. Each store has one CPU node that serves no other store,
//!    and all stores share a pool of backups ([`sift::BackupPool`]). One CPU node is elected and serves the store;
//!    when it ends, another takes over.
//! 2. Each store has a port for gRPC over TLS ([`service`]). Its certificate is made at the start. Clients trust
//!    `ca.pem` in the directory and find the ports in `kv.json`, which is written last.
//! 3. [`Persistence`] decides which data survives the end of the process: no data, if all of it is in memory; all data,
//!    if memory nodes keep it on disk, each in its folder, from which the next start continues; or the coordinator's
//!    tables in the folder `tables`, from which the next start fills new memory nodes.
//!
//! Memory nodes and CPU nodes can also run as separate processes ([`KvPlan`], [`KvPart`]).
//!
//! Clients are identified only by the port's token: a client that presents it may read and write. A port without a
//! token lets every client read and write, so it listens on the loopback address only.

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
use base::rt::{self, Backoff, CancellationToken};
use gateway::client::{ClientTls, ConnectTarget};
use gateway::grpc::ConnectionConfig;
use gateway::server;
use identity::issue::{CertificateTerms, IssuingOrganization, TlsIdentity};
use identity::{KeyKind, MemberRole};
use kv::{Error, KvConfig, KvStore, PersistentTables};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, Token};
use serde::{Deserialize, Serialize};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
};
use storage::tables::{FjallConfig, FjallEngine, TablesEngine as _};
use tokio::net::TcpListener;

use crate::network::{NodeError, write};
use crate::{Boxed, plan};
use service::KvService;
use stores::{CpuNodes, StoreSet};

pub use client::{KvClient, KvExchange, KvWatch};
pub use kv::StoreGeometry;
pub use part::{KvPart, KvPlan, KvProcess, KvProcessEndpoint, KvRole};
pub use token::KvToken;

const KV_FILE: &str = "kv.json";
const AUTHORITY: &str = "ca.pem";
const HOST: &str = "localhost";
/// The name under which CPU nodes connect to memory nodes.
const NAME: &str = "kv";
/// The folder of the coordinators' tables.
const TABLES: &str = "tables";
/// Held while a process uses a directory.
const LOCK: &str = "lock";
/// Pauses before a memory node whose disk has failed is restarted.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// A restarted memory node that runs for this long counts as sound.
const STABLE_AFTER: Duration = Duration::from_secs(60);
/// The option that sets the first port.
const LISTEN: &str = "the port of --listen";
/// Maximum of stores per process.
pub const STORES_MAX: u32 = 64;
/// Bytes of a group's own log, unless its store needs more.
const GROUP_LOG_BYTES: u64 = 4 << 20;
/// Time limit for the first coordinator.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the stores are polled for failures.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What survives the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// The coordinator's tables in the storage engine.
    Coordinator {
        /// Whether a change is acknowledged only when the tables have it, so that every acknowledged change survives
        /// the process. Otherwise the last changes before the end may be lost.
        is_synchronous: bool,
    },
    /// Every acknowledged change: it is acknowledged when F+1 memory nodes have it on disk.
    Nodes,
}

/// The options of the stores.
#[derive(Clone, Debug)]
pub struct KvStoresConfig {
    /// The directory of `kv.json` and `ca.pem`, for clients.
    pub directory: PathBuf,
    /// The first store's port; each further store uses the next port. 0 for any free ports.
    pub listen: SocketAddr,
    /// The file with the token that clients present; required unless `listen` is a loopback address.
    pub token_file: Option<PathBuf>,
    /// The number of stores.
    pub stores: u32,
    /// The number of backup CPU nodes that all stores share.
    pub backups: u32,
    /// What survives the process.
    pub persistence: Persistence,
    /// The number of memory nodes: odd.
    pub memory_nodes: u32,
    /// The sizes of each store.
    pub sizes: StoreGeometry,
    /// Bytes of each coordinator's cache.
    pub cache_bytes: usize,
}

impl KvStoresConfig {
    /// The folder of a persistent memory node.
    fn memory_folder(&self, slot: usize) -> PathBuf {
        self.directory.join(format!("memory-{slot}"))
    }

    /// How many memory nodes may fail to start: F of 2F+1 persistent ones.
    pub fn missing_max(&self) -> usize {
        match self.persistence {
            Persistence::Nodes => self.memory_nodes as usize / 2,
            Persistence::None | Persistence::Coordinator { .. } => 0,
        }
    }

    /// The advice for a memory node that does not start.
    pub fn remedy(&self, slot: usize, error: &dyn std::fmt::Display) -> String {
        let path = self.memory_folder(slot);
        format!(
            "memory-{slot} does not start: {error}\nthe stores continue on the other memory nodes; move {} away, and \
             memory-{slot} is rebuilt from their copies",
            path.display()
        )
    }
}

/// Where stores can be reached: `kv.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvEndpoint {
    /// The first store's address.
    pub address: SocketAddr,
    /// The address of each store.
    #[serde(default)]
    pub stores: Vec<SocketAddr>,
    /// If the parts are processes: the running ones. CPU nodes have a port for each store, and any of them may serve
    /// it.
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
    /// Reads the endpoint of a directory's stores; `None` if none run.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn load(directory: &Path) -> Result<Option<KvEndpoint>, NodeError> {
        let path = directory.join(KV_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(NodeError::file("read", &path)(error)),
        };
        let damaged = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        serde_json::from_slice(&bytes).map(Some).map_err(|error| NodeError::file("understand", &path)(damaged(error)))
    }

    /// Writes the file. It is the last file that a client needs.
    fn write(&self, directory: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("an endpoint has a JSON form");
        write(&directory.join(KV_FILE), (text + "\n").as_bytes())
    }

    /// All addresses at which a store, counted from 0, may be served.
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
    pub fn target(&self, directory: &Path) -> Result<ConnectTarget, NodeError> {
        self.target_of(directory, self.address)
    }

    /// How a client reaches one port of a store.
    ///
    /// # Errors
    /// As [`KvEndpoint::target`].
    pub fn target_of(&self, directory: &Path, address: SocketAddr) -> Result<ConnectTarget, NodeError> {
        let path = directory.join(&self.authority);
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
        Ok(ConnectTarget {
            address: address.to_string(),
            tls: Some(ClientTls { roots_pem, server_name: self.host.clone() }),
        })
    }
}

/// Stores that run in this process.
pub struct KeyValueServer {
    directory: PathBuf,
    endpoint: KvEndpoint,
    stores: Arc<StoreSet>,
    stop: CancellationToken,
    serving: Vec<tokio::task::JoinHandle<()>>,
    nodes: Vec<tokio::task::JoinHandle<()>>,
    missing: Vec<String>,
    _lock: File,
}

/// The timing of groups whose nodes share one process on a busy machine.
fn timing(persistence: Persistence) -> SiftTimeouts {
    let timing = SiftTimeouts {
        lease: Duration::from_millis(60),
        election_timeout: Duration::from_millis(40),
        attempt_max: Duration::from_millis(100),
        ..SiftTimeouts::default()
    };
    match persistence {
        Persistence::None | Persistence::Coordinator { .. } => timing,
        // A disk may be slow, and at a takeover a node compares all of its memory with the disk.
        Persistence::Nodes => {
            SiftTimeouts { answer_max: Duration::from_secs(20), grace: Duration::from_millis(100), ..timing }
        }
    }
}

/// Locks a directory for this process.
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

/// The layout of each store's group.
fn layout(options: &KvStoresConfig) -> Result<GroupLayout, NodeError> {
    let KvStoresConfig { stores, sizes, .. } = options;
    sizes.check_geometry()?;
    if !(1..=STORES_MAX).contains(stores) {
        return Err(Error::Invalid(format!("{stores} stores: choose 1 to {STORES_MAX}")).into());
    }
    // Twice the minimum, so that transactions can be in flight one after the other.
    let group_log = GROUP_LOG_BYTES.max((sizes.block_bytes * 128).next_multiple_of(4096));
    Ok(sizes.group_layout(group_log)?)
}

/// The group of each store.
fn groups(
    options: &KvStoresConfig,
    layout: GroupLayout,
    node_addresses: &[MemoryNodeAddress],
    provider: &Arc<dyn Provider>,
) -> Vec<SiftGroup> {
    let timing = timing(options.persistence);
    let group = |id| SiftGroup { id, layout, nodes: node_addresses.to_vec(), provider: Arc::clone(provider), timing };
    (1..=u64::from(options.stores)).map(|id| group(GroupId(id))).collect()
}

/// Formats groups that were never used. A minority of nodes that keep groups on disk may be missing if the others know
/// that the group was used. A new group needs all nodes.
async fn format(options: &KvStoresConfig, groups: &[SiftGroup], missing: usize) -> Result<(), NodeError> {
    for group in groups {
        if missing > 0 && sift::is_used(group).await? {
            continue;
        }
        match sift::format(group).await {
            // The group continues with what the nodes have on disk.
            Err(sift::Error::AlreadyFormatted(_)) if options.persistence == Persistence::Nodes => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Starts a memory node for all groups.
async fn memory_node(
    options: &KvStoresConfig,
    layout: GroupLayout,
    slot: usize,
    node_address: &MemoryNodeAddress,
    provider: &Arc<dyn Provider>,
    stop: &CancellationToken,
) -> Result<Arc<LogMemoryNode>, NodeError> {
    let token = node_address.token.clone();
    let host_options = HostConfig { node: NodeId(slot as u32), tokens: Arc::new(move |_| Some(token.clone())) };
    let failed = |source| NodeError::Provider { who: "a memory node".to_owned(), source };
    let host = provider.host(&node_address.address, host_options).await.map_err(failed)?;
    let groups = (1..=u64::from(options.stores)).map(|id| GroupMemory { id: GroupId(id), layout }).collect();
    let node_options = LogMemoryNodeConfig { host, groups, stop: stop.clone() };
    let host = Arc::clone(&node_options.host);
    let started = async {
        match options.persistence {
            Persistence::None | Persistence::Coordinator { .. } => Ok(LogMemoryNode::start(node_options).await?),
            Persistence::Nodes => {
                let path = options.memory_folder(slot);
                let kept = Directory::open(&path).await.map_err(NodeError::file("make", &path))?;
                Ok(LogMemoryNode::start_persistent(node_options, &kept).await?)
            }
        }
    };
    let outcome = started.await;
    if outcome.is_err() {
        // The next attempt uses the same address.
        host.close().await;
    }
    outcome
}

/// A memory node of this process that is restarted after its disk or its host has failed.
struct SupervisedMemoryNode {
    options: KvStoresConfig,
    layout: GroupLayout,
    slot: usize,
    node_address: MemoryNodeAddress,
    provider: Arc<dyn Provider>,
}

impl SupervisedMemoryNode {
    async fn run(self, mut node: Option<Arc<LogMemoryNode>>, stop: CancellationToken) {
        let SupervisedMemoryNode { options, layout, slot, node_address: place, provider } = self;
        let mut backoff = Backoff::new(RESTART_PAUSE_MIN, RESTART_PAUSE_MAX);
        loop {
            if let Some(node) = node.take() {
                let since = rt::now();
                let failed = stop.run_until_cancelled(node.failed()).await;
                node.stop().await;
                let Some(error) = failed else { return };
                tracing::error!(slot, %error, "a memory node has failed and is started again");
                if since.elapsed() > STABLE_AFTER {
                    backoff.reset();
                }
            }
            if stop.run_until_cancelled(backoff.wait()).await.is_none() {
                return;
            }
            match memory_node(&options, layout, slot, &place, &provider, &stop).await {
                Ok(again) => node = Some(again),
                Err(error) => tracing::error!("{}", options.remedy(slot, &error)),
            }
        }
    }
}

/// The token that clients must present.
///
/// # Errors
/// No token is set although clients from other machines reach the port; or the token cannot be read.
fn token(options: &KvStoresConfig) -> Result<Option<KvToken>, NodeError> {
    if options.token_file.is_none() && !options.listen.ip().is_loopback() {
        let reason = format!(
            "anyone who reaches --listen {} could read and write: add --token-file FILE, with a secret of 16 characters or \
             more in FILE that clients present, or listen on 127.0.0.1",
            options.listen
        );
        return Err(Error::Invalid(reason).into());
    }
    options.token_file.as_deref().map(KvToken::read).transpose()
}

/// The certificate by which clients recognise the stores.
fn certificate(listen: SocketAddr) -> Result<TlsIdentity, NodeError> {
    let organization =
        IssuingOrganization::create("HeddleKv", "kv.heddle", &CertificateTerms::starting_now(KeyKind::P256))?;
    let ip = listen.ip().to_string();
    Ok(organization.issue_tls(MemberRole::Peer, "kv", &[HOST, "127.0.0.1", "::1", &ip])?)
}

/// A path that clients in other working directories find too.
fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file("find", path))
}

/// Binds a port for each store, consecutive from `listen` on; any free ports if it is 0.
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

/// Serves clients at the ports.
fn serve(
    options: &KvStoresConfig,
    listeners: Vec<TcpListener>,
    stores: &Arc<StoreSet>,
    (certificate_pem, key_pem): (&[u8], &[u8]),
    token: Option<KvToken>,
    stop: &CancellationToken,
) -> Result<Vec<tokio::task::JoinHandle<()>>, NodeError> {
    let KvStoresConfig { sizes, memory_nodes, persistence, .. } = *options;
    let message_bytes_max = 2 * sizes.value_bytes_max() + (64 << 10);
    let token = token.map(Arc::new);
    let mut serving = Vec::new();
    for (store, listener) in listeners.into_iter().enumerate() {
        let tls = server::tls(certificate_pem, key_pem)?;
        let port = KvService {
            stores: Arc::clone(stores),
            store,
            sizes,
            memory_nodes,
            persistence,
            permits: Arc::new(service::permit_pool()),
            token: token.clone(),
            stop: stop.clone(),
        };
        let (settings, limits) =
            (ConnectionConfig { message_bytes_max, ..ConnectionConfig::default() }, server::PortLimits::default());
        serving.push(tokio::spawn(server::serve(listener, Some(tls), port, settings, limits, stop.clone())));
    }
    Ok(serving)
}

impl KeyValueServer {
    /// Starts stores, new ones or those in the directory; on return they serve.
    ///
    /// # Errors
    /// Invalid sizes, sizes that differ from the existing ones, no memory, no port, no file.
    pub fn start(options: KvStoresConfig) -> Boxed<'static, Result<KeyValueServer, NodeError>> {
        Box::pin(KeyValueServer::start_all(options))
    }

    async fn start_all(options: KvStoresConfig) -> Result<KeyValueServer, NodeError> {
        let layout = layout(&options)?;
        let directory = options.directory.clone();
        let (_, lock) = lock(&directory).await?;
        let client_token = token(&options)?;
        let identity = certificate(options.listen)?;
        let (listeners, addresses) = bind(options.listen, options.stores).await?;

        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let (token, name) = (Token::random(), rt::random_u64());
        let place = |slot| MemoryNodeAddress {
            address: format!("local:kv-{name:x}-{slot}"),
            name: NAME.to_owned(),
            token: token.clone(),
        };
        let places: Vec<MemoryNodeAddress> = (0..options.memory_nodes).map(place).collect();
        let stop = CancellationToken::new();
        let (mut started, mut missing) = (Vec::new(), Vec::new());
        for (slot, place) in places.iter().enumerate() {
            let node = memory_node(&options, layout, slot, place, &provider, &stop).await;
            started.push(match node {
                Ok(node) => Some(node),
                Err(error) if missing.len() < options.missing_max() => {
                    missing.push(options.remedy(slot, &error));
                    None
                }
                Err(error) => return Err(error),
            });
        }
        let groups = groups(&options, layout, &places, &provider);
        format(&options, &groups, missing.len()).await?;
        let mut nodes = Vec::new();
        for (slot, (node, place)) in started.into_iter().zip(places).enumerate() {
            let kept = SupervisedMemoryNode {
                options: options.clone(),
                layout,
                slot,
                node_address: place,
                provider: Arc::clone(&provider),
            };
            nodes.push(tokio::spawn(kept.run(node, stop.clone())));
        }

        let mut kept = Vec::new();
        if let Persistence::Coordinator { is_synchronous } = options.persistence {
            let engine = FjallEngine::open(&directory.join(TABLES), FjallConfig::default()).await?;
            for group in &groups {
                let tables = engine.tables(&format!("store-{}", group.id.0)).await?;
                kept.push(PersistentTables { tables, is_synchronous });
            }
        }
        let processors = CpuNodes { own: true, backups: options.backups, number: 0 };
        let cache = KvConfig { cache_bytes: options.cache_bytes };
        let stores = StoreSet::start(groups, kept, options.sizes, cache, processors, &stop)?;
        stores.served(START_TIMEOUT).await.inspect_err(|_| stop.cancel())?;
        let proof = (&identity.certificate_pem[..], &identity.key_pem[..]);
        let serving = serve(&options, listeners, &stores, proof, client_token, &stop)?;
        let authority = PathBuf::from(AUTHORITY);
        let (address, process) = (addresses[0], std::process::id());
        let (host, parts) = (HOST.to_owned(), Vec::new());
        let token_file = options.token_file.as_deref().map(absolute).transpose()?;
        let endpoint = KvEndpoint { address, stores: addresses, parts, host, authority, token_file, process };
        write(&directory.join(AUTHORITY), &identity.authority_pem)?;
        endpoint.write(&directory)?;
        Ok(KeyValueServer { directory, endpoint, stores, stop, serving, nodes, missing, _lock: lock })
    }

    /// Where the stores can be reached.
    pub fn endpoint(&self) -> &KvEndpoint {
        &self.endpoint
    }

    /// Advice for each memory node that did not start; the stores run without them.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The first store, without gRPC; for measurements. `None` when no coordinator serves within the time limit.
    pub async fn store(&self) -> Option<KvStore> {
        self.stores.current(0).serving(START_TIMEOUT).await
    }

    /// Completes when a store has failed for good, with the reason.
    pub async fn failed(&self) -> Error {
        loop {
            rt::sleep(POLL_INTERVAL).await;
            if let Some(error) = self.stores.failed() {
                return error;
            }
        }
    }

    /// Stops the stores; data that is only in memory is lost.
    pub fn stop(self) -> Boxed<'static, ()> {
        Box::pin(self.stop_all())
    }

    async fn stop_all(self) {
        // New clients must not find the stores any more.
        if let Err(error) = std::fs::remove_file(self.directory.join(KV_FILE)) {
            tracing::warn!(%error, "kv.json is left behind");
        }
        self.stop.cancel();
        for serving in self.serving {
            // A panic there has been logged, and nothing depends on the port any more.
            let _ = serving.await;
        }
        self.stores.stop().await;
        for node in self.nodes {
            let _ = node.await;
        }
    }
}
