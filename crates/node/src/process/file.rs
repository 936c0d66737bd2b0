//! The configuration file of one process, `node.toml`.
//!
//! The file holds secrets (tokens) and is readable by its owner only. Beside it lie the other files of the role: `tls/`
//! with the process's certificate and key, `trust/` with the TLS authorities of the organisations, `msp/` with the
//! signing identity, and `genesis.block`. Paths are relative to the file's folder. An address has a scheme:
//!
//! * `shm:/path/of/socket`: shared memory on one machine;
//! * `tcp:host:port`: remote memory access over sockets, between the processes of one organisation and the memory
//!   nodes; with `tcp_tls = true` over mutual TLS;
//! * `tls:host:port`: mutual TLS, between organisations. The other side's certificate must contain `host`.

use std::net::SocketAddr;
use std::path::Path;

use replica::CANDIDATES_MAX;
use serde::{Deserialize, Serialize};

use super::sections;
pub use super::sections::{
    ChaincodePortFile, ComputeFile, CopyFile, DonorFile, GatewayFile, JoiningFile, LocalStoresFile, MemoryFile,
    OrderLogFile, OrdererFile, PeerNodesFile, PooledFile, RaftFile, RaftMemberFile, Secret, SiftFile, StorageFile,
};
use crate::config::{
    ClientLimits, ConfigError, ContractsConfig, CryptoConfig, HeddleConfig, SAVEPOINT_BLOCKS_MAX, pool,
};

/// The file's name.
pub const NODE_FILE: &str = "node.toml";
pub(crate) const GENESIS: &str = "genesis.block";
pub(crate) const MSP: &str = "msp";
pub(crate) const TRUST: &str = "trust";

/// The role of a process in a network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessRole {
    /// Gives memory to peers.
    Memory,
    /// Keeps blocks and tables of peers.
    Storage,
    /// Orders transactions.
    Orderer,
    /// Endorses and commits for one organisation.
    Compute,
    /// Answers clients of one organisation.
    Gateway,
}

impl ProcessRole {
    /// Its word, as in `heddle node memory`.
    pub fn name(self) -> &'static str {
        match self {
            ProcessRole::Memory => "memory",
            ProcessRole::Storage => "storage",
            ProcessRole::Orderer => "orderer",
            ProcessRole::Compute => "compute",
            ProcessRole::Gateway => "gateway",
        }
    }
}

/// The configuration of one process: common settings, and the section of its role.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// Its name, such as `compute-org1`.
    pub name: String,
    /// Its role.
    pub role: ProcessRole,
    /// Which log lines are written, to standard error.
    pub log: String,
    /// How signatures are verified.
    #[serde(default, skip_serializing_if = "CryptoConfig::is_default")]
    pub crypto: CryptoConfig,
    /// Where metrics and health are served over HTTP; port 0 takes any free one.
    pub metrics: SocketAddr,
    /// The memory that it may use, in bytes, the page cache of its files included; 0 is no limit.
    #[serde(default, skip_serializing_if = "sections::is_zero_bytes")]
    pub memory_limit_bytes: u64,
    /// Whether connections of this process at `tcp:` addresses use mutual TLS; the same at all processes of a network.
    /// If the key is missing, the plan was made by a release that issued no certificates for these connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_tls: Option<bool>,
    /// Of a memory node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFile>,
    /// Of a memory node: the role executors, which `heddle node memory` runs beside it, as a process of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executors: Option<executors::ExecutorsFile>,
    /// Of a memory node that holds the orderers' log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_log: Option<OrderLogFile>,
    /// Of a storage node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageFile>,
    /// Of an orderer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orderer: Option<OrdererFile>,
    /// Of a compute node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeFile>,
    /// Of a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayFile>,
}

/// The largest number of peers of one storage node.
const STORED_PEERS_MAX: usize = 64;

impl NodeFile {
    /// Reads the file of a process with this role.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key or the line.
    pub fn load(role: ProcessRole, path: &Path) -> Result<NodeFile, ConfigError> {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: origin.clone(), source })?;
        NodeFile::parse(role, &text, &origin)
    }

    /// Parses a text. `origin` names it in errors.
    ///
    /// # Errors
    /// As [`NodeFile::load`].
    pub fn parse(role: ProcessRole, text: &str, origin: &str) -> Result<NodeFile, ConfigError> {
        let file: NodeFile = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { origin: origin.to_owned(), message: error.to_string() })?;
        let wrong = |key: &'static str, problem: String| ConfigError::Value { origin: origin.to_owned(), key, problem };
        if file.role != role {
            let theirs = file.role.name();
            let problem = format!("is {theirs}; run it with `heddle node {theirs} --config {origin}`");
            return Err(wrong("role", problem));
        }
        file.check().map_err(|(key, problem)| wrong(key, problem))?;
        Ok(file)
    }

    /// The file as a text.
    pub fn to_text(&self) -> String {
        toml::to_string_pretty(self).expect("a process's configuration is tables, numbers and texts")
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let sections = [
            (ProcessRole::Memory, self.memory.is_some() || self.order_log.is_some()),
            (ProcessRole::Storage, self.storage.is_some()),
            (ProcessRole::Orderer, self.orderer.is_some()),
            (ProcessRole::Compute, self.compute.is_some()),
            (ProcessRole::Gateway, self.gateway.is_some()),
        ];
        for (role, is_there) in sections {
            let name = role.name();
            match (role == self.role, is_there) {
                (true, false) => return Err(("role", format!("is {name}, but there is no section [{name}]; add it"))),
                (false, true) => {
                    let own = self.role.name();
                    return Err(("role", format!("is {own}, but there is a section [{name}]; remove it")));
                }
                _ => {}
            }
        }
        if self.memory.is_some() && self.order_log.is_some() {
            let problem = "is there, but so is [memory]; a memory node has one of the two".to_owned();
            return Err(("order_log", problem));
        }
        if self.executors.is_some() && self.memory.is_none() {
            let problem =
                "is there, but no [memory]; executors run beside a memory node that gives sections".to_owned();
            return Err(("executors", problem));
        }
        if let Some(log) = &self.order_log {
            check_inner_address("order_log.address", &log.address)?;
        }
        if let Some(memory) = &self.memory {
            pool::check_section("memory.section_bytes", memory.section_bytes)?;
            pool::check_budget("memory.memory_bytes", memory.memory_bytes, memory.section_bytes)?;
            check_inner_address("memory.address", &memory.address)?;
            if memory.address.starts_with("shm:") && memory.owners.len() > 1 && !memory.one_user {
                let problem = "is shared memory, but there are several owners, and an owner keeps its mapping of memory that \
                               is later given to another; choose a tcp: address, or set memory.one_user = true if all \
                               owners run on this machine as one user";
                return Err(("memory.address", problem.to_owned()));
            }
        }
        if let Some(storage) = &self.storage {
            for peer in storage.peers() {
                check_inner_address("storage.address", &peer.address)?;
                let same = |other: &&StorageFile| other.address == peer.address || other.directory == peer.directory;
                if storage.peers().filter(same).count() > 1 {
                    let problem = format!("has two peers at {} or in {}", peer.address, peer.directory.display());
                    return Err(("storage.others", problem));
                }
            }
            if storage.others.len() >= STORED_PEERS_MAX || storage.others.iter().any(|peer| !peer.others.is_empty()) {
                let problem =
                    format!("is a list of at most {} peers, none of which has such a list", STORED_PEERS_MAX - 1);
                return Err(("storage.others", problem));
            }
        }
        pool::check_memory_limit("memory_limit_bytes", self.memory_limit_bytes)?;
        if let Some(compute) = &self.compute {
            pool::check_cpu_percent("compute.cpu_percent", compute.cpu_percent)?;
            if let Some(pooled) = &compute.pooled {
                pool::check_latency("compute.pooled.link_latency_us", pooled.link_latency_us)?;
            }
        }
        if let Some(orderer) = &self.orderer {
            check_outer_address("orderer.blocks_address", &orderer.blocks_address)?;
            check_outer_address("orderer.intake_address", &orderer.intake_address)?;
            let numbered = |key, number: u64, count: usize| match number == 0 || number > count as u64 {
                true => Err((key, format!("is {number}; it must be from 1 to {count}"))),
                false => Ok(()),
            };
            if let Some(sift) = &orderer.sift {
                for address in sift.memory.iter().chain(&sift.acceptors) {
                    check_inner_address("orderer.sift", address)?;
                }
                numbered("orderer.sift.number", sift.number, sift.acceptors.len())?;
            }
            if let Some(raft) = &orderer.raft {
                for member in &raft.members {
                    check_inner_address("orderer.raft.members", &member.address)?;
                    if member.number == 0 {
                        return Err(("orderer.raft.members", "has number 0; they are counted from 1".to_owned()));
                    }
                }
                if raft.members.iter().filter(|member| member.number == raft.number).count() != 1 {
                    let problem = format!("is {}; it must be the number of one of orderer.raft.members", raft.number);
                    return Err(("orderer.raft.number", problem));
                }
                if orderer.sift.is_some() {
                    let problem = "is there, but so is [orderer.sift]; an orderer has one of the two".to_owned();
                    return Err(("orderer.raft", problem));
                }
            }
        }
        if let Some(compute) = &self.compute {
            check_inner_address("compute.address", &compute.address)?;
            check_outer_address("compute.others_address", &compute.others_address)?;
            for orderer in &compute.orderers {
                check_outer_address("compute.orderers", orderer)?;
            }
            for addresses in compute.others.values() {
                check_not_empty("compute.others", addresses)?;
                for address in addresses {
                    check_outer_address("compute.others", address)?;
                }
            }
            if !(1..=SAVEPOINT_BLOCKS_MAX).contains(&compute.savepoint_blocks) {
                let problem = format!("is {}; it must be from 1 to {SAVEPOINT_BLOCKS_MAX}", compute.savepoint_blocks);
                return Err(("compute.savepoint_blocks", problem));
            }
            if let Some(peer_nodes) = &compute.peer_nodes {
                // The only candidate has no others.
                let (least, most) =
                    if peer_nodes.address.is_some() { (0, CANDIDATES_MAX - 1) } else { (1, CANDIDATES_MAX) };
                let count = peer_nodes.others.len();
                if !(least..=most).contains(&count) {
                    return Err((
                        "compute.peer_nodes.others",
                        format!("has {count} addresses; it must have {least} to {most}"),
                    ));
                }
                for address in peer_nodes.address.iter().chain(&peer_nodes.others) {
                    check_inner_address("compute.peer_nodes", address)?;
                }
                if compute.local.is_some() {
                    let problem = "is there, but a monolithic peer has one compute node; remove it".to_owned();
                    return Err(("compute.peer_nodes", problem));
                }
            }
            match (&compute.pooled, &compute.local) {
                (Some(pooled), None) => {
                    pool::check_section("compute.pooled.section_bytes", pooled.section_bytes)?;
                    pool::check_budget("compute.pooled.peer_bytes", pooled.peer_bytes, pooled.section_bytes)?;
                    pool::check_watermarks(
                        ["compute.pooled.evict_above_percent", "compute.pooled.evict_to_percent"],
                        pooled.evict_above_percent,
                        pooled.evict_to_percent,
                    )?;
                    check_inner_address("compute.pooled.storage", &pooled.storage)?;
                    for copy in &pooled.copies {
                        check_inner_address("compute.pooled.copies", &copy.address)?;
                    }
                    if let Err(problem) = pooled.check_copies() {
                        return Err(("compute.pooled.copies", problem));
                    }
                    for donor in &pooled.memory {
                        check_inner_address("compute.pooled.memory", &donor.address)?;
                    }
                }
                (None, Some(_)) => {}
                _ => {
                    let problem = "must have one of [compute.pooled] and [compute.local], and not both".to_owned();
                    return Err(("compute", problem));
                }
            }
        }
        if let Some(gateway) = &self.gateway {
            check_not_empty("gateway.compute", &gateway.compute)?;
            for address in &gateway.compute {
                check_inner_address("gateway.compute", address)?;
            }
            if gateway.orderers.is_empty() {
                return Err(("gateway.orderers", "has no address; name an orderer at least".to_owned()));
            }
            for address in &gateway.orderers {
                check_outer_address("gateway.orderers", address)?;
            }
            for addresses in gateway.others.values() {
                check_not_empty("gateway.others", addresses)?;
                for address in addresses {
                    check_outer_address("gateway.others", address)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn storage(&self) -> &StorageFile {
        self.storage.as_ref().expect(CHECKED)
    }

    pub(crate) fn orderer(&self) -> &OrdererFile {
        self.orderer.as_ref().expect(CHECKED)
    }

    pub(crate) fn compute(&self) -> &ComputeFile {
        self.compute.as_ref().expect(CHECKED)
    }

    /// The orderers to which a gateway sends envelopes, or from which a compute node takes blocks.
    pub(crate) fn orderers(&self) -> &[String] {
        let compute = self.compute.as_ref().map(|compute| &compute.orderers);
        self.gateway.as_ref().map(|gateway| &gateway.orderers).or(compute).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn gateway(&self) -> &GatewayFile {
        self.gateway.as_ref().expect(CHECKED)
    }
}

const CHECKED: &str = "the section of the role was looked for when the file was read";

/// A network's configuration, as far as a process knows it.
pub(crate) fn process_config(
    organizations: &[String],
    contracts: &ContractsConfig,
    limits: &ClientLimits,
) -> HeddleConfig {
    let mut config = HeddleConfig { contracts: contracts.clone(), limits: limits.clone(), ..HeddleConfig::default() };
    config.network.organizations = organizations.to_vec();
    config
}

/// Checks that there is at least one address.
fn check_not_empty(key: &'static str, addresses: &[String]) -> Result<(), (&'static str, String)> {
    match addresses.is_empty() {
        true => Err((key, "has no address; name a compute node at least".to_owned())),
        false => Ok(()),
    }
}

/// An address within an organisation.
fn check_inner_address(key: &'static str, address: &str) -> Result<(), (&'static str, String)> {
    match address.split_once(':') {
        Some(("shm", path)) if path.starts_with('/') => Ok(()),
        Some(("tcp", rest)) if rest.contains(':') => Ok(()),
        _ => Err((key, format!("is {address:?}; it must be \"shm:/path/of/a/socket\" or \"tcp:host:port\""))),
    }
}

/// An address between organisations.
fn check_outer_address(key: &'static str, address: &str) -> Result<(), (&'static str, String)> {
    match address.split_once(':') {
        Some(("tls", rest)) if rest.contains(':') => Ok(()),
        _ => Err((key, format!("is {address:?}; it must be \"tls:host:port\""))),
    }
}

#[cfg(test)]
mod tests {
    use rma::TOKEN_BYTES;

    use super::*;

    fn secret() -> String {
        "5a".repeat(TOKEN_BYTES)
    }

    /// Parses a file of release 0.1, and checks that it is written with today's keys and then reads the same.
    fn read_former(role: ProcessRole, text: &str, renamed: &[(&str, &str)]) -> NodeFile {
        let file = NodeFile::parse(role, text, "node.toml").expect("the old keys are aliases");
        let written = file.to_text();
        for (old, new) in renamed {
            assert!(text.contains(old) && !written.contains(old), "{old}: {written}");
            assert!(written.contains(new), "{new}: {written}");
        }
        let again = NodeFile::parse(role, &written, "node.toml").expect("what it writes can be read");
        assert_eq!(again.to_text(), written);
        file
    }

    #[test]
    fn a_compute_node_reads_the_former_keys_of_its_peers_nodes() {
        let token = secret();
        let text = format!(
            r#"
            name = "compute-org1"
            role = "compute"
            log = "info"
            metrics = "127.0.0.1:0"
            [compute]
            msp_id = "Org1MSP"
            token = "{token}"
            address = "tcp:10.0.0.1:7100"
            others_address = "tls:10.0.0.1:7101"
            orderers = ["tls:10.0.0.2:7050"]
            organizations = ["Org1MSP"]
            gateways = {{}}
            contracts = {{}}
            limits = {{}}
            [compute.among]
            address = "tcp:10.0.0.1:7102"
            others = ["tcp:10.0.0.3:7102"]
            borrow = "always"
            nodes = {{ compute-org1-2 = "{token}" }}
            [compute.pooled]
            storage = "tcp:10.0.0.4:7100"
            owner = "org1"
            section_bytes = 67108864
            peer_bytes = 1073741824
            metadata_cache_bytes = 1048576
            data_cache_bytes = 1048576
            delta_bytes = 1048576
            memory = []
            "#
        );
        let renamed = [("[compute.among]", "[compute.peer_nodes]"), ("borrow = ", "offload = ")];
        let file = read_former(ProcessRole::Compute, &text, &renamed);
        let peer_nodes = file.compute.and_then(|compute| compute.peer_nodes).expect("the section was read");
        assert_eq!(peer_nodes.address.as_deref(), Some("tcp:10.0.0.1:7102"));
        assert!(matches!(peer_nodes.offload, pool::OffloadSetting::Always));
        let both = text.replace("borrow = \"always\"", "borrow = \"always\"\noffload = \"always\"");
        assert!(NodeFile::parse(ProcessRole::Compute, &both, "node.toml").is_err(), "one of the two");
    }

    #[test]
    fn an_orderer_reads_the_former_key_of_its_acceptors() {
        let token = secret();
        let text = format!(
            r#"
            name = "orderer"
            role = "orderer"
            log = "info"
            metrics = "127.0.0.1:0"
            [orderer]
            msp_id = "OrdererMSP"
            listen = "10.0.0.2:7050"
            tls = true
            blocks_address = "tls:10.0.0.2:7051"
            intake_address = "tls:10.0.0.2:7052"
            directory = "data"
            free_bytes_min = 1
            limits = {{}}
            [orderer.sift]
            number = 1
            token = "{token}"
            memory = ["tcp:10.0.0.5:7100"]
            log_bytes = 1048576
            keepers = ["tcp:10.0.0.2:7053"]
            orderers = {{}}
            volatile = false
            "#
        );
        let file = read_former(ProcessRole::Orderer, &text, &[("keepers = ", "acceptors = ")]);
        let sift = file.orderer.and_then(|orderer| orderer.sift).expect("the section was read");
        assert_eq!(sift.acceptors, ["tcp:10.0.0.2:7053"]);
    }
}
