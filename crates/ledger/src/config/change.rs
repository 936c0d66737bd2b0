//! Makes changes of a channel's configuration: the update that leads from one configuration to another, and the envelopes that
//! carry it.
//!
//! 1. A member decodes the configuration in force ([`ChannelConfig::decode_root`]), edits a copy, and computes the update
//!    ([`ChannelConfig::update_to`]). An element that differs is written at the next version; a group whose list of members or
//!    whose modification policy differs is written with all its members. Versions in the edited copy are ignored.
//! 2. Members sign the update ([`sign_update`]), and one of them sends it to an orderer.
//! 3. The orderer computes the next configuration ([`ChannelConfig::propose_update`]) and signs it ([`sign_config`]).

use std::collections::BTreeMap;

use base::{Bytes, rt};
use identity::Signer;
use prost::Message;
use proto::common::{
    ChannelHeader, ConfigEnvelope, ConfigGroup, ConfigSignature, ConfigUpdate, ConfigUpdateEnvelope, Envelope, Header,
    HeaderType, Payload, SignatureHeader,
};

use super::ChannelConfig;
use crate::error::Error;

/// The length of a nonce, as Fabric's tools make it.
const NONCE_BYTES: usize = 24;

impl ChannelConfig {
    /// The update that leads from this configuration to one with this root group; `None` if they are the same. The update
    /// reads what it relies on, so it fails if somebody else changes that first.
    ///
    /// # Errors
    /// If this configuration cannot be decoded again.
    pub fn update_to(&self, desired: &ConfigGroup) -> Result<Option<ConfigUpdate>, Error> {
        let difference = GroupDifference::between(&self.decode_root()?, desired);
        Ok(difference.is_change.then(|| ConfigUpdate {
            channel_id: self.channel().to_string(),
            read_set: Some(difference.read),
            write_set: Some(difference.written),
            ..ConfigUpdate::default()
        }))
    }
}

/// What an update reads and writes of a group and below it.
struct GroupDifference {
    read: ConfigGroup,
    written: ConfigGroup,
    is_change: bool,
}

impl GroupDifference {
    fn between(current: &ConfigGroup, desired: &ConfigGroup) -> GroupDifference {
        let is_changed = current.mod_policy != desired.mod_policy
            || !have_same_keys(&current.groups, &desired.groups)
            || !have_same_keys(&current.values, &desired.values)
            || !have_same_keys(&current.policies, &desired.policies);
        let read =
            ConfigGroup { version: current.version, mod_policy: current.mod_policy.clone(), ..ConfigGroup::default() };
        let mut difference = GroupDifference { written: read.clone(), read, is_change: is_changed };
        if is_changed {
            difference.written.version = next(current.version);
            difference.written.mod_policy.clone_from(&desired.mod_policy);
        }
        for (name, desired) in &desired.groups {
            let Some(current) = current.groups.get(name) else {
                difference.written.groups.insert(name.clone(), new_group(desired));
                continue;
            };
            let member = GroupDifference::between(current, desired);
            difference.is_change |= member.is_change;
            if member.is_change || is_changed {
                difference.read.groups.insert(name.clone(), member.read);
                difference.written.groups.insert(name.clone(), member.written);
            }
        }
        let (read, written) = (&mut difference.read, &mut difference.written);
        let values = members(&current.values, &desired.values, |value| &mut value.version, is_changed);
        let policies = members(&current.policies, &desired.policies, |policy| &mut policy.version, is_changed);
        difference.is_change |= values.is_change || policies.is_change;
        (read.values, written.values) = (values.read, values.written);
        (read.policies, written.policies) = (policies.read, policies.written);
        difference
    }
}

/// What an update reads and writes of a group's values, or of its policies.
struct MemberDifference<M> {
    read: BTreeMap<String, M>,
    written: BTreeMap<String, M>,
    is_change: bool,
}

/// Compares the values, or the policies, of a group. `version` is the place of an element's version. If the group itself
/// changes, elements that stay the same are listed too.
fn members<M: Clone + PartialEq>(
    current: &BTreeMap<String, M>,
    desired: &BTreeMap<String, M>,
    version: fn(&mut M) -> &mut u64,
    is_group_changed: bool,
) -> MemberDifference<M> {
    let mut difference = MemberDifference { read: BTreeMap::new(), written: BTreeMap::new(), is_change: false };
    for (name, desired) in desired {
        let mut now = current.get(name).cloned();
        let version_now = now.as_mut().map(|now| *version(now));
        let mut member = desired.clone();
        *version(&mut member) = version_now.unwrap_or_default();
        if now.as_ref() == Some(&member) {
            if is_group_changed {
                difference.read.insert(name.clone(), member.clone());
                difference.written.insert(name.clone(), member);
            }
            continue;
        }
        *version(&mut member) = version_now.map_or(0, next);
        difference.written.insert(name.clone(), member);
        difference.is_change = true;
    }
    difference
}

/// A group that does not exist yet: every element in it has version 0.
fn new_group(desired: &ConfigGroup) -> ConfigGroup {
    let mut group = desired.clone();
    group.version = 0;
    group.values.values_mut().for_each(|value| value.version = 0);
    group.policies.values_mut().for_each(|policy| policy.version = 0);
    group.groups.values_mut().for_each(|member| *member = new_group(member));
    group
}

fn have_same_keys<V>(one: &BTreeMap<String, V>, other: &BTreeMap<String, V>) -> bool {
    one.len() == other.len() && one.keys().all(|name| other.contains_key(name))
}

/// No channel changes so often that a version reaches its maximum; the update would be rejected.
fn next(version: u64) -> u64 {
    version.saturating_add(1)
}

/// An update signed by these members, in an envelope that the first of them sends.
///
/// # Panics
/// If there is no signer.
pub fn sign_update(update: &ConfigUpdate, signers: &[&Signer]) -> Bytes {
    let sender = signers.first().expect("an update has a sender");
    let config_update = encode(update);
    let signatures = signers.iter().map(|signer| {
        let signature_header = signature_header(signer);
        let signature = signer.sign_parts(&[&signature_header, &config_update]);
        ConfigSignature { signature_header, signature }
    });
    let data = encode(&ConfigUpdateEnvelope { signatures: signatures.collect(), config_update });
    sign_envelope(sender, &update.channel_id, HeaderType::ConfigUpdate, data)
}

/// The next configuration of a channel in the envelope that an orderer puts into a block. Like Fabric's orderers it gives the
/// transaction no id.
pub fn sign_config(channel: &str, content: &ConfigEnvelope, orderer: &Signer) -> Bytes {
    sign_envelope(orderer, channel, HeaderType::Config, encode(content))
}

fn sign_envelope(signer: &Signer, channel: &str, kind: HeaderType, data: Bytes) -> Bytes {
    let header = ChannelHeader {
        r#type: kind as i32,
        channel_id: channel.to_owned(),
        timestamp: Some(prost_types::Timestamp {
            seconds: i64::try_from(rt::wall_now().seconds()).unwrap_or(i64::MAX),
            nanos: 0,
        }),
        ..ChannelHeader::default()
    };
    let header = Header { channel_header: encode(&header), signature_header: signature_header(signer) };
    let payload = encode(&Payload { header: Some(header), data });
    let signature = signer.sign(&payload);
    encode(&Envelope { payload, signature })
}

fn signature_header(signer: &Signer) -> Bytes {
    let mut nonce = [0; NONCE_BYTES];
    rt::fill_random(&mut nonce);
    encode(&SignatureHeader { creator: signer.serialized().clone(), nonce: Bytes::copy_from_slice(&nonce) })
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
