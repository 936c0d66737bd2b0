//! Which processes a network consists of, where each answers, and their files.
//!
//! ```text
//! <directory>/nodes/<name>/
//!   node.toml        what the process is to do; readable by its owner only, for it holds tokens
//!   tls/             its certificate and key for links and clients; between hosts also for remote memory access
//!   trust/           the TLS authorities of the organisations
//!   msp/             the identity that signs: of compute nodes and orderers
//!   genesis.block    of compute nodes and orderers
//! ```
//!
//! A folder is all that its process needs: to run it on another host, copy it there. Certificates and tokens are made anew
//! with every plan, so that all processes of a network belong to one plan.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};

use base::rt;
use identity::Role as CertificateRole;
use identity::issue::{Organization as Issuer, TlsIdentity};

use crate::config::{Engine, Form, Provider};
use crate::control::orderer_of;
use crate::enlist::{self, Enlisted};
use crate::network::layout::{NODES, compute_name, orderer_data, orderer_name};
use crate::network::roster::Roster;
use crate::network::{Endpoint, Network, NodeError, Role, material, write, write_private};
use crate::process::Ready;
use crate::process::file::{
    AmongFile, ComputeFile, DonorFile, FILE, GENESIS, GatewayFile, LocalFile, LogFile, MemoryFile, NodeFile,
    OrdererFile, PooledFile, ProcessRole, RaftFile, RaftMemberFile, Secret, SiftFile, StorageFile, TRUST,
};
use crate::{Endpoints, profile};

const ORDERER: &str = "orderer";
/// Whom gateways and orderers answer over gRPC.
const CLIENTS: &str = "clients";
const METRICS: &str = "ports.metrics";
/// Stands where the number of a compute node does, and tells memory nodes of the orderers' log from those of the pool.
const LOG: usize = usize::MAX;
/// The longest path of a socket that the system takes, without the closing zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// From `ports.links` on: two of the orderer, then one of each compute node; from here on those of links within an
/// organisation, where they are sockets.
const INNER_PORTS: usize = 40;
/// How many ports a network can have.
const PORTS_MAX: usize = 1024;
/// Where free ports are taken from. A process listens some time after its port was tried, and again after every restart:
/// so they lie below those that the system gives to outgoing connections, one of which could have taken it by then.
const FREE_PORTS: Range<u16> = 16_384..32_768;
/// How many of them are tried.
const TRIES_MAX: usize = 256;

/// Where the processes of a network run.
#[derive(Clone, Debug)]
pub enum Placement {
    /// All on this machine. Processes of one organisation meet at sockets in this folder.
    Here {
        /// A short path.
        sockets: PathBuf,
    },
    /// On several hosts.
    Hosts {
        /// Of every process that is not named.
        default: IpAddr,
        /// By the names of processes.
        by_name: BTreeMap<String, IpAddr>,
    },
}

/// The processes of a network, in the order in which they are started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each of them.
    pub processes: Vec<Planned>,
    gateways: Vec<SocketAddr>,
    sockets: Option<PathBuf>,
}

/// A process of a network.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Such as `compute-org1`.
    pub name: String,
    /// What it does.
    pub role: ProcessRole,
    /// The host it is meant for.
    pub host: IpAddr,
    /// Where its files are.
    pub folder: PathBuf,
    /// Where it answers, and whom: `tcp:host:port` and `shm:/path` for its own organisation, `tls:host:port` for others,
    /// `host:port` for clients.
    pub answers: Vec<(&'static str, String)>,
    /// Which one of its role: the place of a memory node, or of an organisation.
    place: usize,
    /// Which compute node of its organisation.
    node: usize,
}

impl Planned {
    /// An orderer that was added on this machine after the plan was made.
    pub fn orderer(enlisted: &Enlisted) -> Planned {
        let Enlisted { name, folder, address, answers: [blocks, intake, clients], .. } = enlisted.clone();
        let answers = vec![("compute nodes", blocks), ("gateways", intake), (CLIENTS, clients), ("orderers", address)];
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        Planned { name, role: ProcessRole::Orderer, host, folder, answers, place: 0, node: 0 }
    }

    /// Where it answers clients.
    fn clients(&self) -> Option<SocketAddr> {
        let (_, address) = self.answers.iter().find(|(whom, _)| *whom == CLIENTS)?;
        address.parse().ok()
    }

    /// Its configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.join(FILE)
    }
}

/// The tokens of one plan.
struct Secrets {
    /// By organisation and compute node.
    compute: Vec<Vec<Secret>>,
    gateways: Vec<Secret>,
    /// By organisation and memory node.
    owners: Vec<Vec<Secret>>,
    orderers: Vec<Secret>,
    /// Of all orderers on Raft.
    group: Secret,
}

/// Where everything answers.
struct Addresses {
    memory: Vec<String>,
    storage: Vec<String>,
    /// By organisation and compute node: where gateways of the organisation, of others, and the peer's other nodes reach it.
    compute: Vec<Vec<String>>,
    others: Vec<Vec<String>>,
    among: Vec<Vec<String>>,
    /// By orderer.
    blocks: Vec<String>,
    intakes: Vec<String>,
    orderers: Vec<SocketAddr>,
    keepers: Vec<String>,
    /// By memory node of the orderers' log.
    log: Vec<String>,
    gateways: Vec<SocketAddr>,
}

struct Planner<'a> {
    network: &'a Network,
    placement: &'a Placement,
    /// Names of the organisations in lower case.
    names: Vec<String>,
    memory_nodes: usize,
    log_nodes: usize,
    /// Their numbers.
    orderers: Vec<u64>,
    /// Whether these are not those that the network was made with.
    orderers_have_changed: bool,
    storage_nodes: bool,
    /// Of each organisation.
    compute_nodes: usize,
    /// Ports that were found free stay bound until the plan is made.
    held: Vec<TcpListener>,
}

fn log_name(place: usize) -> String {
    format!("log-{}", place + 1)
}

fn memory_name(place: usize) -> String {
    format!("memory-{}", place + 1)
}

fn orderer_tokens(secrets: &Secrets) -> impl Iterator<Item = (String, Secret)> + '_ {
    secrets.orderers.iter().enumerate().map(|(place, token)| (orderer_name(place), token.clone()))
}

/// A port so far behind the first one of its kind; where that is 0, any free one, it is 0 too.
pub(crate) fn port_behind(first: u16, offset: usize, key: &'static str) -> Result<u16, NodeError> {
    let behind = u16::try_from(offset).ok().and_then(|offset| first.checked_add(offset));
    match first {
        0 => Ok(0),
        _ => behind.ok_or(NodeError::NoPort { key, first, more: offset }),
    }
}

/// Binds one of [`FREE_PORTS`].
pub(crate) fn bind_free(host: IpAddr) -> io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        let offset = rt::random_below((FREE_PORTS.end - FREE_PORTS.start).into()) as u16;
        match TcpListener::bind((host, FREE_PORTS.start + offset)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < TRIES_MAX => tries += 1,
            bound => return bound,
        }
    }
}

impl Network {
    /// Makes the files of all processes.
    ///
    /// # Errors
    /// [`NodeError::UnknownProcess`] when a host is given to a process that there is not; [`NodeError::AnyPort`] when the
    /// configuration leaves a port of another host open; [`NodeError::NoPort`] when there are not enough behind its first
    /// one; [`NodeError::Port`] when a port of this machine is taken; files that cannot be written.
    pub fn plan(&self, placement: &Placement) -> Result<Plan, NodeError> {
        let config = self.config();
        let is_pooled = config.pool.form == Form::Disaggregated;
        let roster = Roster::load(self.path(), config.ordering.count())?;
        let planner = Planner {
            network: self,
            placement,
            names: config.network.organizations.iter().map(|name| name.to_ascii_lowercase()).collect(),
            memory_nodes: if is_pooled { config.pool.memory_nodes } else { 0 },
            log_nodes: config.ordering.memory_count(),
            orderers: roster.numbers,
            orderers_have_changed: roster.has_changed,
            storage_nodes: is_pooled,
            compute_nodes: if is_pooled { config.pool.compute_nodes } else { 1 },
            held: Vec::new(),
        };
        planner.plan()
    }

    /// Says where a network that consists of processes can be reached: profiles for clients, and `endpoints.json`.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn announce(&self, plan: &Plan, metrics: SocketAddr, processes: Vec<Ready>) -> Result<Endpoints, NodeError> {
        let orderers = plan.processes.iter().filter(|process| process.role == ProcessRole::Orderer);
        let orderers = orderers.filter_map(|orderer| Some((orderer.name.clone(), orderer.clients()?)));
        let endpoints = self.write_profiles(&plan.gateways, orderers, metrics)?;
        let (sockets, is_planned) = (plan.sockets.clone(), plan.sockets.is_none());
        let endpoints = Endpoints { processes, sockets, is_planned, ..endpoints };
        endpoints.store(self.path())?;
        Ok(endpoints)
    }

    /// As [`Network::announce`], where orderers on Raft have come or gone and everything else is where it was.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn announce_orderers(&self) -> Result<(), NodeError> {
        let known = Endpoints::load(self.path())?;
        let gateways: Vec<SocketAddr> = known.gateways.iter().map(|gateway| gateway.address).collect();
        let mut orderers = Vec::new();
        for number in enlist::roster(self.path())?.numbers {
            let Enlisted { name, answers: [.., clients], .. } = enlist::enlisted(self.path(), number)?;
            orderers.extend(clients.parse().ok().map(|address| (name, address)));
        }
        let Endpoints { process, processes, sockets, is_planned, metrics, .. } = known;
        let endpoints = self.write_profiles(&gateways, orderers.into_iter(), metrics)?;
        Endpoints { process, processes, sockets, is_planned, ..endpoints }.store(self.path())
    }

    /// Writes what clients read, and gives what `endpoints.json` is to say of it.
    fn write_profiles(
        &self,
        gateways: &[SocketAddr],
        orderers: impl Iterator<Item = (String, SocketAddr)>,
        metrics: SocketAddr,
    ) -> Result<Endpoints, NodeError> {
        let gateways = self.organizations().iter().zip(gateways).map(|(organization, address)| Endpoint {
            role: Role::Peer,
            msp_id: organization.msp_id.clone(),
            host: organization.host.clone(),
            name: organization.host.clone(),
            address: *address,
        });
        let orderers = orderers.map(|(name, address)| Endpoint {
            role: Role::Orderer,
            msp_id: self.orderer().msp_id.clone(),
            host: self.orderer().host.clone(),
            name: format!("{name}.{}", material::ORDERER_DOMAIN),
            address,
        });
        let metrics = Endpoint {
            role: Role::Metrics,
            msp_id: String::new(),
            host: String::new(),
            name: String::new(),
            address: metrics,
        };
        let endpoints: Vec<Endpoint> = gateways.chain(orderers).chain([metrics]).collect();
        profile::write_profiles(self, &endpoints)?;
        Ok(Endpoints::new(self, &endpoints))
    }
}

impl Planner<'_> {
    fn plan(mut self) -> Result<Plan, NodeError> {
        let mut processes = self.processes();
        if let Placement::Hosts { by_name, .. } = self.placement
            && let Some(unknown) = by_name.keys().find(|name| processes.iter().all(|process| process.name != **name))
        {
            let known = processes.iter().map(|process| process.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(NodeError::UnknownProcess { name: unknown.clone(), known });
        }
        if let Placement::Hosts { .. } = self.placement {
            // Before anything is written.
            port_behind(self.network.config().ports.metrics, processes.len() - 1, METRICS)?;
        }
        let addresses = self.addresses()?;
        let secrets = |count: usize| (0..count).map(|_| Secret::random()).collect::<Vec<_>>();
        let organizations = self.names.len();
        let secrets = Secrets {
            compute: (0..organizations).map(|_| secrets(self.compute_nodes)).collect(),
            gateways: secrets(organizations),
            owners: (0..organizations).map(|_| secrets(self.memory_nodes)).collect(),
            orderers: secrets(self.orderers.len()),
            group: Secret::random(),
        };
        for (index, process) in processes.iter_mut().enumerate() {
            process.answers = self.answers(process, &addresses);
            self.write(process, index, &addresses, &secrets)?;
        }
        let sockets = match self.placement {
            Placement::Here { sockets } => Some(sockets.clone()),
            Placement::Hosts { .. } => None,
        };
        Ok(Plan { processes, gateways: addresses.gateways, sockets })
    }

    fn processes(&self) -> Vec<Planned> {
        let of = |role: ProcessRole| {
            let names = self.names.iter().enumerate();
            names.map(move |(place, name)| (format!("{}-{name}", role.name()), role, place, 0))
        };
        let memory = (0..self.memory_nodes).map(|place| (memory_name(place), ProcessRole::Memory, place, 0));
        let log = (0..self.log_nodes).map(|place| (log_name(place), ProcessRole::Memory, place, LOG));
        let orderers = self.orderers.iter().enumerate();
        let orderers = orderers.map(|(place, number)| (orderer_of(*number), ProcessRole::Orderer, place, 0));
        let storage = of(ProcessRole::Storage).filter(|_| self.storage_nodes);
        let compute = self.names.iter().enumerate().flat_map(|(place, name)| {
            (0..self.compute_nodes).map(move |node| (compute_name(name, node), ProcessRole::Compute, place, node))
        });
        memory
            .chain(log)
            .chain(storage)
            .chain(orderers)
            .chain(compute)
            .chain(of(ProcessRole::Gateway))
            .map(|(name, role, place, node)| {
                let folder = self.network.path().join(NODES).join(&name);
                Planned { host: self.host(&name), name, role, folder, answers: Vec::new(), place, node }
            })
            .collect()
    }

    fn host(&self, name: &str) -> IpAddr {
        match self.placement {
            Placement::Here { .. } => IpAddr::from(Ipv4Addr::LOCALHOST),
            Placement::Hosts { default, by_name } => by_name.get(name).copied().unwrap_or(*default),
        }
    }

    /// A port of this process. On this machine it is tried, and 0 is any free one of [`FREE_PORTS`]; of another host nobody
    /// here can know which are free.
    fn port(&mut self, address: SocketAddr, key: &'static str) -> Result<SocketAddr, NodeError> {
        if matches!(self.placement, Placement::Hosts { .. }) {
            return if address.port() == 0 { Err(NodeError::AnyPort { key }) } else { Ok(address) };
        }
        assert!(self.held.len() < PORTS_MAX, "a network has a bounded number of processes");
        let bound = match address.port() {
            0 => bind_free(address.ip()),
            _ => TcpListener::bind(address),
        };
        let port_error = |source| NodeError::Port { address, key, source };
        let bound = bound.map_err(port_error)?;
        let address = bound.local_addr().map_err(port_error)?;
        self.held.push(bound);
        Ok(address)
    }

    fn link_port(&mut self, name: &str, offset: usize) -> Result<SocketAddr, NodeError> {
        let port = port_behind(self.network.config().ports.links, offset, "ports.links")?;
        self.port(SocketAddr::new(self.host(name), port), "ports.links")
    }

    /// Where a process is reached within its organisation.
    fn inner(&mut self, name: &str, offset: usize) -> Result<String, NodeError> {
        self.inner_at(name, name, offset)
    }

    /// The same for one of several places at which it is reached.
    fn inner_at(&mut self, name: &str, socket: &str, offset: usize) -> Result<String, NodeError> {
        match (self.placement, self.network.config().pool.provider) {
            (Placement::Here { sockets }, Provider::Shm) => {
                let path = sockets.join(format!("{socket}.socket"));
                if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                    return Err(NodeError::SocketPath(path));
                }
                Ok(format!("shm:{}", path.display()))
            }
            _ => Ok(format!("tcp:{}", self.link_port(name, INNER_PORTS + offset)?)),
        }
    }

    fn addresses(&mut self) -> Result<Addresses, NodeError> {
        let organizations = self.names.len();
        let listen = match self.placement {
            Placement::Here { .. } => Some(self.network.config().ports.host),
            Placement::Hosts { .. } => None,
        };
        let mut gateways = Vec::new();
        for index in 0..organizations {
            let name = format!("gateway-{}", self.names[index]);
            let address =
                SocketAddr::new(listen.unwrap_or_else(|| self.host(&name)), self.network.config().gateway_port(index));
            gateways.push(self.port(address, "ports.gateway")?);
        }
        let names: Vec<String> = self.orderers.iter().map(|number| orderer_of(*number)).collect();
        let first = &names[0];
        let address = SocketAddr::new(listen.unwrap_or_else(|| self.host(first)), self.network.config().ports.orderer);
        let mut orderers = vec![self.port(address, "ports.orderer")?];
        let mut blocks = vec![format!("tls:{}", self.link_port(first, 0)?)];
        let mut intakes = vec![format!("tls:{}", self.link_port(first, 1)?)];
        let mut inner = 0..;
        let mut next = || inner.next().expect("the range has no end");
        let (mut memory, mut storage) = (Vec::new(), Vec::new());
        let (mut compute, mut others, mut among) = (Vec::new(), Vec::new(), vec![Vec::new(); organizations]);
        for place in 0..self.memory_nodes {
            memory.push(self.inner(&memory_name(place), next())?);
        }
        for index in 0..organizations {
            let organization = self.names[index].clone();
            if self.storage_nodes {
                storage.push(self.inner(&format!("storage-{organization}"), next())?);
            }
            let name = compute_name(&organization, 0);
            compute.push(vec![self.inner(&name, next())?]);
            others.push(vec![format!("tls:{}", self.link_port(&name, 2 + index)?)]);
        }
        // Behind all others, so that these stay where they are.
        let among_others = if self.compute_nodes > 1 { organizations } else { 0 };
        for index in 0..among_others {
            for node in 0..self.compute_nodes {
                let name = compute_name(&self.names[index], node);
                if node > 0 {
                    compute[index].push(self.inner(&name, next())?);
                    others[index].push(format!("tls:{}", self.link_port(&name, INNER_PORTS + next())?));
                }
                among[index].push(self.inner_at(&name, &format!("{name}-among"), next())?);
            }
        }
        let (mut keepers, mut log) = (Vec::new(), Vec::new());
        for place in 0..self.log_nodes {
            log.push(self.inner(&log_name(place), next())?);
        }
        if self.network.config().ordering.engine != Engine::Solo {
            for name in &names {
                keepers.push(self.inner(name, next())?);
            }
        }
        let mut outer = || INNER_PORTS + next();
        for name in &names[1..] {
            blocks.push(format!("tls:{}", self.link_port(name, outer())?));
            intakes.push(format!("tls:{}", self.link_port(name, outer())?));
            let address = self.link_port(name, outer())?;
            orderers.push(SocketAddr::new(listen.unwrap_or(address.ip()), address.port()));
        }
        Ok(Addresses { memory, storage, compute, others, among, blocks, intakes, orderers, keepers, log, gateways })
    }

    /// Where a process answers, and whom.
    fn answers(&self, process: &Planned, at: &Addresses) -> Vec<(&'static str, String)> {
        let Planned { place, node, .. } = *process;
        let own = "its organisation";
        match process.role {
            ProcessRole::Memory if node == LOG => vec![("orderers", at.log[place].clone())],
            ProcessRole::Memory => vec![("compute nodes", at.memory[place].clone())],
            ProcessRole::Storage => vec![(own, at.storage[place].clone())],
            ProcessRole::Compute => {
                let among = at.among[place].get(node).map(|address| ("its peer's compute nodes", address.clone()));
                let always =
                    [(own, at.compute[place][node].clone()), ("other organisations", at.others[place][node].clone())];
                always.into_iter().chain(among).collect()
            }
            ProcessRole::Orderer => {
                let always = [
                    ("compute nodes", at.blocks[place].clone()),
                    ("gateways", at.intakes[place].clone()),
                    (CLIENTS, at.orderers[place].to_string()),
                ];
                always.into_iter().chain(at.keepers.get(place).map(|address| ("orderers", address.clone()))).collect()
            }
            ProcessRole::Gateway => vec![(CLIENTS, at.gateways[place].to_string())],
        }
    }

    /// Writes a process's folder.
    fn write(&self, process: &Planned, index: usize, at: &Addresses, secrets: &Secrets) -> Result<(), NodeError> {
        let config = self.network.config();
        let metrics_port = match self.placement {
            Placement::Here { .. } => 0,
            Placement::Hosts { .. } => port_behind(config.ports.metrics, index, METRICS)?,
        };
        let mut file = NodeFile {
            name: process.name.clone(),
            role: process.role,
            log: config.log.clone(),
            crypto: config.crypto.clone(),
            metrics: SocketAddr::new(config.ports.metrics_host, metrics_port),
            // On one machine nobody is between the processes.
            tcp_tls: matches!(self.placement, Placement::Hosts { .. }).then_some(config.pool.tls),
            memory: None,
            order_log: None,
            storage: None,
            orderer: None,
            compute: None,
            gateway: None,
        };
        let Planned { place, node, .. } = *process;
        match process.role {
            ProcessRole::Memory if node == LOG => {
                file.order_log = Some(LogFile {
                    number: place as u16 + 1,
                    address: at.log[place].clone(),
                    log_bytes: config.ordering.log_bytes,
                    orderers: orderer_tokens(secrets).collect(),
                });
                self.identify_inner(process, &material::orderer_issuer(self.network.path())?)?;
            }
            ProcessRole::Memory => {
                let owners = self.names.iter().zip(&secrets.owners);
                file.memory = Some(MemoryFile {
                    number: place as u16 + 1,
                    address: at.memory[place].clone(),
                    memory_bytes: config.pool.memory_bytes,
                    section_bytes: config.pool.section_bytes,
                    one_user: matches!(self.placement, Placement::Here { .. }),
                    owners: owners.map(|(name, tokens)| (name.clone(), tokens[place].clone())).collect(),
                });
                self.identify_inner(process, &material::orderer_issuer(self.network.path())?)?;
            }
            ProcessRole::Storage => {
                file.storage = Some(StorageFile {
                    address: at.storage[place].clone(),
                    directory: self.data(&format!("peers/{}", config.network.organizations[place])),
                    memtable_bytes: config.storage.memtable_bytes,
                    clients: self.nodes(place, secrets).collect(),
                });
                self.identify_inner(process, &self.issuer(place)?)?;
            }
            ProcessRole::Orderer => {
                file.orderer = Some(OrdererFile {
                    msp_id: self.network.orderer().msp_id.clone(),
                    listen: at.orderers[place],
                    tls: config.tls,
                    blocks_address: at.blocks[place].clone(),
                    intake_address: at.intakes[place].clone(),
                    directory: self.data(&orderer_data(self.orderers[place])),
                    free_bytes_min: config.storage.free_bytes_min,
                    cut: config.ordering.cut,
                    limits: config.limits.clone(),
                    sift: (config.ordering.engine == Engine::Sift).then(|| SiftFile {
                        number: place as u64 + 1,
                        token: secrets.orderers[place].clone(),
                        memory: at.log.clone(),
                        log_bytes: config.ordering.log_bytes,
                        keepers: at.keepers.clone(),
                        orderers: orderer_tokens(secrets).filter(|(name, _)| *name != process.name).collect(),
                        volatile: config.ordering.volatile,
                    }),
                    raft: (config.ordering.engine == Engine::Raft).then(|| RaftFile {
                        number: self.orderers[place],
                        token: secrets.group.clone(),
                        joins: self.orderers_have_changed,
                        members: self
                            .orderers
                            .iter()
                            .zip(&at.keepers)
                            .map(|(number, address)| RaftMemberFile { number: *number, address: address.clone() })
                            .collect(),
                    }),
                });
                let signer = material::orderer_signer(self.network, self.orderers[place] as usize - 1)?;
                let issuer = material::orderer_issuer(self.network.path())?;
                self.identify(process, &issuer, CertificateRole::Orderer, ORDERER, Some(&signer))?;
            }
            ProcessRole::Compute => {
                file.compute = Some(self.compute(place, node, at, secrets));
                let issuer = self.issuer(place)?;
                let signer = &self.network.organizations()[place].peer;
                self.identify(process, &issuer, CertificateRole::Peer, "compute", Some(signer))?;
            }
            ProcessRole::Gateway => {
                file.gateway = Some(self.gateway(place, at, secrets));
                let issuer = self.issuer(place)?;
                self.identify(process, &issuer, CertificateRole::Peer, material::PEER_NAME, None)?;
            }
        }
        // Checked like a file of an operator, which it may become.
        let text = file.to_text();
        NodeFile::parse(process.role, &text, &process.config().display().to_string())?;
        write_private(&process.config(), text.as_bytes())
    }

    /// The compute nodes of an organisation, with their tokens.
    fn nodes(&self, organization: usize, secrets: &Secrets) -> impl Iterator<Item = (String, Secret)> {
        let name = self.names[organization].clone();
        let tokens = secrets.compute[organization].clone();
        tokens.into_iter().enumerate().map(move |(node, token)| (compute_name(&name, node), token))
    }

    fn compute(&self, organization: usize, node: usize, at: &Addresses, secrets: &Secrets) -> ComputeFile {
        let config = self.network.config();
        let name = &self.names[organization];
        let among = at.among[organization].get(node).map(|address| AmongFile {
            address: address.clone(),
            others: at.among[organization].iter().filter(|other| *other != address).cloned().collect(),
            nodes: self.nodes(organization, secrets).filter(|(other, _)| *other != compute_name(name, node)).collect(),
            borrow: config.pool.borrow,
            spot_check_one_in: config.pool.spot_check_one_in,
            budget_directory: matches!(self.placement, Placement::Here { .. })
                .then(|| Path::new("..").join(compute_name(name, 0))),
        });
        let pooled = self.storage_nodes.then(|| PooledFile {
            storage: at.storage[organization].clone(),
            owner: name.clone(),
            section_bytes: config.pool.section_bytes,
            peer_bytes: config.pool.peer_bytes,
            metadata_cache_bytes: config.pool.metadata_cache_bytes,
            data_cache_bytes: config.pool.data_cache_bytes,
            evict_above_percent: config.pool.evict_above_percent,
            evict_to_percent: config.pool.evict_to_percent,
            delta_bytes: config.storage.delta_bytes,
            memory: at
                .memory
                .iter()
                .zip(&secrets.owners[organization])
                .map(|(address, token)| DonorFile { address: address.clone(), token: token.clone() })
                .collect(),
        });
        let local = (!self.storage_nodes).then(|| LocalFile {
            directory: self.data(&format!("peers/{}", config.network.organizations[organization])),
            storage: config.storage.clone(),
        });
        ComputeFile {
            msp_id: self.network.organizations()[organization].msp_id.clone(),
            token: secrets.compute[organization][node].clone(),
            address: at.compute[organization][node].clone(),
            others_address: at.others[organization][node].clone(),
            orderers: at.blocks.clone(),
            organizations: config.network.organizations.clone(),
            gateways: [(format!("gateway-{name}"), secrets.gateways[organization].clone())].into(),
            contracts: config.contracts.clone(),
            limits: config.limits.clone(),
            savepoint_blocks: config.storage.savepoint_blocks,
            among,
            pooled,
            local,
        }
    }

    fn gateway(&self, organization: usize, at: &Addresses, secrets: &Secrets) -> GatewayFile {
        let config = self.network.config();
        let members = self.network.organizations();
        let others = members.iter().zip(&at.others).enumerate().filter(|(index, _)| *index != organization);
        GatewayFile {
            msp_id: members[organization].msp_id.clone(),
            token: secrets.gateways[organization].clone(),
            listen: at.gateways[organization],
            tls: config.tls,
            compute: at.compute[organization].clone(),
            orderer_msp_id: self.network.orderer().msp_id.clone(),
            orderers: at.intakes.clone(),
            organizations: config.network.organizations.clone(),
            watch: matches!(self.placement, Placement::Here { .. }).then(|| "../..".into()),
            free_bytes_min: config.storage.free_bytes_min,
            others: others.map(|(_, (member, addresses))| (member.msp_id.clone(), addresses.clone())).collect(),
            contracts: config.contracts.clone(),
            limits: config.limits.clone(),
        }
    }

    /// Where a process keeps its data, from its folder: on this machine where the network in one process has them, too.
    fn data(&self, inside: &str) -> PathBuf {
        match self.placement {
            Placement::Here { .. } => Path::new("../..").join(inside),
            Placement::Hosts { .. } => "data".into(),
        }
    }

    fn issuer(&self, organization: usize) -> Result<Issuer, NodeError> {
        material::issuer(self.network.path(), &self.network.config().network.organizations[organization])
    }

    /// Writes what a process needs for TLS below remote memory access: one that meets no other organisation over links.
    fn identify_inner(&self, process: &Planned, issuer: &Issuer) -> Result<(), NodeError> {
        match self.placement {
            Placement::Here { .. } => Ok(()),
            Placement::Hosts { .. } => self.identify(process, issuer, CertificateRole::Peer, process.role.name(), None),
        }
    }

    /// Writes what a process proves with who it is, and by what it knows the others.
    fn identify(
        &self,
        process: &Planned,
        issuer: &Issuer,
        role: CertificateRole,
        name: &str,
        signer: Option<&identity::Signer>,
    ) -> Result<(), NodeError> {
        let folder = process.folder.as_path();
        let host = process.host.to_string();
        let listen = self.network.config().ports.host.to_string();
        let mut hosts = vec!["localhost", "127.0.0.1", "::1"];
        for host in [&host, &listen] {
            if !hosts.contains(&host.as_str()) && host != "0.0.0.0" && host != "::" {
                hosts.push(host);
            }
        }
        let tls: TlsIdentity = issuer.issue_tls(role, name, &hosts)?;
        tls.write(folder, CertificateRole::Peer)?;
        if let Some(signer) = signer {
            issuer.write_identity(folder, signer)?;
            write(&folder.join(GENESIS), &self.network.genesis().to_bytes())?;
        }
        let members = self.network.organizations().iter().map(|member| (&member.msp_id, &member.tls));
        for (msp_id, tls) in members.chain([(&self.network.orderer().msp_id, &self.network.orderer().tls)]) {
            write(&folder.join(TRUST).join(format!("{msp_id}.pem")), &tls.authority_pem)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks, records and the capabilities by which memory is read went over the network between hosts in clear text, and nothing
    /// could switch TLS on.
    #[tokio::test]
    async fn processes_on_several_hosts_have_certificates_for_all_that_they_say() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = crate::Config::default();
        config.ordering.engine = Engine::Sift;
        let network = Network::create(&folder.path().join("network"), &config).await.expect("it can be made");
        let hosts = Placement::Hosts { default: [10, 0, 0, 7].into(), by_name: BTreeMap::new() };
        let plan = network.plan(&hosts).expect("it can be planned");
        assert!(plan.processes.iter().any(|process| process.node == LOG), "there is memory for the log");
        for process in &plan.processes {
            let file = NodeFile::load(process.role, &process.config()).expect("it was written");
            assert_eq!(file.tcp_tls, Some(true), "{}", process.name);
            let tls = TlsIdentity::read(&process.folder, CertificateRole::Peer).expect("it has a certificate");
            let certificate = identity::Certificate::from_pem(&tls.certificate_pem).expect("it is one");
            assert!(certificate.names().iter().any(|name| name == "10.0.0.7"), "{:?}", certificate.names());
            crate::process::tcp_tls(&process.folder, &tls).expect("both sides of a connection can be made of it");
        }
        config.pool.tls = false;
        drop(network);
        let network = Network::open_with(&folder.path().join("network"), &config).await.expect("it is there");
        let plan = network.plan(&hosts).expect("it can be planned");
        for process in &plan.processes {
            let file = NodeFile::load(process.role, &process.config()).expect("it was written");
            assert_eq!(file.tcp_tls, Some(false), "{}: clear text is said, not implied", process.name);
        }
    }

    /// Owners of shared memory keep their mappings of memory that was given to another owner.
    #[tokio::test]
    async fn shared_memory_of_several_organisations_needs_one_user() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let network = folder.path().join("network");
        let network = Network::create(&network, &crate::Config::default()).await.expect("it can be made");
        let plan = network.plan(&Placement::Here { sockets: folder.path().to_owned() }).expect("it can be planned");
        let memory = plan.processes.iter().find(|process| process.role == ProcessRole::Memory).expect("it has memory");
        let mut file = NodeFile::load(ProcessRole::Memory, &memory.config()).expect("a plan for one machine says so");
        let section = file.memory.as_mut().expect("it is a memory node");
        section.one_user = false;
        let error = NodeFile::parse(ProcessRole::Memory, &file.to_text(), "node.toml").expect_err("two owners");
        assert!(error.to_string().contains("memory.one_user = true"), "{error}");
        let section = file.memory.as_mut().expect("it is a memory node");
        let first = section.owners.keys().next().cloned().expect("there are owners");
        section.owners.retain(|owner, _| *owner == first);
        NodeFile::parse(ProcessRole::Memory, &file.to_text(), "node.toml").expect("an owner shares with nobody");
    }

    #[test]
    fn free_ports_are_not_those_of_outgoing_connections() {
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        let bound: Vec<_> = (0..8).map(|_| bind_free(host).expect("one is free")).collect();
        let ports: Vec<u16> = bound.iter().map(|one| one.local_addr().expect("it is bound").port()).collect();
        assert!(ports.iter().all(|port| FREE_PORTS.contains(port)), "{ports:?}");
    }
}
