//! The rules for a definition that a peer checks before it endorses its approval or its commit, in Fabric's words where Fabric
//! has the rule. They are for new definitions only: validation does not repeat them, as in Fabric, so the ledger may have
//! definitions that break them.

use std::collections::BTreeSet;

use super::{COLLECTIONS_MAX, ContractDefinition, DEFINITION_ROW_BYTES_MAX, is_contract_name};
use crate::rwset::NAMESPACE_BYTES_MAX;

/// Longest name of a contract, in bytes. Fabric has no limit; a gateway takes proposals for contracts with names up to this
/// long, so nobody could call a contract with a longer one.
const CONTRACT_NAME_BYTES_MAX: usize = 255;

/// Names that Fabric keeps for its system contracts.
const SYSTEM_NAMES: [&str; 5] = ["cscc", "escc", "lscc", "qscc", "vscc"];

impl ContractDefinition {
    /// Checks the name, the version and the collections of a definition. The caller checks their member policies.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if !is_contract_name(name) {
            return Err(format!(
                "invalid chaincode name '{name}'. Names can only consist of alphanumerics, '_', and '-' and can only begin with \
                 alphanumerics"
            ));
        }
        check_length(name)?;
        if SYSTEM_NAMES.contains(&name) {
            return Err(format!("chaincode name '{name}' is the name of a system chaincode"));
        }
        let version = &self.endorsement.version;
        if !is_version(version) {
            return Err(format!(
                "invalid chaincode version '{version}'. Versions can only consist of alphanumerics, '_', '-', '+', and '.'"
            ));
        }
        if self.static_collections().count() != self.collections.config.len() {
            return Err("a collection has no configuration".to_owned());
        }
        let (_, rows) = self.rows();
        if rows.iter().any(|row| row.len() > DEFINITION_ROW_BYTES_MAX)
            || self.collections.config.len() > COLLECTIONS_MAX
        {
            return Err(format!(
                "it has more than {COLLECTIONS_MAX} collections, or a row of more than {DEFINITION_ROW_BYTES_MAX} bytes"
            ));
        }
        let (contract, mut names) = (name, BTreeSet::new());
        for collection in self.static_collections() {
            let name = &collection.name;
            let at = |reason: String| format!("collection-name: {name} -- {reason}");
            let (required, most) = (collection.required_peer_count, collection.maximum_peer_count);
            if !is_collection_name(name) {
                return Err(format!(
                    "invalid collection name '{name}'. Names can only consist of alphanumerics, '_', and '-' and cannot begin \
                     with '_'"
                ));
            }
            check_collection_length(contract, name).map_err(at)?;
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
        }
        Ok(())
    }

    /// Checks that the collections are compatible with those of the committed definition.
    ///
    /// # Errors
    /// Which collection is missing or has changed.
    pub fn check_successor_of(&self, committed: &ContractDefinition) -> Result<(), String> {
        if self.static_collections().next().is_none() && committed.static_collections().next().is_some() {
            return Err("the proposed collection config does not contain previously defined collections".to_owned());
        }
        for before in committed.static_collections() {
            let (name, block_to_live) = (&before.name, before.block_to_live);
            let now = self.static_collections().find(|now| now.name == *name).ok_or_else(|| {
                format!("existing collection [{name}] missing in the proposed collection configuration")
            })?;
            if now.block_to_live != block_to_live {
                return Err(format!(
                    "the BlockToLive in an existing collection [{name}] modified. Existing value [{block_to_live}]"
                ));
            }
        }
        Ok(())
    }
}

/// Checks the length of a contract's name.
fn check_length(name: &str) -> Result<(), String> {
    match name.len() <= CONTRACT_NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "the chaincode name has {} bytes; names of at most {CONTRACT_NAME_BYTES_MAX} can be called",
            name.len()
        )),
    }
}

/// Checks that the state has room for the namespaces of a contract's collection.
fn check_collection_length(contract: &str, collection: &str) -> Result<(), String> {
    match contract.len().saturating_add(collection.len()) <= NAMESPACE_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "the names of the chaincode and the collection have more than {NAMESPACE_BYTES_MAX} bytes together, so no transaction \
             could write to it"
        )),
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

    #[test]
    fn names_are_as_long_as_calls_and_the_state_take() {
        let of = |bytes: usize| "a".repeat(bytes);
        assert_eq!(check_length(&of(CONTRACT_NAME_BYTES_MAX)), Ok(()));
        let refused = check_length(&of(CONTRACT_NAME_BYTES_MAX + 1)).expect_err("it is too long");
        assert!(refused.contains("256 bytes; names of at most 255"), "{refused}");
        let rest = NAMESPACE_BYTES_MAX - CONTRACT_NAME_BYTES_MAX;
        assert_eq!(check_collection_length(&of(CONTRACT_NAME_BYTES_MAX), &of(rest)), Ok(()));
        check_collection_length(&of(CONTRACT_NAME_BYTES_MAX), &of(rest + 1)).expect_err("the state does not take it");
        assert_eq!(check_collection_length("a", &of(NAMESPACE_BYTES_MAX - 1)), Ok(()));
    }
}
