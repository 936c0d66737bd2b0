//! What endorsers read, held against the ledger.
//!
//! A history of a key is no part of what they read: it is what the contract answered, and must be every write below one height,
//! newest first, that is none from before what the node had told either.
//!
//! A contract runs on one snapshot. So there must be a height at which every key that it read had the version that it read,
//! and that height is none from before what the same node had told a client already: no stale read, and never half a block.

use std::collections::BTreeMap;

use base::Bytes;
use prost::Message;
use proto::kvrwset::{KvRead, KvrwSet, range_query_info::ReadsInfo};
use proto::rwset::TxReadWriteSet;

use crate::oracle::{Key, Oracle, Version};

/// One endorsement.
#[derive(Clone, Debug)]
pub struct Endorsed {
    pub node: String,
    /// Blocks that this node had told of before it was asked.
    pub height_min: u64,
    pub set: TxReadWriteSet,
}

/// What a node said an asset was.
#[derive(Clone, Debug)]
pub struct History {
    pub node: String,
    /// Blocks that this node had told of before it was asked.
    pub height_min: u64,
    pub id: String,
    /// The contract's answer, in JSON.
    pub answer: Bytes,
}

/// A change of an asset, as the contract tells it.
#[derive(serde::Deserialize)]
struct Change {
    record: serde_json::Value,
    #[serde(rename = "txId")]
    tx_id: String,
    #[serde(rename = "isDelete")]
    is_delete: bool,
}

/// Checks one history against the whole ledger.
///
/// # Errors
/// If no snapshot has it.
pub fn check_history(oracle: &Oracle, history: &History) -> Result<(), String> {
    let History { node, height_min, id, answer } = history;
    let changes: Vec<Change> = serde_json::from_slice(answer)
        .map_err(|error| format!("{node} answers a history of {id} that is none: {error}"))?;
    let writes = oracle.writes(&("basic".to_owned(), id.clone()));
    let least = writes.iter().filter(|((block, _), ..)| block < height_min).count();
    let wrong =
        |what: String| Err(format!("{node} had told of {height_min} blocks, and of the history of {id} {what}"));
    if changes.len() < least || changes.len() > writes.len() {
        return wrong(format!(
            "it knows {} writes; there were {least} by then, {} in all",
            changes.len(),
            writes.len()
        ));
    }
    let (known, later) = writes.split_at(changes.len());
    if let (Some(((last, _), ..)), Some(((next, _), ..))) = (known.last(), later.first())
        && last == next
    {
        return wrong(format!("it knows a part of block {last}"));
    }
    for (change, (version, tx_id, value)) in changes.iter().rev().zip(known) {
        let is_right = match value.is_empty() {
            true => change.is_delete,
            false => serde_json::from_slice(value).is_ok_and(|value: serde_json::Value| value == change.record),
        };
        if !is_right || change.is_delete != value.is_empty() || change.tx_id != *tx_id {
            return wrong(format!("it tells something else of {version:?}, which was {tx_id}"));
        }
    }
    Ok(())
}

/// Checks one endorsement against the whole ledger.
///
/// # Errors
/// If no snapshot gives what was read.
pub fn check(oracle: &Oracle, endorsed: &Endorsed) -> Result<(), String> {
    let Endorsed { node, height_min, set } = endorsed;
    let mut read: BTreeMap<Key, Option<Version>> = BTreeMap::new();
    for namespace in &set.ns_rwset {
        let Ok(set) = KvrwSet::decode(namespace.rwset.clone()) else {
            return Err(format!("{node} endorses a read set that is none"));
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
    // From a height on, and up to one below another.
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
                "{node} had told of {height_min} blocks and endorses on what no snapshot since then has: {}",
                read.join(", ")
            ));
        }
    }
    Ok(())
}

/// The heights at which a key has a version, as spans.
fn spans(history: &[(u64, Option<Version>)], version: Option<Version>) -> Vec<(u64, u64)> {
    let before = std::iter::once((0, None));
    let since: Vec<(u64, Option<Version>)> =
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
