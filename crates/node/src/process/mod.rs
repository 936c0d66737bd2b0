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
use base::{Bytes, MspId};
use chain::BlockSources;
use chain::endorse::Endorse;
use chain::order::{Acknowledge, Broadcast, Engines, SoloEngines};
use chain::remote::{RemoteOrderer, RemoteOrderers, RemotePeer, RemotePeerOptions, Scope, serve_orderer, serve_peer};
use gateway::service::{Endorser, Intake, OrdererPort, OrderingNode};
use identity::issue::{MspDirectory, TlsIdentity};
use ledger::Block;
use pool::Donor;
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
use crate::{contracts, control, credentials, disk, metrics, ports, rules};

pub use file::{NodeFile, ProcessRole};
use links::Fabrics;
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
    tasks: Vec<JoinHandle<()>>,
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
        let folder = std::path::absolute(path).map_err(NodeError::file("finding", path))?;
        let folder = folder.parent().map(Path::to_path_buf).unwrap_or_default();
        let listener = ports::bind(file.metrics, "metrics").await?;
        let metrics_address = ports::local(&listener);
        let stop = Stop::new();
        // In force before anybody is served.
        let (watching, notes) = credentials::watch(&folder, &folder, stop.clone())?;
        let here = Here { file: &file, folder: &folder, stop: &stop };
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
        let health = started.health.with_notes(notes);
        tasks.push(tokio::spawn(metrics::serve(listener, health, stop.clone())));
        let ready = Ready {
            name: file.name.clone(),
            role,
            process: std::process::id(),
            address: started.address,
            metrics: metrics_address,
        };
        Ok(Process { folder, ready, kind: started.kind, stop, tasks })
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
    pub async fn failed(&self) -> String {
        match &self.kind {
            Kind::Compute(compute) => compute.failed().await,
            Kind::Orderer(ordering) => ordering.failed().await,
            Kind::Storage(storage) => storage.failed().await,
            // These have no end of their own: what they lose they look for again.
            Kind::Memory(_) | Kind::LogMemory(_) | Kind::Gateway(_) => std::future::pending().await,
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
        for task in self.tasks {
            // A task that panicked has said so.
            let _ = task.await;
        }
        match &self.kind {
            Kind::Memory(memory) => memory.stop().await,
            Kind::LogMemory(memory) => memory.stop().await,
            Kind::Storage(storage) => storage.stop().await?,
            Kind::Compute(compute) => compute.stop().await?,
            Kind::Orderer(ordering) => ordering.stop().await,
            Kind::Gateway(_) => {}
        }
        Ready::remove(&self.folder);
        Ok(())
    }
}

/// Where a compute node finds memory and storage.
fn elsewhere(section: &file::PooledFile, among: Option<&file::AmongFile>, folder: &Path) -> Elsewhere {
    let donors = section.memory.iter();
    let shared = among.and_then(|among| among.budget_directory.as_ref());
    Elsewhere {
        storage: section.storage.clone(),
        owner: section.owner.clone(),
        fabric: Arc::new(Fabrics::new()),
        donors: donors.map(|donor| Donor { address: donor.address.clone(), token: donor.token.token() }).collect(),
        section_bytes: section.section_bytes,
        budget_bytes: section.peer_bytes,
        folder: shared.map_or_else(|| folder.to_path_buf(), |shared| folder.join(shared)),
        among: among.map(|among| Among { address: among.address.clone(), others: among.others.clone() }),
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

/// What all roles start from.
struct Here<'a> {
    file: &'a NodeFile,
    folder: &'a Path,
    stop: &'a Stop,
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

    fn tls(&self) -> Result<TlsIdentity, NodeError> {
        Ok(TlsIdentity::read(self.folder, identity::Role::Peer)?)
    }

    async fn memory(&self) -> Result<Started, NodeError> {
        let fabric = Fabrics::new();
        let health = metrics::Health::new(Vec::new(), Intake::default());
        let tasks = Vec::new();
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
        Ok(Started { kind: Kind::Memory(memory), tasks, health, address })
    }

    async fn storage(&self) -> Result<Started, NodeError> {
        let section = self.file.storage();
        links::register(&self.file.name, None, &section.clients);
        let directory = self.path(&section.directory);
        let storage = Storage::start(storage_role::Options {
            name: &self.file.name,
            data: DataDirectory::open(&directory).await?,
            sync: GroupSync::new(),
            memtable_bytes: section.memtable_bytes as u64,
            address: &section.address,
        })
        .await?;
        let health = metrics::Health::new(Vec::new(), Intake::default());
        let address = section.address.clone();
        Ok(Started { kind: Kind::Storage(storage), tasks: Vec::new(), health, address })
    }

    async fn compute(&self) -> Result<Started, NodeError> {
        let section = self.file.compute();
        let mut accepted = section.gateways.clone();
        accepted.extend(section.among.iter().flat_map(|among| among.nodes.clone()));
        links::register(&self.file.name, Some(&section.token), &accepted);
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
                Compute::disaggregated(options, elsewhere(pooled, section.among.as_ref(), self.folder)).await?
            }
        };
        let compute = Arc::new(compute);
        let failed = |source| NodeError::Chain { who: self.file.name.clone(), source };
        let mut tasks = vec![control::start(self.folder, compute.clone(), self.stop.clone())?];
        let tell = move |now: &[String]| sources.set(now);
        let (folder, stop) = (self.folder.to_path_buf(), self.stop.clone());
        tasks.push(tokio::spawn(learn_of_orderers(ProcessRole::Compute, folder, tell, stop)));
        for (scope, address) in [(Scope::Own, &section.address), (Scope::Others, &section.others_address)] {
            let task = serve_peer(compute.clone(), scope, address, self.stop.clone()).await.map_err(failed)?;
            tasks.push(tokio::spawn(async move {
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
                links::register(&self.file.name, Some(&sift.token), &sift.orderers);
                let engines = orderer::SiftEngines {
                    fabric: Arc::new(Fabrics::new()),
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
                links::register_group(&self.file.name, &raft.token);
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
            genesis: &self.genesis()?,
            address: &section.blocks_address,
        })
        .await?;
        let intake = Intake::default();
        let mut tasks = vec![self.watch(&directory, section.free_bytes_min, &intake)];
        if let Some(log) = log.get() {
            let operated = control::Orderer { name: self.file.name.clone(), log: Arc::clone(log) };
            tasks.push(control::start(self.folder, Arc::new(operated), self.stop.clone())?);
        }
        let guarded = Arc::new(Guarded { orderer: ordering.orderer().clone(), intake: intake.clone() });
        let serving = serve_orderer(guarded, &section.intake_address, self.stop.clone()).await;
        let serving = serving.map_err(|source| NodeError::Chain { who: self.file.name.clone(), source })?;
        tasks.push(tokio::spawn(async move {
            let _ = serving.await;
        }));
        let organizations = ordering.chain().rules().members().msps().count();
        let limits = ports::call_limits(&section.limits, organizations);
        let port = OrdererPort::new(ordering.orderer().clone(), &limits, intake.clone(), self.stop.clone());
        let address = ports::local(&listener).to_string();
        let tls = gateway_role::tls(section.tls.then_some(&tls))?;
        tasks.push(ports::serve(listener, tls, port, &section.limits, organizations, self.stop.clone()));
        let part = ordering.chain().clone() as Arc<dyn metrics::Part>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        Ok(Started { kind: Kind::Orderer(ordering), tasks, health, address })
    }

    async fn gateway(&self) -> Result<Started, NodeError> {
        let section = self.file.gateway();
        let listener = ports::bind(section.listen, "gateway.listen").await?;
        links::register(&self.file.name, Some(&section.token), &Default::default());
        let tls = self.tls()?;
        links::register_tls(self.folder, &tls)?;
        let config = file::config(&section.organizations, &section.contracts, &section.limits);
        let registry = contracts::registry(&config)?;
        let definitions = contracts::definitions(&config, &registry)?;
        let remote = |name: String, addresses: &[String]| {
            let (addresses, definitions) = (addresses.to_vec(), definitions.clone());
            Arc::new(RemotePeer::new(RemotePeerOptions { name, addresses, definitions }))
        };
        // One by one to have proposals run, and together for what was committed, which the primary says.
        let nodes = |whose: &str, addresses: &[String]| -> Vec<Arc<RemotePeer>> {
            let node = |(number, address): (usize, &String)| {
                let count =
                    if addresses.len() > 1 { format!("compute node {} of ", number + 1) } else { String::new() };
                remote(format!("{count}{whose}"), std::slice::from_ref(address))
            };
            addresses.iter().enumerate().map(node).collect()
        };
        let endorse = |nodes: &[Arc<RemotePeer>]| balanced(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>));
        let own = nodes("the organisation's peer", &section.compute);
        let endorses = endorse(&own);
        let mut peers = own;
        if peers.len() > 1 {
            peers.insert(0, remote("the organisation's peer".to_owned(), &section.compute));
        }
        let others = section.others.iter().map(|(msp_id, addresses)| Endorser {
            msp_id: MspId::new(msp_id.as_str()),
            address: addresses.join(" or ").into(),
            endorse: endorse(&nodes(&format!("the peer of {msp_id}"), addresses)),
        });
        // Several are one group, of which any may lead.
        let mut tasks = Vec::new();
        let broadcast: Arc<dyn Broadcast> = match &section.orderers[..] {
            [only] => Arc::new(RemoteOrderer::new(only.clone())),
            several => {
                let orderers = Arc::new(RemoteOrderers::new(several.to_vec()));
                let (told, stop) = (Arc::clone(&orderers), self.stop.clone());
                let tell = move |now: &[String]| told.set_addresses(now);
                let learning = learn_of_orderers(ProcessRole::Gateway, self.folder.to_path_buf(), tell, stop);
                tasks.push(tokio::spawn(learning));
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
        tasks.push(gateway_role::start(gateway_role::Options {
            peer: peers[0].clone(),
            local: Endorser {
                msp_id: MspId::new(section.msp_id.as_str()),
                address: address.as_str().into(),
                endorse: endorses,
            },
            others: others.collect(),
            orderers: vec![orderer],
            intake: intake.clone(),
            listener,
            tls: section.tls.then_some(tls),
            limits: section.limits.clone(),
            stop: self.stop.clone(),
        })?);
        let part = peers[0].clone() as Arc<dyn metrics::Part>;
        let health = metrics::Health::new(vec![(self.file.name.clone(), part)], intake);
        Ok(Started { kind: Kind::Gateway(peers), tasks, health, address })
    }

    /// Looks at the room of a disk until the stop.
    fn watch(&self, directory: &Path, free_bytes_min: u64, intake: &Intake) -> JoinHandle<()> {
        disk::look(directory, free_bytes_min, intake);
        tokio::spawn(disk::watch(directory.to_path_buf(), free_bytes_min, intake.clone(), self.stop.clone()))
    }
}
