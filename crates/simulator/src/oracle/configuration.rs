//! The oracle's rules for configurations.

use base::Bytes;
use identity::sha256;
use prost::Message as _;
use proto::common::implicit_meta_policy::Rule;
use proto::common::policy::PolicyType;
use proto::common::{
    ChannelHeader, ConfigEnvelope, Envelope, HeaderType, ImplicitMetaPolicy, Payload, SignatureHeader,
};

/// What an envelope of type CONFIG sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetConfig {
    pub sequence: u64,
    /// How many organisations must endorse.
    pub endorsements_min: usize,
    /// The envelope of type CONFIG_UPDATE that asked for it; empty if there is none.
    pub update: Bytes,
    /// The row of the state that holds it.
    pub row: Bytes,
    /// The id under which the ledger finds its transaction.
    pub indexed_id: String,
}

/// Reads an envelope of type CONFIG; `None` if it is of another type or cannot be read.
///
/// # Errors
/// If it sets what the oracle has no rules for.
pub(super) fn read(envelope: &[u8]) -> Option<Result<SetConfig, String>> {
    let payload = Payload::decode(Envelope::decode(envelope).ok()?.payload).ok()?;
    let header = payload.header?;
    let channel = ChannelHeader::decode(header.channel_header).ok()?;
    if channel.r#type != HeaderType::Config as i32 {
        return None;
    }
    let signed = SignatureHeader::decode(header.signature_header).ok()?;
    let indexed_id = identity::hex::encode(sha256([&signed.nonce[..], &signed.creator[..]]));
    Some(read_content(payload.data, indexed_id))
}

fn read_content(row: Bytes, indexed_id: String) -> Result<SetConfig, String> {
    let content = ConfigEnvelope::decode(row.clone()).map_err(|error| format!("a configuration: {error}"))?;
    let update = content.last_update.map(|update| update.encode_to_vec().into()).unwrap_or_default();
    let config = content.config.ok_or("a configuration without content")?;
    let root = config.channel_group.ok_or("a configuration without groups")?;
    let application = root.groups.get("Application").ok_or("a configuration without endorsers")?;
    let policy = application.policies.get("Endorsement").and_then(|policy| policy.policy.as_ref());
    let policy = policy.ok_or("a configuration without a policy for endorsements")?;
    if policy.r#type != PolicyType::ImplicitMeta as i32 {
        return Err("the oracle has no rule for policies of other types than implicit meta".to_owned());
    }
    let policy = ImplicitMetaPolicy::decode(policy.value.clone()).map_err(|error| error.to_string())?;
    let endorsements_min = match Rule::try_from(policy.rule) {
        Ok(Rule::Any) => 1,
        Ok(Rule::All) => application.groups.len(),
        Ok(Rule::Majority) => application.groups.len() / 2 + 1,
        Err(_) => return Err("an unknown rule for endorsements".to_owned()),
    };
    Ok(SetConfig { sequence: config.sequence, endorsements_min, update, row, indexed_id })
}
