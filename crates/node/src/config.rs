//! The configuration file, `heddle.toml`.
//!
//! Every key has a default. `default.toml`, the content of a new file, lists every key with its meaning. Unknown keys
//! are rejected. Errors name the key or the line and say what to do.

mod chaincode;
mod crypto;
mod error;
pub(crate) mod ordering;
pub(crate) mod pool;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ledger::config::BatchLimits;
use ledger::config::genesis::EndorsementRule;
use serde::{Deserialize, Serialize};

pub use chaincode::{ChaincodeConfig, ChaincodePortConfig};
pub use crypto::{CryptoConfig, VerificationMethod};
pub use error::ConfigError;
pub use ordering::{CutSetting, OrderingConfig, OrderingEngine};
pub use pool::{OffloadSetting, PeerMode, PoolConfig, ProviderKind, ValidationSetting};

/// Maximum of organisations in one process.
pub const ORGANIZATIONS_MAX: usize = 16;
/// Ports between the gateways of two organisations.
const GATEWAY_PORT_STEP: u16 = 1000;

/// The text of a new configuration file.
pub const DEFAULT_TEXT: &str = include_str!("default.toml");

/// The configuration of one network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeddleConfig {
    /// Which log lines are written: a level, or a list of targets and levels.
    pub log: String,
    /// Whether gRPC ports use TLS.
    pub tls: bool,
    /// Channel, organisations, policy. Fixed when the network is created.
    pub network: NetworkConfig,
    /// The listening addresses.
    pub ports: PortsConfig,
    /// When blocks are cut. Fixed when the network is created.
    pub batch: BatchConfig,
    /// The installed contracts. Fixed when the network is created.
    pub contracts: ContractsConfig,
    /// Memory for the world state.
    pub storage: StateStorageConfig,
    /// How transactions are ordered. Engine and number of orderers are fixed when the network is created; the orderers
    /// of Raft can be changed by commands while the network runs.
    pub ordering: OrderingConfig,
    /// The form of peers, and the memory that they share.
    pub pool: PoolConfig,
    /// Bounds on what clients can start.
    pub limits: ClientLimits,
    /// How signatures are verified.
    pub crypto: CryptoConfig,
    /// The port for chaincodes that connect to their peer.
    pub chaincode_port: ChaincodePortConfig,
    /// Chaincodes that run outside of the peers, without packages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chaincodes: Vec<ChaincodeConfig>,
}

/// The channel and its members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// The channel's name.
    pub channel: String,
    /// The organisations' names.
    pub organizations: Vec<String>,
    /// `any`, `majority`, `all`, or a signature policy.
    pub policy: String,
}

/// The listening addresses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortsConfig {
    /// The address of gateways and orderer.
    pub host: IpAddr,
    /// The first gateway's port, or 0.
    pub gateway: u16,
    /// The orderer's port, or 0.
    pub orderer: u16,
    /// The first port for links between processes, or 0.
    pub links: u16,
    /// The port of the metrics, or 0.
    pub metrics: u16,
    /// The address of the metrics.
    pub metrics_host: IpAddr,
}

/// When blocks are cut.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Transactions in a block.
    pub messages: u32,
    /// Bytes of transactions in a block of more than one.
    pub preferred_bytes: u32,
    /// Milliseconds that a transaction waits for others.
    pub timeout_ms: u32,
    /// Bytes of one transaction.
    pub absolute_bytes: u32,
}

/// The installed contracts, by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContractsConfig(pub BTreeMap<String, ContractConfig>);

/// One installed contract.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContractConfig {
    /// Its endorsement policy, if it differs from the network's: as [`NetworkConfig::policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Memory for the world state, of each peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StateStorageConfig {
    /// Bytes of records in memory.
    pub cache_bytes: usize,
    /// Bytes of the tables' write buffers: the one that fills, and the one that is being written to disk.
    pub memtable_bytes: usize,
    /// Bytes of the tables' blocks in memory.
    #[serde(default = "table_cache_bytes")]
    pub table_cache_bytes: usize,
    /// Bytes of memory for the newest versions of recently used keys of the tables.
    #[serde(default = "table_hint_bytes")]
    pub table_hint_bytes: usize,
    /// Bytes of writes that are not in the tables yet.
    pub delta_bytes: usize,
    /// The savepoint moves after this many blocks: their writes become rows of the tables.
    pub savepoint_blocks: u64,
    /// Minimum of free bytes on the disk: with less, new transactions are rejected.
    pub free_bytes_min: u64,
}

/// Bounds on what clients can start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientLimits {
    /// Maximum of concurrent unary calls at each port.
    pub calls: usize,
    /// Maximum of concurrent streams at each port.
    pub streams: usize,
    /// Maximum of proposals that run or wait at each peer.
    pub proposals: usize,
    /// Maximum of concurrent connections at each port.
    pub connections: usize,
    /// Maximum of concurrent connections from one address, at each port, whose clients have not authenticated. 0 is no
    /// limit: for ports behind a proxy, where all clients have the proxy's address.
    pub connections_per_address: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
}

impl Default for HeddleConfig {
    fn default() -> HeddleConfig {
        HeddleConfig {
            log: "info,fjall=warn,lsm_tree=warn".to_owned(),
            tls: true,
            network: NetworkConfig::default(),
            ports: PortsConfig::default(),
            batch: BatchConfig::default(),
            contracts: ContractsConfig::default(),
            storage: StateStorageConfig::default(),
            ordering: OrderingConfig::default(),
            pool: PoolConfig::default(),
            limits: ClientLimits::default(),
            crypto: CryptoConfig::default(),
            chaincode_port: ChaincodePortConfig::default(),
            chaincodes: Vec::new(),
        }
    }
}

impl Default for NetworkConfig {
    fn default() -> NetworkConfig {
        NetworkConfig {
            channel: "mychannel".to_owned(),
            organizations: organization_names(3),
            policy: "any".to_owned(),
        }
    }
}

impl Default for PortsConfig {
    fn default() -> PortsConfig {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        PortsConfig { host: loopback, gateway: 7051, orderer: 7050, links: 7100, metrics: 9443, metrics_host: loopback }
    }
}

impl Default for BatchConfig {
    fn default() -> BatchConfig {
        BatchConfig { messages: 500, preferred_bytes: 16 << 20, timeout_ms: 100, absolute_bytes: 90 << 20 }
    }
}

impl Default for ContractsConfig {
    fn default() -> ContractsConfig {
        let names = ["basic", "events", "kmeans", "smallbank", "ycsb"];
        ContractsConfig(names.into_iter().map(|name| (name.to_owned(), ContractConfig::default())).collect())
    }
}

/// The maximum of [`StateStorageConfig::savepoint_blocks`]: a restart replays up to twice as many.
pub const SAVEPOINT_BLOCKS_MAX: u64 = 512;

/// The default of [`Storage::savepoint_blocks`].
pub(crate) fn savepoint_blocks() -> u64 {
    32
}

/// The default of [`StateStorageConfig::table_cache_bytes`].
pub(crate) fn table_cache_bytes() -> usize {
    32 << 20
}

/// The default of [`StateStorageConfig::table_hint_bytes`].
pub(crate) fn table_hint_bytes() -> usize {
    16 << 20
}

impl Default for StateStorageConfig {
    fn default() -> StateStorageConfig {
        StateStorageConfig {
            cache_bytes: 128 << 20,
            memtable_bytes: 64 << 20,
            table_cache_bytes: table_cache_bytes(),
            table_hint_bytes: table_hint_bytes(),
            delta_bytes: 64 << 20,
            savepoint_blocks: savepoint_blocks(),
            free_bytes_min: 64 << 20,
        }
    }
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            calls: 4096,
            streams: 2048,
            proposals: 4096,
            connections: 1024,
            connections_per_address: 128,
            message_bytes: 100 << 20,
        }
    }
}

/// `Org1`, `Org2` and so on.
pub fn organization_names(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("Org{number}")).collect()
}

/// Keys of `heddle.toml` that were renamed in this release: the old one, an alias of the new one, and the new one.
const RENAMED_KEYS: [(&str, &str); 1] = [("pool.borrow", "pool.offload")];

impl HeddleConfig {
    /// The text of a new configuration file: every key, its meaning and its default.
    pub fn default_text() -> &'static str {
        DEFAULT_TEXT
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path) -> Result<HeddleConfig, ConfigError> {
        let origin = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: origin.clone(), source })?;
        HeddleConfig::parse(&text, &origin)
    }

    /// Reads a text. `origin` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::Value`].
    pub fn parse(text: &str, origin: &str) -> Result<HeddleConfig, ConfigError> {
        let config: HeddleConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { origin: origin.to_owned(), message: error.to_string() })?;
        config.check(origin)?;
        Ok(config)
    }

    /// The keys of a text that were renamed in this release, each with the new one. The old names are understood as well: files
    /// that a network was created with have them for ever, and are not warned of.
    pub fn renamed_keys(text: &str) -> Vec<(&'static str, &'static str)> {
        let table: toml::Table = text.parse().unwrap_or_default();
        let has = |dotted: &str| {
            let (section, key) = dotted.split_once('.').expect("the keys have sections");
            table.get(section).and_then(|section| section.get(key)).is_some()
        };
        RENAMED_KEYS.into_iter().filter(|(old, _)| has(old)).collect()
    }

    /// The same configuration as a text without comments.
    pub fn to_text(&self) -> String {
        toml::to_string_pretty(self).expect("a configuration is tables, numbers and texts")
    }

    /// The same configuration as a text that explains every key.
    pub fn to_commented_text(&self) -> String {
        let values: toml::Table = self.to_text().parse().expect("a configuration's text is a table");
        let mut text = String::new();
        let mut section: Option<&str> = None;
        for line in DEFAULT_TEXT.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = Some(name);
            }
            let key = line.split_once(" = ").map(|(key, _)| key).filter(|key| !key.starts_with('#'));
            match (key, section) {
                (None, _) => text.push_str(line),
                // The set of contracts varies: write all of them at once, after their heading.
                (Some("basic"), Some("contracts")) => {
                    let contracts = self.contracts.0.iter().map(|(name, contract)| match &contract.policy {
                        None => format!("{name} = {{}}"),
                        Some(policy) => format!("{name} = {{ policy = {} }}", toml::Value::from(policy.as_str())),
                    });
                    text.push_str(&contracts.collect::<Vec<_>>().join("\n"));
                }
                (Some(_), Some("contracts")) => continue,
                (Some(key), section) => {
                    let table = section.map_or(Some(&values), |section| values.get(section)?.as_table());
                    let value = table.and_then(|table| table.get(key)).expect("the default file names keys that exist");
                    text.push_str(&format!("{key} = {value}"));
                }
            }
            text.push('\n');
        }
        text + &chaincode::to_text(&self.chaincodes)
    }

    /// Checks the values beyond what their types check.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check(&self, origin: &str) -> Result<(), ConfigError> {
        let wrong = |key: &'static str, problem: String| ConfigError::Value { origin: origin.to_owned(), key, problem };
        let network = &self.network;
        check_channel(&network.channel).map_err(|problem| wrong("network.channel", problem))?;
        check_organizations(&network.organizations).map_err(|problem| wrong("network.organizations", problem))?;
        rule(&network.policy).map_err(|problem| wrong("network.policy", problem))?;
        for (name, contract) in &self.contracts.0 {
            if let Some(policy) = &contract.policy {
                rule(policy).map_err(|problem| wrong("contracts", format!("gives {name} a policy that {problem}")))?;
            }
        }
        chaincode::check(&self.chaincodes).map_err(|problem| wrong("chaincodes", problem))?;
        self.chaincode_port.check(network.organizations.len()).map_err(|(key, problem)| wrong(key, problem))?;
        if self.contracts.0.is_empty() {
            return Err(wrong("contracts", "names no contract; leave the section out to have all".to_owned()));
        }
        let highest =
            usize::from(self.ports.gateway) + (network.organizations.len() - 1) * usize::from(GATEWAY_PORT_STEP);
        if self.ports.gateway != 0 && highest > usize::from(u16::MAX) {
            let count = network.organizations.len();
            return Err(wrong(
                "ports.gateway",
                format!(
                    "leaves too few ports for {count} organisations, {GATEWAY_PORT_STEP} apart; choose a lower port, or 0"
                ),
            ));
        }
        let ranges: [(&'static str, u64, u64, u64); 17] = [
            ("batch.messages", self.batch.messages.into(), 1, 100_000),
            ("batch.preferred_bytes", self.batch.preferred_bytes.into(), 1, 90 << 20),
            ("batch.absolute_bytes", self.batch.absolute_bytes.into(), 1, 90 << 20),
            ("batch.timeout_ms", self.batch.timeout_ms.into(), 1, 3_600_000),
            ("storage.cache_bytes", self.storage.cache_bytes as u64, 0, 1 << 40),
            ("storage.memtable_bytes", self.storage.memtable_bytes as u64, 1 << 20, 1 << 36),
            ("storage.table_cache_bytes", self.storage.table_cache_bytes as u64, 1 << 20, 1 << 40),
            ("storage.table_hint_bytes", self.storage.table_hint_bytes as u64, 1 << 20, 1 << 36),
            ("storage.delta_bytes", self.storage.delta_bytes as u64, 1 << 20, 1 << 36),
            ("storage.savepoint_blocks", self.storage.savepoint_blocks, 1, SAVEPOINT_BLOCKS_MAX),
            ("storage.free_bytes_min", self.storage.free_bytes_min, 0, 1 << 60),
            ("limits.calls", self.limits.calls as u64, 1, 1 << 20),
            ("limits.streams", self.limits.streams as u64, 1, 1 << 20),
            ("limits.proposals", self.limits.proposals as u64, 1, 1 << 16),
            ("limits.connections", self.limits.connections as u64, 1, 1 << 20),
            ("limits.connections_per_address", self.limits.connections_per_address as u64, 0, 1 << 20),
            ("limits.message_bytes", self.limits.message_bytes as u64, 1 << 10, 1 << 31),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(wrong(key, format!("is {value}; it must be from {least} to {most}")));
            }
        }
        self.ordering.check().map_err(|(key, problem)| wrong(key, problem))?;
        self.pool.check().map_err(|(key, problem)| wrong(key, problem))?;
        if self.batch.preferred_bytes > self.batch.absolute_bytes {
            return Err(wrong("batch.preferred_bytes", "must not be above batch.absolute_bytes".to_owned()));
        }
        Ok(())
    }

    /// Checks that this configuration can run a network that was created with `created`.
    ///
    /// # Errors
    /// [`ConfigError::Fixed`].
    pub fn check_same_network(&self, created: &HeddleConfig) -> Result<(), ConfigError> {
        fixed("network.channel", &created.network.channel, &self.network.channel)?;
        fixed("network.organizations", &created.network.organizations, &self.network.organizations)?;
        fixed("network.policy", &created.network.policy, &self.network.policy)?;
        fixed("batch", &created.batch, &self.batch)?;
        fixed("ordering.engine", &created.ordering.engine, &self.ordering.engine)?;
        let orderers = fixed("ordering.orderers", &created.ordering.count(), &self.ordering.count());
        orderers.map_err(|error| match error {
            ConfigError::Fixed { key, was, now, .. } if self.ordering.engine == OrderingEngine::Raft => {
                let remedy =
                    "and change them with `heddle orderer add` and `heddle orderer remove` while the network runs";
                ConfigError::Fixed { key, was, now, remedy }
            }
            error => error,
        })?;
        fixed("contracts", &created.contracts.0, &self.contracts.0)
    }

    /// The gateway port of an organisation; 0 is any free port.
    pub fn gateway_port(&self, organization: usize) -> u16 {
        match self.ports.gateway {
            0 => 0,
            // `check` has made sure that the highest port exists.
            first => first.saturating_add(GATEWAY_PORT_STEP.saturating_mul(organization as u16)),
        }
    }

    /// When blocks are cut.
    pub fn batch_limits(&self) -> BatchLimits {
        BatchLimits {
            messages_max: self.batch.messages,
            absolute_bytes_max: self.batch.absolute_bytes,
            preferred_bytes_max: self.batch.preferred_bytes,
            timeout: Duration::from_millis(self.batch.timeout_ms.into()),
        }
    }

    /// Who must endorse a transaction of a contract without a policy of its own.
    pub fn endorsement_rule(&self) -> EndorsementRule {
        rule(&self.network.policy).unwrap_or(EndorsementRule::Majority)
    }
}

fn fixed<T: PartialEq + fmt::Debug>(key: &'static str, was: &T, now: &T) -> Result<(), ConfigError> {
    if was == now {
        return Ok(());
    }
    let remedy = "or create a new network in another directory";
    Err(ConfigError::Fixed { key, was: format!("{was:?}"), now: format!("{now:?}"), remedy })
}

/// Reads a policy: a word, or a signature policy.
pub(crate) fn rule(text: &str) -> Result<EndorsementRule, String> {
    match text {
        "any" => Ok(EndorsementRule::Any),
        "majority" => Ok(EndorsementRule::Majority),
        "all" => Ok(EndorsementRule::All),
        _ => match identity::policy::parse(text) {
            Ok(_) => Ok(EndorsementRule::Policy(text.to_owned())),
            Err(error) => Err(format!(
                "is {text:?}, which is neither any, majority nor all, nor a policy such as \"OR('Org1MSP.peer')\": {error}"
            )),
        },
    }
}

fn check_channel(name: &str) -> Result<(), String> {
    let mut characters = name.chars();
    let starts_well = characters.next().is_some_and(|first| first.is_ascii_lowercase());
    let goes_on_well = characters
        .all(|character| character.is_ascii_lowercase() || character.is_ascii_digit() || ".-".contains(character));
    if starts_well && goes_on_well && name.len() < 250 {
        return Ok(());
    }
    Err(format!(
        "is {name:?}; it must start with a-z, continue with a-z, 0-9, dots and dashes, and be shorter than 250"
    ))
}

fn check_organizations(names: &[String]) -> Result<(), String> {
    if names.is_empty() || names.len() > ORGANIZATIONS_MAX {
        return Err(format!("has {} names; it must have 1 to {ORGANIZATIONS_MAX}", names.len()));
    }
    let mut seen = BTreeSet::new();
    for name in names {
        let is_name = name.len() <= 32
            && name.chars().next().is_some_and(|first| first.is_ascii_alphabetic())
            && name.chars().all(|character| character.is_ascii_alphanumeric());
        if !is_name {
            return Err(format!("has {name:?}; a name is a letter and then letters and digits, 32 at most"));
        }
        if name.eq_ignore_ascii_case("orderer") {
            return Err(format!("has {name:?}, which is the name of the orderer's own organisation; choose another"));
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(format!("has {name:?} twice (upper and lower case are the same here)"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_key_is_understood_and_noticed() {
        let text = "[pool]\nborrow = \"never\"\n";
        let config = HeddleConfig::parse(text, "heddle.toml").expect("the old name is an alias");
        assert_eq!(config.pool.offload, pool::OffloadSetting::Never);
        assert_eq!(HeddleConfig::renamed_keys(text), [("pool.borrow", "pool.offload")]);
        assert_eq!(HeddleConfig::renamed_keys(DEFAULT_TEXT), []);
        let both = "[pool]\nborrow = \"never\"\noffload = \"never\"\n";
        HeddleConfig::parse(both, "heddle.toml").expect_err("one key has two values");
    }

    #[test]
    fn the_default_file_says_what_the_defaults_are() {
        assert_eq!(
            HeddleConfig::parse(DEFAULT_TEXT, "default.toml").expect("the default file"),
            HeddleConfig::default()
        );
        assert_eq!(HeddleConfig::parse("", "an empty file").expect("an empty file"), HeddleConfig::default());
    }

    #[test]
    fn the_default_file_names_and_explains_every_key() {
        let all: toml::Table = HeddleConfig::default().to_text().parse().expect("our own text");
        let mut keys = Vec::new();
        for (key, value) in &all {
            match value.as_table() {
                Some(table) => keys.extend(table.keys().cloned()),
                None => keys.push(key.clone()),
            }
        }
        for key in keys {
            let line = DEFAULT_TEXT.lines().position(|line| line.starts_with(&format!("{key} = ")));
            let line = line.unwrap_or_else(|| panic!("{key} is not in the default file"));
            let explained = DEFAULT_TEXT.lines().take(line).any(|line| line.starts_with('#'));
            assert!(explained, "{key} is not explained");
        }
    }

    #[test]
    fn a_text_without_comments_comes_back() {
        let mut config = HeddleConfig::default();
        config.network.organizations = organization_names(5);
        config.contracts.0.insert("mine".into(), ContractConfig { policy: Some("OR('Org1MSP.peer')".into()) });
        assert_eq!(HeddleConfig::parse(&config.to_text(), "text").expect("our own text"), config);
    }

    #[test]
    fn a_text_with_comments_comes_back() {
        assert_eq!(HeddleConfig::default().to_commented_text(), DEFAULT_TEXT);
        let mut config = HeddleConfig { tls: false, ..HeddleConfig::default() };
        config.network.organizations = organization_names(2);
        config.contracts.0.remove("ycsb");
        config.contracts.0.insert("basic".into(), ContractConfig { policy: Some("OR('Org1MSP.peer')".into()) });
        assert_eq!(HeddleConfig::parse(&config.to_commented_text(), "text").expect("our own text"), config);
    }

    #[test]
    fn errors_name_the_key_or_the_line() {
        for (text, expected) in [
            ("[network]\nchanel = \"x\"", "line 2"),
            ("[batch]\nmessages = \"many\"", "line 2"),
            ("[batch]\nmessages = 0", "batch.messages is 0; it must be from 1 to 100000"),
            ("[network]\nchannel = \"My Channel\"", "network.channel"),
            ("[network]\norganizations = []", "network.organizations has 0 names"),
            ("[network]\norganizations = [\"A\", \"a\"]", "twice"),
            ("[network]\npolicy = \"most\"", "network.policy"),
            ("[ports]\ngateway = 64000", "ports.gateway"),
            ("[contracts]\nbasic = { policy = \"AND(\" }", "contracts gives basic a policy"),
            ("[batch]\npreferred_bytes = 100000000", "batch.preferred_bytes"),
            ("[storage]\nsavepoint_blocks = 0", "storage.savepoint_blocks is 0; it must be from 1 to 512"),
            ("[pool]\nmemory_bytes = 1048576", "pool.memory_bytes is 1048576, less than one section of 16777216 bytes"),
            ("[pool]\npeer_bytes = 65536", "pool.peer_bytes is 65536, less than one section"),
            ("[pool]\nsection_bytes = 3000000", "a power of two"),
            ("[pool]\nform = \"pooled\"", "line 2"),
            ("[pool]\nmemory_nodes = 0", "pool.memory_nodes is 0; it must be from 1 to 64"),
            ("[pool]\noffload = \"sometimes\"", "line 2"),
            (
                "[pool]\ncompute_cpu_percent = 9",
                "pool.compute_cpu_percent is 9; it must be from 10 to 100000, or 0 for no quota",
            ),
            ("[pool]\nstorage_memory_bytes = 1000", "pool.storage_memory_bytes is 1000; it must be from 16777216 to"),
            ("[pool]\nlink_latency_us = 10001", "pool.link_latency_us is 10001; it must be at most 10000"),
            ("[pool]\ncompute_nodes = 65", "pool.compute_nodes is 65; it must be from 1 to 64"),
            (
                "[pool]\ncompute_nodes = 2\nform = \"monolithic\"",
                "pool.compute_nodes is 2, and a monolithic peer has one",
            ),
            ("[pool]\nevict_above_percent = 99", "pool.evict_above_percent is 99; it must be from 2 to 98"),
            ("[pool]\nevict_to_percent = 90", "pool.evict_to_percent is 90; it must be from 1 to 89, below pool"),
            (
                "[pool]\ndata_cache_bytes = 9223372036854775807",
                "pool.data_cache_bytes is 9223372036854775807; it must be",
            ),
        ] {
            let error = HeddleConfig::parse(text, "heddle.toml").expect_err(text).to_string();
            assert!(error.contains("heddle.toml") && error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_the_genesis_block_holds_cannot_be_changed_later() {
        let created = HeddleConfig::default();
        let mut now = created.clone();
        now.ports.gateway = 0;
        now.limits.calls = 1;
        assert!(now.check_same_network(&created).is_ok());
        now.batch.messages = 7;
        let error = now.check_same_network(&created).expect_err("another batch").to_string();
        assert!(error.contains("batch was"), "{error}");
    }
}
