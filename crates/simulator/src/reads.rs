//! Compares the reads of endorsers with the ledger.
//!
//! A contract runs on one snapshot. So there must be one height at which all keys had the versions that the contract
//! read: an endorsement on half a block would fail this check. This height must also be at least the height that the
//! same node had already reported to a client: a stale read would fail this check.
//!
//! The history of a key is not in the read set, but in the contract's answer. It must consist of every write below one
//! height, newest first. That height, too, must be at least the height that the node had reported.
//!
//! A private value is in the contract's answer only. Its hash must be the one that the key had at the version in the read set.

use std::collections::BTreeMap;

use base::Bytes;
use identity::{hex, sha256};
use prost::Message;
use proto::kvrwset::{HashedRwSet, KvRead, KvrwSet, range_query_info::ReadsInfo};
use proto::rwset::TxReadWriteSet;

use crate::oracle::{Oracle, StateKey, StateVersion};

/// One endorsement.
#[derive(Clone, Debug)]
pub struct EndorsedReads {
    /// The node that endorsed.
    pub node: String,
    /// The number of blocks whose commits this node had reported before it was asked.
    pub height_min: u64,
    /// The read-write set that it signed.
    pub set: TxReadWriteSet,
}

/// The history of an asset, as a node answered it.
#[derive(Clone, Debug)]
pub struct AssetHistory {
    /// The node that answered.
    pub node: String,
    /// The number of blocks whose commits this node had reported before it was asked.
    pub height_min: u64,
    /// The asset.
    pub id: String,
    /// The contract's answer, in JSON.
    pub answer: Bytes,
}

/// The value of a private key, as a node answered it.
#[derive(Clone, Debug)]
pub struct PrivateAnswer {
    /// The node that answered.
    pub node: String,
    /// The contract's answer: the value, empty if the key has none.
    pub answer: Bytes,
    /// The read-write set that the node signed.
    pub set: TxReadWriteSet,
}

/// Checks one private value: its hash must be the ledger's at the version that was read.
///
/// # Errors
/// If it is another value.
pub fn check_private(oracle: &Oracle, read: &PrivateAnswer) -> Result<(), String> {
    let PrivateAnswer { node, answer, set } = read;
    for (key, version) in hashed_reads(set) {
        let expected = version.and_then(|version| oracle.private().hash_at(&key, version));
        let is_right = match expected {
            Some(hash) => hash[..] == sha256([&answer[..]])[..],
            None => version.is_none() && answer.is_empty(),
        };
        if !is_right {
            return Err(format!("{node} answers with a private value that key {} did not have at {version:?}", key.1));
        }
    }
    Ok(())
}

/// The private keys that were read, by their hashes, with their versions.
pub fn hashed_reads(set: &TxReadWriteSet) -> Vec<(StateKey, Option<StateVersion>)> {
    let collections = set.ns_rwset.iter().flat_map(|namespace| {
        namespace.collection_hashed_rwset.iter().map(|collection| {
            (format!("{}$$h{}", namespace.namespace, collection.collection_name), collection.hashed_rwset.clone())
        })
    });
    let reads = collections.flat_map(|(place, set)| {
        let reads = HashedRwSet::decode(set).unwrap_or_default().hashed_reads;
        reads.into_iter().map(move |read| {
            let version = read.version.map(|version| (version.block_num, version.tx_num));
            ((place.clone(), hex::encode(&read.key_hash)), version)
        })
    });
    reads.collect()
}

/// A change of an asset, as the contract returns it.
#[derive(serde::Deserialize)]
struct AssetChange {
    record: serde_json::Value,
    #[serde(rename = "txId")]
    tx_id: String,
    #[serde(rename = "isDelete")]
    is_delete: bool,
}

/// Checks one history against the whole ledger.
///
/// # Errors
/// If no snapshot has this history.
pub fn check_history(oracle: &Oracle, history: &AssetHistory) -> Result<(), String> {
    let AssetHistory { node, height_min, id, answer } = history;
    let changes: Vec<AssetChange> = serde_json::from_slice(answer)
        .map_err(|error| format!("{node} answers with a malformed history of {id}: {error}"))?;
    let writes = oracle.writes(&("basic".to_owned(), id.clone()));
    let least = writes.iter().filter(|((block, _), ..)| block < height_min).count();
    let wrong = |what: String| Err(format!("{node} had reported {height_min} blocks; in its history of {id}, {what}"));
    if changes.len() < least || changes.len() > writes.len() {
        let told: Vec<&str> = changes.iter().rev().map(|change| &*change.tx_id).collect();
        let all: Vec<String> = writes.iter().map(|(version, tx_id, _)| format!("{version:?} {tx_id}")).collect();
        return wrong(format!("there are {told:?}; there were {least} writes by then, of {all:?}"));
    }
    let (known, later) = writes.split_at(changes.len());
    if let (Some(((last, _), ..)), Some(((next, _), ..))) = (known.last(), later.first())
        && last == next
    {
        return wrong(format!("only a part of block {last} is there"));
    }
    for (change, (version, tx_id, value)) in changes.iter().rev().zip(known) {
        let is_right = match value.is_empty() {
            true => change.is_delete,
            false => serde_json::from_slice(value).is_ok_and(|value: serde_json::Value| value == change.record),
        };
        if !is_right || change.is_delete != value.is_empty() || change.tx_id != *tx_id {
            return wrong(format!("{version:?} differs from the write of {tx_id}"));
        }
    }
    Ok(())
}

/// Checks one endorsement against the whole ledger.
///
/// # Errors
/// If no snapshot gives these reads.
pub fn check(oracle: &Oracle, endorsed: &EndorsedReads) -> Result<(), String> {
    let EndorsedReads { node, height_min, set } = endorsed;
    let mut read: BTreeMap<StateKey, Option<StateVersion>> = BTreeMap::new();
    for namespace in &set.ns_rwset {
        let Ok(set) = KvrwSet::decode(namespace.rwset.clone()) else {
            return Err(format!("{node} endorses a malformed read set"));
        };
        let ranges = set.range_queries_info.into_iter().filter_map(|range| match range.reads_info {
            Some(ReadsInfo::RawReads(reads)) => Some(reads.kv_reads),
            _ => None,
        });
        for KvRead { key, version } in set.reads.into_iter().chain(ranges.flatten()) {
            let version = version.map(|version| (version.block_num, version.tx_num));
            read.insert((namespace.namespace.clone(), key), version);
        }
    }
    read.extend(hashed_reads(set));
    // Spans of heights: the first one, and the first one above it that does not belong to it.
    let mut fitting = vec![(*height_min, u64::MAX)];
    for (key, version) in &read {
        let spans = spans(oracle.history(key), *version);
        let meeting = fitting.iter().flat_map(|(from, to)| {
            let met = spans.iter().map(|(first, last)| (*from.max(first), *to.min(last)));
            met.filter(|(from, to)| from < to)
        });
        fitting = meeting.collect();
        if fitting.is_empty() {
            let read: Vec<String> = read.iter().map(|((of, key), version)| format!("{of} {key} {version:?}")).collect();
            return Err(format!(
                "{node} had reported {height_min} blocks and endorses on reads that no later snapshot has: {}",
                read.join(", ")
            ));
        }
    }
    Ok(())
}

/// The heights at which a key has a version, as spans.
fn spans(history: &[(u64, Option<StateVersion>)], version: Option<StateVersion>) -> Vec<(u64, u64)> {
    let before = std::iter::once((0, None));
    let since: Vec<(u64, Option<StateVersion>)> =
        before.chain(history.iter().map(|(block, version)| (block + 1, *version))).collect();
    let ends = since.iter().skip(1).map(|(height, _)| *height).chain(std::iter::once(u64::MAX));
    let all = since.iter().zip(ends).filter(|((_, of), _)| *of == version);
    all.map(|((from, _), to)| (*from, to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_each_version_from_its_block_to_the_next_write() {
        let history = [(3, Some((3, 0))), (5, None), (9, Some((9, 1)))];
        assert_eq!(spans(&history, Some((3, 0))), [(4, 6)]);
        assert_eq!(spans(&history, None), [(0, 4), (6, 10)]);
        assert_eq!(spans(&history, Some((9, 1))), [(10, u64::MAX)]);
        assert_eq!(spans(&history, Some((4, 0))), []);
        assert_eq!(spans(&[], None), [(0, u64::MAX)]);
    }
}
