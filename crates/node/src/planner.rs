//! Writes the files of each planned process.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use identity::MemberRole as CertificateRole;
use identity::issue::IssuingOrganization as Issuer;
use replica::CANDIDATES_MAX;

mod parts;
mod stored;

use parts::{PlanAddresses, PlanSecrets, log_name, memory_name};

use super::chaincodes::PACKAGES_FOLDER;
use super::contracts;
use super::free_ports::{bind_free, port_behind};
use super::planned::{
    CLIENTS, INNER_PORTS, LOG_NODE, METRICS, ORDERER, OWN, PORTS_MAX, Placement, PlannedProcess, ProcessPlan,
    SOCKET_PATH_BYTES_MAX,
};
use super::planned_chaincodes::PlannedChaincodes;
use crate::config::{OrderingEngine, ProviderKind};
use crate::control::orderer_of;
use crate::network::layout::{NODES, compute_name, orderer_data, orderer_name};
use crate::network::{Network, NodeError, material, write_private};
use crate::process::file::{
    ComputeFile, DonorFile, GatewayFile, JoiningFile, LocalStoresFile, MemoryFile, OrderLogFile, OrdererFile,
    PeerNodesFile, PooledFile, RaftFile, RaftMemberFile, Secret, SiftFile, StorageFile,
};
use crate::process::file::{NodeFile, ProcessRole};

pub(super) struct Planner<'a> {
    pub(super) network: &'a Network,
    pub(super) placement: &'a Placement,
    /// Names of the organisations in lower case.
    pub(super) names: Vec<String>,
    pub(super) memory_nodes: usize,
    pub(super) log_nodes: usize,
    /// The orderers' numbers.
    pub(super) orderers: Vec<u64>,
    /// Whether they differ from those that the network was created with.
    pub(super) orderers_have_changed: bool,
    /// Storage nodes; none of monolithic peers. Several peers may share one.
    pub(super) storage_nodes: usize,
    /// Compute nodes per organisation.
    pub(super) compute_nodes: usize,
    /// Listeners that keep the chosen free ports bound until the plan is complete.
    pub(super) held: Vec<TcpListener>,
}

fn orderer_tokens(secrets: &PlanSecrets) -> impl Iterator<Item = (String, Secret)> + '_ {
    secrets.orderers.iter().enumerate().map(|(place, token)| (orderer_name(place), token.clone()))
}

impl Planner<'_> {
    pub(super) fn plan(mut self) -> Result<ProcessPlan, NodeError> {
        let mut processes = self.processes();
        if let Placement::Hosts { by_name, .. } = self.placement
            && let Some(unknown) = by_name.keys().find(|name| processes.iter().all(|process| process.name != **name))
        {
            let known = processes.iter().map(|process| process.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(NodeError::UnknownProcess { name: unknown.clone(), known });
        }
        if let Placement::Hosts { .. } = self.placement {
            // Checked before anything is written.
            port_behind(self.network.config().ports.metrics, processes.len() - 1, METRICS)?;
        }
        let addresses = self.addresses()?;
        let secrets = |count: usize| (0..count).map(|_| Secret::random()).collect::<Vec<_>>();
        let organizations = self.names.len();
        let secrets = PlanSecrets {
            compute: (0..organizations).map(|_| secrets(self.candidates())).collect(),
            joining: secrets(organizations),
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
            Placement::OneHost { sockets } => Some(sockets.clone()),
            Placement::Hosts { .. } => None,
        };
        Ok(ProcessPlan { processes, gateways: addresses.gateways, sockets })
    }

    fn processes(&self) -> Vec<PlannedProcess> {
        let of = |role: ProcessRole| {
            let names = self.names.iter().enumerate();
            names.map(move |(place, name)| (format!("{}-{name}", role.name()), role, place, 0))
        };
        let memory = (0..self.memory_nodes).map(|place| (memory_name(place), ProcessRole::Memory, place, 0));
        let log = (0..self.log_nodes).map(|place| (log_name(place), ProcessRole::Memory, place, LOG_NODE));
        let orderers = self.orderers.iter().enumerate();
        let orderers = orderers.map(|(place, number)| (orderer_of(*number), ProcessRole::Orderer, place, 0));
        let storage =
            (0..self.storage_nodes).map(|place| (self.storage_process(place), ProcessRole::Storage, place, 0));
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
                PlannedProcess {
                    host: self.host(&name),
                    name,
                    role,
                    folder,
                    answers: Vec::new(),
                    index: place,
                    node,
                    is_added: false,
                }
            })
            .collect()
    }

    fn host(&self, name: &str) -> IpAddr {
        match self.placement {
            Placement::OneHost { .. } => IpAddr::from(Ipv4Addr::LOCALHOST),
            Placement::Hosts { default, by_name } => by_name.get(name).copied().unwrap_or(*default),
        }
    }

    /// Chooses a port of a process. On this machine the port is bound as a test, and 0 stands for any of
    /// [`FREE_PORTS`](super::free_ports::FREE_PORTS). On another host the free ports are unknown, so 0 is an error.
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

    /// The address of a process within its organisation.
    fn inner(&mut self, name: &str, offset: usize) -> Result<String, NodeError> {
        self.inner_at(name, name, offset)
    }

    /// As [`Planner::inner`], for one of several addresses of the process.
    fn inner_at(&mut self, name: &str, socket: &str, offset: usize) -> Result<String, NodeError> {
        match (self.placement, self.network.config().pool.provider) {
            (Placement::OneHost { sockets }, ProviderKind::Shm) => {
                let path = sockets.join(format!("{socket}.socket"));
                if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                    return Err(NodeError::SocketPath(path));
                }
                Ok(format!("shm:{}", path.display()))
            }
            _ => Ok(format!("tcp:{}", self.link_port(name, INNER_PORTS + offset)?)),
        }
    }

    fn addresses(&mut self) -> Result<PlanAddresses, NodeError> {
        let organizations = self.names.len();
        let listen = match self.placement {
            Placement::OneHost { .. } => Some(self.network.config().ports.host),
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
            if self.storage_nodes > 0 {
                let node = self.storage_process(self.stores(index, 0));
                storage.push(self.inner_at(&node, &format!("storage-{organization}"), next())?);
            }
            let name = compute_name(&organization, 0);
            compute.push(vec![self.inner(&name, next())?]);
            others.push(vec![format!("tls:{}", self.link_port(&name, 2 + index)?)]);
        }
        // After all other ports, so that those keep their numbers.
        let pooled = if self.storage_nodes > 0 { organizations } else { 0 };
        for index in 0..pooled {
            for node in 0..self.compute_nodes {
                let name = compute_name(&self.names[index], node);
                if node > 0 {
                    compute[index].push(self.inner(&name, next())?);
                    others[index].push(format!("tls:{}", self.link_port(&name, INNER_PORTS + next())?));
                }
                if node < CANDIDATES_MAX {
                    among[index].push(self.inner_at(&name, &format!("{name}-among"), next())?);
                }
            }
        }
        let mut copies = Vec::new();
        for index in 0..organizations {
            copies.push(self.copy_addresses(index, &mut next)?);
        }
        let (mut keepers, mut log) = (Vec::new(), Vec::new());
        for place in 0..self.log_nodes {
            log.push(self.inner(&log_name(place), next())?);
        }
        if self.network.config().ordering.engine != OrderingEngine::Solo {
            for name in &names {
                keepers.push(self.inner(name, next())?);
            }
        }
        let chaincodes = self.chaincode_ports(listen)?;
        let mut outer = || INNER_PORTS + next();
        for name in &names[1..] {
            blocks.push(format!("tls:{}", self.link_port(name, outer())?));
            intakes.push(format!("tls:{}", self.link_port(name, outer())?));
            let address = self.link_port(name, outer())?;
            orderers.push(SocketAddr::new(listen.unwrap_or(address.ip()), address.port()));
        }
        Ok(PlanAddresses {
            memory,
            storage,
            copies,
            compute,
            others,
            peer_nodes: among,
            chaincodes,
            blocks,
            intakes,
            orderers,
            acceptors: keepers,
            log,
            gateways,
        })
    }

    /// The ports for chaincodes: each compute node has its own, in the order of the organisation's compute nodes.
    fn chaincode_ports(&mut self, listen: Option<IpAddr>) -> Result<Vec<Vec<SocketAddr>>, NodeError> {
        let mut ports = vec![Vec::new(); self.names.len()];
        for (index, ports) in ports.iter_mut().enumerate() {
            let Some(first) = self.network.config().chaincode_port.of(index) else { continue };
            for node in 0..self.compute_nodes {
                let host = listen.unwrap_or_else(|| self.host(&compute_name(&self.names[index], node)));
                let port = port_behind(first, node, "chaincode_port.port")?;
                ports.push(self.port(SocketAddr::new(host, port), "chaincode_port.port")?);
            }
        }
        Ok(ports)
    }

    /// The callers of a process and its address for each.
    fn answers(&self, process: &PlannedProcess, at: &PlanAddresses) -> Vec<(&'static str, String)> {
        let PlannedProcess { index: place, node, .. } = *process;
        match process.role {
            ProcessRole::Memory if node == LOG_NODE => vec![("orderers", at.log[place].clone())],
            ProcessRole::Memory => vec![("compute nodes", at.memory[place].clone())],
            ProcessRole::Storage if self.is_storage_shared() => {
                self.stored_at(place).map(|stored| ("compute nodes", Self::stored(at, stored))).collect()
            }
            ProcessRole::Storage => vec![(OWN, at.storage[place].clone())],
            ProcessRole::Compute => {
                let among = at.peer_nodes[place].get(node).map(|address| ("its peer's compute nodes", address.clone()));
                let always =
                    [(OWN, at.compute[place][node].clone()), ("other organisations", at.others[place][node].clone())];
                let chaincodes = at.chaincodes[place].get(node).map(|address| ("chaincodes", address.to_string()));
                always.into_iter().chain(among).chain(chaincodes).collect()
            }
            ProcessRole::Orderer => {
                let always = [
                    ("compute nodes", at.blocks[place].clone()),
                    ("gateways", at.intakes[place].clone()),
                    (CLIENTS, at.orderers[place].to_string()),
                ];
                always.into_iter().chain(at.acceptors.get(place).map(|address| ("orderers", address.clone()))).collect()
            }
            ProcessRole::Gateway => vec![(CLIENTS, at.gateways[place].to_string())],
        }
    }

    /// Writes a process's folder.
    fn write(
        &self,
        process: &PlannedProcess,
        index: usize,
        at: &PlanAddresses,
        secrets: &PlanSecrets,
    ) -> Result<(), NodeError> {
        let config = self.network.config();
        let metrics_port = match self.placement {
            Placement::OneHost { .. } => 0,
            Placement::Hosts { .. } => port_behind(config.ports.metrics, index, METRICS)?,
        };
        let mut file = NodeFile {
            name: process.name.clone(),
            role: process.role,
            log: config.log.clone(),
            crypto: config.crypto.clone(),
            metrics: SocketAddr::new(config.ports.metrics_host, metrics_port),
            memory_limit_bytes: match process.role {
                ProcessRole::Compute => config.pool.compute_memory_bytes,
                ProcessRole::Storage => config.pool.storage_memory_bytes,
                ProcessRole::Memory | ProcessRole::Orderer | ProcessRole::Gateway => 0,
            },
            // On one machine the traffic needs no protection.
            tcp_tls: matches!(self.placement, Placement::Hosts { .. }).then_some(config.pool.tls),
            memory: None,
            executors: None,
            order_log: None,
            storage: None,
            orderer: None,
            compute: None,
            gateway: None,
        };
        let PlannedProcess { index: place, node, .. } = *process;
        match process.role {
            ProcessRole::Memory if node == LOG_NODE => {
                file.order_log = Some(OrderLogFile {
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
                    one_user: matches!(self.placement, Placement::OneHost { .. }),
                    owners: owners.map(|(name, tokens)| (name.clone(), tokens[place].clone())).collect(),
                });
                self.identify_inner(process, &material::orderer_issuer(self.network.path())?)?;
            }
            ProcessRole::Storage => {
                let mut peers = self.stored_at(place).map(|stored| self.storage(stored, at, secrets));
                file.storage = peers.next().map(|first| StorageFile { others: peers.collect(), ..first });
                let issuer = match self.is_storage_shared() {
                    // It is no organisation's own, as a memory node is not.
                    true => material::orderer_issuer(self.network.path())?,
                    false => self.issuer(place)?,
                };
                self.identify_inner(process, &issuer)?;
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
                    reorder: config.ordering.reorder,
                    limits: config.limits.clone(),
                    sift: (config.ordering.engine == OrderingEngine::Sift).then(|| SiftFile {
                        number: place as u64 + 1,
                        token: secrets.orderers[place].clone(),
                        memory: at.log.clone(),
                        log_bytes: config.ordering.log_bytes,
                        acceptors: at.acceptors.clone(),
                        orderers: orderer_tokens(secrets).filter(|(name, _)| *name != process.name).collect(),
                        volatile: config.ordering.volatile,
                    }),
                    raft: (config.ordering.engine == OrderingEngine::Raft).then(|| RaftFile {
                        number: self.orderers[place],
                        token: secrets.group.clone(),
                        joins: self.orderers_have_changed,
                        members: self
                            .orderers
                            .iter()
                            .zip(&at.acceptors)
                            .map(|(number, address)| RaftMemberFile { number: *number, address: address.clone() })
                            .collect(),
                    }),
                });
                let signer = crate::network::orderer_signer(self.network, self.orderers[place] as usize - 1)?;
                let issuer = material::orderer_issuer(self.network.path())?;
                self.identify(process, &issuer, CertificateRole::Orderer, ORDERER, Some(&signer))?;
            }
            ProcessRole::Compute => {
                file.compute = Some(self.compute(process, at, secrets)?);
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
        // Parsed like an operator's file, since the operator may edit it.
        let text = file.to_text();
        NodeFile::parse(process.role, &text, &process.config().display().to_string())?;
        write_private(&process.config(), text.as_bytes())
    }

    /// The number of an organisation's compute nodes that may become the primary. Any further one joins like one that is
    /// added later.
    fn candidates(&self) -> usize {
        self.compute_nodes.min(CANDIDATES_MAX)
    }

    /// Which compute nodes of an organisation may join its peer later.
    fn joining(&self, organization: usize, secrets: &PlanSecrets) -> JoiningFile {
        let prefix = format!("{}-", compute_name(&self.names[organization], 0));
        JoiningFile { prefix, secret: secrets.joining[organization].clone() }
    }

    /// The candidates of an organisation, with their tokens.
    fn nodes(&self, organization: usize, secrets: &PlanSecrets) -> impl Iterator<Item = (String, Secret)> {
        let name = self.names[organization].clone();
        let tokens = secrets.compute[organization].clone();
        tokens.into_iter().enumerate().map(move |(node, token)| (compute_name(&name, node), token))
    }

    fn compute(
        &self,
        process: &PlannedProcess,
        at: &PlanAddresses,
        secrets: &PlanSecrets,
    ) -> Result<ComputeFile, NodeError> {
        let PlannedProcess { index: organization, node, .. } = *process;
        let config = self.network.config();
        let name = &self.names[organization];
        // On this machine, what the peer has as a whole lies with its first compute node.
        let first_folder =
            matches!(self.placement, Placement::OneHost { .. }).then(|| Path::new("..").join(compute_name(name, 0)));
        let among = (self.storage_nodes > 0).then(|| PeerNodesFile {
            address: at.peer_nodes[organization].get(node).cloned(),
            others: (at.peer_nodes[organization].iter().enumerate().filter(|(other, _)| *other != node))
                .map(|(_, other)| other.clone())
                .collect(),
            nodes: match node < self.candidates() {
                true => self.nodes(organization, secrets).filter(|(other, _)| *other != process.name).collect(),
                false => BTreeMap::new(),
            },
            joining: (node < self.candidates()).then(|| self.joining(organization, secrets)),
            offload: config.pool.offload,
            spot_check_one_in: config.pool.spot_check_one_in,
            budget_directory: first_folder.clone(),
        });
        let pooled = (self.storage_nodes > 0).then(|| PooledFile {
            storage: at.storage[organization].clone(),
            storage_copies: config.pool.storage_copies,
            copies: self.copy_files(organization, at),
            owner: name.clone(),
            section_bytes: config.pool.section_bytes,
            peer_bytes: config.pool.peer_bytes,
            metadata_cache_bytes: config.pool.metadata_cache_bytes,
            data_cache_bytes: config.pool.data_cache_bytes,
            evict_above_percent: config.pool.evict_above_percent,
            evict_to_percent: config.pool.evict_to_percent,
            link_latency_us: config.pool.link_latency_us,
            delta_bytes: config.storage.delta_bytes,
            memory: at
                .memory
                .iter()
                .zip(&secrets.owners[organization])
                .map(|(address, token)| DonorFile { address: address.clone(), token: token.clone() })
                .collect(),
        });
        let local = (self.storage_nodes == 0).then(|| LocalStoresFile {
            directory: self.data(&format!("peers/{}", config.network.organizations[organization])),
            storage: config.storage.clone(),
        });
        let chaincodes = PlannedChaincodes { network: self.network, organization, folder: &process.folder };
        Ok(ComputeFile {
            msp_id: self.network.organizations()[organization].msp_id.clone(),
            token: match secrets.compute[organization].get(node) {
                Some(token) => token.clone(),
                None => secrets.joining[organization].of_process(&process.name),
            },
            address: at.compute[organization][node].clone(),
            others_address: at.others[organization][node].clone(),
            others: self.others(organization, at),
            client_address: format!(
                "{}:{}",
                self.network.organizations()[organization].host,
                at.gateways[organization].port()
            ),
            orderers: at.blocks.clone(),
            organizations: config.network.organizations.clone(),
            gateways: [(format!("gateway-{name}"), secrets.gateways[organization].clone())].into(),
            contracts: config.contracts.clone(),
            limits: config.limits.clone(),
            service_contracts: contracts::services(config),
            chaincodes: chaincodes.configured()?,
            packages: match first_folder.filter(|_| node > 0) {
                Some(folder) => folder.join(PACKAGES_FOLDER),
                None => PACKAGES_FOLDER.into(),
            },
            peer_name: Some(self.network.organizations()[organization].host.clone()),
            chaincode_port: chaincodes.port(at.chaincodes[organization].get(node).copied())?,
            savepoint_blocks: config.storage.savepoint_blocks,
            cpu_percent: config.pool.compute_cpu_percent,
            validation: config.pool.validation,
            early_abort: config.ordering.early_abort,
            peer_nodes: among,
            pooled,
            local,
        })
    }

    /// Where the compute nodes of the other organisations answer this one.
    fn others(&self, organization: usize, at: &PlanAddresses) -> BTreeMap<String, Vec<String>> {
        let members = self.network.organizations().iter().zip(&at.others).enumerate();
        let others = members.filter(|(index, _)| *index != organization);
        let candidates = |addresses: &Vec<String>| addresses.iter().take(self.candidates()).cloned().collect();
        others.map(|(_, (member, addresses))| (member.msp_id.clone(), candidates(addresses))).collect()
    }

    fn gateway(&self, organization: usize, at: &PlanAddresses, secrets: &PlanSecrets) -> GatewayFile {
        let config = self.network.config();
        GatewayFile {
            msp_id: self.network.organizations()[organization].msp_id.clone(),
            token: secrets.gateways[organization].clone(),
            listen: at.gateways[organization],
            tls: config.tls,
            // It learns of the others from the primary.
            compute: at.compute[organization].iter().take(self.candidates()).cloned().collect(),
            orderer_msp_id: self.network.orderer().msp_id.clone(),
            orderers: at.intakes.clone(),
            orderer_reached_at: (config.ports.orderer == 0)
                .then(|| format!("{}:{}", self.network.orderer().host, at.orderers[0].port())),
            organizations: config.network.organizations.clone(),
            watch: matches!(self.placement, Placement::OneHost { .. }).then(|| "../..".into()),
            free_bytes_min: config.storage.free_bytes_min,
            others: self.others(organization, at),
            contracts: config.contracts.clone(),
            service_contracts: contracts::services(config),
            limits: config.limits.clone(),
        }
    }

    /// The data directory of a process, relative to its folder. On this machine it is the one that the network uses
    /// when it is one process.
    fn data(&self, inside: &str) -> PathBuf {
        match self.placement {
            Placement::OneHost { .. } => Path::new("../..").join(inside),
            Placement::Hosts { .. } => "data".into(),
        }
    }

    fn issuer(&self, organization: usize) -> Result<Issuer, NodeError> {
        material::issuer(self.network.path(), &self.network.config().network.organizations[organization])
    }
}
