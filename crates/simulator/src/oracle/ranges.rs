//! The results that a transaction read in a range, in a form that makes two readings comparable.

use std::collections::BTreeMap;

use identity::{Hash, sha256};
use prost::Message;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{KvRead, QueryReads, RangeQueryInfo, Version};

use super::{StateKey, StateRow};

/// Fabric's degree of a summary, which is also the number of results above which there is a summary.
const DEGREE: usize = 50;

/// The results of a range, or the hashes over 51 of them at a time if there are more than 50.
#[derive(Debug, PartialEq, Eq)]
pub enum RangeReadSet {
    /// Every result, in key order.
    Results(Vec<KvRead>),
    /// The hash of each full group of results, in key order, and of the rest.
    Hashes(Vec<Hash>),
}

/// The results of the range now.
pub fn read_range(
    state: &BTreeMap<StateKey, StateRow>,
    namespace: &str,
    range: &RangeQueryInfo,
) -> Result<RangeReadSet, String> {
    let is_summary = matches!(range.reads_info, Some(ReadsInfo::ReadsMerkleHashes(_)));
    let first = (namespace.to_owned(), range.start_key.clone());
    let mut results = Vec::new();
    for ((_, key), row) in state.range(first..).take_while(|((other, _), _)| other == namespace) {
        // A scan that reached its end excludes the end key; a scan that stopped early includes the last key.
        let is_within =
            range.end_key.is_empty() || *key < range.end_key || (!range.itr_exhausted && *key == range.end_key);
        if !is_within {
            break;
        }
        let version = Some(Version { block_num: row.version.0, tx_num: row.version.1 });
        results.push(KvRead { key: key.clone(), version });
    }
    if !is_summary {
        return Ok(RangeReadSet::Results(results));
    }
    if results.len() <= DEGREE {
        return Ok(RangeReadSet::Hashes(Vec::new()));
    }
    let groups = results.chunks(DEGREE + 1);
    if groups.len() > DEGREE {
        return Err("a range with more than one level of hashes".to_owned());
    }
    let hash = |group: &[KvRead]| sha256([&QueryReads { kv_reads: group.to_vec() }.encode_to_vec()[..]]);
    Ok(RangeReadSet::Hashes(groups.map(hash).collect()))
}

/// The results of the range when the transaction was endorsed.
pub fn recorded_range(range: &RangeQueryInfo) -> Result<RangeReadSet, String> {
    match &range.reads_info {
        None => Ok(RangeReadSet::Results(Vec::new())),
        Some(ReadsInfo::RawReads(reads)) => Ok(RangeReadSet::Results(reads.kv_reads.clone())),
        Some(ReadsInfo::ReadsMerkleHashes(summary)) if (summary.max_degree, summary.max_level) == (50, 1) => {
            let hashes = summary.max_level_hashes.iter().map(|hash| hash[..].try_into());
            hashes
                .collect::<Result<_, _>>()
                .map(RangeReadSet::Hashes)
                .map_err(|_| "a hash of another length".to_owned())
        }
        Some(ReadsInfo::ReadsMerkleHashes(_)) => Err("a range with more than one level of hashes".to_owned()),
    }
}
