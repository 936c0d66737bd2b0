//! Makes genesis blocks.
//!
//! The configuration has the same groups, values, policies and modification policies that `configtxgen` writes for V2
//! application capabilities. So Fabric's tools and clients can decode and show it:
//!
//! ```text
//! Channel                 Readers ANY, Writers ANY, Admins MAJORITY; hashing, capabilities
//! ├─ Application          … and LifecycleEndorsement, Endorsement; capabilities
//! │  └─ <organisation>    Readers, Writers, Admins, Endorsement by role; MSP, anchor peers
//! └─ Orderer              … and BlockValidation ANY Writers; batch, consensus, capabilities
//!    └─ <organisation>    Readers, Writers, Admins by role; MSP, endpoints
//! ```
//!
//! A new genesis block carries the time and a random nonce, so that two builds of one specification differ.

use std::collections::BTreeMap;

use base::{BlockNumber, Bytes, rt};
use identity::policy::{MetaRule, implicit_meta_to_wire, parse, signature_to_wire};
use prost::Message;
use proto::common::{
    BlockDataHashingStructure, Capability, ChannelHeader, Config, ConfigEnvelope, ConfigGroup, ConfigPolicy,
    ConfigValue, Envelope, HashingAlgorithm, Header, HeaderType, OrdererAddresses, Payload, Policy, SignatureHeader,
};
use proto::msp::MspConfig;
use proto::orderer::consensus_type::State;
use proto::orderer::{BatchSize, BatchTimeout, ChannelRestrictions, ConsensusType};
use proto::protos::{AnchorPeer, AnchorPeers};

use super::{BatchLimits, Capabilities, ChannelConfig, ConsensusConfig, check_channel_name, format_duration};
use crate::block::{Block, BlockMetadata};
use crate::error::Error;
use crate::hash::sha256_of;

/// The policy that must agree to a change of nearly everything in a configuration.
const ADMINS: &str = "Admins";
const READERS: &str = "Readers";
const WRITERS: &str = "Writers";
const NONCE_BYTES: usize = 24;

/// Who must endorse a transaction of a contract that names no policy of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndorsementRule {
    /// A peer of any organisation.
    Any,
    /// A peer each of more than half the organisations.
    Majority,
    /// A peer of every organisation.
    All,
    /// A signature policy as text, such as `AND('Org1MSP.peer', 'Org2MSP.peer')`.
    Policy(String),
}

/// An organisation of a new channel.
#[derive(Clone, Debug)]
pub struct OrganizationSpec {
    /// The name of its group; must be unique among the organisations of its group.
    pub name: String,
    /// The name of its MSP; must be the one in `msp`.
    pub msp_id: String,
    /// Its MSP: an encoded `FabricMSPConfig`.
    pub msp: Bytes,
    /// The peers that other organisations' peers talk to first. For organisations of the application group.
    pub anchor_peers: Vec<(String, u16)>,
    /// Where its orderers listen, as host and port. For organisations of the orderer group.
    pub endpoints: Vec<String>,
}

/// What a new channel is to be.
#[derive(Clone, Debug)]
pub struct GenesisSpec {
    /// The channel's name.
    pub channel: String,
    /// The organisations whose peers endorse.
    pub application: Vec<OrganizationSpec>,
    /// The organisations whose nodes order.
    pub orderers: Vec<OrganizationSpec>,
    /// Who must endorse.
    pub endorsement: EndorsementRule,
    /// When the orderer cuts a block.
    pub batch: BatchLimits,
    /// How transactions are put in order.
    pub consensus: ConsensusConfig,
    /// The rules that every node must know.
    pub capabilities: Capabilities,
}

impl GenesisSpec {
    /// Builds the channel's block 0, unsigned as genesis blocks are.
    ///
    /// # Errors
    /// [`Error::Config`] where the configuration would not be usable: it is read back before it is returned.
    pub fn build(&self) -> Result<Block, Error> {
        check_channel_name(&self.channel)?;
        self.batch.check()?;
        let config = Config { sequence: 0, channel_group: Some(self.channel_group()?) };
        let mut nonce = [0; NONCE_BYTES];
        rt::fill_random(&mut nonce);
        let seconds = i64::try_from(rt::wall_now().seconds()).expect("the year is below 292 billion");
        let channel_header = ChannelHeader {
            r#type: HeaderType::Config as i32,
            version: 1,
            timestamp: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            channel_id: self.channel.clone(),
            tx_id: hex::encode(sha256_of(&[&nonce])),
            ..ChannelHeader::default()
        };
        let signature_header = SignatureHeader { creator: Bytes::new(), nonce: Bytes::copy_from_slice(&nonce) };
        let payload = Payload {
            header: Some(Header {
                channel_header: encode(&channel_header),
                signature_header: encode(&signature_header),
            }),
            data: encode(&ConfigEnvelope { config: Some(config), last_update: None }),
        };
        let envelope = encode(&Envelope { payload: encode(&payload), signature: Bytes::new() });
        // A node that joins with this block would find an error; it is better found now.
        ChannelConfig::from_envelope(&envelope)?;
        let block = Block::build(BlockNumber(0), None, &[envelope]);
        let mut metadata = BlockMetadata::default();
        // Orderer metadata that says that block 0 is the newest configuration, without signatures.
        metadata.set_signatures(Bytes::from_static(&[0x0a, 2, 0x0a, 0]));
        Ok(block.with_metadata(metadata))
    }

    fn channel_group(&self) -> Result<ConfigGroup, Error> {
        let mut group = GroupBuilder::new();
        group.meta_policies();
        group.value("HashingAlgorithm", &HashingAlgorithm { name: "SHA256".into() });
        group.value("BlockDataHashingStructure", &BlockDataHashingStructure { width: u32::MAX });
        group.capabilities(&self.capabilities.channel);
        group.0.groups.insert("Application".into(), self.application_group()?);
        group.0.groups.insert("Orderer".into(), self.orderer_group()?);
        Ok(group.0)
    }

    fn application_group(&self) -> Result<ConfigGroup, Error> {
        let mut group = GroupBuilder::new();
        group.meta_policies();
        group.policy("Endorsement", self.endorsement.to_wire()?);
        group.policy("LifecycleEndorsement", implicit_meta_to_wire(MetaRule::Majority, "Endorsement"));
        group.capabilities(&self.capabilities.application);
        for organization in &self.application {
            let mut own = organization.group(&[
                (READERS, &["admin", "peer", "client"]),
                (WRITERS, &["admin", "client"]),
                (ADMINS, &["admin"]),
                ("Endorsement", &["peer"]),
            ])?;
            let peers = organization.anchor_peers.iter();
            let anchor_peers: Vec<AnchorPeer> =
                peers.map(|(host, port)| AnchorPeer { host: host.clone(), port: i32::from(*port) }).collect();
            if !anchor_peers.is_empty() {
                own.value("AnchorPeers", &AnchorPeers { anchor_peers });
            }
            group.organization("/Channel/Application", organization, own)?;
        }
        Ok(group.0)
    }

    fn orderer_group(&self) -> Result<ConfigGroup, Error> {
        let mut group = GroupBuilder::new();
        group.meta_policies();
        group.policy("BlockValidation", implicit_meta_to_wire(MetaRule::Any, WRITERS));
        let BatchLimits { messages_max, absolute_bytes_max, preferred_bytes_max, timeout } = self.batch;
        group.value(
            "BatchSize",
            &BatchSize {
                max_message_count: messages_max,
                absolute_max_bytes: absolute_bytes_max,
                preferred_max_bytes: preferred_bytes_max,
            },
        );
        group.value("BatchTimeout", &BatchTimeout { timeout: format_duration(timeout) });
        group.value("ChannelRestrictions", &ChannelRestrictions::default());
        let state = if self.consensus.maintenance { State::Maintenance } else { State::Normal };
        group.value(
            "ConsensusType",
            &ConsensusType {
                r#type: self.consensus.kind.clone(),
                metadata: self.consensus.metadata.clone(),
                state: state as i32,
            },
        );
        group.capabilities(&self.capabilities.orderer);
        for organization in &self.orderers {
            let mut own =
                organization.group(&[(READERS, &["member"]), (WRITERS, &["member"]), (ADMINS, &["admin"])])?;
            if !organization.endpoints.is_empty() {
                own.value("Endpoints", &OrdererAddresses { addresses: organization.endpoints.clone() });
            }
            group.organization("/Channel/Orderer", organization, own)?;
        }
        Ok(group.0)
    }
}

impl EndorsementRule {
    fn to_wire(&self) -> Result<Policy, Error> {
        let rule = match self {
            EndorsementRule::Any => MetaRule::Any,
            EndorsementRule::Majority => MetaRule::Majority,
            EndorsementRule::All => MetaRule::All,
            EndorsementRule::Policy(text) => {
                let policy = parse(text).map_err(|cause| Error::config(super::ENDORSEMENT, cause.to_string()))?;
                return Ok(signature_to_wire(&policy));
            }
        };
        Ok(implicit_meta_to_wire(rule, "Endorsement"))
    }
}

impl OrganizationSpec {
    /// The organisation's group with its MSP and one policy for each of these, satisfied by any of the roles.
    fn group(&self, policies: &[(&str, &[&str])]) -> Result<GroupBuilder, Error> {
        let mut group = GroupBuilder::new();
        for (name, roles) in policies {
            let alternatives: Vec<String> = roles.iter().map(|role| format!("'{}.{role}'", self.msp_id)).collect();
            let policy = parse(&format!("OR({})", alternatives.join(", "))).map_err(|cause| {
                Error::config(format!("MSP {:?}", self.msp_id), format!("no policy can name it: {cause}"))
            })?;
            group.policy(name, signature_to_wire(&policy));
        }
        group.value("MSP", &MspConfig { r#type: 0, config: self.msp.clone() });
        Ok(group)
    }
}

/// A group in the making. Everything in it is changed by the group's own administrators.
struct GroupBuilder(ConfigGroup);

impl GroupBuilder {
    fn new() -> GroupBuilder {
        GroupBuilder(ConfigGroup { mod_policy: ADMINS.into(), ..ConfigGroup::default() })
    }

    fn policy(&mut self, name: &str, policy: Policy) {
        let policy = ConfigPolicy { version: 0, policy: Some(policy), mod_policy: ADMINS.into() };
        self.0.policies.insert(name.into(), policy);
    }

    fn value(&mut self, name: &str, value: &impl Message) {
        let value = ConfigValue { version: 0, value: encode(value), mod_policy: ADMINS.into() };
        self.0.values.insert(name.into(), value);
    }

    fn meta_policies(&mut self) {
        self.policy(READERS, implicit_meta_to_wire(MetaRule::Any, READERS));
        self.policy(WRITERS, implicit_meta_to_wire(MetaRule::Any, WRITERS));
        self.policy(ADMINS, implicit_meta_to_wire(MetaRule::Majority, ADMINS));
    }

    fn capabilities<'a>(&mut self, names: impl IntoIterator<Item = &'a String>) {
        let capabilities: BTreeMap<String, Capability> =
            names.into_iter().map(|name| (name.clone(), Capability {})).collect();
        self.value("Capabilities", &proto::common::Capabilities { capabilities });
    }

    fn organization(&mut self, path: &str, organization: &OrganizationSpec, group: GroupBuilder) -> Result<(), Error> {
        if organization.name.is_empty() || organization.name.contains('/') {
            return Err(Error::config(path, format!("{:?} is no name for an organisation", organization.name)));
        }
        if self.0.groups.insert(organization.name.clone(), group.0).is_some() {
            return Err(Error::config(path, format!("two organisations are called {:?}", organization.name)));
        }
        Ok(())
    }
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
