//! A channel's configuration, read from its configuration block.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, ChannelId};
use identity::MspManager;
use identity::policy::{Policy, PolicyTree};
use prost::Message as _;
use proto::common::{Config, ConfigEnvelope, ConfigGroup, HashingAlgorithm, OrdererAddresses, Orderers};
use proto::orderer::ConsensusType;
use proto::orderer::consensus_type::State;

use super::BLOCK_VALIDATION;
use super::batch::BatchLimits;
use super::capability::Capabilities;
use super::group::{APPLICATION, ORDERER, ROOT, decode, group, value};
use super::organization::ChannelOrganization;
use crate::block::Block;
use crate::error::Error;
use crate::transaction::Transaction;
use crate::{Hash, sha256};

/// The path of the policy that endorsements must satisfy where a contract names no other.
pub const ENDORSEMENT: &str = "/Channel/Application/Endorsement";

/// The namespace of the world state in which a channel's configuration stands. No contract can write to it.
pub const CONFIG_NAMESPACE: &str = "";
/// The key of the newest configuration in its namespace; the value is an encoded `ConfigEnvelope`. As in Fabric, the row is not
/// part of the commit hash. A configuration of block 0 has no row.
pub const CONFIG_KEY: &str = "CHANNEL_CONFIG_ENV_BYTES";

/// The longest name of a channel, in bytes.
pub const CHANNEL_NAME_BYTES_MAX: usize = 249;
/// The most consenters a channel may have.
pub const CONSENTERS_MAX: usize = 1024;

/// The value that says how transactions are put in order.
const CONSENSUS_TYPE: &str = "ConsensusType";

/// How a channel's transactions are put in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsensusConfig {
    /// The type's name, such as `etcdraft`, `BFT` or `solo`.
    pub kind: String,
    /// What the type needs to know; encoded as the type defines.
    pub metadata: Bytes,
    /// Whether the channel is closed to ordinary transactions while its consensus is changed.
    pub maintenance: bool,
}

/// A channel's configuration, read, checked and compiled.
#[derive(Debug)]
pub struct ChannelConfig {
    channel: ChannelId,
    /// The `ConfigEnvelope` that holds the configuration, as it was received.
    encoded: Bytes,
    digest: Hash,
    sequence: u64,
    application: Vec<ChannelOrganization>,
    orderers: Vec<ChannelOrganization>,
    msps: Arc<MspManager>,
    policies: PolicyTree,
    endorsement: Policy,
    block_validation: Policy,
    batch: BatchLimits,
    consensus: ConsensusConfig,
    capabilities: Capabilities,
    orderer_addresses: Vec<String>,
    consenters: BTreeMap<u32, Bytes>,
    acls: BTreeMap<String, String>,
}

impl ChannelConfig {
    /// Reads the configuration in a configuration block: one envelope, of type CONFIG.
    ///
    /// # Errors
    /// What is malformed, missing, out of bounds or not supported.
    pub fn from_block(block: &Block) -> Result<ChannelConfig, Error> {
        if block.len() != 1 {
            let reason =
                format!("a configuration block has one transaction, block {} has {}", block.number(), block.len());
            return Err(Error::config(ROOT, reason));
        }
        ChannelConfig::from_envelope(&block.envelope(0))
    }

    /// Reads the configuration in an envelope of type CONFIG. Who signed the envelope is not looked at.
    ///
    /// # Errors
    /// As [`ChannelConfig::from_block`].
    pub fn from_envelope(envelope: &Bytes) -> Result<ChannelConfig, Error> {
        let (transaction, content) = read_config_envelope(envelope)?;
        let config = content.config.ok_or(Error::Missing { what: "the configuration in its envelope" })?;
        ChannelConfig::compile(transaction.header().channel(), &config, transaction.data())
    }

    /// Reads the configuration that the world state holds under [`CONFIG_KEY`]: an encoded `ConfigEnvelope`.
    ///
    /// # Errors
    /// As [`ChannelConfig::from_block`].
    pub fn from_state(channel: &ChannelId, content: Bytes) -> Result<ChannelConfig, Error> {
        super::weight::check(&content)?;
        let config = decode::<ConfigEnvelope>(ROOT, &content)?.config;
        let config = config.ok_or(Error::Missing { what: "the configuration in its envelope" })?;
        ChannelConfig::compile(channel.as_str(), &config, content)
    }

    /// The most memory that [`ChannelConfig::from_envelope`] may take at once for this envelope, in bytes, unless it
    /// rejects the envelope because of its weight. Fuzz tests of decoders check this bound.
    ///
    /// # Errors
    /// If the envelope is rejected before the bound is known.
    pub fn most_memory(envelope: &Bytes) -> Result<usize, Error> {
        let transaction = Transaction::decode(envelope).map_err(|invalid| Error::config(ROOT, invalid.to_string()))?;
        super::weight::most_memory(&transaction.data())
    }

    /// Reads a configuration that this process has made, without a check of the memory that it takes.
    ///
    /// # Errors
    /// As [`ChannelConfig::from_block`].
    pub fn from_config(channel: &str, config: &Config) -> Result<ChannelConfig, Error> {
        let encoded = ConfigEnvelope { config: Some(config.clone()), last_update: None }.encode_to_vec();
        ChannelConfig::compile(channel, config, encoded.into())
    }

    /// Checks and compiles a configuration, whose encoded envelope is `encoded`.
    fn compile(channel: &str, config: &Config, encoded: Bytes) -> Result<ChannelConfig, Error> {
        check_channel_name(channel)?;
        // Before anything is compiled, so that the encoded form is not held beside that.
        let digest = sha256(&config.encode_to_vec());
        let root = config.channel_group.as_ref().ok_or(Error::Missing { what: "the group /Channel" })?;
        let application = group(root, "Application", APPLICATION)?;
        let orderer = group(root, "Orderer", ORDERER)?;
        let capabilities = Capabilities::read(root, orderer, application)?;
        check_hashing(root)?;

        let application_orgs = super::organization::read(APPLICATION, application)?;
        let orderer_orgs = super::organization::read(ORDERER, orderer)?;
        if application_orgs.is_empty() {
            return Err(Error::config(APPLICATION, "there is no organisation"));
        }
        if orderer_orgs.is_empty() {
            return Err(Error::config(ORDERER, "there is no organisation"));
        }
        let msps = super::organization::msps([&application_orgs, &orderer_orgs])?;

        let policies = PolicyTree::compile("Channel", root).map_err(|cause| Error::config(ROOT, cause.to_string()))?;
        let require =
            |path: &str| policies.require(path).cloned().map_err(|cause| Error::config(path, cause.to_string()));
        Ok(ChannelConfig {
            channel: ChannelId::from(channel),
            encoded,
            digest,
            sequence: config.sequence,
            msps: Arc::new(MspManager::new(msps)),
            endorsement: require(ENDORSEMENT)?,
            block_validation: require(BLOCK_VALIDATION)?,
            batch: BatchLimits::read(orderer)?,
            consensus: read_consensus(orderer)?,
            capabilities,
            orderer_addresses: read_addresses(root, &orderer_orgs)?,
            consenters: read_consenters(orderer)?,
            acls: super::acl::read(application)?,
            application: application_orgs,
            orderers: orderer_orgs,
            policies,
        })
    }

    /// The channel's name.
    pub fn channel(&self) -> &ChannelId {
        &self.channel
    }

    /// SHA-256 of the encoded configuration: equal ones are read, checked and compiled to the same.
    pub fn digest(&self) -> &Hash {
        &self.digest
    }

    /// The configuration as the world state holds it ([`CONFIG_KEY`]): an encoded `ConfigEnvelope`.
    pub fn content(&self) -> &Bytes {
        &self.encoded
    }

    /// The root group of the configuration's tree, decoded again: it is needed only when the configuration changes.
    ///
    /// # Errors
    /// Only if the memory of this process is damaged: the configuration was decoded from the same bytes before.
    pub fn decode_root(&self) -> Result<ConfigGroup, Error> {
        let config = decode::<ConfigEnvelope>(ROOT, &self.encoded)?.config;
        config.and_then(|config| config.channel_group).ok_or(Error::Missing { what: "the group /Channel" })
    }

    /// Whether another configuration of the channel has the same content but for the state of its consensus, such as
    /// maintenance.
    ///
    /// # Errors
    /// As [`ChannelConfig::decode_root`].
    pub fn differs_only_in_consensus_state(&self, other: &ChannelConfig) -> Result<bool, Error> {
        let without_state = |config: &ChannelConfig| {
            let mut root = config.decode_root()?;
            let orderer = root.groups.get_mut("Orderer");
            drop(orderer.and_then(|orderer| orderer.values.remove(CONSENSUS_TYPE)));
            Ok::<ConfigGroup, Error>(root)
        };
        let has_same_type = self.consensus.kind == other.consensus.kind;
        let is_same = has_same_type && self.consensus.metadata == other.consensus.metadata;
        Ok(is_same && without_state(self)? == without_state(other)?)
    }

    /// How often the configuration was changed since the channel was made.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The organisations whose peers endorse, by the name of their group.
    pub fn application(&self) -> &[ChannelOrganization] {
        &self.application
    }

    /// The organisations whose nodes order, by the name of their group.
    pub fn orderers(&self) -> &[ChannelOrganization] {
        &self.orderers
    }

    /// All organisations' MSPs.
    pub fn msps(&self) -> &Arc<MspManager> {
        &self.msps
    }

    /// All policies, by path.
    pub fn policies(&self) -> &PolicyTree {
        &self.policies
    }

    /// The policy at a path such as `/Channel/Application/Writers`; nothing satisfies one that does not exist.
    pub fn policy(&self, path: &str) -> Policy {
        self.policies.get(path)
    }

    /// The policy that endorsements must satisfy where a contract names no other.
    pub fn endorsement_policy(&self) -> &Policy {
        &self.endorsement
    }

    /// The policy that the orderers' signatures must satisfy.
    pub fn block_validation_policy(&self) -> &Policy {
        &self.block_validation
    }

    /// When the orderer cuts a block.
    pub fn batch(&self) -> &BatchLimits {
        &self.batch
    }

    /// How transactions are put in order.
    pub fn consensus(&self) -> &ConsensusConfig {
        &self.consensus
    }

    /// The rules that every node of the channel must know.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The addresses at which the orderers listen, as host and port: the addresses that the ordering organisations
    /// name, or the channel's if they name none.
    pub fn orderer_addresses(&self) -> &[String] {
        &self.orderer_addresses
    }

    /// The identity of the consenter with this number, where the configuration numbers them.
    pub fn consenter_identity(&self, number: u32) -> Option<&Bytes> {
        self.consenters.get(&number)
    }

    /// The path of the policy that guards a resource such as `qscc/GetChainInfo`.
    pub fn acl(&self, resource: &str) -> &str {
        self.stated_acl(resource).unwrap_or_else(|| super::acl::default_path(resource))
    }

    /// The path of the policy that the configuration itself states for a resource.
    pub fn stated_acl(&self, resource: &str) -> Option<&str> {
        self.acls.get(resource).map(String::as_str)
    }
}

/// An envelope of type CONFIG, and its content. The memory that the content takes is bounded before it is decoded.
pub(super) fn read_config_envelope(envelope: &Bytes) -> Result<(Transaction, ConfigEnvelope), Error> {
    let transaction = Transaction::decode(envelope).map_err(|invalid| Error::config(ROOT, invalid.to_string()))?;
    if !transaction.is_config() {
        let reason = format!("the transaction is of type {}, not a configuration", transaction.header().kind());
        return Err(Error::config(ROOT, reason));
    }
    let data = transaction.data();
    super::weight::check(&data)?;
    let content = decode(ROOT, &data)?;
    Ok((transaction, content))
}

/// Checks that a channel may have this name: as in Fabric, a lower-case letter, then lower-case letters, digits, dots
/// and dashes.
///
/// # Errors
/// [`Error::Config`].
pub fn check_channel_name(name: &str) -> Result<(), Error> {
    if name.len() > CHANNEL_NAME_BYTES_MAX {
        let reason = format!("a name for a channel has {} bytes, more than {CHANNEL_NAME_BYTES_MAX}", name.len());
        return Err(Error::config(ROOT, reason));
    }
    let fits = !name.is_empty()
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'));
    if fits { Ok(()) } else { Err(Error::config(ROOT, format!("{name:?} is not a name for a channel"))) }
}

/// Blocks are hashed with SHA-256; Fabric allows no other either.
pub(super) fn check_hashing(root: &ConfigGroup) -> Result<(), Error> {
    match value::<HashingAlgorithm>(ROOT, root, "HashingAlgorithm")? {
        Some(algorithm) if algorithm.name == "SHA256" => Ok(()),
        Some(algorithm) => {
            Err(Error::config("/Channel/HashingAlgorithm", format!("{:?} is not supported", algorithm.name)))
        }
        None => Err(Error::config("/Channel/HashingAlgorithm", "the value is missing")),
    }
}

pub(super) fn read_consensus(orderer: &ConfigGroup) -> Result<ConsensusConfig, Error> {
    const PATH: &str = "/Channel/Orderer/ConsensusType";
    let Some(consensus) = value::<ConsensusType>(ORDERER, orderer, CONSENSUS_TYPE)? else {
        return Err(Error::config(PATH, "the value is missing"));
    };
    let maintenance = match State::try_from(consensus.state) {
        Ok(State::Normal) => false,
        Ok(State::Maintenance) => true,
        Err(_) => return Err(Error::config(PATH, format!("the state {} is unknown", consensus.state))),
    };
    Ok(ConsensusConfig { kind: consensus.r#type, metadata: consensus.metadata, maintenance })
}

pub(super) fn read_addresses(root: &ConfigGroup, orderers: &[ChannelOrganization]) -> Result<Vec<String>, Error> {
    let own: Vec<String> = orderers.iter().flat_map(|organization| organization.endpoints.iter().cloned()).collect();
    if !own.is_empty() {
        return Ok(own);
    }
    Ok(value::<OrdererAddresses>(ROOT, root, "OrdererAddresses")?.unwrap_or_default().addresses)
}

pub(super) fn read_consenters(orderer: &ConfigGroup) -> Result<BTreeMap<u32, Bytes>, Error> {
    const PATH: &str = "/Channel/Orderer/Orderers";
    let orderers = value::<Orderers>(ORDERER, orderer, "Orderers")?.unwrap_or_default();
    if orderers.consenter_mapping.len() > CONSENTERS_MAX {
        return Err(Error::config(PATH, format!("there are more than {CONSENTERS_MAX} consenters")));
    }
    let mut consenters = BTreeMap::new();
    for consenter in orderers.consenter_mapping {
        let identity = proto::msp::SerializedIdentity { mspid: consenter.msp_id, id_bytes: consenter.identity };
        if consenters.insert(consenter.id, identity.encode_to_vec().into()).is_some() {
            return Err(Error::config(PATH, format!("two consenters have the number {}", consenter.id)));
        }
    }
    Ok(consenters)
}

#[cfg(test)]
mod tests;
