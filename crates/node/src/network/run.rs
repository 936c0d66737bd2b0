//! A network that runs.
//!
//! Start: ports are bound first, so that a port that is taken is reported before any store is touched; then the orderer
//! opens, then the peers, side by side, then the ports answer.
//!
//! Stop: ports take no more calls and let those in progress finish; what was ordered is committed by the peers, within
//! a limit; then the peers persist their states, and the orderer closes its log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::MspId;
use base::rt::{self, Stop};
use chain::endorse::Endorse;
use chain::order::chain::Chain;
use chain::order::{Orderer, OrdererOptions};
use chain::{Channel, LocalStores, Peer, PeerOptions};
use futures_util::future::{join_all, try_join_all};
use gateway::client::{Target, Tls};
use gateway::rpc::connection::Settings;
use gateway::server;
use gateway::service::{Endorser, Intake, Limits, OrdererPort, OrderingNode, PeerPort, PeerPortOptions};
use identity::Signer;
use identity::issue::TlsIdentity;
use storage::GroupSync;
use storage::tables::{FjallEngine, FjallOptions};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Network, NodeError, Organization};
use crate::config::Config;
use crate::{contracts, disk, metrics, profile};

/// How long calls may go on after a stop.
const GRACE: Duration = Duration::from_secs(2);
/// How long a stop waits for peers to commit what was ordered; what they miss they fetch at the next start.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// What an endpoint is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Gateway, deliver and endorser services of an organisation.
    Peer,
    /// Broadcast and deliver services of the orderer.
    Orderer,
    /// Metrics over HTTP.
    Metrics,
}

/// Something that listens.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What for.
    pub role: Role,
    /// Whose; empty for metrics.
    pub msp_id: String,
    /// The name that its TLS certificate bears; empty for metrics.
    pub host: String,
    /// Where.
    pub address: SocketAddr,
}

/// A network that runs. Dropping it without [`Running::stop`] ends it as a crash would.
pub struct Running {
    network: Network,
    endpoints: Vec<Endpoint>,
    peers: Vec<Arc<Peer>>,
    channels: Vec<Arc<Channel>>,
    orderer: Arc<Orderer>,
    /// The channel at the orderer.
    chain: Arc<Chain>,
    stop: Stop,
    ports: Vec<JoinHandle<()>>,
}

pub(super) async fn start(network: Network) -> Result<Running, NodeError> {
    let config = network.config.clone();
    let (orderer_listener, gateway_listeners, metrics_listener) = bind_all(&config).await?;
    let tls = |identity: &TlsIdentity| -> Result<_, NodeError> {
        let enabled = config.tls.then(|| server::tls(&identity.certificate_pem, &identity.key_pem));
        Ok(enabled.transpose()?)
    };
    let mut endpoints = Vec::new();
    let mut ports = Vec::new();
    let stop = Stop::new();
    let sync = GroupSync::new();

    let address = format!("orderer {}", network.path.display());
    let (orderer, chain) = start_orderer(&network, &sync, &address).await?;
    let opening = network.organizations.iter().map(|organization| start_peer(&network, organization, &sync, &address));
    let (peers, channels): (Vec<_>, Vec<_>) = try_join_all(opening).await?.into_iter().unzip();

    let settings = Settings { message_bytes_max: config.limits.message_bytes, grace: GRACE, ..Settings::default() };
    let server_limits = server::Limits { connections_max: config.limits.connections, ..server::Limits::default() };
    let limits = Limits { calls_max: config.limits.calls, streams_max: config.limits.streams };
    let spawn = |listener: TcpListener, tls, port: Port| {
        let (settings, limits, stop) = (settings.clone(), server_limits.clone(), stop.clone());
        match port {
            Port::Peer(port) => tokio::spawn(server::serve(listener, tls, port, settings, limits, stop)),
            Port::Orderer(port) => tokio::spawn(server::serve(listener, tls, port, settings, limits, stop)),
        }
    };

    let intake = Intake::default();
    let free_bytes_min = config.storage.free_bytes_min;
    disk::look(&network.path, free_bytes_min, &intake);
    ports.push(tokio::spawn(disk::watch(network.path.clone(), free_bytes_min, intake.clone(), stop.clone())));
    let orderer_address = local(&orderer_listener);
    let ordering = OrderingNode {
        msp_id: MspId::new(network.orderer.msp_id.as_str()),
        address: orderer_address.to_string().into(),
        broadcast: orderer.clone(),
    };
    let port = OrdererPort::new(orderer.clone(), &limits, intake.clone(), stop.clone());
    ports.push(spawn(orderer_listener, tls(&network.orderer.tls)?, Port::Orderer(port)));
    let endorsers: Vec<Endorser> = network
        .organizations
        .iter()
        .zip(&peers)
        .zip(&gateway_listeners)
        .map(|((organization, peer), listener)| Endorser {
            msp_id: MspId::new(organization.msp_id.as_str()),
            address: local(listener).to_string().into(),
            endorse: peer.clone() as Arc<dyn Endorse>,
        })
        .collect();
    for (index, listener) in gateway_listeners.into_iter().enumerate() {
        let organization = &network.organizations[index];
        let others = endorsers.iter().enumerate().filter(|(other, _)| *other != index);
        let port = PeerPort::new(PeerPortOptions {
            peer: peers[index].clone(),
            local: endorsers[index].clone(),
            others: others.map(|(_, endorser)| endorser.clone()).collect(),
            orderers: vec![ordering.clone()],
            limits: limits.clone(),
            intake: intake.clone(),
            stop: stop.clone(),
        });
        endpoints.push(Endpoint {
            role: Role::Peer,
            msp_id: organization.msp_id.clone(),
            host: organization.host.clone(),
            address: local(&listener),
        });
        ports.push(spawn(listener, tls(&organization.tls)?, Port::Peer(port)));
    }
    endpoints.push(Endpoint {
        role: Role::Orderer,
        msp_id: network.orderer.msp_id.clone(),
        host: network.orderer.host.clone(),
        address: orderer_address,
    });
    endpoints.push(Endpoint {
        role: Role::Metrics,
        msp_id: String::new(),
        host: String::new(),
        address: local(&metrics_listener),
    });
    metrics::register();
    let hosts = network.organizations.iter().map(|organization| organization.host.clone());
    let parts = hosts.zip(channels.iter().map(|channel| channel.clone() as Arc<dyn metrics::Part>));
    let parts = parts.chain([(network.orderer.host.clone(), chain.clone() as Arc<dyn metrics::Part>)]);
    let health = metrics::Health::new(parts.collect(), intake.clone());
    ports.push(tokio::spawn(metrics::serve(metrics_listener, health, stop.clone())));
    profile::write_profiles(&network, &endpoints)?;
    Ok(Running { network, endpoints, peers, channels, orderer, chain, stop, ports })
}

enum Port {
    Peer(PeerPort),
    Orderer(OrdererPort),
}

async fn bind_all(config: &Config) -> Result<(TcpListener, Vec<TcpListener>, TcpListener), NodeError> {
    let bind = async |host, port, key| {
        let address = SocketAddr::new(host, port);
        server::bind(address).await.map_err(|source| NodeError::Port { address, key, source })
    };
    let orderer = bind(config.ports.host, config.ports.orderer, "ports.orderer").await?;
    let mut gateways = Vec::new();
    for index in 0..config.network.organizations.len() {
        gateways.push(bind(config.ports.host, config.gateway_port(index), "ports.gateway").await?);
    }
    let metrics = bind(config.ports.metrics_host, config.ports.metrics, "ports.metrics").await?;
    Ok((orderer, gateways, metrics))
}

fn local(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound socket has an address")
}

async fn start_orderer(
    network: &Network,
    sync: &GroupSync,
    address: &str,
) -> Result<(Arc<Orderer>, Arc<Chain>), NodeError> {
    let failed = |source| NodeError::Chain { who: network.orderer.host.clone(), source };
    let orderer = Orderer::open(OrdererOptions {
        signer: network.orderer.orderer.clone(),
        directory: network.directory.subdirectory("orderer").await?,
        sync: sync.clone(),
        settings: chain::order::Settings::default(),
    })
    .await
    .map_err(failed)?;
    orderer.join(&network.genesis).await.map_err(failed)?;
    orderer.serve(address).await.map_err(failed)?;
    let chain = orderer.chain(&network.config.network.channel).expect("its genesis block was just joined");
    Ok((orderer, chain))
}

async fn start_peer(
    network: &Network,
    organization: &Organization,
    sync: &GroupSync,
    orderer: &str,
) -> Result<(Arc<Peer>, Arc<Channel>), NodeError> {
    let config = &network.config;
    let failed = |source| NodeError::Chain { who: organization.host.clone(), source };
    let peers = network.directory.subdirectory("peers").await?;
    let own = peers.subdirectory(&organization.name).await.map_err(NodeError::file("opening", peers.path()))?;
    let directory = own.subdirectory("ledger").await.map_err(NodeError::file("opening", own.path()))?;
    let options = FjallOptions { memtable_bytes: config.storage.memtable_bytes as u64, ..FjallOptions::default() };
    let tables = FjallEngine::open(&own.path().join("state"), options).await?;
    let registry = contracts::registry(config)?;
    let mut settings = chain::peer::Settings::default();
    settings.endorse.concurrency_max = config.limits.proposals;
    let mut stores = LocalStores::new(organization.host.as_str(), directory, sync.clone(), tables);
    stores.state.cache_bytes = config.storage.cache_bytes;
    stores.state.delta_bytes_max = config.storage.delta_bytes;
    let peer = Peer::open(PeerOptions {
        name: organization.host.clone(),
        signer: organization.peer.clone(),
        stores: Arc::new(stores),
        definitions: contracts::definitions(config, &registry)?,
        registry,
        orderers: vec![orderer.to_owned()],
        settings,
    })
    .await
    .map_err(failed)?;
    let channel = peer.join(&network.genesis).await.map_err(failed)?;
    Ok((peer, channel))
}

impl Running {
    /// What listens where.
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

    /// How many organisations there are.
    pub fn organizations(&self) -> usize {
        self.peers.len()
    }

    /// How a client reaches the gateway of an organisation.
    pub fn gateway(&self, organization: usize) -> Target {
        self.target(self.endpoints[organization].address, &self.network.organizations[organization].tls)
    }

    /// How a client reaches the orderer.
    pub fn orderer_target(&self) -> Target {
        self.target(self.orderer_endpoint().address, &self.network.orderer.tls)
    }

    fn orderer_endpoint(&self) -> &Endpoint {
        let mut endpoints = self.endpoints.iter();
        endpoints.find(|endpoint| endpoint.role == Role::Orderer).expect("a network has an orderer")
    }

    fn target(&self, address: SocketAddr, tls: &TlsIdentity) -> Target {
        let address = match address.ip().is_unspecified() {
            true => SocketAddr::from(([127, 0, 0, 1], address.port())),
            false => address,
        };
        let tls = self
            .network
            .config
            .tls
            .then(|| Tls { roots_pem: tls.authority_pem.to_vec(), server_name: "localhost".to_owned() });
        Target { address: address.to_string(), tls }
    }

    /// An organisation's ordinary user.
    pub fn user(&self, organization: usize) -> Signer {
        self.network.organizations[organization].user.clone()
    }

    /// An organisation's administrator.
    pub fn admin(&self, organization: usize) -> Signer {
        self.network.organizations[organization].admin.clone()
    }

    /// An organisation's peer.
    pub fn peer(&self, organization: usize) -> &Arc<Peer> {
        &self.peers[organization]
    }

    /// The orderer.
    pub fn orderer(&self) -> &Arc<Orderer> {
        &self.orderer
    }

    /// Completes when a peer or the orderer has stopped by itself, and says why.
    pub async fn failed(&self) -> String {
        let said = |host: &str, failure: Option<Arc<chain::Error>>| {
            let cause = failure.map_or_else(|| "no cause given".to_owned(), |error| error.to_string());
            format!("{host} has stopped: {cause}")
        };
        let peers = self.network.organizations.iter().zip(&self.channels).map(|(organization, channel)| {
            Box::pin(async move {
                channel.stopped().await;
                said(&organization.host, channel.failure())
            })
        });
        tokio::select! {
            (reason, _, _) = futures_util::future::select_all(peers) => reason,
            () = self.chain.stopped() => said(&self.network.orderer.host, self.chain.failure()),
        }
    }

    /// Lets calls finish, commits what was ordered, persists and closes everything. Durable on return.
    ///
    /// # Errors
    /// The first error of a peer; everything is closed all the same.
    pub async fn stop(self) -> Result<(), NodeError> {
        self.stop.stop();
        for port in self.ports {
            // A port that panicked has said so.
            let _ = port.await;
        }
        let drain = async {
            // What waits in the orderer is cut within its time-out.
            rt::sleep(self.network.config.batch_limits().timeout).await;
            let height = self.chain.height();
            join_all(self.channels.iter().map(|channel| async move {
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
        for (organization, peer) in self.network.organizations.iter().zip(&self.peers) {
            let stopped = peer.stop().await;
            let failed = |source| NodeError::Chain { who: organization.host.clone(), source };
            outcome = outcome.and(stopped.map_err(failed));
        }
        self.orderer.stop().await;
        outcome
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
