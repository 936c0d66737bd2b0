//! The sections of `node.toml`, the configuration file of a process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use base::Bytes;
use rma::{TOKEN_BYTES, Token};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use storage::node::COPY_NAME_BYTES_MAX;
use storage_copies::{CopyNode, CopySet};

use crate::chaincodes::PACKAGES_FOLDER;
use crate::config::{ChaincodeConfig, ClientLimits, ContractsConfig, CutSetting, ValidationSetting, pool};

/// A token in a file: 64 hexadecimal digits.
#[derive(Clone)]
pub struct Secret(Token);

impl Secret {
    /// A new random token.
    pub fn random() -> Secret {
        Secret(Token::random())
    }

    /// The token of the process with this name, where this secret admits processes that nobody knew when it was made.
    /// The process that has the token learns neither the secret nor the token of another name.
    pub fn of_process(&self, name: &str) -> Secret {
        let secret = &self.0.bytes()[..];
        let inner = identity::sha256([&b"heddle token of a process"[..], secret, name.as_bytes()]);
        Secret(Token::new(identity::sha256([secret, &inner[..]])))
    }

    /// The token itself.
    pub fn token(&self) -> Token {
        self.0.clone()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&identity::hex::encode(self.0.bytes()))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The error does not repeat the text: it may be a secret with a typing mistake.
        let wrong = || serde::de::Error::custom(format!("a token has {} hexadecimal digits", 2 * TOKEN_BYTES));
        let bytes = identity::hex::decode(&text).ok().and_then(|bytes| <[u8; TOKEN_BYTES]>::try_from(&bytes[..]).ok());
        Ok(Secret(Token::new(bytes.ok_or_else(wrong)?)))
    }
}

/// `[memory]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryFile {
    /// Its number among the memory nodes.
    pub number: u16,
    /// The address at which it answers: `shm:` or `tcp:`.
    pub address: String,
    /// Bytes that it may give.
    pub memory_bytes: u64,
    /// Bytes of a section, the same in the whole pool.
    pub section_bytes: u64,
    /// Asserts that all owners run on this machine as one user, who can read the memory of each of them anyway. Only
    /// then may several owners share a `shm:` address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_user: bool,
    /// The owners that may get memory: names and tokens.
    pub owners: BTreeMap<String, Secret>,
}

/// `[order_log]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderLogFile {
    /// Its number among the memory nodes of the log.
    pub number: u16,
    /// The address at which it answers: `shm:` or `tcp:`.
    pub address: String,
    /// Bytes of the log, the same at all of its memory nodes.
    pub log_bytes: u64,
    /// The orderers: names and tokens.
    pub orderers: BTreeMap<String, Secret>,
}

/// `[orderer.sift]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiftFile {
    /// Its number among the orderers, from 1.
    pub number: u64,
    /// Authenticates it to memory nodes and other orderers.
    pub token: Secret,
    /// The memory nodes of the log: `shm:` or `tcp:`.
    pub memory: Vec<String>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Addresses at which the orderers serve their log stores to the leader, in the order of their numbers: `shm:` or
    /// `tcp:`.
    #[serde(alias = "keepers")]
    pub acceptors: Vec<String>,
    /// The other orderers: names and tokens.
    pub orderers: BTreeMap<String, Secret>,
    /// Whether blocks are shown before they are on disk.
    pub volatile: bool,
}

/// `[orderer.raft]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaftFile {
    /// Its number among the orderers, from 1. A number is never reused.
    pub number: u64,
    /// The group's token, common to all orderers, including those added later; a process that presents it is an
    /// orderer.
    pub token: Secret,
    /// Whether an orderer without a log waits to be admitted to an existing group; otherwise it founds one with the
    /// others.
    #[serde(default)]
    pub joins: bool,
    /// The orderers, this one included. These addresses override those in the group's log.
    pub members: Vec<RaftMemberFile>,
}

/// `[[orderer.raft.members]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaftMemberFile {
    /// Its number.
    pub number: u64,
    /// The address at which it answers the others: `shm:` or `tcp:`.
    pub address: String,
}

/// `[compute.peer_nodes.joining]`, `[storage.joining]`: which compute nodes may join that are not named.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoiningFile {
    /// How their names begin.
    pub prefix: String,
    /// The secret from which the token of each is made.
    pub secret: Secret,
}

/// `[storage]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageFile {
    /// The address at which it answers: `shm:` or `tcp:`.
    pub address: String,
    /// The directory of blocks and tables.
    pub directory: PathBuf,
    /// Bytes of the tables' write buffers.
    pub memtable_bytes: usize,
    /// Bytes of the tables' blocks in memory.
    #[serde(default = "crate::config::table_cache_bytes")]
    pub table_cache_bytes: usize,
    /// Bytes of memory for the newest versions of recently used keys.
    #[serde(default = "crate::config::table_hint_bytes")]
    pub table_hint_bytes: usize,
    /// The compute nodes that may use it: names and tokens.
    pub clients: BTreeMap<String, Secret>,
    /// The compute nodes that may join later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<JoiningFile>,
    /// `[[storage.others]]`: the other peers that the node serves, each at another address, in another directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<StorageFile>,
}

impl StorageFile {
    /// The peers that the node serves.
    pub fn peers(&self) -> impl Iterator<Item = &StorageFile> {
        std::iter::once(self).chain(&self.others)
    }
}

/// `[orderer]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrdererFile {
    /// Its organisation.
    pub msp_id: String,
    /// The address at which clients reach it over gRPC.
    pub listen: SocketAddr,
    /// Whether that port speaks TLS.
    pub tls: bool,
    /// The address at which it streams blocks to compute nodes: `tls:`.
    pub blocks_address: String,
    /// The address at which it accepts envelopes from gateways: `tls:`.
    pub intake_address: String,
    /// The directory of its log.
    pub directory: PathBuf,
    /// Minimum of free bytes on that disk: with less, new transactions are rejected.
    pub free_bytes_min: u64,
    /// When it cuts a block.
    #[serde(default)]
    pub cut: CutSetting,
    /// Whether it changes the order of a block's transactions so that more of them are valid.
    #[serde(default)]
    pub reorder: bool,
    /// Bounds on what clients can start.
    pub limits: ClientLimits,
    /// How it orders in a group on memory nodes, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sift: Option<SiftFile>,
    /// How it orders in a group on Raft, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raft: Option<RaftFile>,
}

/// `[compute]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeFile {
    /// Its organisation.
    pub msp_id: String,
    /// Authenticates it to other processes of its organisation.
    pub token: Secret,
    /// The address for its organisation's gateways: `shm:` or `tcp:`.
    pub address: String,
    /// The address at which it runs proposals for other organisations' gateways, and exchanges private data with other
    /// organisations' peers: `tls:`.
    pub others_address: String,
    /// Where the compute nodes of each other organisation exchange private data, by MSP id: `tls:`. Files of earlier releases have
    /// none, and their peers exchange no private data.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, Vec<String>>,
    /// The address of its organisation's gateway, `host:port`, which discovery tells to clients. Files of earlier releases have
    /// none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client_address: String,
    /// Addresses from which orderers stream blocks.
    pub orderers: Vec<String>,
    /// All organisations of the channel, for contracts whose policy is a word.
    pub organizations: Vec<String>,
    /// The gateways of its organisation: names and tokens.
    pub gateways: BTreeMap<String, Secret>,
    /// The contracts of the channel.
    pub contracts: ContractsConfig,
    /// Bounds on what clients can start.
    pub limits: ClientLimits,
    /// The contracts of the channel that run outside of the peers' processes, whichever organisations run them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_contracts: Vec<String>,
    /// The chaincodes without a package that its organisation runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chaincodes: Vec<ChaincodeConfig>,
    /// The folder of installed packages. Compute nodes that share a disk share the folder.
    #[serde(default = "packages", skip_serializing_if = "is_own_folder")]
    pub packages: PathBuf,
    /// The value of `peername` in packages' templates; by default the name of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_name: Option<String>,
    /// The port for chaincodes that connect by themselves, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chaincode_port: Option<ChaincodePortFile>,
    /// The savepoint moves after this many blocks.
    #[serde(default = "crate::config::savepoint_blocks")]
    pub savepoint_blocks: u64,
    /// The processor time that it may use, in percent of one processor; 0 is no quota.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cpu_percent: u32,
    /// How it checks the transactions of a block for conflicts.
    #[serde(default)]
    pub validation: ValidationSetting,
    /// Whether its gateways learn which rows each block wrote, to answer clients whose transactions can never be valid.
    #[serde(default)]
    pub early_abort: bool,
    /// How it reaches the peer's other compute nodes, if there are several.
    #[serde(alias = "among", skip_serializing_if = "Option::is_none")]
    pub peer_nodes: Option<PeerNodesFile>,
    /// Where state and blocks lie, in the disaggregated form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooled: Option<PooledFile>,
    /// Where they lie in the monolithic form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalStoresFile>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(super) fn is_zero_bytes(number: &u64) -> bool {
    *number == 0
}

fn packages() -> PathBuf {
    PACKAGES_FOLDER.into()
}

fn is_own_folder(folder: &PathBuf) -> bool {
    *folder == packages()
}

/// `[compute.chaincode_port]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChaincodePortFile {
    /// The address at which it accepts chaincodes over TLS.
    pub listen: SocketAddr,
    /// The file with the authorities of chaincodes' certificates.
    pub authorities: PathBuf,
}

/// `[compute.peer_nodes]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerNodesFile {
    /// The address at which it answers the others while it is the primary: `shm:` or `tcp:`. A node without one never
    /// becomes the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The addresses at which the other candidates answer.
    pub others: Vec<String>,
    /// The names and tokens of the others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, Secret>,
    /// The compute nodes that may join later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<JoiningFile>,
    /// Whether it has followers verify signatures while it is the primary.
    #[serde(default, alias = "borrow")]
    pub offload: pool::OffloadSetting,
    /// It verifies again one in this many of the transactions that a follower found valid.
    #[serde(default = "pool::spot_check_one_in")]
    pub spot_check_one_in: u32,
    /// The folder of the budget that the peer was given at run time, if the compute nodes share a disk; otherwise each
    /// has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_directory: Option<PathBuf>,
}

/// `[compute.pooled]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PooledFile {
    /// The organisation's storage node: `shm:` or `tcp:`.
    pub storage: String,
    /// Storage nodes that the primary keeps complete copies at.
    #[serde(default = "one_copy")]
    pub storage_copies: usize,
    /// `[[compute.pooled.copies]]`: the storage nodes that may have copies, if there are several; the first is the one above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyFile>,
    /// The name by which memory nodes know this organisation.
    pub owner: String,
    /// Bytes of a section, the same in the whole pool.
    pub section_bytes: u64,
    /// Bytes of memory that it may take.
    pub peer_bytes: u64,
    /// Bytes of the cache of versions and addresses.
    pub metadata_cache_bytes: usize,
    /// Bytes of the cache of records.
    pub data_cache_bytes: usize,
    /// Bytes of writes that the savepoint does not cover.
    pub delta_bytes: usize,
    /// Percent of the memory above which cold records are evicted.
    #[serde(default = "pool::evict_above_percent")]
    pub evict_above_percent: u8,
    /// Percent of the memory that eviction leaves in use.
    #[serde(default = "pool::evict_to_percent")]
    pub evict_to_percent: u8,
    /// The latency of a link to memory that each access is given, in microseconds; 0 is none. For measurements.
    #[serde(default, skip_serializing_if = "is_zero_bytes")]
    pub link_latency_us: u64,
    /// The memory nodes that give memory.
    pub memory: Vec<DonorFile>,
}

/// `[[compute.pooled.copies]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyFile {
    /// The name of the storage node; it stays when the address changes.
    pub name: String,
    /// Where it serves the peer: `shm:` or `tcp:`.
    pub address: String,
}

fn one_copy() -> usize {
    1
}

impl PooledFile {
    /// Checks the storage nodes that may have copies.
    ///
    /// # Errors
    /// The problem.
    pub fn check_copies(&self) -> Result<(), String> {
        let names: BTreeSet<&str> = self.copies.iter().map(|copy| copy.name.as_str()).collect();
        let is_named = names.iter().all(|name| !name.is_empty() && name.len() <= COPY_NAME_BYTES_MAX);
        if names.len() != self.copies.len() || !is_named {
            return Err(format!("must have names that differ, of 1 to {COPY_NAME_BYTES_MAX} bytes"));
        }
        if self.copies.first().is_some_and(|first| first.address != self.storage) {
            return Err("must begin with the storage node that compute.pooled.storage names".to_owned());
        }
        if !(1..=2).contains(&self.storage_copies) || self.storage_copies > self.copies.len().max(1) {
            let copies = self.storage_copies;
            return Err(format!("must have as many nodes as compute.pooled.storage_copies says, {copies}: 1 or 2"));
        }
        Ok(())
    }

    /// The storage nodes as the peer uses them.
    pub fn storage_nodes(&self) -> CopySet {
        if self.copies.is_empty() {
            return CopySet::single(self.storage.clone(), Bytes::new());
        }
        let node = |CopyFile { name, address }: &CopyFile| CopyNode { name: name.clone(), address: address.clone() };
        CopySet::new(self.copies.iter().map(node).collect(), Bytes::new(), self.storage_copies)
    }
}

/// `[[compute.pooled.memory]]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DonorFile {
    /// The address at which the memory node answers.
    pub address: String,
    /// The token with which the owner authenticates.
    pub token: Secret,
}

impl DonorFile {
    /// As the pool takes it.
    pub(crate) fn donor(&self) -> ::pool::Donor {
        ::pool::Donor { address: self.address.clone(), token: self.token.token() }
    }
}

/// `[compute.local]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalStoresFile {
    /// The directory of blocks and tables.
    pub directory: PathBuf,
    /// Memory, as in `heddle.toml`.
    pub storage: crate::config::StateStorageConfig,
}

/// `[gateway]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayFile {
    /// Its organisation.
    pub msp_id: String,
    /// Authenticates it to other processes of its organisation.
    pub token: Secret,
    /// The address at which clients reach it over gRPC.
    pub listen: SocketAddr,
    /// Whether that port speaks TLS.
    pub tls: bool,
    /// The organisation's own compute nodes: `shm:` or `tcp:`.
    pub compute: Vec<String>,
    /// The orderers' organisation.
    pub orderer_msp_id: String,
    /// The orderers: `tls:`.
    pub orderers: Vec<String>,
    /// Host and port at which clients reach the first orderer, if the plan has chosen the port: discovery names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orderer_reached_at: Option<String>,
    /// All organisations of the channel, for contracts whose policy is a word.
    pub organizations: Vec<String>,
    /// A folder on the network's disk, if the gateway shares it: with less than `free_bytes_min` free, new transactions
    /// are rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<PathBuf>,
    /// See `watch`.
    pub free_bytes_min: u64,
    /// Addresses of other organisations' compute nodes, by MSP: `tls:`.
    pub others: BTreeMap<String, Vec<String>>,
    /// The contracts of the channel.
    pub contracts: ContractsConfig,
    /// Those of them that run outside of the peers' processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_contracts: Vec<String>,
    /// Bounds on what clients can start.
    pub limits: ClientLimits,
}
