//! Records the endorsement policies under which a peer began to validate its channel. The record lies beside the peer's
//! data.
//!
//! The endorsement policies of contracts that the ledger does not define are set in each process's own file. If two files differ, or if one is changed
//! between two starts, peers reach different verdicts on the same block, and their states diverge silently. Therefore a
//! compute node records digests of the policies at its first start and compares them at every later start:
//!
//! 1. A new contract is added to the record, with a warning that all peers of the channel must have it.
//! 2. A missing contract or a changed policy makes the start fail. The error names the record; an operator who has made
//!    the change on all peers deletes the record.
//!
//! A directory from an earlier release has no record. Its first start writes one.

use std::collections::BTreeMap;
use std::path::Path;

use rules::definitions::ContractDefinitions;
use serde::{Deserialize, Serialize};

use crate::network::{NodeError, write};

/// The file of the record, in the folder of a compute node.
pub(crate) const RECORD_FILE: &str = "rules.json";

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyRecord {
    /// The SHA-256 of each contract's encoded endorsement policy.
    contracts: BTreeMap<String, String>,
}

impl PolicyRecord {
    fn of(definitions: &ContractDefinitions) -> PolicyRecord {
        let digest = |policy: &[u8]| identity::hex::encode(identity::sha256([policy]));
        let contracts = definitions
            .iter()
            .map(|(name, definition)| (name.clone(), digest(&definition.validation.validation_parameter)));
        PolicyRecord { contracts: contracts.collect() }
    }
}

/// Compares a compute node's policies with the record, and updates the record.
///
/// # Errors
/// [`NodeError::PoliciesChanged`]; [`NodeError::File`].
pub(crate) fn check(folder: &Path, definitions: &ContractDefinitions) -> Result<(), NodeError> {
    let path = folder.join(RECORD_FILE);
    let now = PolicyRecord::of(definitions);
    let before: PolicyRecord = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| NodeError::file("reading", &path)(std::io::Error::other(error.to_string())))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PolicyRecord::default(),
        Err(error) => return Err(NodeError::file("reading", &path)(error)),
    };
    let is_other = |(name, digest): &(&String, &String)| now.contracts.get(*name) != Some(*digest);
    let changed: Vec<&str> = before.contracts.iter().filter(is_other).map(|(name, _)| name.as_str()).collect();
    if !changed.is_empty() {
        return Err(NodeError::PoliciesChanged { contracts: changed.join(", "), record: path });
    }
    if now == before {
        return Ok(());
    }
    if !before.contracts.is_empty() {
        let new: Vec<&String> = now.contracts.keys().filter(|name| !before.contracts.contains_key(*name)).collect();
        tracing::warn!(contracts = ?new, "contracts are new here; all peers of the channel must have them, with the same policies");
    }
    write(&path, (serde_json::to_string_pretty(&now).expect("it has a JSON form") + "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::lifecycle::ContractDefinition;

    fn definitions(policies: &[(&str, &str)]) -> ContractDefinitions {
        let definition = |policy: &str| {
            let policy = identity::policy::parse(policy).expect("a policy");
            ContractDefinition::first("1.0", &identity::policy::of_signature(policy))
        };
        policies.iter().map(|(name, policy)| ((*name).to_owned(), definition(policy))).collect()
    }

    /// Regression: an operator edited a contract's policy in the file of one peer. From the next block on that peer
    /// called transactions valid that the others called invalid, and this stayed unnoticed until the states were
    /// compared.
    #[test]
    fn a_peer_does_not_start_by_other_policies_than_it_began_with() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let check = |policies: &[(&str, &str)]| super::check(scratch.path(), &definitions(policies));
        let (any, all) = ("OR('A.peer', 'B.peer')", "AND('A.peer', 'B.peer')");
        check(&[("basic", all)]).expect("a directory without a record gets one");
        check(&[("basic", all)]).expect("the same again");
        check(&[("basic", all), ("ycsb", any)]).expect("one more");
        for (what, policies) in [
            ("an easier policy", &[("basic", any), ("ycsb", any)][..]),
            ("a contract less", &[("basic", all)]),
            ("none", &[]),
        ] {
            let error = check(policies).expect_err(what);
            assert_eq!(error.kind(), base::ErrorKind::Rejected, "{what}");
            let text = error.to_string();
            assert!(text.contains(RECORD_FILE) && (text.contains("basic") || text.contains("ycsb")), "{text}");
        }
        // Another release with a newer version of the same contract.
        let mut newer = definitions(&[("basic", all), ("ycsb", any)]);
        newer.values_mut().for_each(|definition| definition.endorsement.version = "2.0".to_owned());
        super::check(scratch.path(), &newer).expect("no verdict depends on the version");
        std::fs::remove_file(scratch.path().join(RECORD_FILE)).expect("it is there");
        check(&[("basic", any)]).expect("the step that the error names");
    }
}
