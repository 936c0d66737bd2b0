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
    for (position, (envelope, code)) in block.envelope_slices().zip(block.metadata().filter()).enumerate() {
        if *code != TxValidationCode::Valid as u8 {
            continue;
        }
        let (block, index) = (block.number(), TxIndex(position as u32));
        let broken = |reason: String| Error::Transaction { block, index, reason };
        let results = results_of_valid(envelope).map_err(|error| broken(error.to_string()))?;
        let version = Version::new(number, position as u32);
        let Some(results) = results else {
            let content = data_of_valid(envelope).map_err(|error| broken(error.to_string()))?;
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
        .map_err(|error| broken(error.to_string()))?;
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

/// Materialises the rows that stored blocks write, for a storage node.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockMaterializer;

impl Materializer for BlockMaterializer {
    fn materialize(&self, number: BlockNumber, block: &GatherList, batch: &mut RowBatch) -> Result<(), storage::Error> {
        let unreadable = |reason: String| storage::Error::Unreadable { block: number, reason };
        let parsed = Block::parse_pieces(block.as_slice()).map_err(|error| unreadable(error.to_string()))?;
        if parsed.number() != number {
            return Err(unreadable(format!("its bytes say that it is block {}", parsed.number())));
        }
        let writes = stored_writes(&parsed).map_err(|error| unreadable(error.to_string()))?;
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
}
