//! One role as a process of its own.
//!
//! 1. [`file`] is what its configuration says; [`crate::plan`] writes it.
//! 2. [`Process::start`] makes the transports known that the role's addresses name, starts the role, and answers on a port
//!    of its own for metrics and health.
//! 3. [`Process::ready`] waits until others can use it and says so in `ready.json` beside the configuration.
//! 4. [`Process::stop`] ends the role in order. Whoever started the process does so on SIGTERM.
//!
//! Inside an organisation processes reach each other over remote memory access, with tokens; organisations reach each other
//! over mutual TLS.

pub mod file;
mod links;
mod ready;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::Stop;
use base::rt::net::Parties;
use base::{Bytes, MspId};
use chain::BlockSources;
use chain::endorse::Endorse;
use chain::order::{Acknowledge, Broadcast, Engines, SoloEngines};
use chain::remote::{
    Comparison, RemoteOrderer, RemoteOrderers, RemotePeer, RemotePeerOptions, Scope, serve_orderer, serve_peer,
};
use gateway::service::{Endorser, Intake, OrdererPort, OrderingNode};
use identity::issue::{MspDirectory, TlsIdentity};
use ledger::{Block, ChannelConfig};
use pool::Donor;
use rma::tcp::TcpTls;
use state::DisaggregatedSettings;
use storage::tables::{FjallEngine, FjallOptions};
use storage::{DataDirectory, GroupSync};
use tokio::task::JoinHandle;

use crate::Boxed;
use crate::network::NodeError;
use crate::network::layout::{BLOCKS, TABLES};
use crate::roles::compute::{self, Among, Compute, Elsewhere, Local};
use crate::roles::gateway::{self as gateway_role, balanced};
use crate::roles::log_memory::{self, LogMemory};
use crate::roles::memory::{self, Memory};
use crate::roles::orderer::{self, Guarded, Ordering};
use crate::roles::storage::{self as storage_role, Storage};
use crate::services::{FAULTS, Services, inject_faults};
use crate::{contracts, control, credentials, disk, metrics, ports, rules};

use file::Secret;
pub use file::{NodeFile, ProcessRole};
#[cfg(test)]
pub(crate) use links::tcp_tls;
use links::{Accepted, Fabrics, Port};
pub use ready::Ready;

/// How often gateways and compute nodes look whether their files name other orderers.
const LOOK: Duration = Duration::from_millis(500);

/// A role that runs in this process.
pub struct Process {
    folder: PathBuf,
    ready: Ready,
    kind: Kind,
    /// Ends ports.
    stop: Stop,
    services: Services,
    tasks: Vec<JoinHandle<()>>,
}

/// Why a process has stopped by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// For people.
    pub reason: String,
    /// Whether a part of it ended that must not, by a mistake of the program: to be started again, and to be reported.
    pub is_defect: bool,
}

impl Ended {
    /// A part ended that must not.
    pub(crate) fn defect(reason: String) -> Ended {
        Ended { reason, is_defect: true }
    }

    /// The process cannot go on with what is around it: a disk, a configuration, another process.
    pub(crate) fn of_surroundings(reason: String) -> Ended {
        Ended { reason, is_defect: false }
    }
}

enum Kind {
    Memory(Memory),
    LogMemory(LogMemory),
    Storage(Storage),
    Compute(Arc<Compute>),
    Orderer(Ordering),
    /// The organisation's own peer, and its compute nodes.
    Gateway(Vec<Arc<RemotePeer>>),
}

/// What a role came to be.
struct Started {
    kind: Kind,
    tasks: Vec<JoinHandle<()>>,
    health: metrics::Health,
    address: String,
}

impl Process {
    /// Starts what a file describes.
    ///
    /// # Errors
    /// [`NodeError`], which says what to change.
    pub fn start(role: ProcessRole, path: &Path) -> Boxed<'_, Result<Process, NodeError>> {
        Box::pin(Process::start_role(role, path))
    }

    async fn start_role(role: ProcessRole, path: &Path) -> Result<Process, NodeError> {
        let file = NodeFile::load(role, path)?;
        crate::logging::start(&file.log)?;
        file.crypto.use_in_process().map_err(NodeError::Crypto)?;
        let folder = std::path::absolute(path).map_err(NodeError::file("finding", path))?;
        let folder = folder.parent().map(Path::to_path_buf).unwrap_or_default();
        let listener = ports::bind(file.metrics, "metrics").await?;
        let metrics_address = ports::local(&listener);
        let stop = Stop::new();
        // In force before anybody is served.
        let (watching, notes) = credentials::watch(&folder, &folder, stop.clone())?;
        let tcp_tls = match file.tcp_tls {
            Some(true) => Some(links::tcp_tls(&folder, &TlsIdentity::read(&folder, identity::Role::Peer)?)?),
            said => {
                warn_of_clear_text(&file, said);
                None
            }
        };
        let services = Services::new(stop.clone());
        if let Some(folder) = std::env::var_os(FAULTS) {
            drop(tokio::spawn(inject_faults(folder.into(), file.name.clone(), stop.clone())));
        }
        let here = Here { file: &file, folder: &folder, stop: &stop, services: &services, tcp_tls };
        let started = match role {
            ProcessRole::Memory => here.memory().await?,
            ProcessRole::Storage => here.storage().await?,
            ProcessRole::Compute => here.compute().await?,
            ProcessRole::Orderer => here.orderer().await?,
            ProcessRole::Gateway => here.gateway().await?,
        };
        metrics::register();
        let mut tasks = started.tasks;
        tasks.push(watching);
        let health = started.health.with_notes(notes).with_services(services.clone());
        tasks.push(services.watch("the page of metrics", metrics::serve(listener, health, stop.clone())));
        let ready = Ready {
            name: file.name.clone(),
            role,
            process: std::process::id(),
            address: started.address,
            metrics: metrics_address,
        };
        Ok(Process { folder, ready, kind: started.kind, stop, services, tasks })
    }

    /// What it is and where it answers.
    pub fn describe(&self) -> &Ready {
        &self.ready
    }

    /// Waits until others can use it, and says so in `ready.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub async fn ready(&self) -> Result<(), NodeError> {
        match &self.kind {
            // The peer, and all but some of its compute nodes; those are asked when they come.
            Kind::Gateway(peers) => peers[0].reached().await,
            Kind::Compute(compute) => compute.ready().await,
            Kind::Memory(_) | Kind::LogMemory(_) | Kind::Storage(_) | Kind::Orderer(_) => {}
        }
        self.ready.store(&self.folder)
    }

    /// Completes when it has stopped by itself, and says why.
    pub async fn failed(&self) -> Ended {
        let role = async {
            match &self.kind {
                Kind::Compute(compute) => compute.failed().await,
                Kind::Orderer(ordering) => ordering.failed().await,
                Kind::Storage(storage) => storage.failed().await,
                // What a gateway loses it looks for again; memory ends with its host, which is a service.
                Kind::Memory(_) | Kind::LogMemory(_) | Kind::Gateway(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = role => ended,
            reason = self.services.failed() => Ended::defect(reason),
        }
    }

    /// Lets calls finish, makes everything durable and ends.
    ///
    /// # Errors
    /// The role's; it has ended all the same.
    pub fn stop(self) -> Boxed<'static, Result<(), NodeError>> {
        Box::pin(self.stop_role())
    }

    async fn stop_role(self) -> Result<(), NodeError> {
        self.stop.stop();
        // The end of their hosts ends what watches them.
        match &self.kind {
            Kind::Memory(memory) => memory.stop().await,
            Kind::LogMemory(memory) => memory.stop().await,
            _ => {}
        }
        for task in self.tasks {
            // A task that panicked has said so.
            let _ = task.await;
        }
        match &self.kind {
            Kind::Storage(storage) => storage.stop().await?,
            Kind::Compute(compute) => compute.stop().await?,
            Kind::Orderer(ordering) => ordering.stop().await,
            Kind::Memory(_) | Kind::LogMemory(_) | Kind::Gateway(_) => {}
        }
        Ready::remove(&self.folder);
        Ok(())
    }
}

/// Where a compute node finds memory and storage.
fn elsewhere(
    section: &file::PooledFile,
    among: Option<&file::AmongFile>,
    folder: &Path,
    fabrics: Fabrics,
) -> Elsewhere {
    let donors = section.memory.iter();
    let shared = among.and_then(|among| among.budget_directory.as_ref());
    Elsewhere {
        storage: section.storage.clone(),
        owner: section.owner.clone(),
        fabric: Arc::new(fabrics),
        donors: donors.map(|donor| Donor { address: donor.address.clone(), token: donor.token.token() }).collect(),
        section_bytes: section.section_bytes,
        budget_bytes: section.peer_bytes,
        folder: shared.map_or_else(|| folder.to_path_buf(), |shared| folder.join(shared)),
        notes: folder.to_path_buf(),
        among: among.map(|among| Among {
            address: among.address.clone(),
            others: among.others.clone(),
            parties: Parties::of(among.nodes.keys()),
        }),
        shares_process: false,
        settings: DisaggregatedSettings {
            metadata_cache_bytes: section.metadata_cache_bytes,
            data_cache_bytes: section.data_cache_bytes,
            delta_bytes_max: section.delta_bytes,
            evict_above_percent: section.evict_above_percent,
            evict_to_percent: section.evict_to_percent,
            ..DisaggregatedSettings::default()
        },
    }
}

/// Looks again and again which orderers a process's file names, and tells: `heddle orderer add` and `remove` change that.
async fn learn_of_orderers(role: ProcessRole, folder: PathBuf, tell: impl Fn(&[String]), stop: Stop) {
    let path = folder.join(file::FILE);
    let written = || std::fs::metadata(&path).and_then(|file| file.modified()).ok();
    let mut seen = written();
    while stop.or_stopped(tokio::time::sleep(LOOK)).await.is_some() {
        let now = written();
        if now == seen {
            continue;
        }
        seen = now;
        match NodeFile::load(role, &path) {
            Ok(file) if !file.orderers().is_empty() => tell(file.orderers()),
            Ok(_) => tracing::warn!("the file of this process names no orderer any more; it goes on with those it had"),
            Err(error) => tracing::warn!(%error, "this process goes on with the orderers it had"),
        }
    }
}

/// Says that others on the network can read along, where they can.
fn warn_of_clear_text(file: &NodeFile, said: Option<bool>) {
    let is_loopback = |address: &str| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_matches(['[', ']']).parse().is_ok_and(|host: std::net::IpAddr| host.is_loopback())
    };
    let text = file.to_text();
    let addresses = text.split('"').filter_map(|word| word.strip_prefix("tcp:"));
    if !addresses.clone().any(|address| !is_loopback(address)) {
        return;
    }
    match said {
        None => tracing::warn!(
            "memory, storage and links at tcp: addresses run in clear text: this plan was made by an earlier release; \
             make it again with `heddle plan`, which writes the certificates"
        ),
        Some(_) => tracing::warn!(
            "memory, storage and links at tcp: addresses run in clear text, as tcp_tls = false says: whoever is on the \
             network between these hosts can read and change this peer's state"
        ),
    }
}

/// What all roles start from.
struct Here<'a> {
    file: &'a NodeFile,
    folder: &'a Path,
    stop: &'a Stop,
    services: &'a Services,
    /// Below everything that goes over tcp.
    tcp_tls: Option<TcpTls>,
}

impl Here<'_> {
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

    fn control(&self, operated: Arc<dyn control::Operated>) -> Result<JoinHandle<()>, NodeError> {
        let serving = control::start(self.folder, operated, self.stop.clone())?;
        Ok(self.services.watch_task("the control socket", serving))
    }

    fn fabrics(&self) -> Fabrics {
        Fabrics::new(self.tcp_tls.clone(), self.services)
    }

    /// Makes links within the organisation known.
    fn register(&self, own: Option<&Secret>, ports: Vec<Port>) {
        links::register(&self.file.name, own, self.tcp_tls.as_ref(), ports, self.services);
    }

    /// The organisations that are members of the channel, but for one.
    fn members(&self, but: Option<&str>) -> Result<Parties, NodeError> {
        let config = ChannelConfig::from_block(&self.genesis()?)?;
        let names = config.application().iter().map(|organization| organization.msp_id.to_string());
        Ok(Parties::of(names.filter(|name| Some(name.as_str()) != but)))
    }

    fn tls(&self) -> Result<TlsIdentity, NodeError> {
        Ok(TlsIdentity::read(self.folder, identity::Role::Peer)?)
    }

    async fn memory(&self) -> Result<Started, NodeError> {
        let fabric = self.fabrics();
        let health = metrics::Health::new(Vec::new(), Intake::default());
        if let Some(section) = &self.file.order_log {
            let memory = LogMemory::start(log_memory::Options {
                name: &self.file.name,
                number: section.number,
                fabric: &fabric,
                address: &section.address,
                orderers: section.orderers.iter().map(|(name, token)| (name.clone(), token.token())).collect(),
                log_bytes: section.log_bytes,
            })
            .await?;
            let address = memory.address();
            let tasks = vec![self.services.watch(&self.file.name, memory.ended())];
            return Ok(Started { kind: Kind::LogMemory(memory), tasks, health, address });
        }
        let section = self.file.memory.as_ref().expect("one of the two was looked for when the file was read");
        let memory = Memory::start(memory::Options {
            name: &self.file.name,
            number: section.number,
            fabric: &fabric,
            address: &section.address,
            owners: section.owners.iter().map(|(owner, token)| (owner.clone(), token.token())).collect(),
            budget_bytes: section.memory_bytes,
            section_bytes: section.section_bytes,
        })
        .await?;
        let address = memory.address();
        let tasks = vec![self.services.watch(&self.file.name, memory.ended())];
        Ok(Started { kind: Kind::Memory(memory), tasks, health, address })
    }

    async fn storage(&self) -> Result<Started, NodeError> {
        let section = self.file.storage();
        self.register(None, vec![Port::named(&section.address, &section.clients)]);
        let directory = self.path(&section.directory);
        let storage = Storage::start(storage_role::Options {
            name: &self.file.name,
            data: DataDirectory::open(&directory).await?,
            sync: GroupSync::new(),
            memtable_bytes: section.memtable_bytes as u64,
            address: &section.address,
            clients: &Parties::of(section.clients.keys()),
        })
        .await?;
        let health = metrics::Health::new(Vec::new(), Intake::default());
        let address = section.address.clone();
        Ok(Started { kind: Kind::Storage(storage), tasks: Vec::new(), health, address })
    }

    async fn compute(&self) -> Result<Started, NodeError> {
        let section = self.file.compute();
        let among = section.among.iter().map(|among| Port::named(&among.address, &among.nodes));
        let ports = std::iter::once(Port::named(&section.address, &section.gateways)).chain(among).collect();
        self.register(Some(&section.token), ports);
        links::register_tls(self.folder, &self.tls()?)?;
        let mut config = file::config(&section.organizations, &section.contracts, &section.limits);
        config.storage.savepoint_blocks = section.savepoint_blocks;
        if let Some(among) = &section.among {
            config.pool.borrow = among.borrow;
            config.pool.spot_check_one_in = among.spot_check_one_in;
        }
        let registry = contracts::registry(&config)?;
        let sources = BlockSources::from(section.orderers.clone());
        let definitions = contracts::definitions(&config, &registry)?;
        rules::check(self.folder, &definitions)?;
        let options = compute::Options {
            name: &self.file.name,
            signer: self.signer(&section.msp_id)?,
            definitions,
            registry,
            genesis: &self.genesis()?,
            orderers: sources.clone(),
            settings: compute::settings(&config),
        };
        let compute = match (&section.local, &section.pooled) {
            (Some(local), _) => Compute::monolithic(options, self.local(local).await?).await?,
            (None, pooled) => {
                let pooled = pooled.as_ref().expect("one of the two was looked for when the file was read");
                Compute::disaggregated(options, elsewhere(pooled, section.among.as_ref(), self.folder, self.fabrics()))
                    .await?
            }
        };
        let compute = Arc::new(compute);
        let failed = |source| NodeError::Chain { who: self.file.name.clone(), source };
        let mut tasks = vec![self.control(compute.clone())?];
        let tell = move |now: &[String]| sources.set(now);
        let (folder, stop) = (self.folder.to_path_buf(), self.stop.clone());
        let learning = learn_of_orderers(ProcessRole::Compute, folder, tell, stop);
        tasks.push(self.services.watch("the look-out for orderers", learning));
        let others = self.members(Some(&section.msp_id))?;
        for (scope, address, parties) in [
            (Scope::Own, &section.address, Parties::of(section.gateways.keys())),
            (Scope::Others, &section.others_address, others),
        ] {
            let serving = serve_peer(compute.clone(), scope, address, &parties, self.stop.clone());
            let task = serving.await.map_err(failed)?;
            tasks.push(self.services.watch(format!("the port at {address}"), async move {
                let _ = task.await;
            }));
        }
        let part = compute.clone() as Arc<dyn metrics::Part>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], Intake::default());
        let health = health.with_notes(compute.notes());
        let address = section.address.clone();
        Ok(Started { kind: Kind::Compute(compute), tasks, health, address })
    }

    /// A disk of its own.
    async fn local(&self, section: &file::LocalFile) -> Result<Local, NodeError> {
        let data = DataDirectory::open(&self.path(&section.directory)).await?;
        let tables = FjallOptions { memtable_bytes: section.storage.memtable_bytes as u64, ..FjallOptions::default() };
        let tables = FjallEngine::open(&data.directory().path().join(TABLES), tables).await?;
        let state = compute::local_state(&section.storage);
        Ok(Local { directory: data.subdirectory(BLOCKS).await?, data, sync: GroupSync::new(), tables, state })
    }

    async fn orderer(&self) -> Result<Started, NodeError> {
        let section = self.file.orderer();
        let listener = ports::bind(section.listen, "orderer.listen").await?;
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let directory = self.path(&section.directory);
        let log = Arc::new(OnceLock::new());
        let (engines, acknowledge): (Arc<dyn Engines>, _) = match (&section.sift, &section.raft) {
            (None, None) => (Arc::new(SoloEngines), Acknowledge::Queued),
            (Some(sift), _) => {
                let keeper = usize::try_from(sift.number - 1).ok().and_then(|place| sift.keepers.get(place));
                let port = keeper.map(|address| Port::named(address, &sift.orderers));
                self.register(Some(&sift.token), port.into_iter().collect());
                let engines = orderer::SiftEngines {
                    fabric: Arc::new(self.fabrics()),
                    number: sift.number,
                    name: self.file.name.clone(),
                    token: sift.token.token(),
                    memory: sift.memory.clone(),
                    keepers: sift.keepers.clone(),
                    log_bytes: sift.log_bytes,
                    volatile: sift.volatile,
                };
                (Arc::new(engines), Acknowledge::Durable)
            }
            (None, Some(raft)) => {
                let own = raft.members.iter().find(|member| member.number == raft.number);
                let accepted = Accepted::Group(raft.token.clone());
                let port = own.map(|member| Port { address: member.address.clone(), accepted });
                self.register(Some(&raft.token), port.into_iter().collect());
                let members = raft.members.iter().map(|member| (member.number, member.address.clone()));
                let engines = orderer::RaftEngines {
                    number: raft.number,
                    members: members.collect(),
                    joins: raft.joins,
                    directory: directory.join(orderer::RAFT),
                    log: Arc::clone(&log),
                };
                (Arc::new(engines), Acknowledge::Durable)
            }
        };
        let data = DataDirectory::open(&directory).await?;
        let ordering = Ordering::start(orderer::Options {
            name: &self.file.name,
            signer: self.signer(&section.msp_id)?,
            directory: data.subdirectory(BLOCKS).await?,
            data,
            sync: GroupSync::new(),
            engines,
            acknowledge,
            notes: self.folder.to_path_buf(),
            volatile: section.sift.as_ref().is_some_and(|sift| sift.volatile),
            cutting: orderer::cutting(section.cut),
            genesis: &self.genesis()?,
            address: &section.blocks_address,
        })
        .await?;
        let intake = Intake::default();
        let mut tasks = vec![self.watch(&directory, section.free_bytes_min, &intake)];
        if let Some(log) = log.get() {
            let operated = control::Orderer { name: self.file.name.clone(), log: Arc::clone(log) };
            tasks.push(self.control(Arc::new(operated))?);
        }
        let guarded = Arc::new(Guarded { orderer: ordering.orderer().clone(), intake: intake.clone() });
        let members = self.members(None)?;
        let serving = serve_orderer(guarded, &section.intake_address, &members, self.stop.clone()).await;
        let serving = serving.map_err(|source| NodeError::Chain { who: self.file.name.clone(), source })?;
        tasks.push(self.services.watch(format!("the port at {}", section.intake_address), async move {
            let _ = serving.await;
        }));
        let organizations = ordering.chain().rules().members().msps().count();
        let limits = ports::call_limits(&section.limits, organizations);
        let port = OrdererPort::new(ordering.orderer().clone(), &limits, intake.clone(), self.stop.clone());
        let address = ports::local(&listener).to_string();
        let tls = gateway_role::tls(section.tls.then_some(&tls))?;
        let serving = ports::serve(listener, tls, port, &section.limits, organizations, self.stop.clone());
        tasks.push(self.services.watch_task("the port of clients", serving));
        let part = ordering.chain().clone() as Arc<dyn metrics::Part>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        Ok(Started { kind: Kind::Orderer(ordering), tasks, health, address })
    }

    async fn gateway(&self) -> Result<Started, NodeError> {
        let section = self.file.gateway();
        let listener = ports::bind(section.listen, "gateway.listen").await?;
        self.register(Some(&section.token), Vec::new());
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let config = file::config(&section.organizations, &section.contracts, &section.limits);
        let registry = contracts::registry(&config)?;
        let definitions = contracts::definitions(&config, &registry)?;
        let remote = |name: String, addresses: &[String], parties: &Parties| {
            let (addresses, parties, definitions) = (addresses.to_vec(), parties.clone(), definitions.clone());
            Arc::new(RemotePeer::new(RemotePeerOptions { name, addresses, parties, definitions }))
        };
        // A compute node of this organisation has proved to know this gateway's token.
        let own_nodes = Parties::anyone();
        // One by one to have proposals run, and together for what was committed, which the primary says.
        let nodes = |whose: &str, addresses: &[String], parties: &Parties| -> Vec<Arc<RemotePeer>> {
            let node = |(number, address): (usize, &String)| {
                let count =
                    if addresses.len() > 1 { format!("compute node {} of ", number + 1) } else { String::new() };
                remote(format!("{count}{whose}"), std::slice::from_ref(address), parties)
            };
            addresses.iter().enumerate().map(node).collect()
        };
        let endorse = |nodes: &[Arc<RemotePeer>]| balanced(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>));
        let own = nodes("the organisation's peer", &section.compute, &own_nodes);
        let endorses = endorse(&own);
        let mut peers = own;
        if peers.len() > 1 {
            peers.insert(0, remote("the organisation's peer".to_owned(), &section.compute, &own_nodes));
        }
        let mut tasks = Vec::new();
        let mut comparisons = Vec::new();
        let others = section.others.iter().map(|(msp_id, addresses)| {
            let nodes = nodes(&format!("the peer of {msp_id}"), addresses, &Parties::of([msp_id]));
            comparisons.extend(nodes.iter().map(|node| Arc::new(Comparison::new(msp_id.as_str(), node.clone()))));
            let address = addresses.join(" or ").into();
            Endorser { msp_id: MspId::new(msp_id.as_str()), address, endorse: endorse(&nodes) }
        });
        let others: Vec<Endorser> = others.collect();
        for comparison in &comparisons {
            let (comparison, own, stop) = (comparison.clone(), peers[0].clone(), self.stop.clone());
            tasks.push(self.services.watch("the comparison with another peer", async move {
                stop.or_stopped(comparison.run(own)).await;
            }));
        }
        // Several are one group, of which any may lead.
        let orders = Parties::of([&section.orderer_msp_id]);
        let broadcast: Arc<dyn Broadcast> = match &section.orderers[..] {
            [only] => Arc::new(RemoteOrderer::new(only.clone(), orders)),
            several => {
                let orderers = Arc::new(RemoteOrderers::new(several.to_vec(), orders));
                let (told, stop) = (Arc::clone(&orderers), self.stop.clone());
                let tell = move |now: &[String]| told.set_addresses(now);
                let learning = learn_of_orderers(ProcessRole::Gateway, self.folder.to_path_buf(), tell, stop);
                tasks.push(self.services.watch("the look-out for orderers", learning));
                orderers
            }
        };
        let orderer = OrderingNode {
            msp_id: MspId::new(section.orderer_msp_id.as_str()),
            address: section.orderers.join(" or ").into(),
            broadcast,
        };
        let intake = Intake::default();
        if let Some(directory) = &section.watch {
            tasks.push(self.watch(&self.path(directory), section.free_bytes_min, &intake));
        }
        let address = ports::local(&listener).to_string();
        let serving = gateway_role::start(gateway_role::Options {
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
        let part = peers[0].clone() as Arc<dyn metrics::Part>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        let health = health.with_notes(move || comparisons.iter().filter_map(|one| one.parted()).collect());
        Ok(Started { kind: Kind::Gateway(peers), tasks, health, address })
    }

    /// Looks at the room of a disk until the stop.
    fn watch(&self, directory: &Path, free_bytes_min: u64, intake: &Intake) -> JoinHandle<()> {
        disk::look(directory, free_bytes_min, intake);
        let watching = disk::watch(directory.to_path_buf(), free_bytes_min, intake.clone(), self.stop.clone());
        self.services.watch("the look-out for room on the disk", watching)
    }
}
