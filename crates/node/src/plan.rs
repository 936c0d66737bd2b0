//! Plans a network's processes: their roles, addresses and files.
//!
//! ```text
//! <directory>/nodes/<name>/
//!   node.toml        the process's configuration; readable by its owner only, since it holds tokens
//!   tls/             its certificate and key for links and clients; between hosts also for remote memory access
//!   trust/           the TLS authorities of the organisations
//!   msp/             the signing identity: of compute nodes and orderers
//!   genesis.block    of compute nodes and orderers
//!   chaincode-tls/   copies of the files that the configuration of chaincodes names: of compute nodes
//!   chaincodes/      installed packages: of compute nodes
//! ```
//!
//! A process needs only its folder: to run the process on another host, copy the folder there. Every plan makes new
//! certificates and tokens, so all processes of a network must belong to the same plan.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::planner::Planner;
use crate::added_nodes::AddedNodes;
use crate::config::PeerMode;
use crate::membership::{self, AddedOrderer};
use crate::network::orderer_set::OrdererSet;
use crate::network::{Endpoint, EndpointRole, Network, NodeError, material};
use crate::process::Ready;
use crate::process::file::ProcessRole;
use crate::{Endpoints, profile};

pub(crate) use crate::free_ports::port_behind;
pub use crate::planned::{Placement, PlannedProcess, ProcessPlan};

impl Network {
    /// Writes the files of all processes.
    ///
    /// # Errors
    /// [`NodeError::UnknownProcess`] when a host is assigned to a process that does not exist; [`NodeError::AnyPort`]
    /// when the configuration leaves a port on another host open; [`NodeError::NoPort`] when too few ports follow the
    /// first one; [`NodeError::Port`] when a port on this machine is taken; files that cannot be written.
    pub fn plan(&self, placement: &Placement) -> Result<ProcessPlan, NodeError> {
        let config = self.config();
        let is_pooled = config.pool.form == PeerMode::Disaggregated;
        let orderer_set = OrdererSet::load(self.path(), config.ordering.count())?;
        let planner = Planner {
            network: self,
            placement,
            names: config.network.organizations.iter().map(|name| name.to_ascii_lowercase()).collect(),
            memory_nodes: if is_pooled { config.pool.memory_nodes } else { 0 },
            log_nodes: config.ordering.memory_count(),
            orderers: orderer_set.numbers,
            orderers_have_changed: orderer_set.has_changed,
            storage_nodes: if is_pooled {
                config.pool.storage_nodes_for(config.network.organizations.len())
            } else {
                0
            },
            compute_nodes: if is_pooled { config.pool.compute_nodes } else { 1 },
            held: Vec::new(),
        };
        let compute_nodes = planner.compute_nodes;
        let mut plan = planner.plan()?;
        if is_pooled {
            let one_host = matches!(placement, Placement::OneHost { .. });
            let added = AddedNodes::renew(self.path(), compute_nodes, one_host)?;
            plan.processes.extend(added.iter().map(|(node, address)| PlannedProcess::compute(node, *address)));
        }
        Ok(plan)
    }

    /// Publishes the addresses of a network of processes: profiles for clients, and `endpoints.json`.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn announce(
        &self,
        plan: &ProcessPlan,
        metrics: SocketAddr,
        mut processes: Vec<Ready>,
    ) -> Result<Endpoints, NodeError> {
        let added = plan.processes.iter().filter(|process| process.is_added);
        let added: BTreeSet<&str> = added.map(|process| process.name.as_str()).collect();
        processes.iter_mut().for_each(|ready| ready.is_added = added.contains(ready.name.as_str()));
        let orderers = plan.processes.iter().filter(|process| process.role == ProcessRole::Orderer);
        let orderers = orderers.filter_map(|orderer| Some((orderer.name.clone(), orderer.clients()?)));
        let endpoints = self.write_profiles(&plan.gateways, orderers, metrics)?;
        let (sockets, is_planned) = (plan.sockets.clone(), plan.sockets.is_none());
        let endpoints = Endpoints { processes, sockets, is_planned, ..endpoints };
        endpoints.store(self.path())?;
        Ok(endpoints)
    }

    /// As [`Network::announce`], after orderers on Raft were added or removed while all other addresses stayed the
    /// same.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn announce_orderers(&self) -> Result<(), NodeError> {
        let known = Endpoints::load(self.path())?;
        let gateways: Vec<SocketAddr> = known.gateways.iter().map(|gateway| gateway.address).collect();
        let mut orderers = Vec::new();
        for number in membership::orderer_set(self.path())?.numbers {
            let AddedOrderer { name, answers: [.., clients], .. } = membership::added_orderer(self.path(), number)?;
            orderers.extend(clients.parse().ok().map(|address| (name, address)));
        }
        let Endpoints { process, processes, sockets, is_planned, metrics, .. } = known;
        let endpoints = self.write_profiles(&gateways, orderers.into_iter(), metrics)?;
        Endpoints { process, processes, sockets, is_planned, ..endpoints }.store(self.path())
    }

    /// Writes the clients' profiles, and returns the content of `endpoints.json`.
    fn write_profiles(
        &self,
        gateways: &[SocketAddr],
        orderers: impl Iterator<Item = (String, SocketAddr)>,
        metrics: SocketAddr,
    ) -> Result<Endpoints, NodeError> {
        let gateways = self.organizations().iter().zip(gateways).map(|(organization, address)| Endpoint {
            role: EndpointRole::Peer,
            msp_id: organization.msp_id.clone(),
            host: organization.host.clone(),
            name: organization.host.clone(),
            address: *address,
        });
        let orderers = orderers.map(|(name, address)| Endpoint {
            role: EndpointRole::Orderer,
            msp_id: self.orderer().msp_id.clone(),
            host: self.orderer().host.clone(),
            name: format!("{name}.{}", material::ORDERER_DOMAIN),
            address,
        });
        let metrics = Endpoint {
            role: EndpointRole::Metrics,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use identity::MemberRole as CertificateRole;
    use identity::issue::TlsIdentity;

    use super::super::planned::LOG_NODE;
    use super::*;
    use crate::config::OrderingEngine;
    use crate::free_ports::{FREE_PORTS, bind_free};
    use crate::process::NodeFile;

    /// Regression: blocks, records and capabilities for reading memory crossed the network between hosts in clear text,
    /// and TLS could not be switched on.
    #[tokio::test]
    async fn processes_on_several_hosts_have_certificates_for_all_that_they_say() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = crate::HeddleConfig::default();
        config.ordering.engine = OrderingEngine::Sift;
        let network = Network::create(&folder.path().join("network"), &config).await.expect("it can be made");
        let hosts = Placement::Hosts { default: [10, 0, 0, 7].into(), by_name: BTreeMap::new() };
        let plan = network.plan(&hosts).expect("it can be planned");
        assert!(plan.processes.iter().any(|process| process.node == LOG_NODE), "there is memory for the log");
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

    /// Peers at one storage node have nothing in common but the process.
    #[tokio::test]
    async fn peers_that_share_a_storage_node_share_no_address_directory_or_client() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = crate::HeddleConfig::default();
        config.pool.storage_nodes = 2;
        let network = Network::create(&folder.path().join("network"), &config).await.expect("it can be made");
        let hosts = Placement::Hosts { default: [10, 0, 0, 7].into(), by_name: BTreeMap::new() };
        let plan = network.plan(&hosts).expect("it can be planned");
        let (mut served, mut clients) = (BTreeMap::new(), BTreeMap::new());
        for process in &plan.processes {
            let file = NodeFile::load(process.role, &process.config()).expect("it was written");
            if let Some(compute) = &file.compute {
                let storage = compute.pooled.as_ref().expect("it is pooled").storage.clone();
                clients.insert(storage, (file.name.clone(), compute.token.token().bytes().to_vec()));
            }
            for peer in file.storage.iter().flat_map(|storage| storage.peers()) {
                let known: Vec<_> =
                    peer.clients.iter().map(|(name, token)| (name.clone(), token.token().bytes().to_vec())).collect();
                assert_eq!(known.len(), 1, "one compute node: {known:?}");
                assert!(served.insert(peer.address.clone(), known[0].clone()).is_none(), "{}", peer.address);
                assert!(peer.directory.ends_with(known[0].0.trim_start_matches("compute-")), "{peer:?}");
            }
        }
        assert_eq!((served.len(), served), (3, clients), "each at the address that its compute node knows");
    }

    /// An owner keeps its mappings of shared memory after the memory was given to another owner.
    #[tokio::test]
    async fn shared_memory_of_several_organisations_needs_one_user() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let network = folder.path().join("network");
        // Any ports: another test may hold those of the default configuration.
        let mut config = crate::HeddleConfig::default();
        (config.ports.gateway, config.ports.orderer, config.ports.links, config.ports.metrics) = (0, 0, 0, 0);
        let network = Network::create(&network, &config).await.expect("it can be made");
        let plan = network.plan(&Placement::OneHost { sockets: folder.path().to_owned() }).expect("it can be planned");
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
