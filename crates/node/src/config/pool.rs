//! `[pool]`: the form of peers, and the memory that they share.

use std::ops::RangeInclusive;

use pool::{SECTION_BYTES_MAX, SECTION_BYTES_MIN};
use replica::NODES_MAX;
use replica::offload::{OffloadMode, SPOT_CHECK_ONE_IN};
use serde::{Deserialize, Serialize};
use state::{ApplyWorkers, DisaggregatedConfig};
use validation::block::ConflictCheckMode;
use validation::parallel::WorkersConfig;

/// Maximum of memory nodes in one network.
const MEMORY_NODES_MAX: usize = 64;
/// Bytes of the smallest section: a part of the index must fit with room to spare.
const CONFIGURED_SECTION_BYTES_MIN: u64 = 1 << 20;

/// The range of the eviction threshold: eviction needs free memory to work ahead of demand.
const EVICT_PERCENT: RangeInclusive<u8> = 2..=98;
/// Maximum bytes of one cache.
const CACHE_BYTES_MAX: usize = 1 << 40;

const _: () = assert!(CONFIGURED_SECTION_BYTES_MIN >= SECTION_BYTES_MIN);

/// The form of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerMode {
    /// Compute, memory and storage nodes.
    #[default]
    Disaggregated,
    /// One process with its own disk.
    Monolithic,
}

/// How processes of one organisation reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// The shared memory of one machine.
    #[default]
    Shm,
    /// Sockets.
    Tcp,
}

/// Whether a peer's primary has its other compute nodes verify signatures of blocks (offload).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OffloadSetting {
    /// The primary verifies everything itself.
    Never,
    /// When the primary's machine is busy and the followers' machines are not.
    #[default]
    Idle,
    /// Always.
    Always,
}

impl OffloadSetting {
    /// The setting in the chain's terms.
    pub(crate) fn offload_mode(self) -> OffloadMode {
        match self {
            OffloadSetting::Never => OffloadMode::Never,
            OffloadSetting::Idle => OffloadMode::Idle,
            OffloadSetting::Always => OffloadMode::Always,
        }
    }
}

/// How a peer checks the transactions of a block for conflicts and writes their changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValidationSetting {
    /// One after the other.
    #[default]
    Sequential,
    /// By several tasks if the block is large enough: checks follow the block's dependency graph.
    Parallel,
}

impl ValidationSetting {
    /// The setting in the chain's terms.
    pub(crate) fn mode(self) -> ConflictCheckMode {
        match self {
            ValidationSetting::Sequential => ConflictCheckMode::Sequential,
            ValidationSetting::Parallel => ConflictCheckMode::Parallel(WorkersConfig::of_machine()),
        }
    }

    /// The tasks that apply a block to the state.
    pub(crate) fn apply_workers(self) -> ApplyWorkers {
        match self {
            ValidationSetting::Sequential => ApplyWorkers::ONE,
            ValidationSetting::Parallel => ApplyWorkers::of_machine(),
        }
    }
}

/// The largest number of storage nodes.
const STORAGE_NODES_MAX: usize = 64;
/// The lowest rate of spot checks.
const SPOT_CHECK_ONE_IN_MAX: u32 = 1 << 20;

/// The largest quota of processor time: a thousand processors.
const CPU_PERCENT_MAX: u32 = 100_000;

/// The largest limit of a process's memory.
const MEMORY_LIMIT_BYTES_MAX: u64 = 1 << 50;
/// The longest latency of a link to memory.
const LINK_LATENCY_US_MAX: u64 = 10_000;

/// The form of peers, and the memory that they share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// The form of a peer.
    pub form: PeerMode,
    /// How peers reach memory and storage.
    pub provider: ProviderKind,
    /// Whether memory, storage and links between processes on several hosts run over mutual TLS.
    pub tls: bool,
    /// The number of memory nodes.
    pub memory_nodes: usize,
    /// The number of storage nodes, which the organisations' peers share; 0 is one for each organisation.
    pub storage_nodes: usize,
    /// Storage nodes that have a copy of each peer's blocks and tables: 1, or 2, either of which may be lost.
    pub storage_copies: usize,
    /// The number of compute nodes of each peer.
    pub compute_nodes: usize,
    /// The quota of processor time of each compute-node process, in percent of one processor; 0 is none.
    pub compute_cpu_percent: u32,
    /// The memory of each compute-node process in bytes, the page cache of its files included; 0 is no limit.
    pub compute_memory_bytes: u64,
    /// The same of each storage-node process.
    pub storage_memory_bytes: u64,
    /// Whether the primary has followers verify signatures.
    #[serde(alias = "borrow")]
    pub offload: OffloadSetting,
    /// The primary verifies again one in this many of the transactions that a follower found valid.
    pub spot_check_one_in: u32,
    /// How a peer checks the transactions of a block for conflicts.
    pub validation: ValidationSetting,
    /// Bytes that each memory node may give.
    pub memory_bytes: u64,
    /// Bytes of a section.
    pub section_bytes: u64,
    /// Bytes that each peer may take.
    pub peer_bytes: u64,
    /// The latency of a link to memory that each access of a process is given, in microseconds; 0 is none.
    pub link_latency_us: u64,
    /// Bytes of a peer's cache of versions and addresses.
    pub metadata_cache_bytes: usize,
    /// Bytes of a peer's cache of records.
    pub data_cache_bytes: usize,
    /// Percent of a peer's memory above which cold records are evicted.
    pub evict_above_percent: u8,
    /// Percent of a peer's memory that eviction leaves in use.
    pub evict_to_percent: u8,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig {
            form: PeerMode::default(),
            provider: ProviderKind::default(),
            tls: true,
            memory_nodes: 2,
            storage_nodes: 0,
            storage_copies: 1,
            compute_nodes: 1,
            compute_cpu_percent: 0,
            compute_memory_bytes: 0,
            storage_memory_bytes: 0,
            offload: OffloadSetting::default(),
            spot_check_one_in: SPOT_CHECK_ONE_IN,
            validation: ValidationSetting::default(),
            memory_bytes: 1 << 30,
            section_bytes: pool::SECTION_BYTES_DEFAULT,
            peer_bytes: 256 << 20,
            link_latency_us: 0,
            metadata_cache_bytes: 32 << 20,
            data_cache_bytes: 128 << 20,
            evict_above_percent: evict_above_percent(),
            evict_to_percent: evict_to_percent(),
        }
    }
}

impl PoolConfig {
    /// The number of storage nodes for this number of peers: there is none without a peer.
    pub fn storage_nodes_for(&self, peers: usize) -> usize {
        match (self.storage_copies, self.storage_nodes) {
            (1, 0) => peers,
            (1, nodes) => nodes.min(peers),
            (copies, 0) => peers.max(copies),
            // One more than there are copies: a copy can move there.
            (copies, nodes) => nodes.min(copies.saturating_add(1).saturating_mul(peers)),
        }
    }

    /// Checks the values. An error is a key and its problem.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let nodes = self.memory_nodes;
        if !(1..=MEMORY_NODES_MAX).contains(&nodes) {
            let problem = format!("is {nodes}; it must be from 1 to {MEMORY_NODES_MAX}");
            return Err(("pool.memory_nodes", problem));
        }
        if self.storage_nodes > STORAGE_NODES_MAX {
            let nodes = self.storage_nodes;
            return Err(("pool.storage_nodes", format!("is {nodes}; it must be from 0 to {STORAGE_NODES_MAX}")));
        }
        if !(1..=2).contains(&self.storage_copies) {
            return Err(("pool.storage_copies", format!("is {}; it must be 1 or 2", self.storage_copies)));
        }
        if self.storage_copies > 1 && self.storage_nodes == 1 {
            let problem = "is 1, and two copies need two storage nodes; set it to 0, 2 or more".to_owned();
            return Err(("pool.storage_nodes", problem));
        }
        let nodes = self.compute_nodes;
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(("pool.compute_nodes", format!("is {nodes}; it must be from 1 to {NODES_MAX}")));
        }
        if nodes > 1 && self.form == PeerMode::Monolithic {
            let problem =
                format!("is {nodes}, and a monolithic peer has one; set it to 1, or pool.form to disaggregated");
            return Err(("pool.compute_nodes", problem));
        }
        check_cpu_percent("pool.compute_cpu_percent", self.compute_cpu_percent)?;
        check_memory_limit("pool.compute_memory_bytes", self.compute_memory_bytes)?;
        check_memory_limit("pool.storage_memory_bytes", self.storage_memory_bytes)?;
        check_latency("pool.link_latency_us", self.link_latency_us)?;
        check_spot_check("pool.spot_check_one_in", self.spot_check_one_in)?;
        check_section("pool.section_bytes", self.section_bytes)?;
        check_budget("pool.memory_bytes", self.memory_bytes, self.section_bytes)?;
        check_budget("pool.peer_bytes", self.peer_bytes, self.section_bytes)?;
        check_watermarks(
            ["pool.evict_above_percent", "pool.evict_to_percent"],
            self.evict_above_percent,
            self.evict_to_percent,
        )?;
        let caches: [(&'static str, usize); 2] = [
            ("pool.metadata_cache_bytes", self.metadata_cache_bytes),
            ("pool.data_cache_bytes", self.data_cache_bytes),
        ];
        for (key, bytes) in caches {
            if bytes > CACHE_BYTES_MAX {
                return Err((key, format!("is {bytes}; it must be from 0 to {CACHE_BYTES_MAX}")));
            }
        }
        Ok(())
    }
}

/// Checks a quota of processor time.
pub(crate) fn check_cpu_percent(key: &'static str, percent: u32) -> Result<(), (&'static str, String)> {
    match percent == 0 || (cgroup::PERCENT_MIN..=CPU_PERCENT_MAX).contains(&percent) {
        true => Ok(()),
        false => {
            let least = cgroup::PERCENT_MIN;
            Err((key, format!("is {percent}; it must be from {least} to {CPU_PERCENT_MAX}, or 0 for no quota")))
        }
    }
}

/// Checks a limit of memory.
pub(crate) fn check_memory_limit(key: &'static str, bytes: u64) -> Result<(), (&'static str, String)> {
    match bytes == 0 || (cgroup::MEMORY_BYTES_MIN..=MEMORY_LIMIT_BYTES_MAX).contains(&bytes) {
        true => Ok(()),
        false => {
            let least = cgroup::MEMORY_BYTES_MIN;
            Err((key, format!("is {bytes}; it must be from {least} to {MEMORY_LIMIT_BYTES_MAX}, or 0 for no limit")))
        }
    }
}

/// Checks the latency of a link.
pub(crate) fn check_latency(key: &'static str, microseconds: u64) -> Result<(), (&'static str, String)> {
    match microseconds <= LINK_LATENCY_US_MAX {
        true => Ok(()),
        false => Err((key, format!("is {microseconds}; it must be at most {LINK_LATENCY_US_MAX}"))),
    }
}

/// The default of [`PoolConfig::spot_check_one_in`].
pub(crate) fn spot_check_one_in() -> u32 {
    SPOT_CHECK_ONE_IN
}

/// The default of [`PoolConfig::evict_above_percent`].
pub(crate) fn evict_above_percent() -> u8 {
    DisaggregatedConfig::default().evict_above_percent
}

/// The default of [`PoolConfig::evict_to_percent`].
pub(crate) fn evict_to_percent() -> u8 {
    DisaggregatedConfig::default().evict_to_percent
}

/// Checks the thresholds at which eviction begins and ends.
pub(crate) fn check_watermarks(keys: [&'static str; 2], above: u8, to: u8) -> Result<(), (&'static str, String)> {
    let [above_key, to_key] = keys;
    if !EVICT_PERCENT.contains(&above) {
        let (least, most) = (EVICT_PERCENT.start(), EVICT_PERCENT.end());
        return Err((above_key, format!("is {above}; it must be from {least} to {most}")));
    }
    if to == 0 || to >= above {
        return Err((to_key, format!("is {to}; it must be from 1 to {}, below {above_key}", above - 1)));
    }
    Ok(())
}

/// Checks the rate at which followers' verdicts are verified again.
pub(crate) fn check_spot_check(key: &'static str, one_in: u32) -> Result<(), (&'static str, String)> {
    match one_in {
        1..=SPOT_CHECK_ONE_IN_MAX => Ok(()),
        _ => Err((key, format!("is {one_in}; it must be from 1 (all are verified again) to {SPOT_CHECK_ONE_IN_MAX}"))),
    }
}

/// Checks the size of sections.
pub(crate) fn check_section(key: &'static str, bytes: u64) -> Result<(), (&'static str, String)> {
    if bytes.is_power_of_two() && (CONFIGURED_SECTION_BYTES_MIN..=SECTION_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let problem = format!(
        "is {bytes}; it must be a power of two from {CONFIGURED_SECTION_BYTES_MIN} to {SECTION_BYTES_MAX}, such as {}",
        pool::SECTION_BYTES_DEFAULT
    );
    Err((key, problem))
}

/// Checks that a budget holds at least one section.
pub(crate) fn check_budget(key: &'static str, bytes: u64, section: u64) -> Result<(), (&'static str, String)> {
    if bytes >= section {
        return Ok(());
    }
    Err((key, format!("is {bytes}, less than one section of {section} bytes; raise it, or make sections smaller")))
}
