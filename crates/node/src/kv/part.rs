//! Runs the memory nodes and CPU nodes of stores as separate processes (`heddle kv up --isolate`).
//!
//! ```text
//!  supervisor ── KvPart as JSON, standard input ──▶ memory-0 … memory-2F    a socket each; the stores' memory
//!      │                                            cpu-node-0              each store's own; a port for each store
//!      └── kv.json: where all of them are           cpu-node-1 … B          backups that all stores share; with ports
//! ```
//!
//! 1. The supervisor makes a [`KvPlan`]: sockets, a secret and a certificate. It starts the memory nodes, formats them
//!    ([`KvPlan::format`]), starts the CPU nodes, and publishes their addresses to clients ([`KvPlan::announce`]).
//! 2. Every CPU node has a port for each store. While the node serves the store, it answers on that port; otherwise it
//!    replies with a retryable status, and the client tries the next CPU node.
//! 3. The supervisor restarts every process that ends. A memory node without a disk restarts empty, and the coordinator
//!    copies the data to it. A CPU node keeps no data. While at most F memory nodes are down, acknowledged changes
//!    survive.
//!
//! The secret and the certificate's key are passed through standard input, so that they appear neither in a file nor on
//! a command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt::disk::File;
use base::rt::{self, CancellationToken};
use kv::{Error, KvConfig};
use rma::shm::ShmProvider;
use rma::{Provider, TOKEN_BYTES, Token};
use serde::{Deserialize, Serialize};
use sift::{LogMemoryNode, MemoryNodeAddress};

use super::endpoint::KvProcessEndpoint;
use super::stores::{CpuNodes, StoreSet};
use super::{AUTHORITY, HOST, KvEndpoint, KvStoresConfig, KvToken, NAME, Persistence, StoreGeometry};
use crate::network::{NodeError, write};
use crate::process::ProcessEnd;
#[cfg(debug_assertions)]
use crate::services::{FAULTS_VARIABLE, inject_faults};
use crate::{Boxed, plan};

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvRole {
    /// A memory node, with its number.
    Memory(u32),
    /// A CPU node: the first is each store's own, the others are backups of all stores.
    #[serde(alias = "Processor")]
    CpuNode(u32),
}

impl KvRole {
    /// The name of the process.
    pub fn name(self) -> String {
        match self {
            KvRole::Memory(number) => format!("memory-{number}"),
            KvRole::CpuNode(number) => format!("cpu-node-{number}"),
        }
    }
}

/// Everything that a process needs to know, sent on its standard input.
#[derive(Clone, Serialize, Deserialize)]
pub struct KvPart {
    role: KvRole,
    directory: PathBuf,
    listen: SocketAddr,
    client_token: Option<KvToken>,
    stores: u32,
    is_persistent: bool,
    /// Log bytes, buckets, blocks and bytes of a block.
    sizes: [u64; 4],
    cache_bytes: usize,
    sockets: Vec<String>,
    token: [u8; TOKEN_BYTES],
    certificate_pem: Vec<u8>,
    key_pem: Vec<u8>,
}

impl KvPart {
    fn options(&self) -> KvStoresConfig {
        let [log_bytes, buckets, blocks, block_bytes] = self.sizes;
        KvStoresConfig {
            directory: self.directory.clone(),
            listen: self.listen,
            token_file: None,
            stores: self.stores,
            backups: 1,
            persistence: if self.is_persistent { Persistence::Nodes } else { Persistence::None },
            memory_nodes: self.sockets.len() as u32,
            sizes: StoreGeometry { log_bytes, buckets, blocks, block_bytes },
            cache_bytes: self.cache_bytes,
        }
    }

    fn memory_node_addresses(&self) -> Vec<MemoryNodeAddress> {
        let token = Token::new(self.token);
        let place = |address: &String| MemoryNodeAddress {
            address: address.clone(),
            name: NAME.to_owned(),
            token: token.clone(),
        };
        self.sockets.iter().map(place).collect()
    }
}

/// The plan of all processes. It holds the directory's lock while it lives.
pub struct KvPlan {
    part: KvPart,
    backups: u32,
    authority_pem: Vec<u8>,
    token_file: Option<PathBuf>,
    _lock: File,
}

impl KvPlan {
    /// Makes a plan, with sockets in a folder that only this user can enter.
    ///
    /// # Errors
    /// Invalid sizes, persistence of a coordinator, a directory that another process uses.
    pub async fn make(options: &KvStoresConfig, sockets: &Path) -> Result<KvPlan, NodeError> {
        super::layout(options)?;
        // The port of the last store of the last CPU node.
        let ports = (options.backups as usize + 1) * options.stores as usize;
        plan::port_behind(options.listen.port(), ports - 1, super::LISTEN)?;
        if let Persistence::Coordinator { .. } = options.persistence {
            let reason = "the coordinator's tables can be kept by one process only: with --isolate, keep the stores on the \
                          disks of memory nodes";
            return Err(Error::Invalid(reason.to_owned()).into());
        }
        let client_token = super::token(options)?;
        let token_file = options.token_file.as_deref().map(super::absolute).transpose()?;
        let (_, lock) = super::lock(&options.directory).await?;
        let identity = super::certificate(options.listen)?;
        let socket = |slot| sockets.join(format!("kv-memory-{slot}")).display().to_string();
        let StoreGeometry { log_bytes, buckets, blocks, block_bytes } = options.sizes;
        let mut token = [0; TOKEN_BYTES];
        rt::fill_random(&mut token);
        let part = KvPart {
            role: KvRole::Memory(0),
            directory: options.directory.clone(),
            listen: options.listen,
            client_token,
            stores: options.stores,
            is_persistent: options.persistence == Persistence::Nodes,
            sizes: [log_bytes, buckets, blocks, block_bytes],
            cache_bytes: options.cache_bytes,
            sockets: (0..options.memory_nodes).map(socket).collect(),
            token,
            certificate_pem: identity.certificate_pem.to_vec(),
            key_pem: identity.key_pem.to_vec(),
        };
        let authority_pem = identity.authority_pem.to_vec();
        Ok(KvPlan { part, backups: options.backups, authority_pem, token_file, _lock: lock })
    }

    /// All roles: memory nodes first.
    pub fn roles(&self) -> Vec<KvRole> {
        let memory = (0..self.part.sockets.len() as u32).map(KvRole::Memory);
        memory.chain((0..=self.backups).map(KvRole::CpuNode)).collect()
    }

    /// The message for the process of a role.
    pub fn part(&self, role: KvRole) -> KvPart {
        let mut part = KvPart { role, ..self.part.clone() };
        if let KvRole::CpuNode(number) = role {
            let port = plan::port_behind(part.listen.port(), number as usize * part.stores as usize, super::LISTEN);
            part.listen.set_port(port.expect("the plan has seen to it that the last one is a port"));
        }
        part
    }

    /// Formats the stores once all memory nodes run. If the nodes have the stores on disk, `missing` of them may be
    /// down.
    ///
    /// # Errors
    /// Too few answer.
    pub fn format(&self, missing: usize) -> Boxed<'_, Result<(), NodeError>> {
        Box::pin(async move {
            let (options, provider): (_, Arc<dyn Provider>) = (self.part.options(), Arc::new(ShmProvider::default()));
            let groups =
                super::groups(&options, super::layout(&options)?, &self.part.memory_node_addresses(), &provider);
            super::format(&options, &groups, missing).await
        })
    }

    /// As [`KvStoresConfig::missing_max`].
    pub fn missing_max(&self) -> usize {
        self.part.options().missing_max()
    }

    /// As [`KvStoresConfig::remedy`].
    pub fn remedy(&self, slot: u32, error: &dyn std::fmt::Display) -> String {
        self.part.options().remedy(slot as usize, error)
    }

    /// Publishes all addresses to clients.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn announce(&self, parts: Vec<KvProcessEndpoint>) -> Result<KvEndpoint, NodeError> {
        let stores = parts.iter().find(|part| !part.stores.is_empty()).map(|part| part.stores.clone());
        let stores = stores.unwrap_or_default();
        let address = stores.first().copied().unwrap_or(self.part.listen);
        let (host, authority, process) = (HOST.to_owned(), PathBuf::from(AUTHORITY), std::process::id());
        let token_file = self.token_file.clone();
        let endpoint = KvEndpoint { address, stores, parts, host, authority, token_file, process };
        write(&self.part.directory.join(AUTHORITY), &self.authority_pem)?;
        endpoint.write(&self.part.directory)?;
        Ok(endpoint)
    }

    /// Removes `kv.json`, so that clients find nothing from now on.
    pub fn withdraw(&self) {
        if let Err(error) = std::fs::remove_file(self.part.directory.join(super::KV_FILE)) {
            tracing::warn!(%error, "kv.json is left behind");
        }
    }
}

/// A part that runs in this process.
pub struct KvProcess {
    addresses: Vec<SocketAddr>,
    node: Option<Arc<LogMemoryNode>>,
    stores: Option<Arc<StoreSet>>,
    serving: Vec<tokio::task::JoinHandle<()>>,
    stop: CancellationToken,
}

impl KvProcess {
    /// Starts the role of the part. On return a CPU node answers at its ports, and stands by.
    ///
    /// # Errors
    /// No memory, no port, no socket.
    pub fn start(part: &KvPart) -> Boxed<'_, Result<KvProcess, NodeError>> {
        Box::pin(KvProcess::start_part(part))
    }

    async fn start_part(part: &KvPart) -> Result<KvProcess, NodeError> {
        let (options, stop) = (part.options(), CancellationToken::new());
        #[cfg(debug_assertions)]
        if let Some(folder) = std::env::var_os(FAULTS_VARIABLE) {
            drop(tokio::spawn(inject_faults(folder.into(), part.role.name(), stop.clone())));
        }
        let (layout, places) = (super::layout(&options)?, part.memory_node_addresses());
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let mut process = KvProcess { addresses: Vec::new(), node: None, stores: None, serving: Vec::new(), stop };
        match part.role {
            KvRole::Memory(number) => {
                let slot = number as usize;
                // A socket that an earlier process left.
                let _ = std::fs::remove_file(&part.sockets[slot]);
                let node = super::memory_node(&options, layout, slot, &places[slot], &provider, &process.stop).await?;
                process.node = Some(node);
            }
            KvRole::CpuNode(number) => {
                let (listeners, addresses) = super::bind(options.listen, options.stores).await?;
                let groups = super::groups(&options, layout, &places, &provider);
                let own = number == 0;
                let processors = CpuNodes { own, backups: u32::from(!own), number };
                let cache = KvConfig { cache_bytes: options.cache_bytes };
                let stores = StoreSet::start(groups, Vec::new(), options.sizes, cache, processors, &process.stop)?;
                let proof = (&part.certificate_pem[..], &part.key_pem[..]);
                process.serving = {
                    let token = part.client_token.clone();
                    super::serve(&options, listeners, &stores, proof, token, &process.stop)?
                };
                (process.addresses, process.stores) = (addresses, Some(stores));
            }
        }
        Ok(process)
    }

    /// Whether it is a memory node, of which others hold copies.
    pub fn is_memory(&self) -> bool {
        self.node.is_some()
    }

    /// A CPU node's ports, one for each store.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Completes when this process is of no more use, with the reason: no CPU node can serve a store any more, or the
    /// disk or the host of this memory node has failed and the process must be restarted.
    pub async fn failed(&self) -> ProcessEnd {
        let error = match &self.node {
            Some(node) => node.failed().await.into(),
            None => loop {
                rt::sleep(super::POLL_INTERVAL).await;
                if let Some(error) = self.stores.as_ref().and_then(|stores| stores.failed()) {
                    break error;
                }
            },
        };
        match error {
            Error::Sift(sift::Error::HostFailed(_)) | Error::Panicked(_) => ProcessEnd::defect(error.to_string()),
            error => ProcessEnd::environment(error.to_string()),
        }
    }

    /// Stops the process's role.
    pub fn stop(self) -> Boxed<'static, ()> {
        Box::pin(self.stop_part())
    }

    async fn stop_part(self) {
        self.stop.cancel();
        for serving in self.serving {
            // A panic there has been logged, and nothing depends on the port any more.
            let _ = serving.await;
        }
        if let Some(stores) = self.stores {
            stores.stop().await;
        }
        if let Some(node) = self.node {
            node.stop().await;
        }
    }
}
