//! The inputs that all roles share at their start, and the start of each role.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::CancellationToken;
use base::rt::net::Parties;
use base::{Bytes, MspId};
use block_transport::SourceAddresses;
use chain::endorse::Endorse;
use chain::order::{AcknowledgeMode, Broadcast, OrderingEngines, SoloEngines};
use chain::remote::{
    CommitHashComparison, PeerTarget, RemoteMember, RemoteOrderer, RemoteOrderers, RemotePeer, RemotePeerConfig,
    ServiceScope, serve_orderer, serve_peer,
};
use gateway::service::{BalancedEndorser, Endorser, OrdererEndpoint, OrdererService, TransactionIntake};
use identity::issue::{MspDirectory, TlsIdentity};
use ledger::{Block, ChannelConfig};
use private_data::MemberPeers;
use replica::NODES_MAX;
use replica::load::NodeAddresses;
use rma::Provider;
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::tcp::TcpTls;
use rules::definitions::ContractDefinitions;
use state::DisaggregatedConfig;
use storage::tables::FjallEngine;
use storage::{DataDirectory, GroupSync};
use tokio::task::JoinHandle;

use crate::chaincode_port::ChaincodePort;
use crate::chaincodes::PeerChaincodes;
use crate::network::NodeError;
use crate::network::layout::{BLOCKS, TABLES};
use crate::process::file::Secret;
use crate::process::file::{self, NodeFile, ProcessRole};
use crate::process::links::{self, AcceptedTokens, LinkPort, SchemeProviders};
use crate::roles::compute::{self, ComputeInstance, LocalBackends};
use crate::roles::gateway::{self as gateway_role, NodeScheme, learn_nodes};
use crate::roles::log_memory::{self, LogMemoryInstance};
use crate::roles::memory::{self, MemoryInstance};
use crate::roles::orderer::{self, IntakeGuardedOrderer, OrdererInstance};
use crate::roles::pooled_memory::{PeerNodes, RemoteBackends};
use crate::roles::storage::{self as storage_role, StorageInstance};
use crate::services::Services;
use crate::{contracts, control, metrics, policy_record, ports};

/// How often gateways and compute nodes check whether the orderers in their files have changed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) enum RoleParts {
    Memory(MemoryInstance),
    LogMemory(LogMemoryInstance),
    Storage(StorageInstance),
    Compute(Arc<ComputeInstance>),
    Orderer(OrdererInstance),
    /// The organisation's own peer, then its compute nodes.
    Gateway(Vec<Arc<RemotePeer>>),
}

/// A started role.
pub(super) struct StartedRole {
    pub(super) kind: RoleParts,
    pub(super) tasks: Vec<JoinHandle<()>>,
    pub(super) health: metrics::Health,
    pub(super) address: String,
}

/// Bytes a second of a link whose latency is set: 56 Gbit/s, as in FlexChain's evaluation (section 6.1).
const LINK_BYTES_PER_SECOND: u64 = 56_000_000_000 / 8;

/// The providers, as slow as a link of this latency to memory.
fn shaped(providers: SchemeProviders, latency_us: u64) -> Arc<dyn Provider> {
    let (inner, latency) = (Arc::new(providers), Duration::from_micros(latency_us));
    match latency_us {
        0 => inner,
        _ => Arc::new(ShapedProvider::new(inner, ShapingConfig { latency, bytes_per_second: LINK_BYTES_PER_SECOND })),
    }
}

/// Where a compute node finds memory and storage.
fn remote_backends(
    compute: &file::ComputeFile,
    section: &file::PooledFile,
    addresses: NodeAddresses,
    folder: &Path,
    providers: SchemeProviders,
) -> RemoteBackends {
    let donors = section.memory.iter();
    let peer_nodes = compute.peer_nodes.as_ref();
    let shared = peer_nodes.and_then(|among| among.budget_directory.as_ref());
    RemoteBackends {
        storage: section.storage_nodes(),
        owner: section.owner.clone(),
        provider: shaped(providers, section.link_latency_us),
        donors: donors.map(file::DonorFile::donor).collect(),
        section_bytes: section.section_bytes,
        budget_bytes: section.peer_bytes,
        folder: shared.map_or_else(|| folder.to_path_buf(), |shared| folder.join(shared)),
        watermark_folder: folder.to_path_buf(),
        peer_nodes: peer_nodes.map(|among| PeerNodes {
            address: among.address.clone(),
            others: among.others.clone(),
            parties: and_later(Parties::of(among.nodes.keys()), among.joining.as_ref()),
            addresses,
        }),
        shares_process: false,
        state: DisaggregatedConfig {
            metadata_cache_bytes: section.metadata_cache_bytes,
            data_cache_bytes: section.data_cache_bytes,
            delta_bytes_max: section.delta_bytes,
            evict_above_percent: section.evict_above_percent,
            evict_to_percent: section.evict_to_percent,
            apply_workers: compute.validation.apply_workers(),
            ..DisaggregatedConfig::default()
        },
    }
}

/// These parties, and the compute nodes that may join later.
fn and_later(parties: Parties, joining: Option<&file::JoiningFile>) -> Parties {
    match joining {
        Some(joining) => parties.and_later(&joining.prefix, NODES_MAX),
        None => parties,
    }
}

/// Polls a process's file for changes of the orderers, and reports them through `tell`: `heddle orderer add` and
/// `remove` change the file.
async fn watch_orderers(role: ProcessRole, folder: PathBuf, tell: impl Fn(&[String]), stop: CancellationToken) {
    let path = folder.join(file::NODE_FILE);
    let written = || std::fs::metadata(&path).and_then(|file| file.modified()).ok();
    let mut seen = written();
    while stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
        let now = written();
        if now == seen {
            continue;
        }
        seen = now;
        match NodeFile::load(role, &path) {
            Ok(file) if !file.orderers().is_empty() => tell(file.orderers()),
            Ok(_) => tracing::warn!("the file of this process no longer names an orderer; it keeps using those it had"),
            Err(error) => {
                tracing::warn!(%error, "cannot read the file of this process; it keeps using the orderers it had")
            }
        }
    }
}

/// The inputs that all roles share.
pub(super) struct RoleContext<'a> {
    pub(super) file: &'a NodeFile,
    pub(super) folder: &'a Path,
    pub(super) stop: &'a CancellationToken,
    pub(super) services: &'a Services,
    /// TLS below everything that uses tcp.
    pub(super) tcp_tls: Option<TcpTls>,
}

impl RoleContext<'_> {
    fn path(&self, path: &Path) -> PathBuf {
        self.folder.join(path)
    }

    fn genesis(&self) -> Result<Block, NodeError> {
        let path = self.folder.join(file::GENESIS);
        let bytes = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
        Ok(Block::parse(&Bytes::from(bytes))?)
    }

    fn signer(&self, msp_id: &str) -> Result<identity::Signer, NodeError> {
        Ok(MspDirectory::read(&self.folder.join(file::MSP))?.signer(msp_id)?)
    }

    fn control(&self, operated: Arc<dyn control::ControlHandler>) -> Result<JoinHandle<()>, NodeError> {
        let serving = control::start(self.folder, operated, self.stop.clone())?;
        Ok(self.services.watch_task("the control socket", serving))
    }

    fn providers(&self) -> SchemeProviders {
        SchemeProviders::new(self.tcp_tls.clone(), self.services)
    }

    /// Registers the transports for links within the organisation.
    fn register(&self, own: Option<&Secret>, ports: Vec<LinkPort>) {
        links::register(&self.file.name, own, self.tcp_tls.as_ref(), ports, self.services);
    }

    /// The organisations that are members of the channel, except one.
    fn members(&self, but: Option<&str>) -> Result<Parties, NodeError> {
        let config = ChannelConfig::from_block(&self.genesis()?)?;
        let names = config.application().iter().map(|organization| organization.msp_id.to_string());
        Ok(Parties::of(names.filter(|name| Some(name.as_str()) != but)))
    }

    fn tls(&self) -> Result<TlsIdentity, NodeError> {
        Ok(TlsIdentity::read(self.folder, identity::MemberRole::Peer)?)
    }

    pub(super) async fn memory(&self) -> Result<StartedRole, NodeError> {
        let provider = self.providers();
        let health = metrics::Health::new(Vec::new(), TransactionIntake::default());
        if let Some(section) = &self.file.order_log {
            let memory = LogMemoryInstance::start(log_memory::LogMemoryConfig {
                name: &self.file.name,
                number: section.number,
                provider: &provider,
                address: &section.address,
                orderers: section.orderers.iter().map(|(name, token)| (name.clone(), token.token())).collect(),
                log_bytes: section.log_bytes,
            })
            .await?;
            let address = memory.address();
            let tasks = vec![self.services.watch(&self.file.name, memory.ended())];
            return Ok(StartedRole { kind: RoleParts::LogMemory(memory), tasks, health, address });
        }
        let section = self.file.memory.as_ref().expect("one of the two was looked for when the file was read");
        let memory = MemoryInstance::start(memory::MemoryConfig {
            name: &self.file.name,
            number: section.number,
            provider: &provider,
            address: &section.address,
            owners: section.owners.iter().map(|(owner, token)| (owner.clone(), token.token())).collect(),
            budget_bytes: section.memory_bytes,
            section_bytes: section.section_bytes,
        })
        .await?;
        let address = memory.address();
        let tasks = vec![self.services.watch(&self.file.name, memory.ended())];
        Ok(StartedRole { kind: RoleParts::Memory(memory), tasks, health, address })
    }

    pub(super) async fn storage(&self) -> Result<StartedRole, NodeError> {
        let section = self.file.storage();
        let port = |peer: &file::StorageFile| LinkPort::joined(&peer.address, &peer.clients, peer.joining.as_ref());
        self.register(None, section.peers().map(port).collect());
        // A slow disk delays only the peers that are on it.
        let mut disks: BTreeMap<u64, GroupSync> = BTreeMap::new();
        let mut storage = StorageInstance::new(&self.file.name);
        for peer in section.peers() {
            let directory = self.path(&peer.directory);
            let data = DataDirectory::open(&directory).await?;
            let disk = std::fs::metadata(&directory).map_err(NodeError::file("reading", &directory))?.dev();
            let config = storage_role::StorageConfig {
                peer: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                data,
                sync: disks.entry(disk).or_default().clone(),
                tables: storage_role::tables_config(peer.memtable_bytes, peer.table_cache_bytes, peer.table_hint_bytes),
                address: &peer.address,
                clients: &and_later(Parties::of(peer.clients.keys()), peer.joining.as_ref()),
            };
            storage.serve(config).await?;
        }
        let health = metrics::Health::new(Vec::new(), TransactionIntake::default());
        let address = section.address.clone();
        Ok(StartedRole { kind: RoleParts::Storage(storage), tasks: Vec::new(), health, address })
    }

    pub(super) async fn compute(&self) -> Result<StartedRole, NodeError> {
        let section = self.file.compute();
        let peer_nodes = section
            .peer_nodes
            .iter()
            .filter_map(|nodes| Some(LinkPort::joined(nodes.address.as_ref()?, &nodes.nodes, nodes.joining.as_ref())));
        let ports = std::iter::once(LinkPort::named(&section.address, &section.gateways)).chain(peer_nodes).collect();
        self.register(Some(&section.token), ports);
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let mut config = file::process_config(&section.organizations, &section.contracts, &section.limits);
        config.storage.savepoint_blocks = section.savepoint_blocks;
        config.pool.validation = section.validation;
        config.ordering.early_abort = section.early_abort;
        if let Some(peer_nodes) = &section.peer_nodes {
            config.pool.offload = peer_nodes.offload;
            config.pool.spot_check_one_in = peer_nodes.spot_check_one_in;
        }
        let chaincodes = PeerChaincodes::open(
            &section.chaincodes,
            self.folder,
            self.path(&section.packages),
            section.peer_name.as_deref().unwrap_or(&self.file.name),
        )?;
        let registry = contracts::registry_without(&config.contracts, &section.service_contracts)?;
        let registry = registry.with_services(chaincodes.clone());
        let sources = SourceAddresses::from(section.orderers.clone());
        let definitions = contracts::definitions(&config, &registry)?;
        policy_record::check(self.folder, &definitions)?;
        let options = compute::ComputeConfig {
            name: &self.file.name,
            signer: self.signer(&section.msp_id)?,
            members: self.member_peers(section, &definitions),
            definitions,
            registry,
            genesis: &self.genesis()?,
            orderers: sources.clone(),
            settings: compute::peer_config(&config, section.client_address.clone()),
        };
        let compute = match (&section.local, &section.pooled) {
            (Some(local), _) => ComputeInstance::monolithic(options, self.local(local).await?).await?,
            (None, pooled) => {
                let pooled = pooled.as_ref().expect("one of the two was looked for when the file was read");
                let addresses = NodeAddresses { own: section.address.clone(), others: section.others_address.clone() };
                let backends = remote_backends(section, pooled, addresses, self.folder, self.providers());
                ComputeInstance::disaggregated(options, backends).await?
            }
        };
        let compute = Arc::new(compute);
        let failed = |source| NodeError::Chain { who: self.file.name.clone(), source };
        let mut tasks = vec![self.control(compute.clone())?];
        let tell = move |now: &[String]| sources.set(now);
        let (folder, stop) = (self.folder.to_path_buf(), self.stop.clone());
        let learning = watch_orderers(ProcessRole::Compute, folder, tell, stop);
        tasks.push(self.services.watch("the look-out for orderers", learning));
        let looking = chaincodes.clone().watch(self.stop.clone());
        tasks.push(self.services.watch("the look-out for packages", looking));
        if let Some(port) = &section.chaincode_port {
            let port = ChaincodePort {
                listen: port.listen,
                identity: &tls,
                authorities: &self.path(&port.authorities),
                limits: &section.limits,
            };
            let serving = port.open(chaincodes, self.stop.clone()).await?;
            tasks.push(self.services.watch_task("the port for chaincodes", serving));
        }
        let others = self.members(Some(&section.msp_id))?;
        for (scope, address, parties) in [
            (ServiceScope::Own, &section.address, Parties::of(section.gateways.keys())),
            (ServiceScope::Others, &section.others_address, others),
        ] {
            let serving = serve_peer(compute.clone(), scope, address, &parties, self.stop.clone());
            let task = serving.await.map_err(failed)?;
            tasks.push(self.services.watch(format!("the port at {address}"), async move {
                let _ = task.await;
            }));
        }
        let part = compute.clone() as Arc<dyn metrics::MonitoredPart>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], TransactionIntake::default());
        let health = health.with_notes(compute.notes());
        let address = section.address.clone();
        Ok(StartedRole { kind: RoleParts::Compute(compute), tasks, health, address })
    }

    /// The peers of other organisations, each over the links of its compute nodes.
    fn member_peers(&self, section: &file::ComputeFile, definitions: &ContractDefinitions) -> Arc<MemberPeers> {
        let members = MemberPeers::default();
        let own = MspId::new(section.msp_id.as_str());
        for (msp_id, addresses) in &section.others {
            let node = |address: &String| {
                Arc::new(RemotePeer::new(RemotePeerConfig {
                    name: format!("the peer of {msp_id}"),
                    target: PeerTarget::Node(address.clone()),
                    parties: Parties::of([msp_id]),
                    definitions: definitions.clone(),
                }))
            };
            let nodes = addresses.iter().map(node).collect();
            members.add(Arc::new(RemoteMember::new(own.clone(), MspId::new(msp_id.as_str()), nodes)));
        }
        Arc::new(members)
    }

    /// Opens the disk of a monolithic peer.
    async fn local(&self, section: &file::LocalStoresFile) -> Result<LocalBackends, NodeError> {
        let data = DataDirectory::open(&self.path(&section.directory)).await?;
        let tables = storage_role::local_tables_config(&section.storage);
        let tables = FjallEngine::open(&data.directory().path().join(TABLES), tables).await?;
        let state = compute::local_state(&section.storage);
        Ok(LocalBackends { directory: data.subdirectory(BLOCKS).await?, data, sync: GroupSync::new(), tables, state })
    }

    pub(super) async fn orderer(&self) -> Result<StartedRole, NodeError> {
        let section = self.file.orderer();
        let listener = ports::bind(section.listen, "orderer.listen").await?;
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let directory = self.path(&section.directory);
        let log = Arc::new(OnceLock::new());
        let (engines, acknowledge): (Arc<dyn OrderingEngines>, _) = match (&section.sift, &section.raft) {
            (None, None) => (Arc::new(SoloEngines), AcknowledgeMode::Queued),
            (Some(sift), _) => {
                let keeper = usize::try_from(sift.number - 1).ok().and_then(|place| sift.acceptors.get(place));
                let port = keeper.map(|address| LinkPort::named(address, &sift.orderers));
                self.register(Some(&sift.token), port.into_iter().collect());
                let engines = orderer::SiftEngines {
                    provider: Arc::new(self.providers()),
                    number: sift.number,
                    name: self.file.name.clone(),
                    token: sift.token.token(),
                    memory: sift.memory.clone(),
                    acceptors: sift.acceptors.clone(),
                    log_bytes: sift.log_bytes,
                    volatile: sift.volatile,
                };
                (Arc::new(engines), AcknowledgeMode::Durable)
            }
            (None, Some(raft)) => {
                let own = raft.members.iter().find(|member| member.number == raft.number);
                let accepted = AcceptedTokens::SharedToken(raft.token.clone());
                let port = own.map(|member| LinkPort { address: member.address.clone(), accepted });
                self.register(Some(&raft.token), port.into_iter().collect());
                let members = raft.members.iter().map(|member| (member.number, member.address.clone()));
                let engines = orderer::RaftEngines {
                    number: raft.number,
                    members: members.collect(),
                    joins: raft.joins,
                    directory: directory.join(orderer::RAFT_FOLDER),
                    log: Arc::clone(&log),
                };
                (Arc::new(engines), AcknowledgeMode::Durable)
            }
        };
        let data = DataDirectory::open(&directory).await?;
        let ordering = OrdererInstance::start(orderer::OrdererConfig {
            name: &self.file.name,
            signer: self.signer(&section.msp_id)?,
            directory: data.subdirectory(BLOCKS).await?,
            data,
            sync: GroupSync::new(),
            engines,
            acknowledge,
            watermark_folder: self.folder.to_path_buf(),
            volatile: section.sift.as_ref().is_some_and(|sift| sift.volatile),
            cutting: orderer::cutting(section.cut),
            reorder: section.reorder,
            genesis: &self.genesis()?,
            address: &section.blocks_address,
        })
        .await?;
        let intake = TransactionIntake::default();
        let mut tasks = vec![self.watch(&directory, section.free_bytes_min, &intake)];
        if let Some(log) = log.get() {
            let operated = control::OrdererControl { name: self.file.name.clone(), log: Arc::clone(log) };
            tasks.push(self.control(Arc::new(operated))?);
        }
        let guarded = Arc::new(IntakeGuardedOrderer { orderer: ordering.orderer().clone(), intake: intake.clone() });
        let members = self.members(None)?;
        let serving = serve_orderer(guarded, &section.intake_address, &members, self.stop.clone()).await;
        let serving = serving.map_err(|source| NodeError::Chain { who: self.file.name.clone(), source })?;
        tasks.push(self.services.watch(format!("the port at {}", section.intake_address), async move {
            let _ = serving.await;
        }));
        let organizations = ordering.chain().policies().members().msps().count();
        let limits = ports::call_limits(&section.limits, organizations);
        let port = OrdererService::new(ordering.orderer().clone(), &limits, intake.clone(), self.stop.clone());
        let address = ports::local(&listener).to_string();
        let tls = gateway_role::tls(section.tls.then_some(&tls))?;
        let serving = ports::serve(listener, tls, port, &section.limits, organizations, self.stop.clone());
        tasks.push(self.services.watch_task("the port of clients", serving));
        let part = ordering.chain().clone() as Arc<dyn metrics::MonitoredPart>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        Ok(StartedRole { kind: RoleParts::Orderer(ordering), tasks, health, address })
    }

    pub(super) async fn gateway(&self) -> Result<StartedRole, NodeError> {
        let section = self.file.gateway();
        let listener = ports::bind(section.listen, "gateway.listen").await?;
        self.register(Some(&section.token), Vec::new());
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let config = file::process_config(&section.organizations, &section.contracts, &section.limits);
        let registry = contracts::registry_without(&config.contracts, &section.service_contracts)?;
        let definitions = contracts::definitions(&config, &registry)?;
        let remote = |name: String, target: PeerTarget, parties: &Parties| {
            let (parties, definitions) = (parties.clone(), definitions.clone());
            Arc::new(RemotePeer::new(RemotePeerConfig { name, target, parties, definitions }))
        };
        // A compute node of this organisation has proved that it knows this gateway's token.
        let own_nodes = Parties::anyone();
        // Each compute node is used separately for proposals; all together serve commits, which only the primary
        // reports.
        let nodes = |whose: &str, addresses: &[String], parties: &Parties| -> Vec<Arc<RemotePeer>> {
            let node = |(number, address): (usize, &String)| {
                let count =
                    if addresses.len() > 1 { format!("compute node {} of ", number + 1) } else { String::new() };
                remote(format!("{count}{whose}"), PeerTarget::Node(address.clone()), parties)
            };
            addresses.iter().enumerate().map(node).collect()
        };
        let mut tasks = Vec::new();
        // A peer may get more compute nodes, and says how loaded each is.
        let mut endorse = |whose: &str,
                           nodes: &[Arc<RemotePeer>],
                           addresses: &[String],
                           peers: Vec<Arc<RemotePeer>>,
                           parties: &Parties,
                           scheme| {
            let known = addresses.iter().cloned().zip(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>));
            let balanced = Arc::new(BalancedEndorser::at(known.collect()));
            let (definitions, parties, name) =
                (definitions.clone(), parties.clone(), format!("a compute node of {whose}"));
            let connect = move |address: &str| {
                let (target, name) = (PeerTarget::Node(address.to_owned()), format!("{name} at {address}"));
                let config =
                    RemotePeerConfig { name, target, parties: parties.clone(), definitions: definitions.clone() };
                Arc::new(RemotePeer::new(config)) as Arc<dyn Endorse>
            };
            let learning = learn_nodes(balanced.clone(), peers, scheme, connect, self.stop.clone());
            tasks.push(self.services.watch("the look-out for compute nodes", learning));
            balanced as Arc<dyn Endorse>
        };
        let whose = "the organisation's peer";
        let own = nodes(whose, &section.compute, &own_nodes);
        let mut peers = own.clone();
        peers.insert(0, remote(whose.to_owned(), PeerTarget::Primary(section.compute.clone()), &own_nodes));
        let endorses = endorse(whose, &own, &section.compute, vec![peers[0].clone()], &own_nodes, NodeScheme::Own);
        let mut comparisons = Vec::new();
        let others = section.others.iter().map(|(msp_id, addresses)| {
            let (whose, parties) = (format!("the peer of {msp_id}"), Parties::of([msp_id]));
            let nodes = nodes(&whose, addresses, &parties);
            let endorse = endorse(&whose, &nodes, addresses, nodes.clone(), &parties, NodeScheme::Others);
            comparisons
                .extend(nodes.iter().map(|node| Arc::new(CommitHashComparison::new(msp_id.as_str(), node.clone()))));
            let address = addresses.join(" or ").into();
            Endorser { msp_id: MspId::new(msp_id.as_str()), address, endorse }
        });
        let others: Vec<Endorser> = others.collect();
        for comparison in &comparisons {
            let (comparison, own, stop) = (comparison.clone(), peers[0].clone(), self.stop.clone());
            tasks.push(self.services.watch("the comparison with another peer", async move {
                stop.run_until_cancelled(comparison.run(own)).await;
            }));
        }
        // Several orderers form one group, and any of them may lead.
        let orders = Parties::of([&section.orderer_msp_id]);
        let broadcast: Arc<dyn Broadcast> = match &section.orderers[..] {
            [only] => Arc::new(RemoteOrderer::new(only.clone(), orders)),
            several => {
                let orderers = Arc::new(RemoteOrderers::new(several.to_vec(), orders));
                let (told, stop) = (Arc::clone(&orderers), self.stop.clone());
                let tell = move |now: &[String]| told.set_addresses(now);
                let learning = watch_orderers(ProcessRole::Gateway, self.folder.to_path_buf(), tell, stop);
                tasks.push(self.services.watch("the look-out for orderers", learning));
                orderers
            }
        };
        let orderer = OrdererEndpoint {
            msp_id: MspId::new(section.orderer_msp_id.as_str()),
            address: section.orderers.join(" or ").into(),
            reached_at: section.orderer_reached_at.as_deref().map(Into::into),
            broadcast,
        };
        let intake = TransactionIntake::default();
        if let Some(directory) = &section.watch {
            tasks.push(self.watch(&self.path(directory), section.free_bytes_min, &intake));
        }
        let address = ports::local(&listener).to_string();
        let serving = gateway_role::start(gateway_role::GatewayRoleConfig {
            peer: peers[0].clone(),
            local: Endorser {
                msp_id: MspId::new(section.msp_id.as_str()),
                address: address.as_str().into(),
                endorse: endorses,
            },
            others,
            orderers: vec![orderer],
            intake: intake.clone(),
            listener,
            tls: section.tls.then_some(tls),
            limits: section.limits.clone(),
            stop: self.stop.clone(),
        })?;
        tasks.push(self.services.watch_task("the port of clients", serving));
        let part = peers[0].clone() as Arc<dyn metrics::MonitoredPart>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        let health = health.with_notes(move || comparisons.iter().filter_map(|one| one.divergence()).collect());
        Ok(StartedRole { kind: RoleParts::Gateway(peers), tasks, health, address })
    }

    /// Watches the free space of a disk until the stop.
    fn watch(&self, directory: &Path, free_bytes_min: u64, intake: &TransactionIntake) -> JoinHandle<()> {
        gateway::disk_space::look(directory, free_bytes_min, intake);
        let watching =
            gateway::disk_space::watch(directory.to_path_buf(), free_bytes_min, intake.clone(), self.stop.clone());
        self.services.watch("the look-out for room on the disk", watching)
    }
}
