//! Read-write sets that no contract produces. Malicious peers would endorse them; honest peers must validate them by
//! the rules.
//!
//! Some are made from the read-write set of an honest transaction, by changing parts of it; the others from an empty
//! set. None touches the namespace that holds money, so that the sum of all balances can be checked.

use base::Bytes;
use base::rt::simulation::Prng;
use contract::contracts::ycsb;
use identity::policy::parse;
use identity::sha256;
use prost::Message;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{
    HashedRwSet, KvMetadataEntry, KvMetadataWrite, KvMetadataWriteHash, KvRead, KvReadHash, KvWrite, KvWriteHash,
    KvrwSet, QueryReads, RangeQueryInfo, Version,
};
use proto::rwset::{CollectionHashedReadWriteSet, NsReadWriteSet, TxReadWriteSet};

use super::vault;
use crate::vault::{PAIR, VAULT};

/// The namespaces of forged writes. `_lifecycle` has a policy of its own, and `nobody` is not defined.
const NAMESPACES: [&str; 6] = ["ycsb", "ycsb", "basic", "ycsb", "_lifecycle", "nobody"];
const CHANGES_MAX: u64 = 4;
/// The number of keys whose policies are set. Honest clients never write these keys.
const POLICY_KEYS: u64 = 4;
/// The policies that these keys get.
const KEY_POLICIES: [&str; 3] = ["OutOf(1, 'Org1MSP.peer')", "OutOf(1, 'Org2MSP.peer')", "OutOf(1, 'Org3MSP.peer')"];
/// The collections of forged writes. The last one is not defined.
const COLLECTIONS: [&str; 3] = ["_implicit_org_Org1MSP", "_implicit_org_Org2MSP", "nowhere"];

/// Whether a read-write set does not touch the namespace that holds money.
pub fn is_harmless(set: &TxReadWriteSet) -> bool {
    set.ns_rwset.iter().all(|namespace| namespace.namespace != "smallbank")
}

/// Forges a read-write set, in two of three cases by changing `from`. `blocks` is the approximate number of blocks.
pub fn forged_read_write_set(rng: &mut Prng, from: Option<&TxReadWriteSet>, blocks: u64, has_private: bool) -> Bytes {
    if has_private && rng.one_in(4) {
        return private_set(rng);
    }

    if rng.one_in(3) {
        return policy_set(rng);
    }
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
    match rng.below(12) {
        8 => set_metadata(rng, &mut reads),
        9 => reads.writes.push(KvWrite { key: policy_key(rng), value: value(rng), is_delete: false }),
        10..=11 => change_collection(rng, namespace),
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

fn policy_key(rng: &mut Prng) -> String {
    format!("policy{}", rng.below(POLICY_KEYS))
}

/// A read-write set that writes one key of a contract without a read of the contract's definition, so that a change of
/// the definition does not conflict with it.
pub fn racing_read_write_set(rng: &mut Prng, contract: &str) -> Bytes {
    let write = KvWrite { key: format!("race{}", rng.below(3)), value: Bytes::from_static(b"x"), is_delete: false };
    let set = KvrwSet { writes: vec![write], ..KvrwSet::default() };
    let namespace = NsReadWriteSet {
        namespace: contract.to_owned(),
        rwset: set.encode_to_vec().into(),
        ..NsReadWriteSet::default()
    };
    TxReadWriteSet { ns_rwset: vec![namespace], ..TxReadWriteSet::default() }.encode_to_vec().into()
}

/// A read-write set that may write a key with a policy, and may write the key's policy.
fn policy_set(rng: &mut Prng) -> Bytes {
    let mut set = KvrwSet::default();
    let key = policy_key(rng);
    if !rng.one_in(4) {
        set.writes.push(KvWrite { key: key.clone(), value: value(rng), is_delete: false });
    }
    if rng.one_in(2) {
        set.metadata_writes.push(KvMetadataWrite { key, entries: metadata(rng) });
    }
    let namespace =
        NsReadWriteSet { namespace: "ycsb".to_owned(), rwset: set.encode_to_vec().into(), ..NsReadWriteSet::default() };
    TxReadWriteSet { ns_rwset: vec![namespace], ..TxReadWriteSet::default() }.encode_to_vec().into()
}

/// A read-write set that writes private keys, with the hash of a private set that nobody has.
fn private_set(rng: &mut Prng) -> Bytes {
    let hash = |text: String| Bytes::copy_from_slice(&sha256([text.as_bytes()]));
    let mut set = HashedRwSet::default();
    for _ in 0..=rng.below(2) {
        let key_hash = hash(vault::key(rng.below(vault::KEYS)));
        let is_delete = rng.one_in(3);
        let value_hash = if is_delete { Bytes::new() } else { hash(rng.number().to_string()) };
        set.hashed_writes.push(KvWriteHash { key_hash, is_delete, value_hash, is_purge: is_delete && rng.one_in(2) });
    }
    let collection = CollectionHashedReadWriteSet {
        collection_name: PAIR.to_owned(),
        hashed_rwset: set.encode_to_vec().into(),
        pvt_rwset_hash: hash(rng.number().to_string()),
    };
    let namespace = NsReadWriteSet {
        namespace: VAULT.to_owned(),
        collection_hashed_rwset: vec![collection],
        ..NsReadWriteSet::default()
    };
    TxReadWriteSet { ns_rwset: vec![namespace], ..TxReadWriteSet::default() }.encode_to_vec().into()
}

/// Sets the policy of a key, removes it, or writes metadata that cannot be decoded as a policy.
fn set_metadata(rng: &mut Prng, set: &mut KvrwSet) {
    let entries = metadata(rng);
    set.metadata_writes.push(KvMetadataWrite { key: policy_key(rng), entries });
}

fn metadata(rng: &mut Prng) -> Vec<KvMetadataEntry> {
    let value = match rng.below(6) {
        0 => return Vec::new(),
        1 => Bytes::from_static(b"no policy"),
        2 => Bytes::new(),
        _ => {
            let policy = parse(KEY_POLICIES[rng.index(KEY_POLICIES.len())]).expect("it is well formed");
            policy.encode_to_vec().into()
        }
    };
    vec![KvMetadataEntry { name: "VALIDATION_PARAMETER".to_owned(), value }]
}

/// Adds hashed reads and writes in a collection.
fn change_collection(rng: &mut Prng, namespace: &mut NsReadWriteSet) {
    let hash = |text: String| Bytes::copy_from_slice(&sha256([text.as_bytes()]));
    let key_hash = hash(policy_key(rng));
    let mut set = HashedRwSet::default();
    match rng.below(6) {
        0 => set.hashed_reads.push(KvReadHash { key_hash: key_hash.clone(), version: None }),
        1 => set.metadata_writes.push(KvMetadataWriteHash { key_hash: key_hash.clone(), entries: metadata(rng) }),
        _ => {}
    }
    let is_delete = rng.one_in(4);
    let value_hash = if is_delete { Bytes::new() } else { hash(rng.below(3).to_string()) };
    set.hashed_writes.push(KvWriteHash { key_hash, is_delete, value_hash, is_purge: false });
    namespace.collection_hashed_rwset.push(CollectionHashedReadWriteSet {
        collection_name: (*rng.pick(&COLLECTIONS)).to_owned(),
        hashed_rwset: set.encode_to_vec().into(),
        pvt_rwset_hash: Bytes::new(),
    });
}

fn key(rng: &mut Prng) -> String {
    if rng.one_in(4) { format!("asset{}", rng.below(8)) } else { ycsb::record_key(rng.below(12)) }
}

fn value(rng: &mut Prng) -> Bytes {
    // An empty value deletes the key.
    vec![b'x'; rng.index(3)].into()
}

fn version(rng: &mut Prng, blocks: u64) -> Option<Version> {
    let version = Version { block_num: rng.below(blocks + 2), tx_num: rng.below(4) };
    (!rng.one_in(3)).then_some(version)
}
