//! Applying stored blocks again, from the state's savepoint on.
//!
//! A stored block carries its filter, so nothing is verified a second time: the writes of the transactions that the filter
//! marks as valid are applied again.

use std::sync::Arc;

use base::{BlockNumber, Version};
use ledger::Block;
use ledger::transaction::results_of_valid;
use state::{UpdateBatch, WorldState};
use storage::blocks::Blocks;

use crate::Error;
use crate::events;
use crate::rwset::visit_writes;
use crate::validate::Code;

/// Brings the state to the height of the block store.
///
/// # Errors
/// [`Error::Stored`] if the state is ahead of the blocks, or if a block is missing or cannot be read.
pub async fn replay(store: &dyn Blocks, state: &dyn WorldState) -> Result<u64, Error> {
    let height = store.height();
    if state.height() > height {
        return Err(Error::Stored {
            block: height,
            reason: format!("the state is at height {}, beyond the last stored block", state.height()),
        });
    }
    let mut replayed = 0;
    for number in state.height()..height {
        let bytes = store.read(BlockNumber(number)).await?.ok_or_else(|| Error::Stored {
            block: number,
            reason: "it is missing, although the store's height is above it".to_owned(),
        })?;
        let batch = stored_updates(&Block::parse(&bytes)?)?;
        if state.wants_persist() {
            state.persist().await?;
        }
        state.apply(number, batch).await?;
        events::BlocksReplayed.add(1);
        replayed += 1;
    }
    Ok(replayed)
}

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

/// The writes of the valid transactions of a stored block, ordered by namespace and key.
///
/// # Errors
/// [`Error::Stored`] if a transaction that is marked valid cannot be read.
pub fn stored_writes(block: &Block) -> Result<Vec<StoredWrite<'_>>, Error> {
    block.check_filter()?;
    let number = block.number().get();
    let mut writes = Vec::with_capacity(2 * block.len());
    for (position, (envelope, code)) in block.envelope_slices().zip(block.metadata().filter()).enumerate() {
        if !Code(*code).is_valid() {
            continue;
        }
        let broken =
            |reason: String| Error::Stored { block: number, reason: format!("transaction {position}: {reason}") };
        let results = results_of_valid(envelope).map_err(|error| broken(error.to_string()))?;
        let Some(results) = results else { continue };
        let version = Version::new(number, position as u32);
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

/// The writes of [`stored_writes`] as a batch for the state.
///
/// # Errors
/// As [`stored_writes`].
pub fn stored_updates(block: &Block) -> Result<UpdateBatch, Error> {
    let mut batch = UpdateBatch::default();
    batch.set_block_hash(block.hash());
    let [_, data, _] = block.parts();
    let mut name: Arc<str> = "".into();
    for StoredWrite { namespace, key, value, version } in stored_writes(block)? {
        if *name != *namespace {
            name = namespace.into();
        }
        batch.put(&name, key.into(), value.map(|value| data.slice_ref(value)), version);
    }
    Ok(batch)
}
