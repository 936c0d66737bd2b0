//! A network that runs in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, CancellationToken};
use chain::Peer;
use chain::order::Orderer;
use futures_util::FutureExt as _;
use futures_util::future::{join_all, select_all};
use gateway::client::{ClientTls, ConnectTarget};
use identity::Signer;
use identity::issue::TlsIdentity;
use pool::VerbCounts;
use tokio::task::JoinHandle;

use super::{Endpoint, EndpointRole, Network, NodeError};
use crate::Boxed;
use crate::control::ComputeReport;
use crate::process::ProcessEnd;
use crate::roles::compute::ComputeInstance;
use crate::roles::log_memory::LogMemoryInstance;
use crate::roles::memory::MemoryInstance;
use crate::roles::orderer::OrdererInstance;
use crate::roles::storage::StorageInstance;
use crate::services::Services;

/// How long a stop waits for peers to commit ordered blocks; peers fetch the rest at the next start.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// A running network. Dropping it without [`RunningNetwork::stop`] ends it as a crash would.
pub struct RunningNetwork {
    pub(super) network: Network,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) memory: Vec<MemoryInstance>,
    pub(super) storages: Vec<StorageInstance>,
    /// Per organisation, its compute nodes.
    pub(super) compute_nodes: Vec<Vec<Arc<ComputeInstance>>>,
    /// The first orderer has the port.
    pub(super) orderers: Vec<OrdererInstance>,
    /// The memory nodes that hold the orderers' log.
    pub(super) log_memory: Vec<LogMemoryInstance>,
    pub(super) stop: CancellationToken,
    pub(super) services: Services,
    pub(super) ports: Vec<JoinHandle<()>>,
}

impl RunningNetwork {
    /// The listening ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The channel's name.
    pub fn channel(&self) -> &str {
        &self.network.config.network.channel
    }

    /// The number of organisations.
    pub fn organizations(&self) -> usize {
        self.compute_nodes.len()
    }

    /// How a client reaches an organisation's gateway.
    pub fn gateway(&self, organization: usize) -> ConnectTarget {
        self.target(self.endpoints[organization].address, &self.network.organizations[organization].tls)
    }

    /// How a client reaches the orderer.
    pub fn orderer_target(&self) -> ConnectTarget {
        self.target(self.orderer_endpoint().address, &self.network.orderer.tls)
    }

    fn orderer_endpoint(&self) -> &Endpoint {
        let mut endpoints = self.endpoints.iter();
        endpoints.find(|endpoint| endpoint.role == EndpointRole::Orderer).expect("a network has an orderer")
    }

    fn target(&self, address: SocketAddr, tls: &TlsIdentity) -> ConnectTarget {
        let address = match address.ip().is_unspecified() {
            true => SocketAddr::from(([127, 0, 0, 1], address.port())),
            false => address,
        };
        let tls = self
            .network
            .config
            .tls
            .then(|| ClientTls { roots_pem: tls.authority_pem.to_vec(), server_name: "localhost".to_owned() });
        ConnectTarget { address: address.to_string(), tls }
    }

    /// An organisation's ordinary user.
    pub fn user(&self, organization: usize) -> Signer {
        self.network.organizations[organization].user.clone()
    }

    /// An organisation's administrator.
    pub fn admin(&self, organization: usize) -> Signer {
        self.network.organizations[organization].admin.clone()
    }

    /// An organisation's peer, at the compute node that commits; `None` between two primaries.
    pub fn peer(&self, organization: usize) -> Option<Arc<Peer>> {
        self.compute_nodes[organization].iter().find_map(|node| node.peer())
    }

    /// The roles of the compute nodes of an organisation's peer.
    pub fn compute_nodes(&self, organization: usize) -> Vec<ComputeReport> {
        self.compute_nodes[organization].iter().map(|node| node.report()).collect()
    }

    /// The verbs that an organisation's world state has posted to memory nodes; `None` in the monolithic form.
    pub fn verbs(&self, organization: usize) -> Option<VerbCounts> {
        self.compute_nodes[organization].iter().find_map(|node| node.verbs())
    }

    /// Bytes of memory that each memory node has given.
    pub fn memory_granted(&self) -> Vec<u64> {
        self.memory.iter().map(|memory| memory.usage().granted_bytes).collect()
    }

    /// The orderer.
    pub fn orderer(&self) -> &Arc<Orderer> {
        self.orderers[0].orderer()
    }

    /// Completes when a peer, its storage node, the orderer, a memory node or a port has stopped by itself, with the
    /// reason.
    pub async fn failed(&self) -> ProcessEnd {
        let peers = self.compute_nodes.iter().flatten().map(|compute| compute.failed().boxed());
        let storages = self.storages.iter().map(|storage| storage.failed().boxed());
        tokio::select! {
            (ended, _, _) = select_all(peers.chain(storages)) => ended,
            (ended, _, _) = select_all(self.orderers.iter().map(|ordering| ordering.failed().boxed())) => ended,
            reason = self.services.failed() => ProcessEnd::defect(reason),
        }
    }

    /// Lets calls finish, commits ordered blocks, persists and closes everything. Durable on return.
    ///
    /// # Errors
    /// The first error of a peer; everything else is closed all the same.
    pub fn stop(self) -> Boxed<'static, Result<(), NodeError>> {
        Box::pin(self.stop_in_order())
    }

    async fn stop_in_order(self) -> Result<(), NodeError> {
        self.stop.cancel();
        for port in self.ports {
            // A port that panicked has logged it.
            let _ = port.await;
        }
        let drain = async {
            // The orderer cuts its queued envelopes into a block within the batch time-out.
            rt::sleep(self.network.config.batch_limits().timeout).await;
            let height = self.orderers.iter().map(|ordering| ordering.chain().height()).max().unwrap_or_default();
            let channels = self.compute_nodes.iter().flatten().filter_map(|compute| compute.channel());
            join_all(channels.map(|channel| async move {
                let mut committed = channel.committed();
                tokio::select! {
                    _ = committed.wait_for(|committed| *committed >= height) => {}
                    () = channel.stopped() => {}
                }
            }))
            .await;
        };
        if rt::timeout(DRAIN_MAX, drain).await.is_err() {
            tracing::warn!("peers did not commit everything in time; they will at the next start");
        }
        let mut outcome = Ok(());
        for nodes in &self.compute_nodes {
            // Stop followers first, so that none of them takes over from a primary that stops.
            let (last, first): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.channel().is_some());
            for compute in first.into_iter().chain(last) {
                outcome = outcome.and(compute.stop().await);
            }
        }
        for storage in &self.storages {
            outcome = outcome.and(storage.stop().await);
        }
        for memory in &self.memory {
            memory.stop().await;
        }
        for ordering in &self.orderers {
            ordering.stop().await;
        }
        for memory in &self.log_memory {
            memory.stop().await;
        }
        outcome
    }
}

impl std::fmt::Debug for RunningNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
