//! The rules by which a peer began to judge its channel, kept beside its data.
//!
//! Which endorsements a contract's transactions need stands in each process's own file. Two files, or one that was changed
//! between two starts, are two verdicts on the same block, and the peers' states part without a word. So a compute node writes
//! the policies' digests down at its first start, and compares them at every later one:
//!
//! 1. A contract that is new is added to the record, with a warning: all peers of the channel must have it.
//! 2. A contract that is gone, or whose policy is another, ends the start. An operator who has changed it on all peers removes
//!    the record, which the error names.
//!
//! A directory of an earlier release has no record yet; it gets one at its first start.

use std::collections::BTreeMap;
use std::path::Path;

use chain::access::Definitions;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::network::{NodeError, write};

/// The record, in the folder of a compute node.
pub(crate) const FILE: &str = "rules.json";

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// By contract, the SHA-256 of its encoded endorsement policy.
    contracts: BTreeMap<String, String>,
}

impl Record {
    fn of(definitions: &Definitions) -> Record {
        let digest = |policy: &[u8]| identity::hex::encode(identity::sha256([policy]));
        let contracts = definitions
            .iter()
            .map(|(name, definition)| (name.clone(), digest(&definition.endorsement.encode_to_vec())));
        Record { contracts: contracts.collect() }
    }
}

/// Compares what a compute node would judge by with what it has judged by so far, and writes it down.
///
/// # Errors
/// [`NodeError::RulesChanged`]; [`NodeError::File`].
pub(crate) fn check(folder: &Path, definitions: &Definitions) -> Result<(), NodeError> {
    let path = folder.join(FILE);
    let now = Record::of(definitions);
    let before: Record = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| NodeError::file("reading", &path)(std::io::Error::other(error.to_string())))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Record::default(),
        Err(error) => return Err(NodeError::file("reading", &path)(error)),
    };
    let is_other = |(name, digest): &(&String, &String)| now.contracts.get(*name) != Some(*digest);
    let changed: Vec<&str> = before.contracts.iter().filter(is_other).map(|(name, _)| name.as_str()).collect();
    if !changed.is_empty() {
        return Err(NodeError::RulesChanged { contracts: changed.join(", "), record: path });
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
    use chain::access::Definition;

    fn definitions(policies: &[(&str, &str)]) -> Definitions {
        let definition = |policy: &str| {
            let policy = identity::policy::parse(policy).expect("a policy");
            Definition { endorsement: identity::policy::of_signature(policy), ..Definition::default() }
        };
        policies.iter().map(|(name, policy)| ((*name).to_owned(), definition(policy))).collect()
    }

    /// One operator edited a contract's policy in the file of one peer: from the next block on that peer called valid what the
    /// others called invalid, and nobody noticed until somebody compared the states.
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
            assert!(text.contains(FILE) && (text.contains("basic") || text.contains("ycsb")), "{text}");
        }
        // Of another release, with another version of the same contract.
        let mut newer = definitions(&[("basic", all), ("ycsb", any)]);
        newer.values_mut().for_each(|definition| definition.version = "2.0".to_owned());
        super::check(scratch.path(), &newer).expect("no verdict depends on the version");
        std::fs::remove_file(scratch.path().join(FILE)).expect("it is there");
        check(&[("basic", any)]).expect("the step that the error names");
    }
}
