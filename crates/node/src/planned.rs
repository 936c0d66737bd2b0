//! Planned processes, where they are placed, and their ports.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::joining::JoiningNode;
use crate::membership::AddedOrderer;
use crate::process::file::{NODE_FILE, ProcessRole};

pub(super) const ORDERER: &str = "orderer";
/// The callers within a process's organisation.
pub(super) const OWN: &str = "its organisation";
/// The callers of gateways and orderers over gRPC.
pub(super) const CLIENTS: &str = "clients";
pub(super) const METRICS: &str = "ports.metrics";
/// In place of a compute node's number: marks the memory nodes of the orderers' log, as opposed to those of the pool.
pub(super) const LOG_NODE: usize = usize::MAX;
/// The longest socket path that the system allows, without the terminating zero.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The ports after `ports.links`: two of the orderer, then one of each compute node. From this offset on: the ports of
/// links within an organisation, if they use sockets.
pub(super) const INNER_PORTS: usize = 40;
/// Maximum of a network's ports.
pub(super) const PORTS_MAX: usize = 8192;

/// Where the processes of a network run.
#[derive(Clone, Debug)]
pub enum Placement {
    /// All on this machine. Processes of one organisation connect through sockets in this folder.
    OneHost {
        /// A short path.
        sockets: PathBuf,
    },
    /// On several hosts.
    Hosts {
        /// The host of every process that is not named below.
        default: IpAddr,
        /// Hosts by process name.
        by_name: BTreeMap<String, IpAddr>,
    },
}

/// The processes of a network, in the order in which they start.
#[derive(Clone, Debug)]
pub struct ProcessPlan {
    /// Each of them.
    pub processes: Vec<PlannedProcess>,
    pub(super) gateways: Vec<SocketAddr>,
    pub(super) sockets: Option<PathBuf>,
}

/// A process of a network.
#[derive(Clone, Debug)]
pub struct PlannedProcess {
    /// Such as `compute-org1`.
    pub name: String,
    /// Its role.
    pub role: ProcessRole,
    /// The host on which it is to run.
    pub host: IpAddr,
    /// The folder of its files.
    pub folder: PathBuf,
    /// The callers of the process and its address for each: `tcp:host:port` and `shm:/path` for its own organisation,
    /// `tls:host:port` for others, `host:port` for clients.
    pub answers: Vec<(&'static str, String)>,
    /// Its index within its role: of a memory node, or of an organisation.
    pub(super) index: usize,
    /// Its index among the compute nodes of its organisation.
    pub(super) node: usize,
    /// Whether it is a compute node that was added to its peer ([`AddedNodes`](crate::added_nodes::AddedNodes)).
    pub is_added: bool,
}

impl PlannedProcess {
    /// A compute node that was added to its peer.
    pub fn compute(added: &JoiningNode, address: Option<SocketAddr>) -> PlannedProcess {
        let JoiningNode { name, number, folder, .. } = added.clone();
        let answers = vec![(OWN, added.address.clone()), ("other organisations", added.others_address.clone())];
        let host = address.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |address| address.ip());
        let (role, node) = (ProcessRole::Compute, number - 1);
        PlannedProcess { name, role, host, folder, answers, index: 0, node, is_added: true }
    }

    /// An orderer that was added on this machine after the plan was made.
    pub fn orderer(added: &AddedOrderer) -> PlannedProcess {
        let AddedOrderer { name, folder, address, answers: [blocks, intake, clients], .. } = added.clone();
        let answers = vec![("compute nodes", blocks), ("gateways", intake), (CLIENTS, clients), ("orderers", address)];
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        PlannedProcess { name, role: ProcessRole::Orderer, host, folder, answers, index: 0, node: 0, is_added: false }
    }

    /// The address at which it answers clients.
    pub(super) fn clients(&self) -> Option<SocketAddr> {
        let (_, address) = self.answers.iter().find(|(whom, _)| *whom == CLIENTS)?;
        address.parse().ok()
    }

    /// The path of its configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join(NODE_FILE)
    }
}
