//! What a transaction read in a range, in a form that two readings can be compared in.

use std::collections::BTreeMap;

use identity::{Hash, sha256};
use prost::Message;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{KvRead, QueryReads, RangeQueryInfo, Version};

use super::{Key, Row};

/// Fabric's degree of a summary, and with it the number of results above which there is one.
const DEGREE: usize = 50;

/// The results of a range, or the hashes over 51 of them at a time where they are more than 50.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    Results(Vec<KvRead>),
    Hashes(Vec<Hash>),
}

/// What the range reads now.
pub fn read(state: &BTreeMap<Key, Row>, namespace: &str, range: &RangeQueryInfo) -> Result<Reading, String> {
    let is_summary = matches!(range.reads_info, Some(ReadsInfo::ReadsMerkleHashes(_)));
    let first = (namespace.to_owned(), range.start_key.clone());
    let mut results = Vec::new();
    for ((_, key), row) in state.range(first..).take_while(|((other, _), _)| other == namespace) {
        // A scan that went to its end did not see its end key; one that was broken off saw the last key last.
        let is_within =
            range.end_key.is_empty() || *key < range.end_key || (!range.itr_exhausted && *key == range.end_key);
        if !is_within {
            break;
        }
        let version = Some(Version { block_num: row.version.0, tx_num: row.version.1 });
        results.push(KvRead { key: key.clone(), version });
    }
    if !is_summary {
        return Ok(Reading::Results(results));
    }
    if results.len() <= DEGREE {
        return Ok(Reading::Hashes(Vec::new()));
    }
    let groups = results.chunks(DEGREE + 1);
    if groups.len() > DEGREE {
        return Err("a range with more than one level of hashes".to_owned());
    }
    let hash = |group: &[KvRead]| sha256([&QueryReads { kv_reads: group.to_vec() }.encode_to_vec()[..]]);
    Ok(Reading::Hashes(groups.map(hash).collect()))
}

/// What the range read when the transaction was endorsed.
pub fn recorded(range: &RangeQueryInfo) -> Result<Reading, String> {
    match &range.reads_info {
        None => Ok(Reading::Results(Vec::new())),
        Some(ReadsInfo::RawReads(reads)) => Ok(Reading::Results(reads.kv_reads.clone())),
        Some(ReadsInfo::ReadsMerkleHashes(summary)) if (summary.max_degree, summary.max_level) == (50, 1) => {
            let hashes = summary.max_level_hashes.iter().map(|hash| hash[..].try_into());
            hashes.collect::<Result<_, _>>().map(Reading::Hashes).map_err(|_| "a hash of another length".to_owned())
        }
        Some(ReadsInfo::ReadsMerkleHashes(_)) => Err("a range with more than one level of hashes".to_owned()),
    }
}
