//! The commit hash: one hash over all changes that the blocks of a ledger have made to its world state.
//!
//! If two peers disagree about a single write, they disagree about every later commit hash. So comparing commit
//! hashes is the cheapest check that two peers have the same state. From block 1 on:
//!
//! ```text
//! commit hash = SHA-256( varint(transactions) ‖ filter ‖ updates ‖ previous commit hash )
//!
//! updates     = one protobuf field 1 for each key that the block's valid transactions wrote, with the last of these
//!               writes. Sorted by namespace, then collection (public keys come first), then key.
//!     1 namespace    only on the first update of the namespace
//!     2 collection   only on the first update of the collection
//!     3 key          in a collection the key's hash
//!     4 is_delete    1 where the key was deleted; absent otherwise
//!     5 value        in a collection the value's hash; absent where empty
//!     6 version      block, then transaction: each a length byte and that many big-endian bytes
//! ```
//!
//! For block 1 the previous commit hash is empty. The hash leaves out the empty namespace, which holds the channel's
//! configuration, and the hashes of collections that expire with the block.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Version;
use identity::hex;

use crate::hash::{Hash, Sha256};
use crate::namespace::{self, NamespaceContent};
use crate::wire;

/// Computes a block's commit hash from its filter and updates, without collecting their encoding.
pub struct CommitHasher {
    hasher: Sha256,
    namespace: String,
    collection: String,
    key: Vec<u8>,
    any: bool,
    update: Vec<u8>,
}

impl CommitHasher {
    /// Starts with the block's transactions filter.
    pub fn new(filter: &[u8]) -> CommitHasher {
        let mut hasher = Sha256::new();
        let mut length = Vec::with_capacity(10);
        wire::put_varint(&mut length, filter.len() as u64);
        hasher.update(&length);
        hasher.update(filter);
        CommitHasher {
            hasher,
            namespace: String::new(),
            collection: String::new(),
            key: Vec::new(),
            any: false,
            update: Vec::new(),
        }
    }

    /// Adds the last write of the block to a public key. An absent or an empty value deletes, as in Fabric.
    ///
    /// # Panics
    /// If updates do not come in the order of namespace and key, public keys before collections.
    pub fn update(&mut self, namespace: &str, key: &str, value: Option<&[u8]>, version: Version) {
        self.private_update(namespace, "", key.as_bytes(), value, version);
    }

    /// Adds the last write of the block to a row of the state. Rows that no commit hash covers are left out: metadata, notes of
    /// this node, and the channel's configuration.
    ///
    /// # Panics
    /// If rows do not come in the order of namespace and key.
    pub fn row(&mut self, namespace: &str, key: &str, value: Option<&[u8]>, version: Version) {
        match namespace::content(namespace) {
            NamespaceContent::Values(contract) => self.update(contract, key, value, version),
            NamespaceContent::Hashes(contract, collection) => {
                let hash = hex::decode(key).expect("the key of a hash is in hexadecimal");
                self.private_update(contract, collection, &hash, value, version);
            }
            NamespaceContent::Metadata(..) | NamespaceContent::Internal => {}
        }
    }

    /// Adds the last write of the block to a key of a private collection: the hashes of key and value.
    ///
    /// # Panics
    /// If updates do not come in the order of namespace, collection and key hash.
    pub fn private_update(
        &mut self,
        namespace: &str,
        collection: &str,
        key: &[u8],
        value: Option<&[u8]>,
        version: Version,
    ) {
        if namespace.is_empty() {
            return;
        }
        let value = value.filter(|value| !value.is_empty());
        let previous = (self.namespace.as_str(), self.collection.as_str(), self.key.as_slice());
        assert!(!self.any || previous < (namespace, collection, key), "updates come in order, each key once");
        let update = &mut self.update;
        update.clear();
        if namespace != self.namespace {
            wire::put_bytes(update, 1, namespace.as_bytes());
        }
        if !collection.is_empty() && (namespace, collection) != (previous.0, previous.1) {
            wire::put_bytes(update, 2, collection.as_bytes());
        }
        if !key.is_empty() {
            wire::put_bytes(update, 3, key);
        }
        match value {
            None => update.extend_from_slice(&[4 << 3, 1]),
            Some(value) => wire::put_bytes(update, 5, value),
        }
        let mut bytes = [0; 18];
        let first = put_number(&mut bytes, 0, version.block);
        let length = put_number(&mut bytes, first, u64::from(version.tx));
        wire::put_bytes(update, 6, &bytes[..length]);

        let mut header = Vec::with_capacity(11);
        wire::put_bytes_header(&mut header, 1, update.len());
        self.hasher.update(&header);
        self.hasher.update(update);

        self.any = true;
        if self.namespace != namespace {
            self.namespace.clear();
            self.namespace.push_str(namespace);
        }
        if self.collection != collection {
            self.collection.clear();
            self.collection.push_str(collection);
        }
        self.key.clear();
        self.key.extend_from_slice(key);
    }

    /// The commit hash, behind the commit hash of the block before; block 1 has none before it.
    pub fn finish(mut self, previous: Option<&Hash>) -> Hash {
        if let Some(previous) = previous {
            self.hasher.update(previous);
        }
        self.hasher.finish()
    }
}

/// Writes a length byte and the number's big-endian bytes without leading zeros; returns where they end.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn put_number(bytes: &mut [u8; 18], at: usize, number: u64) -> usize {
    let length = 8 - number.leading_zeros() as usize / 8;
    bytes[at] = length as u8;
    bytes[at + 1..at + 1 + length].copy_from_slice(&number.to_be_bytes()[8 - length..]);
    at + 1 + length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::sha256_of;

    fn number(n: u64) -> Vec<u8> {
        let mut bytes = [0; 18];
        let length = put_number(&mut bytes, 0, n);
        bytes[..length].to_vec()
    }

    #[test]
    fn numbers_have_a_length_byte_and_no_leading_zeros() {
        assert_eq!(number(0), [0]);
        assert_eq!(number(1), [1, 1]);
        assert_eq!(number(0x100), [2, 1, 0]);
        assert_eq!(number(u64::MAX), [8, 255, 255, 255, 255, 255, 255, 255, 255]);
    }

    #[test]
    fn updates_are_hashed_in_the_layout_of_the_message() {
        let mut hasher = CommitHasher::new(&[0, 0, 11]);
        hasher.update("", "CHANNEL_CONFIG", Some(b"left out"), Version::new(5, 0));
        hasher.update("a", "k1", Some(b"v"), Version::new(5, 0));
        hasher.update("a", "k2", None, Version::new(5, 1));
        hasher.private_update("b", "c", b"h1", Some(b"w"), Version::new(5, 1));
        hasher.private_update("b", "c", b"h2", Some(b""), Version::new(5, 1));
        let updates: [&[u8]; 4] = [
            b"\x0a\x0f\x0a\x01a\x1a\x02k1\x2a\x01v\x32\x03\x01\x05\x00",
            // No namespace again; a deletion; transaction 1.
            b"\x0a\x0c\x1a\x02k2\x20\x01\x32\x04\x01\x05\x01\x01",
            b"\x0a\x13\x0a\x01b\x12\x01c\x1a\x02h1\x2a\x01w\x32\x04\x01\x05\x01\x01",
            b"\x0a\x0c\x1a\x02h2\x20\x01\x32\x04\x01\x05\x01\x01",
        ];
        let expected = sha256_of(&[&[3, 0, 0, 11], &updates.concat(), &[9; 32]]);
        assert_eq!(hasher.finish(Some(&[9; 32])), expected);
    }

    #[test]
    #[should_panic(expected = "updates come in order")]
    fn updates_out_of_order_are_a_bug_of_the_caller() {
        let mut hasher = CommitHasher::new(&[0]);
        hasher.update("a", "k2", None, Version::new(1, 0));
        hasher.update("a", "k1", None, Version::new(1, 0));
    }
}
