//! Applying stored blocks again, from the state's savepoint on.
//!
//! A stored block carries its filter, so nothing is verified a second time: the writes of its valid transactions are
//! applied as they were the first time.

use std::sync::Arc;

use base::{BlockNumber, Version};
use ledger::Block;
use ledger::transaction::Transaction;
use state::{UpdateBatch, WorldState};
use storage::blocks::Blocks;

use crate::Error;
use crate::events;
use crate::rwset::ReadWriteSet;
use crate::validate::Code;

/// Brings the state to the height of the block store.
///
/// # Errors
/// [`Error::Stored`] where the state is ahead of the blocks, or a block that this peer stored is not what it stores.
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
            reason: "it is below the height of the store and not there".to_owned(),
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

/// What the valid transactions of a stored block write.
///
/// # Errors
/// [`Error::Stored`] where a transaction that is marked valid cannot be read.
pub fn stored_updates(block: &Block) -> Result<UpdateBatch, Error> {
    block.check_filter()?;
    let number = block.number().get();
    let filter = block.metadata().filter();
    let mut batch = UpdateBatch::default();
    batch.set_block_hash(block.hash());
    for (position, (envelope, code)) in block.envelopes().zip(filter).enumerate() {
        if !Code(*code).is_valid() {
            continue;
        }
        let broken =
            |reason: String| Error::Stored { block: number, reason: format!("transaction {position}: {reason}") };
        let transaction = Transaction::parse(&envelope).map_err(|invalid| broken(invalid.to_string()))?;
        if transaction.is_config() {
            continue;
        }
        let results = transaction
            .action()
            .and_then(|action| action.outcome(transaction.header()))
            .map_err(|invalid| broken(invalid.to_string()))?
            .results();
        let set = ReadWriteSet::decode(results).map_err(|error| broken(error.to_string()))?;
        collect(&set, Version::new(number, position as u32), &mut batch);
    }
    Ok(batch)
}

fn collect(set: &ReadWriteSet, version: Version, batch: &mut UpdateBatch) {
    for namespace in &set.namespaces {
        let name: Arc<str> = set.name(namespace).into();
        for write in &namespace.writes {
            batch.put(&name, set.write_key(write).into(), set.write_value(write), version);
        }
    }
}
