//! Computes the changes of a valid transaction to the state.
//!
//! A transaction that writes only values, each key once, and deletes no key that has metadata changes exactly what it
//! writes. For all others Fabric's rules apply, key by key (its `validation/tx_ops.go`):
//! 1. Each write of a key adds a number to the key's sum: 1 for a value, 8 for a delete, 2 for metadata, 4 for the
//!    removal of metadata. The last value and the last metadata count.
//! 2. A sum with bit 8 deletes the key and its metadata.
//! 3. A sum with bit 1, and with bit 2 or 4, sets value and metadata.
//! 4. The sum 1 sets the value and leaves the metadata as they are.
//! 5. Any other sum sets the metadata and gives the value a new version. If the key does not exist, nothing changes.
//!
//! Because the numbers are added, two values for one key in a set make the sum 2, and rule 5 applies: the key keeps its
//! old value and loses its metadata.
//!
//! The hash of a private value is treated as a value, under the hash of its key.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Bytes, Version};
use identity::hex;
use ledger::namespace;
use ledger::rwset::ReadWriteSet;
use state::UpdateBatch;

use crate::known_rows::KnownRows;
use crate::view::BlockStateView;

const VALUE: u8 = 1;
const METADATA: u8 = 2;
const NO_METADATA: u8 = 4;
const DELETE: u8 = 8;

/// The changes of one block, transaction by transaction.
#[derive(Debug, Default)]
pub struct BlockUpdates {
    /// The last valid change of each key.
    pub batch: UpdateBatch,
    /// Whether the batch may differ from what the block's valid transactions write.
    pub is_derived: bool,
    names: NamespaceNames,
}

/// The writes of one transaction to one key.
#[derive(Debug, Default)]
struct KeyChange {
    sum: u8,
    value: Option<Bytes>,
    metadata: Option<Bytes>,
}

impl KeyChange {
    fn write(&mut self, value: Option<Bytes>) {
        self.sum = self.sum.wrapping_add(if value.is_some() { VALUE } else { DELETE });
        self.value = value.or(self.value.take());
    }

    fn write_metadata(&mut self, metadata: Option<Bytes>) {
        self.sum = self.sum.wrapping_add(if metadata.is_some() { METADATA } else { NO_METADATA });
        self.metadata = metadata.or(self.metadata.take());
    }
}

impl BlockUpdates {
    pub(crate) fn new(batch: UpdateBatch, is_derived: bool) -> BlockUpdates {
        BlockUpdates { batch, is_derived, names: NamespaceNames::default() }
    }

    /// Adds the changes of a valid transaction. `view` is the state before the block.
    ///
    /// # Errors
    /// The state's; the transaction's changes may then be incomplete.
    pub async fn apply(
        &mut self,
        set: &ReadWriteSet,
        version: Version,
        view: &BlockStateView,
        known: &mut KnownRows,
    ) -> Result<(), state::Error> {
        let has_metadata =
            |contract: &str| self.batch.namespaces().any(|name| **name == *namespace::metadata_of(contract, ""));
        if has_plain_changes(set, view, known, has_metadata).await? {
            for namespace in set.namespaces.iter().filter(|namespace| namespace.writes > 0) {
                let name = self.names.shared(set.name(namespace));
                for write in set.writes(namespace) {
                    self.batch.put(&name, set.write_key(&write).into(), set.write_value(&write), version);
                }
            }
            return Ok(());
        }
        let changes = changes_by_key(set, &LatestInBlock { batch: &self.batch, view }).await?;
        self.is_derived |= changes.is_derived;
        for (namespace, key, value) in changes.rows {
            self.batch.put(&self.names.shared(&namespace), key.into(), value, version);
        }
        Ok(())
    }
}

/// Whether a valid transaction changes exactly what it writes: public values only, each key once, and no delete of a key
/// that may have metadata. `has_metadata` tells of which contracts' keys the block may have set metadata before.
///
/// # Errors
/// The state's.
pub(crate) async fn has_plain_changes(
    set: &ReadWriteSet,
    view: &BlockStateView,
    known: &mut KnownRows,
    has_metadata: impl Fn(&str) -> bool,
) -> Result<bool, state::Error> {
    if !set.has_plain_writes_only() {
        return Ok(false);
    }
    for namespace in &set.namespaces {
        if set.writes(namespace).any(|write| set.write_value(&write).is_none()) {
            let contract = set.name(namespace);
            if known.may_have_metadata(contract, "", view).await? || has_metadata(contract) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Reads rows as they are before a transaction: after the valid transactions that precede it in its block.
#[async_trait]
pub(crate) trait LatestRows: Sync {
    /// The value of a row; `None` if there is no such row.
    async fn latest(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error>;
}

/// The rows after the changes that a batch has.
struct LatestInBlock<'a> {
    batch: &'a UpdateBatch,
    view: &'a BlockStateView,
}

#[async_trait]
impl LatestRows for LatestInBlock<'_> {
    async fn latest(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error> {
        match self.batch.get(namespace, key) {
            Some(update) => Ok(update.value.clone()),
            None => Ok(self.view.get(namespace, key).await?.map(|found| found.value)),
        }
    }
}

/// The rows that a transaction changes, and their new values: `None` deletes.
#[derive(Debug, Default)]
pub(crate) struct ChangedRows {
    pub(crate) rows: Vec<(String, String, Option<Bytes>)>,
    /// Whether they may differ from what the transaction writes.
    pub(crate) is_derived: bool,
}

/// The changes of a valid transaction, by the rules for each key.
pub(crate) async fn changes_by_key(
    set: &ReadWriteSet,
    before: &(impl LatestRows + ?Sized),
) -> Result<ChangedRows, state::Error> {
    let mut changes = ChangedRows::default();
    for ((contract, collection, key), change) in key_changes(set) {
        changes.change(contract, collection, key, change, before).await?;
    }
    Ok(changes)
}

impl ChangedRows {
    async fn change(
        &mut self,
        contract: &str,
        collection: &str,
        key: String,
        change: KeyChange,
        before: &(impl LatestRows + ?Sized),
    ) -> Result<(), state::Error> {
        let (values, metadata_rows) =
            (namespace::values_of(contract, collection), namespace::metadata_of(contract, collection));
        let KeyChange { sum, value, metadata } = change;
        let sets_metadata = sum & (METADATA | NO_METADATA) != 0;
        let (value, metadata) = match sum {
            _ if sum & DELETE != 0 => (None, Some(None)),
            _ if sum & VALUE != 0 && sets_metadata => (value, Some(metadata)),
            0 | VALUE => (value, None),
            _ => match before.latest(&values, &key).await? {
                Some(latest) => (Some(latest), Some(metadata)),
                None => {
                    self.is_derived = true;
                    return Ok(());
                }
            },
        };
        self.is_derived |= !matches!(sum, VALUE | DELETE);
        self.rows.push((values, key.clone(), value));
        match metadata {
            None => {}
            Some(None) if before.latest(&metadata_rows, &key).await?.is_none() => {}
            Some(metadata) => {
                self.is_derived = true;
                self.rows.push((metadata_rows, key, metadata));
            }
        }
        Ok(())
    }
}

/// The writes of a transaction, by contract, collection and key.
type KeyChanges<'a> = BTreeMap<(&'a str, &'a str, String), KeyChange>;

/// Rule 1.
fn key_changes(set: &ReadWriteSet) -> KeyChanges<'_> {
    let mut changes: KeyChanges<'_> = BTreeMap::new();
    for namespace in &set.namespaces {
        let contract = set.name(namespace);
        for write in set.writes(namespace) {
            let key = (contract, "", set.write_key(&write).to_owned());
            changes.entry(key).or_default().write(set.write_value(&write));
        }
        for write in set.metadata_writes(namespace) {
            let key = (contract, "", set.metadata_key(&write).to_owned());
            changes.entry(key).or_default().write_metadata(set.metadata(&write));
        }
        for collection in set.collections(namespace) {
            let name = set.collection_name(&collection);
            for write in set.hashed_writes(&collection) {
                let key = (contract, name, hex::encode(set.write_hash(&write)));
                changes.entry(key).or_default().write(set.write_value(&write));
            }
            for write in set.hashed_metadata_writes(&collection) {
                let key = (contract, name, hex::encode(set.metadata_hash(&write)));
                changes.entry(key).or_default().write_metadata(set.metadata(&write));
            }
        }
    }
    changes
}

/// The namespaces of one block, which are few, as shared strings.
#[derive(Debug, Default)]
pub(crate) struct NamespaceNames(Vec<Arc<str>>);

impl NamespaceNames {
    pub(crate) fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| known.as_ref() == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.push(name.clone());
        name
    }
}
