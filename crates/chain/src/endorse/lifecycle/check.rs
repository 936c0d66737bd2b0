//! Checks a definition before a peer endorses its approval or its commit.

use std::collections::BTreeSet;

use identity::policy::SignaturePolicy;
use ledger::lifecycle::{COLLECTIONS_MAX, ContractDefinition, DEFINITION_ROW_BYTES_MAX, is_contract_name};
use proto::common::SignaturePolicy as Rule;
use proto::common::signature_policy::Type;
use proto::protos::StaticCollectionConfig;
use proto::protos::collection_policy_config::Payload;

use super::{CallResult, LifecycleCall, LifecycleError};

/// Names that Fabric keeps for its system contracts.
const SYSTEM_NAMES: [&str; 5] = ["cscc", "escc", "lscc", "qscc", "vscc"];

impl LifecycleCall<'_> {
    /// Checks the name, version and collections of a definition. The collections must also be compatible with those of
    /// the committed definition.
    pub(super) async fn check_definition(&mut self, name: &str, definition: &ContractDefinition) -> CallResult<()> {
        let invalid =
            |reason: String| LifecycleError::refused(format!("error validating chaincode definition: {reason}"));
        if !is_contract_name(name) {
            return Err(invalid(format!(
                "invalid chaincode name '{name}'. Names can only consist of alphanumerics, '_', and '-' and can only begin with \
                 alphanumerics"
            )));
        }
        if SYSTEM_NAMES.contains(&name) {
            return Err(invalid(format!("chaincode name '{name}' is the name of a system chaincode")));
        }
        let version = &definition.endorsement.version;
        if !is_version(version) {
            return Err(invalid(format!(
                "invalid chaincode version '{version}'. Versions can only consist of alphanumerics, '_', '-', '+', and '.'"
            )));
        }
        if definition.static_collections().count() != definition.collections.config.len() {
            return Err(invalid("a collection has no configuration".to_owned()));
        }
        let (_, rows) = definition.rows();
        if rows.iter().any(|row| row.len() > DEFINITION_ROW_BYTES_MAX)
            || definition.collections.config.len() > COLLECTIONS_MAX
        {
            return Err(invalid(format!(
                "it has more than {COLLECTIONS_MAX} collections, or a row of more than {DEFINITION_ROW_BYTES_MAX} bytes"
            )));
        }
        let mut names = BTreeSet::new();
        for collection in definition.static_collections() {
            let name = &collection.name;
            let at = |reason: String| invalid(format!("collection-name: {name} -- {reason}"));
            let (required, most) = (collection.required_peer_count, collection.maximum_peer_count);
            if !is_collection_name(name) {
                return Err(invalid(format!(
                    "invalid collection name '{name}'. Names can only consist of alphanumerics, '_', and '-' and cannot begin \
                     with '_'"
                )));
            }
            if !names.insert(name) {
                return Err(at("found duplicate in collection configuration".to_owned()));
            }
            if most < required {
                return Err(at(format!(
                    "maximum peer count ({most}) cannot be less than the required peer count ({required})"
                )));
            }
            if required < 0 {
                return Err(at(format!("requiredPeerCount ({required}) cannot be less than zero")));
            }
            self.check_members(collection).map_err(invalid)?;
        }
        let Some(committed) = self.state.committed(name).await? else { return Ok(()) };
        if names.is_empty() && committed.static_collections().next().is_some() {
            let reason = "the proposed collection config does not contain previously defined collections";
            return Err(invalid(reason.to_owned()));
        }
        for before in committed.static_collections() {
            let (name, block_to_live) = (&before.name, before.block_to_live);
            let now = definition.static_collections().find(|now| now.name == *name).ok_or_else(|| {
                invalid(format!("existing collection [{name}] missing in the proposed collection configuration"))
            })?;
            if now.block_to_live != block_to_live {
                return Err(invalid(format!(
                    "the BlockToLive in an existing collection [{name}] modified. Existing value [{block_to_live}]"
                )));
            }
        }
        Ok(())
    }

    /// Checks that the member policy of a collection names only organisations of the channel, and that any one of them
    /// satisfies it.
    fn check_members(&self, collection: &StaticCollectionConfig) -> Result<(), String> {
        let name = &collection.name;
        let Some(policy) = &collection.member_orgs_policy else {
            return Err(format!("collection member policy is not set for collection '{name}'"));
        };
        let Some(Payload::SignaturePolicy(policy)) = &policy.payload else {
            return Err(format!("collection member org policy is empty for collection '{name}'"));
        };
        let compiled = SignaturePolicy::compile(policy)
            .map_err(|error| format!("invalid member org policy for collection '{name}': {error}"))?;
        if let Some(needed) = policy.rule.as_ref().and_then(not_or) {
            return Err(format!(
                "collection-name: {name} -- error in member org policy: signature policy is not an OR concatenation, NOutOf \
                 {needed}"
            ));
        }
        for principal in compiled.principals() {
            let Some(msp) = principal.msp() else {
                return Err(format!("collection-name: {name} -- its member policy names no organisation"));
            };
            if !self.policies.members().msps().any(|known| known.id() == msp) {
                return Err(format!("collection-name: {name} -- collection member '{msp}' is not part of the channel"));
            }
        }
        Ok(())
    }
}

/// The number of signatures that a rule needs where it is not an OR; `None` if it consists of ORs.
fn not_or(rule: &Rule) -> Option<i32> {
    match &rule.r#type {
        Some(Type::NOutOf(several)) if several.n == 1 => several.rules.iter().find_map(not_or),
        Some(Type::NOutOf(several)) => Some(several.n),
        Some(Type::SignedBy(_)) | None => None,
    }
}

fn is_version(version: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    !version.is_empty() && version.bytes().all(allowed)
}

fn is_collection_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !name.is_empty() && !name.starts_with('_') && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_fabrics() {
        for (name, is_name) in [
            ("basic", true),
            ("my-contract_2", true),
            ("", false),
            ("a--b", false),
            ("-a", false),
            ("a_", false),
            ("a.b", false),
        ] {
            assert_eq!(is_contract_name(name), is_name, "{name:?}");
        }
        for (version, is_valid) in [("1.0", true), ("v1_2+3-4", true), ("", false), ("1 0", false), ("ü", false)] {
            assert_eq!(is_version(version), is_valid, "{version:?}");
        }
        for (name, is_name) in [("coll", true), ("-c_d", true), ("_implicit_org_A", false), ("", false), ("a.b", false)]
        {
            assert_eq!(is_collection_name(name), is_name, "{name:?}");
        }
    }
}
