//! Applies stored blocks again, from the state's savepoint on.
//!
//! A stored block carries its filter, so nothing is verified a second time: the writes of the transactions that the
//! filter marks as valid are applied again. The block also carries its derived updates, the changes beyond these writes
//! ([`ledger::block::derived`]).

use std::sync::Arc;

use base::{BlockNumber, Bytes};
use ledger::Block;
use ledger::block::derived::{self, DerivedChange, DerivedUpdate};
use ledger::materialize::{StoredWrite, stored_writes};
use state::{UpdateBatch, WorldState};
use storage::blocks::Blocks;

use crate::Error;
use crate::events;

/// Brings the state to the height of the block store. Returns the number of blocks that it applied.
///
/// # Errors
/// [`Error::Stored`] if the state is ahead of the blocks or a block is missing; those of a block that cannot be
/// decoded; the state's and the block store's.
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

/// The writes of [`stored_writes`] as a batch for the state.
///
/// # Errors
/// As [`stored_writes`].
pub fn stored_updates(block: &Block) -> Result<UpdateBatch, Error> {
    let mut batch = UpdateBatch::default();
    batch.set_block_hash(block.hash());
    let mut name: Arc<str> = "".into();
    for StoredWrite { namespace, key, value, version } in stored_writes(block)? {
        if *name != *namespace {
            name = namespace.into();
        }
        batch.put(&name, key.into(), value.map(|value| value.shared(block)), version);
    }
    Ok(batch)
}

/// The derived updates of a block, encoded for its metadata: the difference between `all` its changes and those
/// `written` by its transactions, which are the [`stored_updates`] of the block without derived updates.
pub fn derived_updates(written: &UpdateBatch, all: &UpdateBatch) -> Bytes {
    let derived = all.iter().filter(|(namespace, key, update)| written.get(namespace, key) != Some(update));
    let derived = derived.map(|(namespace, key, update)| {
        let tx = update.version.tx;
        let change = match &update.value {
            Some(value) => DerivedChange::Written(tx, value),
            None => DerivedChange::Deleted(tx),
        };
        DerivedUpdate { namespace, key, change }
    });
    let kept = written.iter().filter(|(namespace, key, _)| all.get(namespace, key).is_none());
    let kept = kept.map(|(namespace, key, _)| DerivedUpdate { namespace, key, change: DerivedChange::Kept });
    derived::encode(derived.chain(kept))
}
