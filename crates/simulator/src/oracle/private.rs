//! What the ledger says about private data: the hashes of sets, keys and values.

use std::collections::BTreeMap;

use base::Bytes;
use identity::{Hash, hex};
use proto::kvrwset::HashedRwSet;

use super::state_row::{StateKey, StateRow, StateVersion};

/// The private writes of a valid transaction to one collection.
#[derive(Clone, Debug)]
pub struct HashedWrites {
    /// The transaction.
    pub version: StateVersion,
    /// Its id.
    pub tx_id: String,
    /// The contract.
    pub contract: String,
    /// Its collection.
    pub collection: String,
    /// The hash of the private set.
    pub set_hash: Hash,
    /// By the hash of the key, in hexadecimal.
    pub writes: BTreeMap<String, HashedWrite>,
}

/// A write to a private key.
#[derive(Clone, Debug)]
pub struct HashedWrite {
    /// `None` for a delete.
    pub value_hash: Option<Bytes>,
    /// Whether it also removes all earlier values.
    pub is_purge: bool,
}

/// The private writes of a ledger.
#[derive(Default)]
pub struct PrivateHistory {
    sets: Vec<HashedWrites>,
    /// By key and version: the hash of the value.
    hashes: BTreeMap<(StateKey, StateVersion), Bytes>,
}

impl PrivateHistory {
    /// The private writes of all valid transactions, in their order.
    pub fn sets(&self) -> &[HashedWrites] {
        &self.sets
    }

    /// The hash of the value that a key had at a version.
    pub fn hash_at(&self, key: &StateKey, version: StateVersion) -> Option<&Bytes> {
        self.hashes.get(&(key.clone(), version))
    }

    /// Adds a valid transaction's writes in one namespace. Of several sets of one collection the first counts.
    pub(super) fn add(
        &mut self,
        version: StateVersion,
        tx_id: &str,
        contract: &str,
        set_hashes: &[(String, Bytes)],
        collections: &[(String, HashedRwSet)],
    ) {
        for ((collection, set_hash), (_, set)) in set_hashes.iter().zip(collections) {
            let Ok(set_hash) = Hash::try_from(&set_hash[..]) else { continue };
            let is_known = |known: &HashedWrites| {
                (known.version, known.contract.as_str(), known.collection.as_str()) == (version, contract, collection)
            };
            if self.sets.iter().rev().take_while(|known| known.version == version).any(is_known) {
                continue;
            }
            let writes = set.hashed_writes.iter().map(|write| {
                let value_hash = (!write.is_delete).then(|| write.value_hash.clone());
                (hex::encode(&write.key_hash), HashedWrite { value_hash, is_purge: write.is_purge })
            });
            self.sets.push(HashedWrites {
                version,
                tx_id: tx_id.to_owned(),
                contract: contract.to_owned(),
                collection: collection.clone(),
                set_hash,
                writes: writes.collect(),
            });
        }
    }

    /// Notes a row of the state.
    pub(super) fn note_row(&mut self, key: &StateKey, row: &StateRow) {
        if key.0.contains("$$h") {
            self.hashes.insert((key.clone(), row.version), row.value.clone());
        }
    }
}
