//! A running network.
//!
//! Start: the ports are bound first, so that a taken port is reported before any store is touched. Then the orderers
//! start, then all peers concurrently; then the ports begin to answer. In the disaggregated form, memory nodes start
//! before the peers, and each peer has a storage node. All of them run in this process: except for the sockets, they
//! use the same code as separate processes do.
//!
//! Stop: the ports reject new calls and let current calls finish. The peers commit the blocks that are already ordered,
//! within a time limit, and persist their states. Last, the orderers close their logs.

use std::net::SocketAddr;
use std::sync::Arc;

use ::storage::tables::FjallEngine;
use ::storage::{DataDirectory, GroupSync};
use base::rt::CancellationToken;
use base::rt::net::Parties;
use base::{Bytes, MspId};
use chain::LocalMember;
use chain::endorse::Endorse;
use chain::order::{Broadcast, OrderingEngines, SoloEngines};
use chain::remote::{
    PeerTarget, RemoteOrderers, RemotePeer, RemotePeerConfig, ServiceScope, serve_orderer, serve_peer,
};
use chain::view::PeerView;
use futures_util::future::{join_all, try_join_all};
use gateway::service::{Endorser, OrdererEndpoint, OrdererService, TransactionIntake};
use identity::issue::TlsIdentity;
use pool::Donor;
use private_data::MemberPeers;
use replica::CANDIDATES_MAX;
use replica::load::NodeAddresses;
use rma::shm::ShmProvider;
use rma::{Provider, Token};
use state::DisaggregatedConfig;
use storage_copies::CopySet;
use tokio::net::TcpListener;

use super::layout::{self, BLOCKS, TABLES};
use super::running::RunningNetwork;
use super::{Endpoint, EndpointRole, Network, NodeError, ORGANIZATIONS};
use crate::chaincode_port::ChaincodePort;
use crate::chaincodes::{PACKAGES_FOLDER, PeerChaincodes};
use crate::config::{HeddleConfig, OrderingEngine, PeerMode};
use crate::control::orderer_of;
use crate::network::orderer_set::OrdererSet;
use crate::roles::compute::{self, ComputeInstance, LocalBackends};
use crate::roles::gateway as gateway_role;
use crate::roles::log_memory::{self, LogMemoryInstance};
use crate::roles::memory::{self, MemoryInstance};
use crate::roles::orderer::{self, OrdererInstance};
use crate::roles::pooled_memory::{PeerNodes, RemoteBackends};
use crate::roles::storage::{self, StorageInstance};
use crate::services::{Services, WatchedProvider};
use crate::{contracts, control, credentials, metrics, policy_record, ports, profile};

pub(super) async fn start(network: Network) -> Result<RunningNetwork, NodeError> {
    let config = network.config.clone();
    config.crypto.use_in_process().map_err(NodeError::Crypto)?;
    let (orderer_listener, gateway_listeners, metrics_listener) = bind_all(&config).await?;
    let tls = |identity: &TlsIdentity| config.tls.then(|| identity.clone());
    let mut endpoints = Vec::new();
    let mut tasks = Vec::new();
    let stop = CancellationToken::new();
    // The deny list is in force before any client is served.
    let (watching, notes) = credentials::watch(&network.path, &network.path.join(ORGANIZATIONS), stop.clone())?;
    tasks.push(watching);
    let services = Services::new(stop.clone());
    let sync = GroupSync::new();

    let (log_memory, orderings) = start_orderers(&network, &sync, &services).await?;
    let blocks: Vec<String> = orderings.iter().map(|(place, _)| blocks_address(&network, *place)).collect();
    let orderings: Vec<OrdererInstance> = orderings.into_iter().map(|(_, ordering)| ordering).collect();
    let ordering = &orderings[0];
    let shared = match config.pool.form {
        PeerMode::Disaggregated => Some(start_memory(&network, &services).await?),
        PeerMode::Monolithic => None,
    };
    let mut chaincodes = Vec::new();
    for organization in &network.organizations {
        let packages = layout::compute_folder(&network.path, &organization.name, 0).join(PACKAGES_FOLDER);
        let configured = config.chaincodes.iter().filter(|chaincode| chaincode.is_for(&organization.name));
        chaincodes.push(PeerChaincodes::open(configured, &network.path, packages, &organization.host)?);
    }
    // Each peer gets to know the others once all have started.
    let members: Vec<Arc<MemberPeers>> = network.organizations.iter().map(|_| Arc::default()).collect();
    let opening = members.iter().enumerate().map(|(index, members)| {
        let port = ports::local(&gateway_listeners[index]).port();
        let surroundings = PeerSurroundings {
            client_address: format!("{}:{port}", network.organizations[index].host),
            members: members.clone(),
            chaincodes: chaincodes[index].clone(),
        };
        start_peer(&network, index, &sync, &blocks, surroundings, shared.as_ref())
    });
    let (storages, computes): (Vec<_>, Vec<_>) = try_join_all(opening).await?.into_iter().unzip();
    introduce(&network, &members, &computes);
    for (organization, nodes) in network.organizations.iter().zip(&computes) {
        for (node, compute) in nodes.iter().enumerate() {
            let folder = layout::compute_folder(&network.path, &organization.name, node);
            tasks
                .push(services.watch_task("a control socket", control::start(&folder, compute.clone(), stop.clone())?));
        }
    }
    let mut views = Vec::new();
    for (index, nodes) in computes.iter().enumerate() {
        views.push(view(&network, index, nodes, &stop).await?);
    }

    let intake = TransactionIntake::default();
    let free_bytes_min = config.storage.free_bytes_min;
    gateway::disk_space::look(&network.path, free_bytes_min, &intake);
    let watching = gateway::disk_space::watch(network.path.clone(), free_bytes_min, intake.clone(), stop.clone());
    tasks.push(services.watch("the look-out for room on the disk", watching));
    let orderer_address = ports::local(&orderer_listener);
    let ordering_node = OrdererEndpoint {
        msp_id: MspId::new(network.orderer.msp_id.as_str()),
        address: orderer_address.to_string().into(),
        reached_at: (config.ports.orderer == 0)
            .then(|| format!("{}:{}", network.orderer.host, orderer_address.port()).into()),
        broadcast: broadcast(&network, &orderings, &stop).await?,
    };
    let organizations = ordering.chain().policies().members().msps().count();
    let limits = ports::call_limits(&config.limits, organizations);
    let port = OrdererService::new(ordering.orderer().clone(), &limits, intake.clone(), stop.clone());
    let orderer_tls = gateway_role::tls(tls(&network.orderer.tls).as_ref())?;
    let serving = ports::serve(orderer_listener, orderer_tls, port, &config.limits, organizations, stop.clone());
    tasks.push(services.watch_task("the orderer's port", serving));
    let endorsers: Vec<Endorser> = network
        .organizations
        .iter()
        .zip(&computes)
        .zip(&gateway_listeners)
        .map(|((organization, nodes), listener)| Endorser {
            msp_id: MspId::new(organization.msp_id.as_str()),
            address: ports::local(listener).to_string().into(),
            endorse: gateway_role::balanced_endorser(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>)),
        })
        .collect();
    for (index, listener) in gateway_listeners.into_iter().enumerate() {
        let organization = &network.organizations[index];
        let others = endorsers.iter().enumerate().filter(|(other, _)| *other != index);
        endpoints.push(Endpoint {
            role: EndpointRole::Peer,
            msp_id: organization.msp_id.clone(),
            host: organization.host.clone(),
            name: organization.host.clone(),
            address: ports::local(&listener),
        });
        let serving = gateway_role::start(gateway_role::GatewayRoleConfig {
            peer: views[index].clone(),
            local: endorsers[index].clone(),
            others: others.map(|(_, endorser)| endorser.clone()).collect(),
            orderers: vec![ordering_node.clone()],
            intake: intake.clone(),
            listener,
            tls: tls(&organization.tls),
            limits: config.limits.clone(),
            stop: stop.clone(),
        })?;
        tasks.push(services.watch_task(&format!("the port of {}", organization.host), serving));
    }
    for (index, chaincodes) in chaincodes.into_iter().enumerate() {
        let Some(port) = config.chaincode_port.of(index) else { continue };
        let organization = &network.organizations[index];
        let port = ChaincodePort {
            listen: SocketAddr::new(config.ports.host, port),
            identity: &organization.tls,
            authorities: &network.path.join(&config.chaincode_port.authorities),
            limits: &config.limits,
        };
        let serving = port.open(chaincodes, stop.clone()).await?;
        tasks.push(services.watch_task(&format!("the port for chaincodes of {}", organization.host), serving));
    }
    endpoints.push(Endpoint {
        role: EndpointRole::Orderer,
        msp_id: network.orderer.msp_id.clone(),
        host: network.orderer.host.clone(),
        name: network.orderer.host.clone(),
        address: orderer_address,
    });
    endpoints.push(Endpoint {
        role: EndpointRole::Metrics,
        msp_id: String::new(),
        host: String::new(),
        name: String::new(),
        address: ports::local(&metrics_listener),
    });
    metrics::register();
    let parts =
        computes.iter().flatten().map(|node| (node.name().to_owned(), node.clone() as Arc<dyn metrics::MonitoredPart>));
    let chains = orderings
        .iter()
        .map(|ordering| (ordering.name().to_owned(), ordering.chain().clone() as Arc<dyn metrics::MonitoredPart>));
    let parts = parts.chain(chains);
    let health =
        metrics::Health::new(parts.collect(), intake.clone()).with_notes(notes).with_services(services.clone());
    tasks.push(services.watch("the page of metrics", metrics::serve(metrics_listener, health, stop.clone())));
    profile::write_profiles(&network, &endpoints)?;
    crate::Endpoints::new(&network, &endpoints).store(&network.path)?;
    let (memory, storages) = (shared.map(|shared| shared.memory).unwrap_or_default(), storages.into_iter().flatten());
    // These end with the network, after the ports.
    for (index, node) in memory.iter().enumerate() {
        drop(services.watch(format!("memory-{}", index + 1), node.ended()));
    }
    for (index, node) in log_memory.iter().enumerate() {
        drop(services.watch(format!("log-{}", index + 1), node.ended()));
    }
    Ok(RunningNetwork {
        network,
        endpoints,
        memory,
        storages: storages.collect(),
        compute_nodes: computes,
        orderers: orderings,
        log_memory,
        stop,
        services,
        ports: tasks,
    })
}

async fn bind_all(config: &HeddleConfig) -> Result<(TcpListener, Vec<TcpListener>, TcpListener), NodeError> {
    let bind = |host, port, key| ports::bind(SocketAddr::new(host, port), key);
    let orderer = bind(config.ports.host, config.ports.orderer, "ports.orderer").await?;
    let mut gateways = Vec::new();
    for index in 0..config.network.organizations.len() {
        gateways.push(bind(config.ports.host, config.gateway_port(index), "ports.gateway").await?);
    }
    let metrics = bind(config.ports.metrics_host, config.ports.metrics, "ports.metrics").await?;
    Ok((orderer, gateways, metrics))
}

/// The data directory of one part of the network.
async fn open(network: &Network, inside: &str) -> Result<DataDirectory, NodeError> {
    Ok(DataDirectory::open(network.path.join(inside)).await?)
}

fn blocks_address(network: &Network, place: usize) -> String {
    format!("{} {}", layout::orderer_name(place), network.path.display())
}

/// An orderer with its place, counted from 0.
type NumberedOrderer = (usize, OrdererInstance);

async fn start_orderers(
    network: &Network,
    sync: &GroupSync,
    services: &Services,
) -> Result<(Vec<LogMemoryInstance>, Vec<NumberedOrderer>), NodeError> {
    let config = &network.config.ordering;
    let orderer_set = OrdererSet::load(&network.path, config.count())?;
    let provider: Arc<dyn Provider> =
        Arc::new(WatchedProvider::new(Arc::new(ShmProvider::default()), services.clone()));
    let tokens: Vec<(String, Token)> =
        orderer_set.numbers.iter().map(|number| (orderer_of(*number), Token::random())).collect();
    let mut memory = Vec::new();
    for number in 1..=config.memory_count() {
        let options = log_memory::LogMemoryConfig {
            name: &format!("memory node {number} of the log"),
            number: number as u16,
            provider: provider.as_ref(),
            // Any free name.
            address: "local:",
            orderers: tokens.iter().cloned().collect(),
            log_bytes: config.log_bytes,
        };
        memory.push(LogMemoryInstance::start(options).await?);
    }
    let acceptor = |place: usize| format!("keeper of {}", blocks_address(network, place));
    let member = |place: usize| format!("raft of {}", blocks_address(network, place));
    let mut orderings = Vec::new();
    for (number, (name, token)) in orderer_set.numbers.iter().zip(&tokens) {
        let place = *number as usize - 1;
        let data = open(network, &layout::orderer_data(*number)).await?;
        let engines: Arc<dyn OrderingEngines> = match config.engine {
            OrderingEngine::Solo => Arc::new(SoloEngines),
            OrderingEngine::Raft => Arc::new(orderer::RaftEngines {
                number: *number,
                members: orderer_set.numbers.iter().map(|number| (*number, member(*number as usize - 1))).collect(),
                joins: orderer_set.has_changed,
                directory: data.directory().path().join(orderer::RAFT_FOLDER),
                log: Arc::default(),
            }),
            OrderingEngine::Sift => Arc::new(orderer::SiftEngines {
                provider: Arc::clone(&provider),
                number: place as u64 + 1,
                name: name.clone(),
                token: token.clone(),
                memory: memory.iter().map(LogMemoryInstance::address).collect(),
                acceptors: (0..config.count()).map(acceptor).collect(),
                log_bytes: config.log_bytes,
                volatile: config.volatile,
            }),
        };
        let options = orderer::OrdererConfig {
            name: if place == 0 { &network.orderer.host } else { name },
            signer: super::orderer_signer(network, place)?,
            directory: data.subdirectory(BLOCKS).await?,
            data,
            sync: sync.clone(),
            engines,
            acknowledge: orderer::acknowledge(config),
            watermark_folder: layout::orderer_folder(&network.path, place),
            volatile: config.volatile,
            cutting: orderer::cutting(config.cut),
            reorder: config.reorder,
            genesis: &network.genesis,
            address: &blocks_address(network, place),
        };
        orderings.push((place, OrdererInstance::start(options).await?));
    }
    Ok((memory, orderings))
}

/// Where gateways send envelopes. With several orderers, any of which may lead, the leader is found over links within
/// this process, as it would be between processes.
async fn broadcast(
    network: &Network,
    orderings: &[OrdererInstance],
    stop: &CancellationToken,
) -> Result<Arc<dyn Broadcast>, NodeError> {
    if let [only] = orderings {
        return Ok(only.orderer().clone());
    }
    let mut addresses = Vec::new();
    for (place, ordering) in orderings.iter().enumerate() {
        let address = format!("intake of {}", blocks_address(network, place));
        let serving = serve_orderer(ordering.orderer().clone(), &address, &Parties::anyone(), stop.clone()).await;
        drop(serving.map_err(|source| NodeError::Chain { who: layout::orderer_name(place), source })?);
        addresses.push(address);
    }
    Ok(Arc::new(RemoteOrderers::new(addresses, Parties::anyone())))
}

/// Lets each peer exchange private data with the others.
fn introduce(network: &Network, members: &[Arc<MemberPeers>], computes: &[Vec<Arc<ComputeInstance>>]) {
    let msp_id = |index: usize| MspId::new(network.organizations[index].msp_id.as_str());
    for (index, members) in members.iter().enumerate() {
        for (other, nodes) in computes.iter().enumerate().filter(|(other, _)| *other != index) {
            members.add(Arc::new(LocalMember::new(msp_id(index), msp_id(other), nodes)));
        }
    }
}

/// What the peers of a network share in the disaggregated form.
struct SharedPools {
    provider: Arc<dyn Provider>,
    memory: Vec<MemoryInstance>,
    /// Indexed by organisation and memory node.
    tokens: Vec<Vec<Token>>,
}

/// Starts memory nodes on hosts within this process.
async fn start_memory(network: &Network, services: &Services) -> Result<SharedPools, NodeError> {
    let config = &network.config.pool;
    let tokens = || (0..config.memory_nodes).map(|_| Token::random()).collect::<Vec<_>>();
    let tokens: Vec<Vec<Token>> = network.organizations.iter().map(|_| tokens()).collect();
    let provider: Arc<dyn Provider> =
        Arc::new(WatchedProvider::new(Arc::new(ShmProvider::default()), services.clone()));
    let mut memory = Vec::new();
    for index in 0..config.memory_nodes {
        let owners = network.organizations.iter().zip(&tokens);
        memory.push(
            MemoryInstance::start(memory::MemoryConfig {
                name: &format!("memory-{}", index + 1),
                number: index as u16 + 1,
                provider: provider.as_ref(),
                // Any free name.
                address: "local:",
                owners: owners.map(|(owner, tokens)| (owner.name.clone(), tokens[index].clone())).collect(),
                budget_bytes: config.memory_bytes,
                section_bytes: config.section_bytes,
            })
            .await?,
        );
    }
    Ok(SharedPools { provider, memory, tokens })
}

/// The address at which a compute node of this process answers gateways.
fn service_address(network: &Network, organization: &str, node: usize) -> String {
    format!("{} {}", layout::compute_name(organization, node), network.path.display())
}

/// A gateway's view of a peer's commits. With several compute nodes, any of which may be the primary, the view finds
/// the primary over links within this process, as it would between processes.
async fn view(
    network: &Network,
    index: usize,
    nodes: &[Arc<ComputeInstance>],
    stop: &CancellationToken,
) -> Result<Arc<dyn PeerView>, NodeError> {
    if let [only] = nodes {
        return Ok(only.clone());
    }
    let organization = &network.organizations[index];
    let name = organization.host.clone();
    let mut addresses = Vec::new();
    for (node, compute) in nodes.iter().enumerate() {
        let address = service_address(network, &organization.name, node);
        let serving = serve_peer(compute.clone(), ServiceScope::Own, &address, &Parties::anyone(), stop.clone()).await;
        drop(serving.map_err(|source| NodeError::Chain { who: name.clone(), source })?);
        if node < CANDIDATES_MAX {
            addresses.push(address);
        }
    }
    let registry = contracts::registry(&network.config)?;
    let definitions = contracts::definitions(&network.config, &registry)?;
    let (target, parties) = (PeerTarget::Primary(addresses), Parties::anyone());
    let view = Arc::new(RemotePeer::new(RemotePeerConfig { name, target, parties, definitions }));
    view.reached().await;
    // Wait for the followers too: a network that is ready answers at all compute nodes.
    join_all(nodes.iter().map(|node| node.ready())).await;
    Ok(view)
}

/// What a peer has to do with others.
struct PeerSurroundings {
    /// The address that discovery tells to its clients.
    client_address: String,
    /// The peers of other organisations.
    members: Arc<MemberPeers>,
    /// The contracts outside of the process.
    chaincodes: Arc<PeerChaincodes>,
}

/// Starts a peer, with its storage node in the disaggregated form.
async fn start_peer(
    network: &Network,
    index: usize,
    sync: &GroupSync,
    orderers: &[String],
    surroundings: PeerSurroundings,
    shared: Option<&SharedPools>,
) -> Result<(Option<StorageInstance>, Vec<Arc<ComputeInstance>>), NodeError> {
    let (config, organization) = (&network.config, &network.organizations[index]);
    let PeerSurroundings { client_address, members, chaincodes } = surroundings;
    let data = open(network, &format!("peers/{}", organization.name)).await?;
    let registry = contracts::registry(config)?.with_services(chaincodes);
    let definitions = contracts::definitions(config, &registry)?;
    policy_record::check(&layout::compute_folder(&network.path, &organization.name, 0), &definitions)?;
    let options = compute::ComputeConfig {
        name: &organization.host,
        signer: organization.peer.clone(),
        definitions,
        registry,
        genesis: &network.genesis,
        orderers: orderers.to_vec().into(),
        members,
        settings: compute::peer_config(config, client_address),
    };
    let Some(shared) = shared else {
        let tables = storage::local_tables_config(&config.storage);
        let tables = FjallEngine::open(&data.directory().path().join(TABLES), tables).await?;
        let (directory, state) = (data.subdirectory(BLOCKS).await?, compute::local_state(&config.storage));
        let local = LocalBackends { directory, data, sync: sync.clone(), tables, state };
        return Ok((None, vec![Arc::new(ComputeInstance::monolithic(options, local).await?)]));
    };
    let address = format!("storage {} {}", organization.name, network.path.display());
    let mut storage = StorageInstance::new("storage");
    let peer = storage::StorageConfig {
        peer: organization.name.clone(),
        data,
        sync: sync.clone(),
        tables: storage::local_tables_config(&config.storage),
        address: &address,
        clients: &Parties::anyone(),
    };
    storage.serve(peer).await?;
    let donors = shared.memory.iter().zip(&shared.tokens[index]);
    let elsewhere = RemoteBackends {
        storage: CopySet::single(address, Bytes::new()),
        owner: organization.name.clone(),
        provider: Arc::clone(&shared.provider),
        donors: donors.map(|(memory, token)| Donor { address: memory.address(), token: token.clone() }).collect(),
        section_bytes: config.pool.section_bytes,
        budget_bytes: config.pool.peer_bytes,
        folder: layout::compute_folder(&network.path, &organization.name, 0),
        watermark_folder: layout::compute_folder(&network.path, &organization.name, 0),
        peer_nodes: None,
        shares_process: network.organizations.len() > 1,
        state: DisaggregatedConfig {
            metadata_cache_bytes: config.pool.metadata_cache_bytes,
            data_cache_bytes: config.pool.data_cache_bytes,
            delta_bytes_max: config.storage.delta_bytes,
            evict_above_percent: config.pool.evict_above_percent,
            evict_to_percent: config.pool.evict_to_percent,
            apply_workers: config.pool.validation.apply_workers(),
            ..DisaggregatedConfig::default()
        },
    };
    let count = config.pool.compute_nodes;
    if count == 1 {
        let compute = ComputeInstance::disaggregated(options, elsewhere).await?;
        return Ok((Some(storage), vec![Arc::new(compute)]));
    }
    let among = |node: usize| format!("among {}", service_address(network, &organization.name, node));
    let mut nodes = Vec::new();
    for node in 0..count {
        let others = (0..count.min(CANDIDATES_MAX)).filter(|other| *other != node).map(among).collect();
        let address = (node < CANDIDATES_MAX).then(|| among(node));
        let (parties, addresses) = (Parties::anyone(), NodeAddresses::default());
        let among = Some(PeerNodes { address, others, parties, addresses });
        let name = layout::compute_name(&organization.name, node);
        let options = compute::ComputeConfig {
            name: &name,
            signer: options.signer.clone(),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            genesis: options.genesis,
            orderers: options.orderers.clone(),
            members: options.members.clone(),
            settings: options.settings.clone(),
        };
        let notes = layout::compute_folder(&network.path, &organization.name, node);
        let elsewhere = RemoteBackends { peer_nodes: among, watermark_folder: notes, ..elsewhere.clone() };
        nodes.push(Arc::new(ComputeInstance::disaggregated(options, elsewhere).await?));
    }
    Ok((Some(storage), nodes))
}
