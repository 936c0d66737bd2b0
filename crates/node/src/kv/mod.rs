//! A replicated key-value store as a program: memory nodes, processors and a port, composed.
//!
//! 1. [`KeyValues::start`] makes a group of memory nodes within the process, formats it, and starts two processors. One is
//!    elected, and serves the store; when it ends the other takes over.
//! 2. The port speaks gRPC over TLS ([`service`]). Its certificate is made at the start; `ca.pem` in the directory is what clients
//!    trust, and `kv.json`, which is written last, says where the port is.
//!
//! What is kept is kept in the memory of this process alone: it ends with it. No client proves who it is: whoever reaches the
//! port reads and writes.

mod client;
mod service;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::{self, Stop, Task};
use consensus::kv::{Options, Store};
use consensus::{Error, Group, GroupId, GroupMemory, MemoryNode, MemoryNodeOptions, Place, Standby, Timing};
use gateway::client::{Target, Tls};
use gateway::rpc::Settings;
use gateway::server;
use identity::issue::{Organization, Terms};
use identity::{KeyKind, Role};
use rma::shm::Shm;
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};
use serde::{Deserialize, Serialize};

use crate::network::{NodeError, write};
use service::{Current, Port};

pub use client::{KvClient, KvExchange, KvWatch};
pub use consensus::kv::Sizes;

const FILE: &str = "kv.json";
const AUTHORITY: &str = "ca.pem";
const HOST: &str = "localhost";
const PROCESSORS: u64 = 2;
/// Bytes of a group's own log, where its store does not need more.
const GROUP_LOG_BYTES: u64 = 4 << 20;
/// How long the first coordinator may take.
const START_MAX: Duration = Duration::from_secs(30);

/// What a store is to be.
#[derive(Clone, Debug)]
pub struct KvOptions {
    /// Where clients find `kv.json` and `ca.pem`.
    pub directory: PathBuf,
    /// The port; 0 for any that is free.
    pub listen: SocketAddr,
    /// How many memory nodes: an odd number.
    pub memory_nodes: u32,
    /// The store's sizes.
    pub sizes: Sizes,
    /// Bytes of the coordinator's cache.
    pub cache_bytes: usize,
}

/// Where a store is: `kv.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvEndpoint {
    /// Where its port is.
    pub address: SocketAddr,
    /// The name in its certificate.
    pub host: String,
    /// The authority that clients trust, relative to the directory.
    pub authority: PathBuf,
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

    /// How a client reaches it.
    ///
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn target(&self, directory: &Path) -> Result<Target, NodeError> {
        let path = directory.join(&self.authority);
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
        Ok(Target { address: self.address.to_string(), tls: Some(Tls { roots_pem, server_name: self.host.clone() }) })
    }
}

/// A store that runs in this process.
pub struct KeyValues {
    directory: PathBuf,
    endpoint: KvEndpoint,
    current: Arc<Current>,
    failed: Arc<Mutex<Option<Error>>>,
    stop: Stop,
    serving: tokio::task::JoinHandle<()>,
    processors: Vec<Task<()>>,
    nodes: Vec<Arc<MemoryNode>>,
}

/// Times of a group whose nodes are one process on a machine with much else to do.
fn timing() -> Timing {
    Timing {
        lease: Duration::from_millis(60),
        election_timeout: Duration::from_millis(40),
        attempt_max: Duration::from_millis(100),
        ..Timing::default()
    }
}

impl KeyValues {
    /// Starts a store with nothing in it; on return it serves.
    ///
    /// # Errors
    /// Sizes that make no sense, no memory, no port, no file.
    pub async fn start(options: KvOptions) -> Result<KeyValues, NodeError> {
        let KvOptions { directory, listen, memory_nodes, sizes, cache_bytes } = options;
        sizes.check_sizes()?;
        // Twice what it needs at least, so that transactions follow one another.
        let group_log = GROUP_LOG_BYTES.max((sizes.block_bytes * 128).next_multiple_of(4096));
        let layout = sizes.group_layout(group_log)?;
        std::fs::create_dir_all(&directory).map_err(NodeError::file("make", &directory))?;
        let organization = Organization::found("HeddleKv", "kv.heddle", &Terms::starting_now(KeyKind::P256))?;
        let ip = listen.ip().to_string();
        let identity = organization.issue_tls(Role::Peer, "kv", &[HOST, "127.0.0.1", "::1", &ip])?;
        let tls = server::tls(&identity.certificate_pem, &identity.key_pem)?;
        let cannot_listen = |source| NodeError::Listen { address: listen, source };
        let listener = server::bind(listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;

        let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
        let mut secret = [0; TOKEN_BYTES];
        rt::fill_random(&mut secret);
        let token = Token::new(secret);
        let name = rt::random_u64();
        let place =
            |slot| Place { address: format!("local:kv-{name:x}-{slot}"), name: "kv".to_owned(), token: token.clone() };
        let places: Vec<Place> = (0..memory_nodes).map(place).collect();
        let (id, timing) = (GroupId(1), timing());
        let group = Group { id, layout, nodes: places, fabric: Arc::clone(&fabric), timing };
        let stop = Stop::new();
        let mut nodes = Vec::new();
        for (slot, place) in group.nodes.iter().enumerate() {
            let token = token.clone();
            let options = HostOptions { node: NodeId(slot as u32), tokens: Arc::new(move |_| Some(token.clone())) };
            let failed = |source| NodeError::Fabric { who: "a memory node".to_owned(), source };
            let host = fabric.host(&place.address, options).await.map_err(failed)?;
            let groups = vec![GroupMemory { id, layout }];
            nodes.push(MemoryNode::start(MemoryNodeOptions { host, groups, stop: stop.clone() }).await?);
        }
        consensus::format(&group).await?;

        let (current, failed) = (Arc::new(Current::default()), Arc::default());
        let processors = (0..PROCESSORS).map(|number| {
            let processor = Processor {
                group: group.clone(),
                number,
                sizes,
                options: Options { cache_bytes },
                current: Arc::clone(&current),
                failed: Arc::clone(&failed),
                stop: stop.clone(),
            };
            rt::spawn(processor.run())
        });
        let processors = processors.collect();
        let port = Port { current: Arc::clone(&current), sizes, memory_nodes, stop: stop.clone() };
        let settings = Settings { message_bytes_max: 2 * sizes.value_bytes_max() + (64 << 10), ..Settings::default() };
        let serving =
            tokio::spawn(server::serve(listener, Some(tls), port, settings, server::Limits::default(), stop.clone()));
        if current.serving(START_MAX).await.is_none() {
            let why = failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
            stop.stop();
            return Err(why.unwrap_or(Error::NotElected).into());
        }
        let authority = PathBuf::from(AUTHORITY);
        let endpoint = KvEndpoint { address, host: HOST.to_owned(), authority, process: std::process::id() };
        write(&directory.join(AUTHORITY), &identity.authority_pem)?;
        let text = serde_json::to_string_pretty(&endpoint).expect("an endpoint has a JSON form");
        write(&directory.join(FILE), (text + "\n").as_bytes())?;
        Ok(KeyValues { directory, endpoint, current, failed, stop, serving, processors, nodes })
    }

    /// Where it is.
    pub fn endpoint(&self) -> &KvEndpoint {
        &self.endpoint
    }

    /// The store, without gRPC; for measurements. None when nobody serves for a while.
    pub async fn store(&self) -> Option<Store> {
        self.current.serving(START_MAX).await
    }

    /// Completes when it cannot go on, with the reason.
    pub async fn failed(&self) -> Error {
        loop {
            rt::sleep(Duration::from_millis(200)).await;
            if let Some(error) = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                return error;
            }
        }
    }

    /// Ends it, and all that was kept.
    pub async fn stop(self) {
        // Whoever looks for a store from now on is to find none.
        if let Err(error) = std::fs::remove_file(self.directory.join(FILE)) {
            tracing::warn!(%error, "kv.json is left behind");
        }
        self.stop.stop();
        // A panic there has been logged, and nothing depends on it any more.
        let _ = self.serving.await;
        self.current.set(None);
        for processor in self.processors {
            let _ = processor.await;
        }
        drop(self.nodes);
    }
}

/// Stands by, serves, stands by again.
struct Processor {
    group: Group,
    number: u64,
    sizes: Sizes,
    options: Options,
    current: Arc<Current>,
    failed: Arc<Mutex<Option<Error>>>,
    stop: Stop,
}

impl Processor {
    async fn run(self) {
        let stop = self.stop.clone();
        if let Some(error) = stop.or_stopped(self.serve()).await {
            tracing::error!(%error, "a key-value store cannot go on");
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }

    /// Gives what it cannot go on after.
    async fn serve(&self) -> Error {
        let mut standby = match Standby::new(self.group.clone(), self.number) {
            Ok(standby) => standby,
            Err(error) => return error,
        };
        loop {
            let outcome = match standby.take_over().await {
                Ok(coordinator) => Store::take_over(coordinator, self.sizes, self.options).await,
                Err(error) => return error,
            };
            let ended = match outcome {
                Ok(store) => {
                    self.current.set(Some(store.clone()));
                    store.ended().await
                }
                Err(error) => error,
            };
            if matches!(ended.kind(), base::ErrorKind::Corrupt | base::ErrorKind::Rejected) {
                return ended;
            }
            tracing::info!(processor = self.number, error = %ended, "a coordinator of the key-value store has ended");
        }
    }
}
