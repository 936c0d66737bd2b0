//! The rows that a stored block writes to the world state's tables.
//!
//! A stored block carries its validity filter, so nothing is verified again: the writes of the transactions that the
//! filter marks as valid become rows, each at the version of its transaction. A storage node materialises rows in this
//! way ([`BlockMaterializer`]); a peer does the same when it starts and replays the blocks after its savepoint. A
//! configuration writes one row, as in Fabric: its envelope's content under [`CONFIG_KEY`].

use base::rt::net::GatherList;
use base::{BlockNumber, Bytes, TxIndex, Version};
use proto::protos::TxValidationCode;
use storage::Materializer;
use storage::tables::RowBatch;

use crate::config::{CONFIG_KEY, CONFIG_NAMESPACE};
use crate::rwset::visit_writes;
use crate::transaction::{data_of_valid, results_of_valid};
use crate::{Block, Error};

/// A write of a stored block: the last one to its key in that block.
pub struct StoredWrite<'a> {
    /// The contract's namespace.
    pub namespace: &'a str,
    /// The key within the namespace.
    pub key: &'a str,
    /// Shares the block's memory; `None` if the key is deleted.
    pub value: Option<&'a [u8]>,
    /// The block, and the position in it of the transaction that wrote the key.
    pub version: Version,
}

/// The writes of the valid transactions of a stored block, ordered by namespace and key. The genesis block has none.
///
/// # Errors
/// [`Error::FilterLength`]; [`Error::Transaction`] if a transaction that is marked valid cannot be read.
pub fn stored_writes(block: &Block) -> Result<Vec<StoredWrite<'_>>, Error> {
    block.check_filter()?;
    let number = block.number().get();
    if number == 0 {
        // Its configuration is read from the block itself.
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
            let value = Some(content.of(envelope));
            writes.push(StoredWrite { namespace: CONFIG_NAMESPACE, key: CONFIG_KEY, value, version });
            continue;
        };
        visit_writes(envelope, results, |namespace, key, value| {
            writes.push(StoredWrite { namespace, key, value: value.map(|value| value.of(envelope)), version });
        })
        .map_err(|error| broken(error.to_string()))?;
    }
    // A stable sort: the last of several writes to one key stays the last.
    writes.sort_by(|one, other| (one.namespace, one.key).cmp(&(other.namespace, other.key)));
    writes.dedup_by(|later, earlier| {
        let same = (later.namespace, later.key) == (earlier.namespace, earlier.key);
        if same {
            std::mem::swap(later, earlier);
        }
        same
    });
    Ok(writes)
}

/// Reads the rows that stored blocks write, for a storage node that materialises them.
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
        let value_bytes = writes.iter().filter_map(|write| write.value).map(<[u8]>::len).sum();
        let shares = batch.shares(block.len(), value_bytes);
        let [_, data, _] = parsed.parts();
        writes.into_iter().try_for_each(|StoredWrite { namespace, key, value, version }| {
            let own = |value| if shares { data.slice_ref(value) } else { Bytes::copy_from_slice(value) };
            batch.put(namespace, key.as_bytes(), version, value.map(own))
        })
    }
}
