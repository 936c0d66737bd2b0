//! Read-write sets that no contract makes. Malicious peers would endorse them; honest peers must validate them by the rules.
//!
//! Each is made from the read-write set of an honest transaction, or from an empty one, by changing parts of it. Money is never
//! changed, so that its sum can be checked.

use base::Bytes;
use base::rt::simulation::Prng;
use contract::contracts::ycsb;
use prost::Message;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{KvRead, KvWrite, KvrwSet, QueryReads, RangeQueryInfo, Version};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};

/// Namespaces that may be written, some of which no transaction may write.
const NAMESPACES: [&str; 6] = ["ycsb", "ycsb", "basic", "ycsb", "_lifecycle", "nobody"];
const CHANGES_MAX: u64 = 4;

/// Whether a read-write set leaves money alone.
pub fn is_harmless(set: &TxReadWriteSet) -> bool {
    set.ns_rwset.iter().all(|namespace| namespace.namespace != "smallbank")
}

/// Forges a read-write set from another one. `blocks` is the approximate number of blocks.
pub fn forged_read_write_set(rng: &mut Prng, from: Option<&TxReadWriteSet>, blocks: u64) -> Bytes {
    let mut set = from.cloned().unwrap_or_default();
    for _ in 0..=rng.below(CHANGES_MAX) {
        change(rng, &mut set, blocks);
    }
    set.encode_to_vec().into()
}

fn change(rng: &mut Prng, set: &mut TxReadWriteSet, blocks: u64) {
    if set.ns_rwset.is_empty() || rng.one_in(5) {
        let namespace = (*rng.pick(&NAMESPACES)).to_owned();
        set.ns_rwset.push(NsReadWriteSet { namespace, ..NsReadWriteSet::default() });
    }
    let place = rng.index(set.ns_rwset.len());
    let namespace = &mut set.ns_rwset[place];
    let Ok(mut reads) = KvrwSet::decode(namespace.rwset.clone()) else { return };
    match rng.below(8) {
        0 => reads.reads.push(KvRead { key: key(rng), version: version(rng, blocks) }),
        1 => reads.reads.push(KvRead { key: "never".to_owned(), version: None }),
        2..=3 => reads.writes.push(KvWrite { key: key(rng), value: value(rng), is_delete: false }),
        4 => reads.writes.push(KvWrite { key: key(rng), value: Bytes::new(), is_delete: true }),
        5 => drop(reads.reads.pop()),
        6 => {
            let nothing = ReadsInfo::RawReads(QueryReads::default());
            reads.range_queries_info.push(RangeQueryInfo {
                start_key: key(rng),
                end_key: key(rng),
                itr_exhausted: rng.one_in(2),
                reads_info: rng.one_in(2).then_some(nothing),
            });
        }
        _ => {
            if let Some(range) = reads.range_queries_info.first_mut() {
                range.end_key = key(rng);
            }
        }
    }
    namespace.rwset = reads.encode_to_vec().into();
}

fn key(rng: &mut Prng) -> String {
    if rng.one_in(4) { format!("asset{}", rng.below(8)) } else { ycsb::record_key(rng.below(12)) }
}

fn value(rng: &mut Prng) -> Bytes {
    // Sometimes empty, which deletes.
    vec![b'x'; rng.index(3)].into()
}

fn version(rng: &mut Prng, blocks: u64) -> Option<Version> {
    let version = Version { block_num: rng.below(blocks + 2), tx_num: rng.below(4) };
    (!rng.one_in(3)).then_some(version)
}
