//! The rows that a stored block writes to the world state's tables.
//!
//! A stored block carries its validity filter, so nothing is verified again: the writes of the transactions that the
//! filter marks as valid become rows, each at the version of its transaction. A storage node materialises rows in this
//! way ([`BlockMaterializer`]), and a starting peer replays the blocks after its savepoint in the same way. A
//! configuration writes one row, as in Fabric: its envelope's content under [`CONFIG_KEY`]. Changes that also depend on
//! the state before the block are read from the block's metadata ([`derived`]).

use std::borrow::Cow;

use base::rt::net::GatherList;
use base::{BlockNumber, Bytes, TxIndex, Version};
use identity::hex;
use proto::protos::TxValidationCode;
use storage::Materializer;
use storage::tables::RowBatch;

use crate::block::CommitHasher;
use crate::block::derived::{self, DerivedChange, DerivedUpdate};
use crate::config::{CONFIG_KEY, CONFIG_NAMESPACE};
use crate::rwset::{VisitedWrite, visit_writes};
use crate::transaction::{data_of_valid, results_of_valid};
use crate::wire::Span;
use crate::{Block, Error, Hash, namespace};

/// A write of a stored block: the last one to its key in that block.
pub struct StoredWrite<'a> {
    /// The namespace of the state.
    pub namespace: Cow<'a, str>,
    /// The key within the namespace.
    pub key: Cow<'a, str>,
    /// Shares the block's memory; `None` if the key is deleted.
    pub value: Option<StoredValue<'a>>,
    /// The block, and the position in it of the transaction that wrote the key. The position after the last transaction
    /// stands for a change by the block itself.
    pub version: Version,
}

/// The new value of a key.
#[derive(Clone, Copy)]
pub enum StoredValue<'a> {
    /// It is part of the block's data.
    InData(&'a [u8]),
    /// It is part of the derived updates in the block's metadata.
    InMetadata(&'a [u8]),
}

impl<'a> StoredValue<'a> {
    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            StoredValue::InData(bytes) | StoredValue::InMetadata(bytes) => bytes,
        }
    }

    /// Its bytes, which share the memory of `block`.
    pub fn shared(self, block: &Block) -> Bytes {
        match self {
            StoredValue::InData(bytes) => block.encoded().data.slice_ref(bytes),
            StoredValue::InMetadata(bytes) => block.metadata().derived_updates().slice_ref(bytes),
        }
    }
}

/// The writes of the valid transactions of a stored block and its derived updates, ordered by namespace and key. There
/// are none for the genesis block.
///
/// # Errors
/// [`Error::FilterLength`]; [`Error::Transaction`] if a transaction that is marked valid cannot be read;
/// [`Error::Malformed`] if the derived updates cannot be read.
pub fn stored_writes(block: &Block) -> Result<Vec<StoredWrite<'_>>, Error> {
    block.check_filter()?;
    let number = block.number().get();
    if number == 0 {
        // The channel's first configuration is read from the genesis block itself.
        return Ok(Vec::new());
    }
    let mut writes = Vec::with_capacity(2 * block.len());
    for transaction in valid_transactions(block) {
        let ValidTransaction { envelope, version, results } = transaction?;
        let Some(results) = results else {
            let content = data_of_valid(envelope).map_err(|error| broken(version, &error))?;
            let value = Some(StoredValue::InData(content.of(envelope)));
            writes.push(StoredWrite { namespace: CONFIG_NAMESPACE.into(), key: CONFIG_KEY.into(), value, version });
            continue;
        };
        visit_writes(envelope, results, |write| {
            let VisitedWrite { namespace, collection, key, value } = write;
            let (namespace, key) = match std::str::from_utf8(key) {
                Ok(key) if collection.is_empty() => (namespace.into(), key.into()),
                _ => (namespace::values_of(namespace, collection).into(), hex::encode(key).into()),
            };
            let value = value.map(|value| StoredValue::InData(value.of(envelope)));
            writes.push(StoredWrite { namespace, key, value, version });
        })
        .map_err(|error| broken(version, &error))?;
    }
    // The derived updates come last, because they replace the transactions' writes.
    let mut kept = Vec::new();
    for update in derived::decode(block.metadata().derived_updates()) {
        let DerivedUpdate { namespace, key, change } = update?;
        let (value, tx) = match change {
            DerivedChange::Kept => {
                kept.push((namespace, key));
                continue;
            }
            DerivedChange::Deleted(tx) => (None, tx),
            DerivedChange::Written(tx, value) => (Some(StoredValue::InMetadata(value)), tx),
        };
        let version = Version::new(number, tx);
        writes.push(StoredWrite { namespace: namespace.into(), key: key.into(), value, version });
    }
    if !kept.is_empty() {
        kept.sort_unstable();
        writes.retain(|write| kept.binary_search(&(write.namespace.as_ref(), write.key.as_ref())).is_err());
    }
    // A stable sort: the last of several writes to one key stays the last.
    writes.sort_by(|one, other| (&one.namespace, &one.key).cmp(&(&other.namespace, &other.key)));
    writes.dedup_by(|later, earlier| {
        let same = (&later.namespace, &later.key) == (&earlier.namespace, &earlier.key);
        if same {
            std::mem::swap(later, earlier);
        }
        same
    });
    Ok(writes)
}

/// The commit hash of a stored block, computed from its filter, its writes, and the commit hash of the block before.
///
/// # Errors
/// As [`stored_writes`].
pub fn commit_hash(block: &Block, previous: Option<&Hash>) -> Result<Hash, Error> {
    let mut hasher = CommitHasher::new(block.metadata().filter());
    for StoredWrite { namespace, key, value, version } in stored_writes(block)? {
        // The hash does not cover the changes of the block itself.
        if (version.tx as usize) < block.len() {
            hasher.row(&namespace, &key, value.map(StoredValue::bytes), version);
        }
    }
    Ok(hasher.finish(previous))
}

/// A valid transaction of a stored block.
struct ValidTransaction<'a> {
    envelope: &'a [u8],
    version: Version,
    /// The position of its read-write set; `None` for a configuration.
    results: Option<Span>,
}

/// The valid transactions of a stored block.
fn valid_transactions(block: &Block) -> impl Iterator<Item = Result<ValidTransaction<'_>, Error>> {
    let all = block.envelope_slices().zip(block.metadata().filter()).enumerate();
    let valid = all.filter(|(_, (_, code))| **code == TxValidationCode::Valid as u8);
    valid.map(|(position, (envelope, _))| {
        let version = Version::new(block.number().get(), position as u32);
        let results = results_of_valid(envelope).map_err(|error| broken(version, &error))?;
        Ok(ValidTransaction { envelope, version, results })
    })
}

fn broken(version: Version, error: &dyn std::error::Error) -> Error {
    Error::Transaction { block: BlockNumber(version.block), index: TxIndex(version.tx), reason: error.to_string() }
}

/// Materialises the rows that stored blocks write, for a storage node.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockMaterializer;

impl BlockMaterializer {
    fn parse(number: BlockNumber, block: &GatherList) -> Result<Block, storage::Error> {
        let parsed = Block::parse_pieces(block.as_slice()).map_err(|error| unreadable(number, &error))?;
        if parsed.number() != number {
            let reason = format!("its bytes say that it is block {}", parsed.number());
            return Err(storage::Error::Unreadable { block: number, reason });
        }
        Ok(parsed)
    }
}

fn unreadable(block: BlockNumber, error: &dyn std::error::Error) -> storage::Error {
    storage::Error::Unreadable { block, reason: error.to_string() }
}

impl Materializer for BlockMaterializer {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), storage::Error> {
        let parsed = BlockMaterializer::parse(number, block)?;
        let writes = stored_writes(&parsed).map_err(|error| unreadable(number, &error))?;
        let value_bytes = writes.iter().filter_map(|write| write.value).map(|value| value.bytes().len()).sum();
        let shares = batch.shares(block.len(), value_bytes);
        writes.into_iter().try_for_each(|StoredWrite { namespace, key, value, version }| {
            let own = |value: StoredValue<'_>| match shares {
                true => value.shared(&parsed),
                false => Bytes::copy_from_slice(value.bytes()),
            };
            batch.put(&namespace, key.as_bytes(), version, value.map(own))
        })
    }

    fn visit_written(
        &self,
        number: BlockNumber,
        block: &GatherList,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<(), storage::Error> {
        let parsed = BlockMaterializer::parse(number, block)?;
        parsed.check_filter().map_err(|error| unreadable(number, &error))?;
        if number.get() == 0 {
            // Block 0 is a configuration, and writes no key.
            return Ok(());
        }
        for transaction in valid_transactions(&parsed) {
            let ValidTransaction { envelope, results, .. } = transaction.map_err(|error| unreadable(number, &error))?;
            let Some(results) = results else { continue };
            let visited = visit_writes(envelope, results, |write| {
                if write.collection.is_empty() {
                    visit(write.namespace, write.key);
                }
            });
            visited.map_err(|error| unreadable(number, &error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, BLOCK_8};

    /// Fabric's history lists every write of a valid transaction; its state ignores some, such as the second write to a key by
    /// one transaction.
    #[test]
    fn a_write_that_leaves_no_row_is_visited() {
        let golden = golden::block(BLOCK_8);
        let rows: Vec<(String, String)> = stored_writes(&golden)
            .expect("golden")
            .into_iter()
            .map(|write| (write.namespace.into_owned(), write.key.into_owned()))
            .collect();
        assert!(!rows.is_empty());
        let kept = rows.iter().map(|(namespace, key)| DerivedUpdate { namespace, key, change: DerivedChange::Kept });
        let mut metadata = golden.metadata().clone();
        metadata.set_derived_updates(derived::encode(kept));
        let block = golden.with_metadata(metadata);
        assert!(stored_writes(&block).expect("it is well formed").is_empty());
        let mut visited = Vec::new();
        let mut visit = |namespace: &str, key: &[u8]| {
            visited.push((namespace.to_owned(), String::from_utf8(key.to_vec()).expect("golden")));
        };
        BlockMaterializer
            .visit_written(block.number(), &block.to_bytes().into(), &mut visit)
            .expect("it is well formed");
        assert_eq!(visited, rows);
    }
}
