//! The rows in which a peer keeps private data; [`storage::private`] has their tables.
//!
//! | table | namespace | key | version | value |
//! |---|---|---|---|---|
//! | committed | `contract$$pcollection` | a private key | of the write | the value |
//! | committed | `$$sets` | a [`SetLocation`] | of the transaction, or of a purge | the private set (`KVRWSet`) |
//! | committed | `$$missing` | a [`SetLocation`] | of the transaction | [`MARKER`]: the peer should have the set |
//! | committed | `$$foreign` | a [`SetLocation`] | of the transaction | [`MARKER`]: the organisation is no member |
//! | committed | `$$purges` | [`purge_key`] | of the purge | [`MARKER`] |
//! | committed | `$$sweeps` | [`purge_key`] | of the purge | [`MARKER`], until the purge is complete |
//! | committed | `$$expired` | empty | of the block | [`MARKER`]: data that expire up to this block are removed |
//! | transient | `$$sets` | [`transient_key`], then the organisation that sent it; none for the peer's own | of the height at which the set arrived | the private set |
//!
//! Keys are chosen so that a prefix finds the sets of one collection and block, or of one transaction.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use base::{Bytes, TxId, Version};
use ledger::Hash;
use ledger::namespace::MARKER;
use storage::PrivateRow;

/// The namespace of private sets.
pub const SETS: &str = "$$sets";
/// The namespace of sets that this peer lacks.
pub const MISSING: &str = "$$missing";
/// The namespace of sets of collections of which the organisation is no member.
pub const FOREIGN: &str = "$$foreign";
/// The namespace of purged keys.
pub const PURGES: &str = "$$purges";
/// The namespace of purges that are not complete.
pub const SWEEPS: &str = "$$sweeps";
/// The namespace of the note how far expired data are removed.
pub const EXPIRED: &str = "$$expired";

/// The namespace of the private values of a contract in a collection.
pub fn values(contract: &str, collection: &str) -> String {
    format!("{contract}$$p{collection}")
}

/// A transaction's private writes to one collection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SetLocation {
    /// The contract.
    pub contract: String,
    /// Its collection.
    pub collection: String,
    /// The transaction.
    pub version: Version,
}

impl SetLocation {
    /// The key of a row for the set.
    pub fn key(&self) -> Bytes {
        let mut key = collection_prefix(&self.contract, &self.collection);
        key.extend_from_slice(&self.version.block.to_be_bytes());
        key.extend_from_slice(&self.version.tx.to_be_bytes());
        key.into()
    }

    /// The location that a key names; `None` for bytes that are no such key.
    pub fn of_key(key: &[u8]) -> Option<SetLocation> {
        let (names, tx) = key.split_last_chunk::<4>()?;
        let (names, block) = names.split_last_chunk::<8>()?;
        let [contract, collection, []] = split_names(names)? else { return None };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(SetLocation {
            contract: text(contract)?,
            collection: text(collection)?,
            version: Version::new(u64::from_be_bytes(*block), u32::from_be_bytes(*tx)),
        })
    }

    /// The range of keys of all sets of a collection in some blocks, the last one excluded.
    pub fn range_of_blocks(contract: &str, collection: &str, blocks: Range<u64>) -> (Vec<u8>, Vec<u8>) {
        let mut start = collection_prefix(contract, collection);
        let mut end = start.clone();
        start.extend_from_slice(&blocks.start.to_be_bytes());
        end.extend_from_slice(&blocks.end.to_be_bytes());
        (start, end)
    }

    /// The range of keys of all sets of a collection.
    pub fn range_of_collection(contract: &str, collection: &str) -> (Vec<u8>, Vec<u8>) {
        let start = collection_prefix(contract, collection);
        let mut end = start.clone();
        end.extend_from_slice(&[u8::MAX; 13]);
        (start, end)
    }
}

/// Names have no zero byte: contracts' and collections' names are checked before they get into a definition.
fn collection_prefix(contract: &str, collection: &str) -> Vec<u8> {
    [contract.as_bytes(), &[0], collection.as_bytes(), &[0]].concat()
}

fn split_names(names: &[u8]) -> Option<[&[u8]; 3]> {
    let mut parts = names.splitn(3, |byte| *byte == 0);
    Some([parts.next()?, parts.next()?, parts.next()?])
}

/// The key of a purge of the private key with this hash.
pub fn purge_key(contract: &str, collection: &str, key_hash: &[u8]) -> Bytes {
    let mut key = collection_prefix(contract, collection);
    key.extend_from_slice(key_hash);
    key.into()
}

/// The contract, collection and hash in the key of a purge.
pub fn purged(key: &[u8]) -> Option<(String, String, Vec<u8>)> {
    let [contract, collection, hash] = split_names(key)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some((text(contract)?, text(collection)?, hash.to_vec()))
}

/// What the key of a set of a transaction that is not committed begins with. The hash keeps apart sets that several senders
/// claim. The name of the sender follows.
pub fn transient_key(tx_id: &str, contract: &str, collection: &str, hash: &Hash) -> Bytes {
    let mut key = transient_prefix(tx_id, contract, collection);
    key.extend_from_slice(hash);
    key.into()
}

/// The common prefix of the keys of a transaction's sets for one collection.
pub fn transient_prefix(tx_id: &str, contract: &str, collection: &str) -> Vec<u8> {
    [tx_id.as_bytes(), &[0], &collection_prefix(contract, collection)].concat()
}

/// What the key of a waiting set says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingSet {
    /// The transaction.
    pub tx_id: TxId,
    /// The contract.
    pub contract: String,
    /// Its collection.
    pub collection: String,
    /// The SHA-256 of the set.
    pub hash: Hash,
}

impl WaitingSet {
    /// The set that a key names, from any sender; `None` for bytes that are no such key.
    pub fn of_key(key: &[u8]) -> Option<WaitingSet> {
        let mut parts = key.splitn(4, |byte| *byte == 0);
        let mut text = || Some(std::str::from_utf8(parts.next()?).ok()?.to_owned());
        let (tx_id, contract, collection) = (text()?, text()?, text()?);
        let (hash, _sender) = parts.next()?.split_first_chunk()?;
        Some(WaitingSet { tx_id: TxId::new(tx_id), contract, collection, hash: *hash })
    }
}

/// The smallest bytes above all that begin with a prefix, which ends in a zero byte.
pub fn above(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = 1;
    }
    end
}

/// A row.
pub fn row(namespace: &str, key: Bytes, version: Version, value: Option<Bytes>) -> PrivateRow {
    PrivateRow { namespace: namespace.to_owned(), key, version, value }
}

/// Removes the note of a set.
pub(crate) fn removal(namespace: &str, at: &SetLocation) -> PrivateRow {
    row(namespace, at.key(), Version::new(at.version.block, u32::MAX), None)
}

/// A row that carries all its information in its key and version.
pub fn marker(namespace: &str, key: Bytes, version: Version) -> PrivateRow {
    row(namespace, key, version, Some(Bytes::from_static(MARKER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_found_again_in_its_key_and_in_the_ranges_that_hold_it() {
        let location = |block, tx| SetLocation {
            contract: "asset".to_owned(),
            collection: "_implicit_org_Org1MSP".to_owned(),
            version: Version::new(block, tx),
        };
        for at in [location(0, 0), location(7, 300), location(u64::MAX, u32::MAX)] {
            assert_eq!(SetLocation::of_key(&at.key()), Some(at.clone()));
            let (start, end) = SetLocation::range_of_collection(&at.contract, &at.collection);
            assert!(start[..] <= at.key()[..] && at.key()[..] < end[..], "{at:?}");
        }
        let (start, end) = SetLocation::range_of_blocks("asset", "_implicit_org_Org1MSP", 7..9);
        let is_inside = |at: SetLocation| start[..] <= at.key()[..] && at.key()[..] < end[..];
        assert!(is_inside(location(7, 0)) && is_inside(location(8, u32::MAX)));
        assert!(!is_inside(location(6, u32::MAX)) && !is_inside(location(9, 0)));
        for other in [&b""[..], b"asset", b"asset\0c\0", b"asset\0c\0\0\0\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(SetLocation::of_key(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_purge_is_found_again_in_its_key() {
        let key = purge_key("asset", "c", &[0; 32]);
        assert_eq!(purged(&key), Some(("asset".to_owned(), "c".to_owned(), vec![0; 32])));
    }

    #[test]
    fn a_waiting_set_is_found_again_in_its_key() {
        let hash = [0; 32];
        for sender in ["", "Org1MSP"] {
            let key = [&transient_key("ab", "asset", "c", &hash)[..], sender.as_bytes()].concat();
            let (contract, collection) = ("asset".to_owned(), "c".to_owned());
            let expected = WaitingSet { tx_id: TxId::new("ab"), contract, collection, hash };
            assert_eq!(WaitingSet::of_key(&key), Some(expected), "{sender}");
            assert_eq!(WaitingSet::of_key(&key[..key.len() - sender.len() - 1]), None);
        }
        assert_eq!(WaitingSet::of_key(b"ab\0asset\0c"), None);
    }
}
