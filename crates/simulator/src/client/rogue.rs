//! Read-write sets that no contract makes: what peers turned bad would endorse, and honest ones must judge by the rules.
//!
//! Each begins with what an honest transaction read and wrote, or with nothing, and has some of it changed. Money is never
//! touched, so that the sum of it can be checked.

use base::Bytes;
use base::rt::simulation::Chance;
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

/// Makes up a read-write set from another one. `blocks` is about how many blocks there are.
pub fn made_up(chance: &mut Chance, from: Option<&TxReadWriteSet>, blocks: u64) -> Bytes {
    let mut set = from.cloned().unwrap_or_default();
    for _ in 0..=chance.below(CHANGES_MAX) {
        change(chance, &mut set, blocks);
    }
    set.encode_to_vec().into()
}

fn change(chance: &mut Chance, set: &mut TxReadWriteSet, blocks: u64) {
    if set.ns_rwset.is_empty() || chance.one_in(5) {
        let namespace = (*chance.pick(&NAMESPACES)).to_owned();
        set.ns_rwset.push(NsReadWriteSet { namespace, ..NsReadWriteSet::default() });
    }
    let place = chance.index(set.ns_rwset.len());
    let namespace = &mut set.ns_rwset[place];
    let Ok(mut reads) = KvrwSet::decode(namespace.rwset.clone()) else { return };
    match chance.below(8) {
        0 => reads.reads.push(KvRead { key: key(chance), version: version(chance, blocks) }),
        1 => reads.reads.push(KvRead { key: "never".to_owned(), version: None }),
        2..=3 => reads.writes.push(KvWrite { key: key(chance), value: value(chance), is_delete: false }),
        4 => reads.writes.push(KvWrite { key: key(chance), value: Bytes::new(), is_delete: true }),
        5 => drop(reads.reads.pop()),
        6 => {
            let nothing = ReadsInfo::RawReads(QueryReads::default());
            reads.range_queries_info.push(RangeQueryInfo {
                start_key: key(chance),
                end_key: key(chance),
                itr_exhausted: chance.one_in(2),
                reads_info: chance.one_in(2).then_some(nothing),
            });
        }
        _ => {
            if let Some(range) = reads.range_queries_info.first_mut() {
                range.end_key = key(chance);
            }
        }
    }
    namespace.rwset = reads.encode_to_vec().into();
}

fn key(chance: &mut Chance) -> String {
    if chance.one_in(4) { format!("asset{}", chance.below(8)) } else { ycsb::record_key(chance.below(12)) }
}

fn value(chance: &mut Chance) -> Bytes {
    // Sometimes of no bytes, which deletes.
    vec![b'x'; chance.index(3)].into()
}

fn version(chance: &mut Chance, blocks: u64) -> Option<Version> {
    let version = Version { block_num: chance.below(blocks + 2), tx_num: chance.below(4) };
    (!chance.one_in(3)).then_some(version)
}
