//! The writes of a block's valid transactions, in the form that the commit hash covers.

use std::collections::BTreeMap;

use base::{Bytes, Version};
use prost::Message;
use proto::kvrwset::{HashedRwSet, KvrwSet};
use proto::rwset::TxReadWriteSet;

use crate::block::CommitHasher;
use crate::hash::{Hash, sha256};

/// Namespace, collection (empty for public state) and key, in the order of the commit hash.
type WriteKey = (String, String, Bytes);

/// The last write to each key, of the transactions of one block.
#[derive(Default)]
pub struct BlockWrites {
    updates: BTreeMap<WriteKey, (Option<Bytes>, Version)>,
    /// A transaction changed only the metadata of a key, so that the commit hash covers a value from before the block.
    incomplete: bool,
}

/// What one transaction does to one key.
#[derive(Default)]
struct KeyChange {
    /// The new value; within, `None` deletes.
    value: Option<Option<Bytes>>,
}

impl BlockWrites {
    /// Adds the writes of a valid transaction: an encoded `TxReadWriteSet`. Transactions come in order.
    ///
    /// # Errors
    /// If the read-write set is malformed, in words that follow on "transaction 3:".
    pub fn add(&mut self, tx: u32, block: u64, results: &Bytes) -> Result<(), String> {
        let version = Version::new(block, tx);
        for (place, change) in changes(results)? {
            match change.value {
                Some(value) => drop(self.updates.insert(place, (value, version))),
                // Only metadata changed: the value stays, under a new version.
                None => match self.updates.get_mut(&place) {
                    Some((Some(_), written)) => *written = version,
                    // A key that does not exist has no metadata.
                    Some((None, _)) => {}
                    None => self.incomplete = true,
                },
            }
        }
        Ok(())
    }

    /// The commit hash of these writes behind the one before; `None` where it covers values that are not known here.
    pub fn commit_hash(&self, filter: &[u8], previous: Option<&Hash>) -> Option<Hash> {
        if self.incomplete {
            return None;
        }
        let mut hasher = CommitHasher::new(filter);
        for ((namespace, collection, key), (value, version)) in &self.updates {
            hasher.private_update(namespace, collection, key, value.as_deref(), *version);
        }
        Some(hasher.finish(previous))
    }
}

/// The last change of each key in one read-write set.
fn changes(results: &Bytes) -> Result<BTreeMap<WriteKey, KeyChange>, String> {
    let malformed = |cause: prost::DecodeError| format!("its read-write set is malformed: {cause}");
    let empty_hash = Bytes::copy_from_slice(&sha256(b""));
    let mut changes: BTreeMap<WriteKey, KeyChange> = BTreeMap::new();
    for set in TxReadWriteSet::decode(results.clone()).map_err(malformed)?.ns_rwset {
        let namespace = set.namespace;
        let public = KvrwSet::decode(set.rwset).map_err(malformed)?;
        let place = |collection: &str, key: Bytes| (namespace.clone(), collection.to_owned(), key);
        for write in public.writes {
            // As in Fabric an empty value deletes.
            let value = (!write.is_delete && !write.value.is_empty()).then_some(write.value);
            changes.entry(place("", write.key.into())).or_default().value = Some(value);
        }
        for write in public.metadata_writes {
            changes.entry(place("", write.key.into())).or_default();
        }
        for collection in set.collection_hashed_rwset {
            let name = collection.collection_name;
            let hashed = HashedRwSet::decode(collection.hashed_rwset).map_err(malformed)?;
            for write in hashed.hashed_writes {
                let deletes =
                    write.is_delete || write.is_purge || write.value_hash.is_empty() || write.value_hash == empty_hash;
                let value = (!deletes).then_some(write.value_hash);
                changes.entry(place(&name, write.key_hash)).or_default().value = Some(value);
            }
            for write in hashed.metadata_writes {
                changes.entry(place(&name, write.key_hash)).or_default();
            }
        }
    }
    Ok(changes)
}
