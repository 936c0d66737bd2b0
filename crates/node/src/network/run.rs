//! A network that runs.
//!
//! Start: ports are bound first, so that a port that is taken is reported before any store is touched; then the orderer
//! opens, then the peers, side by side, then the ports answer. In the disaggregated form memory nodes start first, on hosts
//! of this process, and each peer has a storage node, over links within this process: the same code paths as between
//! processes, sockets apart.
//!
//! Stop: ports take no more calls and let those in progress finish; what was ordered is committed by the peers, within
//! a limit; then the peers persist their states, and the orderer closes its log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::storage::tables::{FjallEngine, FjallOptions};
use ::storage::{DataDirectory, GroupSync};
use base::MspId;
use base::rt::net::Parties;
use base::rt::{self, Stop};
use chain::Peer;
use chain::endorse::Endorse;
use chain::order::{Broadcast, Engines, Orderer, SoloEngines};
use chain::remote::{RemoteOrderers, RemotePeer, RemotePeerOptions, Scope, serve_orderer, serve_peer};
use chain::view::PeerView;
use futures_util::FutureExt as _;
use futures_util::future::{join_all, select_all, try_join_all};
use gateway::client::{Target, Tls};
use gateway::service::{Endorser, Intake, OrdererPort, OrderingNode};
use identity::Signer;
use identity::issue::TlsIdentity;
use pool::{Donor, VerbCounts};
use rma::shm::Shm;
use rma::{Fabric, Token};
use state::DisaggregatedSettings;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::layout::{self, BLOCKS, TABLES};
use super::{Endpoint, Network, NodeError, ORGANIZATIONS, Role, material};
use crate::Boxed;
use crate::config::{Config, Engine, Form};
use crate::control::{ComputeReport, orderer_of};
use crate::network::roster::Roster;
use crate::process::Ended;
use crate::roles::compute::{self, Among, Compute, Elsewhere, Local};
use crate::roles::gateway as gateway_role;
use crate::roles::log_memory::{self, LogMemory};
use crate::roles::memory::{self, Memory};
use crate::roles::orderer::{self, Ordering};
use crate::roles::storage::{self, Storage};
use crate::services::{Services, Watched};
use crate::{contracts, control, credentials, disk, metrics, ports, profile, rules};

/// How long a stop waits for peers to commit what was ordered; what they miss they fetch at the next start.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// A network that runs. Dropping it without [`Running::stop`] ends it as a crash would.
pub struct Running {
    network: Network,
    endpoints: Vec<Endpoint>,
    memory: Vec<Memory>,
    storages: Vec<Storage>,
    /// By organisation.
    computes: Vec<Vec<Arc<Compute>>>,
    /// The first of them has the port.
    orderings: Vec<Ordering>,
    /// What the orderers' log is in.
    log_memory: Vec<LogMemory>,
    stop: Stop,
    services: Services,
    ports: Vec<JoinHandle<()>>,
}

pub(super) async fn start(network: Network) -> Result<Running, NodeError> {
    let config = network.config.clone();
    config.crypto.use_in_process().map_err(NodeError::Crypto)?;
    let (orderer_listener, gateway_listeners, metrics_listener) = bind_all(&config).await?;
    let tls = |identity: &TlsIdentity| config.tls.then(|| identity.clone());
    let mut endpoints = Vec::new();
    let mut tasks = Vec::new();
    let stop = Stop::new();
    // In force before anybody is served.
    let (watching, notes) = credentials::watch(&network.path, &network.path.join(ORGANIZATIONS), stop.clone())?;
    tasks.push(watching);
    let services = Services::new(stop.clone());
    let sync = GroupSync::new();

    let (log_memory, orderings) = start_orderers(&network, &sync, &services).await?;
    let blocks: Vec<String> = orderings.iter().map(|(place, _)| blocks_address(&network, *place)).collect();
    let orderings: Vec<Ordering> = orderings.into_iter().map(|(_, ordering)| ordering).collect();
    let ordering = &orderings[0];
    let shared = match config.pool.form {
        Form::Disaggregated => Some(start_memory(&network, &services).await?),
        Form::Monolithic => None,
    };
    let opening =
        (0..network.organizations.len()).map(|index| start_peer(&network, index, &sync, &blocks, shared.as_ref()));
    let (storages, computes): (Vec<_>, Vec<_>) = try_join_all(opening).await?.into_iter().unzip();
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

    let intake = Intake::default();
    let free_bytes_min = config.storage.free_bytes_min;
    disk::look(&network.path, free_bytes_min, &intake);
    let watching = disk::watch(network.path.clone(), free_bytes_min, intake.clone(), stop.clone());
    tasks.push(services.watch("the look-out for room on the disk", watching));
    let orderer_address = ports::local(&orderer_listener);
    let ordering_node = OrderingNode {
        msp_id: MspId::new(network.orderer.msp_id.as_str()),
        address: orderer_address.to_string().into(),
        broadcast: broadcast(&network, &orderings, &stop).await?,
    };
    let organizations = ordering.chain().rules().members().msps().count();
    let limits = ports::call_limits(&config.limits, organizations);
    let port = OrdererPort::new(ordering.orderer().clone(), &limits, intake.clone(), stop.clone());
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
            endorse: gateway_role::balanced(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>)),
        })
        .collect();
    for (index, listener) in gateway_listeners.into_iter().enumerate() {
        let organization = &network.organizations[index];
        let others = endorsers.iter().enumerate().filter(|(other, _)| *other != index);
        endpoints.push(Endpoint {
            role: Role::Peer,
            msp_id: organization.msp_id.clone(),
            host: organization.host.clone(),
            name: organization.host.clone(),
            address: ports::local(&listener),
        });
        let serving = gateway_role::start(gateway_role::Options {
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
    endpoints.push(Endpoint {
        role: Role::Orderer,
        msp_id: network.orderer.msp_id.clone(),
        host: network.orderer.host.clone(),
        name: network.orderer.host.clone(),
        address: orderer_address,
    });
    endpoints.push(Endpoint {
        role: Role::Metrics,
        msp_id: String::new(),
        host: String::new(),
        name: String::new(),
        address: ports::local(&metrics_listener),
    });
    metrics::register();
    let parts = computes.iter().flatten().map(|node| (node.name().to_owned(), node.clone() as Arc<dyn metrics::Part>));
    let chains = orderings
        .iter()
        .map(|ordering| (ordering.name().to_owned(), ordering.chain().clone() as Arc<dyn metrics::Part>));
    let parts = parts.chain(chains);
    let health =
        metrics::Health::new(parts.collect(), intake.clone()).with_notes(notes).with_services(services.clone());
    tasks.push(services.watch("the page of metrics", metrics::serve(metrics_listener, health, stop.clone())));
    profile::write_profiles(&network, &endpoints)?;
    crate::Endpoints::new(&network, &endpoints).store(&network.path)?;
    let (memory, storages) = (shared.map(|shared| shared.memory).unwrap_or_default(), storages.into_iter().flatten());
    // They end with the network, behind the ports.
    for (index, node) in memory.iter().enumerate() {
        drop(services.watch(format!("memory-{}", index + 1), node.ended()));
    }
    for (index, node) in log_memory.iter().enumerate() {
        drop(services.watch(format!("log-{}", index + 1), node.ended()));
    }
    Ok(Running {
        network,
        endpoints,
        memory,
        storages: storages.collect(),
        computes,
        orderings,
        log_memory,
        stop,
        services,
        ports: tasks,
    })
}

async fn bind_all(config: &Config) -> Result<(TcpListener, Vec<TcpListener>, TcpListener), NodeError> {
    let bind = |host, port, key| ports::bind(SocketAddr::new(host, port), key);
    let orderer = bind(config.ports.host, config.ports.orderer, "ports.orderer").await?;
    let mut gateways = Vec::new();
    for index in 0..config.network.organizations.len() {
        gateways.push(bind(config.ports.host, config.gateway_port(index), "ports.gateway").await?);
    }
    let metrics = bind(config.ports.metrics_host, config.ports.metrics, "ports.metrics").await?;
    Ok((orderer, gateways, metrics))
}

/// A part's data directory.
async fn open(network: &Network, inside: &str) -> Result<DataDirectory, NodeError> {
    Ok(DataDirectory::open(network.path.join(inside)).await?)
}

fn blocks_address(network: &Network, place: usize) -> String {
    format!("{} {}", layout::orderer_name(place), network.path.display())
}

/// Starts the orderers, and what their log is in.
type Numbered = (usize, Ordering);

async fn start_orderers(
    network: &Network,
    sync: &GroupSync,
    services: &Services,
) -> Result<(Vec<LogMemory>, Vec<Numbered>), NodeError> {
    let config = &network.config.ordering;
    let roster = Roster::load(&network.path, config.count())?;
    let fabric: Arc<dyn Fabric> = Arc::new(Watched::new(Arc::new(Shm::default()), services.clone()));
    let tokens: Vec<(String, Token)> =
        roster.numbers.iter().map(|number| (orderer_of(*number), Token::random())).collect();
    let mut memory = Vec::new();
    for number in 1..=config.memory_count() {
        let options = log_memory::Options {
            name: &format!("memory node {number} of the log"),
            number: number as u16,
            fabric: fabric.as_ref(),
            // Any free name.
            address: "local:",
            orderers: tokens.iter().cloned().collect(),
            log_bytes: config.log_bytes,
        };
        memory.push(LogMemory::start(options).await?);
    }
    let keeper = |place: usize| format!("keeper of {}", blocks_address(network, place));
    let member = |place: usize| format!("raft of {}", blocks_address(network, place));
    let mut orderings = Vec::new();
    for (number, (name, token)) in roster.numbers.iter().zip(&tokens) {
        let place = *number as usize - 1;
        let data = open(network, &layout::orderer_data(*number)).await?;
        let engines: Arc<dyn Engines> = match config.engine {
            Engine::Solo => Arc::new(SoloEngines),
            Engine::Raft => Arc::new(orderer::RaftEngines {
                number: *number,
                members: roster.numbers.iter().map(|number| (*number, member(*number as usize - 1))).collect(),
                joins: roster.has_changed,
                directory: data.directory().path().join(orderer::RAFT),
                log: Arc::default(),
            }),
            Engine::Sift => Arc::new(orderer::SiftEngines {
                fabric: Arc::clone(&fabric),
                number: place as u64 + 1,
                name: name.clone(),
                token: token.clone(),
                memory: memory.iter().map(LogMemory::address).collect(),
                keepers: (0..config.count()).map(keeper).collect(),
                log_bytes: config.log_bytes,
                volatile: config.volatile,
            }),
        };
        let options = orderer::Options {
            name: if place == 0 { &network.orderer.host } else { name },
            signer: material::orderer_signer(network, place)?,
            directory: data.subdirectory(BLOCKS).await?,
            data,
            sync: sync.clone(),
            engines,
            acknowledge: orderer::acknowledge(config),
            notes: layout::orderer_folder(&network.path, place),
            volatile: config.volatile,
            cutting: orderer::cutting(config.cut),
            genesis: &network.genesis,
            address: &blocks_address(network, place),
        };
        orderings.push((place, Ordering::start(options).await?));
    }
    Ok((memory, orderings))
}

/// What gateways give envelopes to. Where any of several orderers may lead, it is looked for over links within this process, as it
/// would be between processes.
async fn broadcast(network: &Network, orderings: &[Ordering], stop: &Stop) -> Result<Arc<dyn Broadcast>, NodeError> {
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

/// What the peers of a network share, in the disaggregated form.
struct Shared {
    fabric: Arc<dyn Fabric>,
    memory: Vec<Memory>,
    /// By organisation and memory node.
    tokens: Vec<Vec<Token>>,
}

/// Starts memory nodes, on hosts of this process.
async fn start_memory(network: &Network, services: &Services) -> Result<Shared, NodeError> {
    let config = &network.config.pool;
    let tokens = || (0..config.memory_nodes).map(|_| Token::random()).collect::<Vec<_>>();
    let tokens: Vec<Vec<Token>> = network.organizations.iter().map(|_| tokens()).collect();
    let fabric: Arc<dyn Fabric> = Arc::new(Watched::new(Arc::new(Shm::default()), services.clone()));
    let mut memory = Vec::new();
    for index in 0..config.memory_nodes {
        let owners = network.organizations.iter().zip(&tokens);
        memory.push(
            Memory::start(memory::Options {
                name: &format!("memory-{}", index + 1),
                number: index as u16 + 1,
                fabric: fabric.as_ref(),
                // Any free name.
                address: "local:",
                owners: owners.map(|(owner, tokens)| (owner.name.clone(), tokens[index].clone())).collect(),
                budget_bytes: config.memory_bytes,
                section_bytes: config.section_bytes,
            })
            .await?,
        );
    }
    Ok(Shared { fabric, memory, tokens })
}

/// Where a compute node of this process answers gateways.
fn service_address(network: &Network, organization: &str, node: usize) -> String {
    format!("{} {}", layout::compute_name(organization, node), network.path.display())
}

/// What a gateway of this process sees of a peer's commits. Where any of several compute nodes may be the primary, it looks for
/// it over links within this process, as it would between processes.
async fn view(
    network: &Network,
    index: usize,
    nodes: &[Arc<Compute>],
    stop: &Stop,
) -> Result<Arc<dyn PeerView>, NodeError> {
    if let [only] = nodes {
        return Ok(only.clone());
    }
    let organization = &network.organizations[index];
    let name = organization.host.clone();
    let mut addresses = Vec::new();
    for (node, compute) in nodes.iter().enumerate() {
        let address = service_address(network, &organization.name, node);
        let serving = serve_peer(compute.clone(), Scope::Own, &address, &Parties::anyone(), stop.clone()).await;
        drop(serving.map_err(|source| NodeError::Chain { who: name.clone(), source })?);
        addresses.push(address);
    }
    let registry = contracts::registry(&network.config)?;
    let definitions = contracts::definitions(&network.config, &registry)?;
    let view =
        Arc::new(RemotePeer::new(RemotePeerOptions { name, addresses, parties: Parties::anyone(), definitions }));
    view.reached().await;
    // Those that follow are waited for too: a network that is ready answers at all of them.
    join_all(nodes.iter().map(|node| node.ready())).await;
    Ok(view)
}

/// A peer, with the storage node that it has in the disaggregated form.
async fn start_peer(
    network: &Network,
    index: usize,
    sync: &GroupSync,
    orderers: &[String],
    shared: Option<&Shared>,
) -> Result<(Option<Storage>, Vec<Arc<Compute>>), NodeError> {
    let (config, organization) = (&network.config, &network.organizations[index]);
    let data = open(network, &format!("peers/{}", organization.name)).await?;
    let registry = contracts::registry(config)?;
    let definitions = contracts::definitions(config, &registry)?;
    rules::check(&layout::compute_folder(&network.path, &organization.name, 0), &definitions)?;
    let options = compute::Options {
        name: &organization.host,
        signer: organization.peer.clone(),
        definitions,
        registry,
        genesis: &network.genesis,
        orderers: orderers.to_vec().into(),
        settings: compute::settings(config),
    };
    let Some(shared) = shared else {
        let tables = FjallOptions { memtable_bytes: config.storage.memtable_bytes as u64, ..FjallOptions::default() };
        let tables = FjallEngine::open(&data.directory().path().join(TABLES), tables).await?;
        let (directory, state) = (data.subdirectory(BLOCKS).await?, compute::local_state(&config.storage));
        let local = Local { directory, data, sync: sync.clone(), tables, state };
        return Ok((None, vec![Arc::new(Compute::monolithic(options, local).await?)]));
    };
    let address = format!("storage {} {}", organization.name, network.path.display());
    let storage = Storage::start(storage::Options {
        name: &format!("storage of {}", organization.name),
        data,
        sync: sync.clone(),
        memtable_bytes: config.storage.memtable_bytes as u64,
        address: &address,
        clients: &Parties::anyone(),
    })
    .await?;
    let donors = shared.memory.iter().zip(&shared.tokens[index]);
    let elsewhere = Elsewhere {
        storage: address,
        owner: organization.name.clone(),
        fabric: Arc::clone(&shared.fabric),
        donors: donors.map(|(memory, token)| Donor { address: memory.address(), token: token.clone() }).collect(),
        section_bytes: config.pool.section_bytes,
        budget_bytes: config.pool.peer_bytes,
        folder: layout::compute_folder(&network.path, &organization.name, 0),
        notes: layout::compute_folder(&network.path, &organization.name, 0),
        among: None,
        shares_process: network.organizations.len() > 1,
        settings: DisaggregatedSettings {
            metadata_cache_bytes: config.pool.metadata_cache_bytes,
            data_cache_bytes: config.pool.data_cache_bytes,
            delta_bytes_max: config.storage.delta_bytes,
            evict_above_percent: config.pool.evict_above_percent,
            evict_to_percent: config.pool.evict_to_percent,
            ..DisaggregatedSettings::default()
        },
    };
    let count = config.pool.compute_nodes;
    if count == 1 {
        let compute = Compute::disaggregated(options, elsewhere).await?;
        return Ok((Some(storage), vec![Arc::new(compute)]));
    }
    let among = |node: usize| format!("among {}", service_address(network, &organization.name, node));
    let mut nodes = Vec::new();
    for node in 0..count {
        let others = (0..count).filter(|other| *other != node).map(among).collect();
        let among = Some(Among { address: among(node), others, parties: Parties::anyone() });
        let name = layout::compute_name(&organization.name, node);
        let options = compute::Options {
            name: &name,
            signer: options.signer.clone(),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            genesis: options.genesis,
            orderers: options.orderers.clone(),
            settings: options.settings.clone(),
        };
        let notes = layout::compute_folder(&network.path, &organization.name, node);
        let elsewhere = Elsewhere { among, notes, ..elsewhere.clone() };
        nodes.push(Arc::new(Compute::disaggregated(options, elsewhere).await?));
    }
    Ok((Some(storage), nodes))
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
        self.computes.len()
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

    /// An organisation's peer, where it commits; `None` between two primaries.
    pub fn peer(&self, organization: usize) -> Option<Arc<Peer>> {
        self.computes[organization].iter().find_map(|node| node.peer())
    }

    /// What the compute nodes of an organisation's peer are to it.
    pub fn compute_nodes(&self, organization: usize) -> Vec<ComputeReport> {
        self.computes[organization].iter().map(|node| node.report()).collect()
    }

    /// The verbs that an organisation's world state has posted to memory nodes; `None` in the monolithic form.
    pub fn verbs(&self, organization: usize) -> Option<VerbCounts> {
        self.computes[organization].iter().find_map(|node| node.verbs())
    }

    /// Bytes of memory that each memory node has given.
    pub fn memory_granted(&self) -> Vec<u64> {
        self.memory.iter().map(|memory| memory.usage().granted_bytes).collect()
    }

    /// The orderer.
    pub fn orderer(&self) -> &Arc<Orderer> {
        self.orderings[0].orderer()
    }

    /// Completes when a peer, its storage node, the orderer, memory or a port has stopped by itself, and says why.
    pub async fn failed(&self) -> Ended {
        let peers = self.computes.iter().flatten().map(|compute| compute.failed().boxed());
        let storages = self.storages.iter().map(|storage| storage.failed().boxed());
        tokio::select! {
            (ended, _, _) = select_all(peers.chain(storages)) => ended,
            (ended, _, _) = select_all(self.orderings.iter().map(|ordering| ordering.failed().boxed())) => ended,
            reason = self.services.failed() => Ended::defect(reason),
        }
    }

    /// Lets calls finish, commits what was ordered, persists and closes everything. Durable on return.
    ///
    /// # Errors
    /// The first error of a peer; everything is closed all the same.
    pub fn stop(self) -> Boxed<'static, Result<(), NodeError>> {
        Box::pin(self.stop_in_order())
    }

    async fn stop_in_order(self) -> Result<(), NodeError> {
        self.stop.stop();
        for port in self.ports {
            // A port that panicked has said so.
            let _ = port.await;
        }
        let drain = async {
            // What waits in the orderer is cut within its time-out.
            rt::sleep(self.network.config.batch_limits().timeout).await;
            let height = self.orderings.iter().map(|ordering| ordering.chain().height()).max().unwrap_or_default();
            let channels = self.computes.iter().flatten().filter_map(|compute| compute.channel());
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
        for nodes in &self.computes {
            // Those that follow first, so that none of them takes the place of one that stops.
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
        for ordering in &self.orderings {
            ordering.stop().await;
        }
        for memory in &self.log_memory {
            memory.stop().await;
        }
        outcome
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
