//! Stores whose memory nodes and processors are processes of their own (`heddle kv up --isolate`).
//!
//! ```text
//!  supervisor ── KvPart as JSON, standard input ──▶ memory-0 … memory-2F    a socket each; the stores' memory
//!      │                                            processor-0             each store's own processor; a port for each store
//!      └── kv.json: where all of them are           processor-1 … B         a backup that all stores share; ports as well
//! ```
//!
//! 1. The supervisor makes a [`KvPlan`]: sockets, one secret, a certificate. It starts memory nodes, has them formatted
//!    ([`KvPlan::format`]), starts processors, and tells clients where they are ([`KvPlan::announce`]).
//! 2. Every processor has a port for each store, and answers there while it serves that store. Whoever asks another one is told to ask
//!    again, so that clients look for the one that serves.
//! 3. Whatever ends is started again. A memory node without a disk comes back with nothing, and is copied to; a processor has nothing to
//!    lose. As long as F memory nodes at most are gone, what clients were told stays.
//!
//! The secret goes through standard input, and certificates' keys with it: none of them is in a file or on a command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::rt::disk::File;
use base::rt::{self, Stop};
use consensus::kv::Options;
use consensus::{Error, MemoryNode, Place};
use rma::shm::Shm;
use rma::{Fabric, TOKEN_BYTES, Token};
use serde::{Deserialize, Serialize};

use super::stores::{Processors, Stores};
use super::{AUTHORITY, HOST, KvEndpoint, KvOptions, KvToken, NAME, Persistence, Sizes};
use crate::network::{NodeError, write};
use crate::process::Ended;
use crate::services::{FAULTS, inject_faults};
use crate::{Boxed, plan};

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KvRole {
    /// A memory node, with its number.
    Memory(u32),
    /// A processor: the first is each store's own, the others are backups of all.
    Processor(u32),
}

impl KvRole {
    /// What the process is called.
    pub fn name(self) -> String {
        match self {
            KvRole::Memory(number) => format!("memory-{number}"),
            KvRole::Processor(number) => format!("processor-{number}"),
        }
    }
}

/// A process that runs, for whoever looks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvProcessEndpoint {
    /// Its name.
    pub name: String,
    /// Its number in the system.
    pub process: u32,
    /// A processor's ports, one for each store.
    #[serde(default)]
    pub stores: Vec<SocketAddr>,
}

/// What a process is told: all that it needs to know.
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
    fn options(&self) -> KvOptions {
        let [log_bytes, buckets, blocks, block_bytes] = self.sizes;
        KvOptions {
            directory: self.directory.clone(),
            listen: self.listen,
            token_file: None,
            stores: self.stores,
            backups: 1,
            persistence: if self.is_persistent { Persistence::Nodes } else { Persistence::None },
            memory_nodes: self.sockets.len() as u32,
            sizes: Sizes { log_bytes, buckets, blocks, block_bytes },
            cache_bytes: self.cache_bytes,
        }
    }

    fn places(&self) -> Vec<Place> {
        let token = Token::new(self.token);
        let place = |address: &String| Place { address: address.clone(), name: NAME.to_owned(), token: token.clone() };
        self.sockets.iter().map(place).collect()
    }
}

/// What all processes are to be. It holds the directory while it lives.
pub struct KvPlan {
    part: KvPart,
    backups: u32,
    authority_pem: Vec<u8>,
    token_file: Option<PathBuf>,
    _lock: File,
}

impl KvPlan {
    /// Makes one, with sockets in a folder that nobody else may look into.
    ///
    /// # Errors
    /// Sizes that make no sense, persistence of a coordinator, a directory that another process uses.
    pub async fn make(options: &KvOptions, sockets: &Path) -> Result<KvPlan, NodeError> {
        super::layout(options)?;
        // That of the last store of the last processor.
        let ports = (options.backups as usize + 1) * options.stores as usize;
        plan::port_behind(options.listen.port(), ports - 1, super::LISTEN)?;
        if let Persistence::Coordinator { .. } = options.persistence {
            let reason = "tables of the coordinator belong to one process: with processes of their own, keep stores on the \
                          disks of memory nodes";
            return Err(Error::Invalid(reason.to_owned()).into());
        }
        let client_token = super::token(options)?;
        let token_file = options.token_file.as_deref().map(super::absolute).transpose()?;
        let (_, lock) = super::lock(&options.directory).await?;
        let identity = super::certificate(options.listen)?;
        let socket = |slot| sockets.join(format!("kv-memory-{slot}")).display().to_string();
        let Sizes { log_bytes, buckets, blocks, block_bytes } = options.sizes;
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

    /// What runs: memory nodes first.
    pub fn roles(&self) -> Vec<KvRole> {
        let memory = (0..self.part.sockets.len() as u32).map(KvRole::Memory);
        memory.chain((0..=self.backups).map(KvRole::Processor)).collect()
    }

    /// What the process of a role is told.
    pub fn part(&self, role: KvRole) -> KvPart {
        let mut part = KvPart { role, ..self.part.clone() };
        if let KvRole::Processor(number) = role {
            let port = plan::port_behind(part.listen.port(), number as usize * part.stores as usize, super::LISTEN);
            part.listen.set_port(port.expect("the plan has seen to it that the last one is a port"));
        }
        part
    }

    /// Makes the stores, once all memory nodes run but for so many that are missing, unless these have kept them.
    ///
    /// # Errors
    /// Too few answer.
    pub fn format(&self, missing: usize) -> Boxed<'_, Result<(), NodeError>> {
        Box::pin(async move {
            let (options, fabric): (_, Arc<dyn Fabric>) = (self.part.options(), Arc::new(Shm::default()));
            let groups = super::groups(&options, super::layout(&options)?, &self.part.places(), &fabric);
            super::format(&options, &groups, missing).await
        })
    }

    /// As [`KvOptions::missing_max`].
    pub fn missing_max(&self) -> usize {
        self.part.options().missing_max()
    }

    /// As [`KvOptions::remedy`].
    pub fn remedy(&self, slot: u32, error: &dyn std::fmt::Display) -> String {
        self.part.options().remedy(slot as usize, error)
    }

    /// Tells clients where everything is.
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

    /// From now on clients find nothing.
    pub fn withdraw(&self) {
        if let Err(error) = std::fs::remove_file(self.part.directory.join(super::FILE)) {
            tracing::warn!(%error, "kv.json is left behind");
        }
    }
}

/// A part that runs in this process.
pub struct KvProcess {
    addresses: Vec<SocketAddr>,
    node: Option<Arc<MemoryNode>>,
    stores: Option<Arc<Stores>>,
    serving: Vec<tokio::task::JoinHandle<()>>,
    stop: Stop,
}

impl KvProcess {
    /// Starts what it is told to be. A processor answers at its ports from then on, and stands by.
    ///
    /// # Errors
    /// No memory, no port, no socket.
    pub fn start(part: &KvPart) -> Boxed<'_, Result<KvProcess, NodeError>> {
        Box::pin(KvProcess::start_part(part))
    }

    async fn start_part(part: &KvPart) -> Result<KvProcess, NodeError> {
        let (options, stop) = (part.options(), Stop::new());
        if let Some(folder) = std::env::var_os(FAULTS) {
            drop(tokio::spawn(inject_faults(folder.into(), part.role.name(), stop.clone())));
        }
        let (layout, places) = (super::layout(&options)?, part.places());
        let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
        let mut process = KvProcess { addresses: Vec::new(), node: None, stores: None, serving: Vec::new(), stop };
        match part.role {
            KvRole::Memory(number) => {
                let slot = number as usize;
                // That of a life before.
                let _ = std::fs::remove_file(&part.sockets[slot]);
                let node = super::memory_node(&options, layout, slot, &places[slot], &fabric, &process.stop).await?;
                process.node = Some(node);
            }
            KvRole::Processor(number) => {
                let (listeners, addresses) = super::bind(options.listen, options.stores).await?;
                let groups = super::groups(&options, layout, &places, &fabric);
                let own = number == 0;
                let processors = Processors { own, backups: u32::from(!own), number };
                let cache = Options { cache_bytes: options.cache_bytes };
                let stores = Stores::start(groups, Vec::new(), options.sizes, cache, processors, &process.stop)?;
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

    /// Whether it is a memory node, of which others have copies.
    pub fn is_memory(&self) -> bool {
        self.node.is_some()
    }

    /// A processor's ports, one for each store.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Completes when this process is of no more use, with the reason: a store cannot go on, anywhere, or the disk or the
    /// host of this memory node has failed, and it is to be started again.
    pub async fn failed(&self) -> Ended {
        let error = match &self.node {
            Some(node) => node.failed().await,
            None => loop {
                rt::sleep(super::LOOK).await;
                if let Some(error) = self.stores.as_ref().and_then(|stores| stores.failed()) {
                    break error;
                }
            },
        };
        match error {
            Error::HostFailed(_) | Error::Panicked(_) => Ended::defect(error.to_string()),
            error => Ended::of_surroundings(error.to_string()),
        }
    }

    /// Ends it.
    pub fn stop(self) -> Boxed<'static, ()> {
        Box::pin(self.stop_part())
    }

    async fn stop_part(self) {
        self.stop.stop();
        for serving in self.serving {
            // A panic there has been logged, and nothing depends on it any more.
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
