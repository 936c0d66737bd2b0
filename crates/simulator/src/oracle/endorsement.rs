//! The oracle's rules for endorsements: which organisations must endorse a transaction, depending on its writes.
//!
//! Each policy that occurs in a simulation requires a number of organisations out of a set. A contract has the policy
//! of its definition in the state, or else the channel's. A key may have a policy of its own in its metadata.

use std::collections::{BTreeMap, BTreeSet};

use base::Bytes;
use prost::Message as _;
use proto::common::msp_role::MspRoleType;
use proto::common::signature_policy::Type as Rule;
use proto::common::{MspPrincipal, MspRole, SignaturePolicyEnvelope};
use proto::kvrwset::KvMetadataWrite;
use proto::lifecycle::state_data::Type as Field;
use proto::lifecycle::{ChaincodeValidationInfo, StateData, StateMetadata};

use proto::protos::ApplicationPolicy;
use proto::protos::application_policy::Type as Policy;

use super::state_row::{StateKey, StateRow};

/// The namespace of definitions.
pub(super) const LIFECYCLE: &str = "_lifecycle";
/// The channel's policy to which definitions refer.
const CHANNEL_POLICY: &str = "/Channel/Application/Endorsement";

/// The number of organisations out of a set that must endorse, each by a peer of its own.
#[derive(Clone, Debug)]
pub(super) struct Need {
    count: usize,
    /// `None` for all organisations of the channel.
    of: Option<BTreeSet<String>>,
}

impl Need {
    /// This number of organisations, whichever they are.
    pub(super) fn any(count: usize) -> Need {
        Need { count, of: None }
    }

    /// This organisation.
    pub(super) fn only(organization: &str) -> Need {
        Need { count: 1, of: Some([organization.to_owned()].into()) }
    }

    /// A need that no endorsements meet.
    pub(super) fn never() -> Need {
        Need { count: usize::MAX, of: None }
    }

    /// Whether these organisations suffice.
    pub(super) fn is_met(&self, endorsers: &BTreeSet<String>) -> bool {
        let counts = |one: &&String| self.of.as_ref().is_none_or(|of| of.contains(*one));
        endorsers.iter().filter(counts).count() >= self.count
    }
}

/// The need of a contract by its definition in the state. The outer `None` means that the state has no definition of
/// it, the inner `None` that its rows cannot be decoded.
pub(super) fn of_definition(
    contract: &str,
    state: &BTreeMap<StateKey, StateRow>,
    channel: &Need,
) -> Option<Option<Need>> {
    let row = |key: String| state.get(&(LIFECYCLE.to_owned(), key)).map(|row| row.value.clone());
    let metadata = row(format!("namespaces/metadata/{contract}"))?;
    let read = || {
        let metadata = StateMetadata::decode(metadata).ok()?;
        let field = StateData::decode(row(format!("namespaces/fields/{contract}/ValidationInfo"))?).ok()?;
        let Some(Field::Bytes(field)) = field.r#type else { return None };
        let info =
            ChaincodeValidationInfo::decode(field).ok().filter(|_| metadata.datatype == "ChaincodeDefinition")?;
        let policy = ApplicationPolicy::decode(info.validation_parameter).ok()?;
        Some(match policy.r#type {
            Some(Policy::ChannelConfigPolicyReference(path)) if path == CHANNEL_POLICY => channel.clone(),
            Some(Policy::SignaturePolicy(policy)) => of_signature_policy(&policy).unwrap_or_else(Need::never),
            _ => Need::never(),
        })
    };
    Some(read())
}

/// The need of a key by its metadata; `None` if the metadata hold no policy.
pub(super) fn of_metadata(metadata: Bytes) -> Option<Need> {
    let entries = KvMetadataWrite::decode(metadata).expect("the oracle has written it").entries;
    let parameter = entries.into_iter().rfind(|entry| entry.name == "VALIDATION_PARAMETER")?.value;
    if parameter.is_empty() {
        return None;
    }
    let policy = SignaturePolicyEnvelope::decode(parameter).ok();
    Some(policy.and_then(|policy| of_signature_policy(&policy)).unwrap_or_else(Need::never))
}

/// The need that a policy states as a number of organisations' peers; `None` for any other policy.
fn of_signature_policy(policy: &SignaturePolicyEnvelope) -> Option<Need> {
    let Some(Rule::NOutOf(rule)) = policy.rule.as_ref()?.r#type.as_ref() else { return None };
    let organization = |principal: &MspPrincipal| {
        let role = MspRole::decode(principal.principal.clone()).ok()?;
        (role.role == MspRoleType::Peer as i32).then_some(role.msp_identifier)
    };
    let mut of = BTreeSet::new();
    for rule in &rule.rules {
        let Some(Rule::SignedBy(index)) = rule.r#type else { return None };
        of.insert(organization(policy.identities.get(usize::try_from(index).ok()?)?)?);
    }
    Some(Need { count: usize::try_from(rule.n).ok()?, of: Some(of) })
}
