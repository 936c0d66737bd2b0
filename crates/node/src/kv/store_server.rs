//! Runs stores with all their memory nodes and CPU nodes in this process.

use std::path::PathBuf;
use std::sync::Arc;

use base::rt;
use base::rt::CancellationToken;
use base::rt::disk::File;
use kv::{Error, KvConfig, KvStore, PersistentTables};
use rma::shm::ShmProvider;
use rma::{Provider, Token};
use sift::MemoryNodeAddress;
use storage::tables::{FjallConfig, FjallEngine, TablesEngine as _};

use super::config::{KvStoresConfig, Persistence};
use super::endpoint::{KV_FILE, KvEndpoint};
use super::stores::{CpuNodes, StoreSet};
use super::{
    AUTHORITY, HOST, NAME, POLL_INTERVAL, START_TIMEOUT, SupervisedMemoryNode, TABLES, absolute, bind, certificate,
    format, groups, layout, lock, memory_node, serve, token,
};
use crate::Boxed;
use crate::network::{NodeError, write};

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
