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
        let committed = self.state.committed(name).await?;
        let invalid =
            |reason: String| LifecycleError::refused(format!("error validating chaincode definition: {reason}"));
        if !is_contract_name(name) {
            return Err(invalid(format!(
                "invalid chaincode name '{name}'. A name consists of letters and digits, with '_' or '-' between them"
            )));
        }
        if SYSTEM_NAMES.contains(&name) {
            return Err(invalid(format!("chaincode name '{name}' is the name of a system chaincode")));
        }
        let version = &definition.endorsement.version;
        if !is_version(version) {
            return Err(invalid(format!(
                "invalid chaincode version '{version}'. A version consists of letters, digits, '_', '-', '+' and '.'"
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
            let at = |reason: &str| invalid(format!("collection-name: {} -- {reason}", collection.name));
            if !is_collection_name(&collection.name) {
                let reason = "a name consists of letters, digits, '_' and '-', and does not begin with '_'";
                return Err(at(reason));
            }
            if !names.insert(&collection.name) {
                return Err(at("found duplicate in collection configuration"));
            }
            if collection.required_peer_count < 0 {
                return Err(at("the required number of peers is below zero"));
            }
            if collection.maximum_peer_count < collection.required_peer_count {
                return Err(at("the maximum number of peers is below the required one"));
            }
            self.check_members(collection).map_err(|reason| at(&reason))?;
        }
        let Some(committed) = committed else { return Ok(()) };
        for before in committed.static_collections() {
            let at = |reason: &str| invalid(format!("collection-name: {} -- {reason}", before.name));
            let now = definition.static_collections().find(|now| now.name == before.name);
            let now = now.ok_or_else(|| at("an existing collection is missing in the new definition"))?;
            if now.block_to_live != before.block_to_live {
                return Err(at("the BlockToLive of an existing collection cannot be changed"));
            }
        }
        Ok(())
    }

    /// Checks that the member policy of a collection names only organisations of the channel, and that any one of them
    /// satisfies it.
    fn check_members(&self, collection: &StaticCollectionConfig) -> Result<(), String> {
        let policy = collection.member_orgs_policy.as_ref().and_then(|policy| policy.payload.as_ref());
        let Some(Payload::SignaturePolicy(policy)) = policy else {
            return Err("its member policy is missing".to_owned());
        };
        let compiled = SignaturePolicy::compile(policy).map_err(|error| format!("its member policy: {error}"))?;
        if !policy.rule.as_ref().is_some_and(consists_of_ors) {
            return Err("its member policy is not one organisation or an OR of several".to_owned());
        }
        for principal in compiled.principals() {
            let Some(msp) = principal.msp() else { return Err("its member policy names no organisation".to_owned()) };
            if !self.policies.members().msps().any(|known| known.id() == msp) {
                return Err(format!("collection member '{msp}' is not part of the channel"));
            }
        }
        Ok(())
    }
}

fn consists_of_ors(rule: &Rule) -> bool {
    match &rule.r#type {
        Some(Type::SignedBy(_)) => true,
        Some(Type::NOutOf(several)) => several.n == 1 && several.rules.iter().all(consists_of_ors),
        None => false,
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
