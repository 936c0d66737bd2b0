//! What a plan consists of before it is written: tokens, addresses and names.

use std::net::SocketAddr;

use crate::process::file::Secret;

/// The tokens of one plan.
pub(super) struct PlanSecrets {
    /// Indexed by organisation and candidate, the compute nodes that may become the primary of their peer.
    pub(super) compute: Vec<Vec<Secret>>,
    /// By organisation: the secret of the compute nodes that need not be known when the plan is made.
    pub(super) joining: Vec<Secret>,
    pub(super) gateways: Vec<Secret>,
    /// Indexed by organisation and memory node.
    pub(super) owners: Vec<Vec<Secret>>,
    pub(super) orderers: Vec<Secret>,
    /// Common to all orderers on Raft.
    pub(super) group: Secret,
}

/// The addresses of all processes.
pub(super) struct PlanAddresses {
    pub(super) memory: Vec<String>,
    /// By organisation.
    pub(super) storage: Vec<String>,
    /// Of each peer that has two copies, where its other storage nodes serve it.
    pub(super) copies: Vec<Vec<String>>,
    /// By organisation and compute node: its address for gateways of its organisation, for other organisations'
    /// gateways, and for the peer's other compute nodes.
    pub(super) compute: Vec<Vec<String>>,
    pub(super) others: Vec<Vec<String>>,
    pub(super) peer_nodes: Vec<Vec<String>>,
    /// By organisation and compute node: its port for chaincodes, if the network has such ports.
    pub(super) chaincodes: Vec<Vec<SocketAddr>>,
    /// Indexed by orderer.
    pub(super) blocks: Vec<String>,
    pub(super) intakes: Vec<String>,
    pub(super) orderers: Vec<SocketAddr>,
    pub(super) acceptors: Vec<String>,
    /// Indexed by memory node of the orderers' log.
    pub(super) log: Vec<String>,
    pub(super) gateways: Vec<SocketAddr>,
}

pub(super) fn log_name(place: usize) -> String {
    format!("log-{}", place + 1)
}

pub(super) fn memory_name(place: usize) -> String {
    format!("memory-{}", place + 1)
}

/// The name of a storage node that several peers share.
pub(super) fn storage_name(place: usize) -> String {
    format!("storage-{}", place + 1)
}
