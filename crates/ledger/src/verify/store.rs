//! Checks a ledger in a block store: feeds the verifier with its blocks, and compares the store's own indexes with
//! them.

use base::{BlockNumber, ErrorKind, TxId, TxIndex, rt};
use storage::blocks::{BlockStore, StoredBlock};

use super::{LedgerReport, LedgerVerifier, VerifyConfig, VerifyError};
use crate::block::Block;
use crate::error::Error;
use crate::transaction::Transaction;

/// How far a check has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyProgress {
    /// Blocks checked.
    pub blocks: u64,
    /// Blocks to check altogether.
    pub height: u64,
    /// Transactions in the checked blocks.
    pub transactions: u64,
    /// Bytes of the checked blocks.
    pub bytes: u64,
}

/// Checks all blocks that a store holds when it is called, and that the store's own indexes tell of them what they say.
/// Calls `progress` after each block, and lets other tasks run in between.
///
/// Reads only; dropping the future is safe.
///
/// # Errors
/// The first fault, with the block that has it.
pub async fn verify(
    store: &BlockStore,
    options: VerifyConfig,
    mut progress: impl FnMut(VerifyProgress),
) -> Result<LedgerReport, VerifyError> {
    let height = store.height();
    let mut verifier = LedgerVerifier::new(options);
    for number in (0..height).map(BlockNumber) {
        check_stored(store, number, &mut verifier).map_err(|cause| VerifyError { block: number, cause })?;
        let LedgerReport { blocks, transactions, bytes, .. } = *verifier.report();
        progress(VerifyProgress { blocks, height, transactions, bytes });
        rt::yield_now().await;
    }
    Ok(verifier.report().clone())
}

fn check_stored(store: &BlockStore, number: BlockNumber, verifier: &mut LedgerVerifier) -> Result<(), Error> {
    let failed = |cause: storage::Error| Error::Store { cause: cause.to_string(), kind: cause.kind() };
    let stored = store.read_stored(number).map_err(failed)?.ok_or(Error::Store {
        cause: format!("block {number} is below the height and not there"),
        kind: ErrorKind::Corrupt,
    })?;
    let block = Block::parse(&stored.payload)?;
    check_record(&stored, &block)?;
    verifier.check(&block)?;
    if store.number_by_hash(&block.hash()).map_err(failed)? != Some(number) {
        return Err(index_fault(number, "the index of hashes does not know it"));
    }
    for (index, (id, code)) in stored.transactions.iter().enumerate() {
        check_transaction(store, &block, index, id, *code)?;
    }
    Ok(())
}

fn index_fault(number: BlockNumber, reason: &str) -> Error {
    Error::Store { cause: format!("block {number}: {reason}"), kind: ErrorKind::Corrupt }
}

/// The record around a block repeats what the block says.
fn check_record(stored: &StoredBlock, block: &Block) -> Result<(), Error> {
    let number = stored.number;
    if block.number() != number {
        return Err(Error::Number { expected: number, found: block.number() });
    }
    if stored.header_hash != block.hash() || stored.previous_hash != block.header().previous_hash_or_zero() {
        return Err(index_fault(number, "its record names other hashes"));
    }
    if !stored.transactions.is_empty() && stored.transactions.len() != block.len() {
        return Err(index_fault(number, "its record lists another number of transactions"));
    }
    Ok(())
}

/// The record's transaction is the block's, and looking its id up finds it or an earlier one.
fn check_transaction(store: &BlockStore, block: &Block, index: usize, id: &TxId, code: u8) -> Result<(), Error> {
    let at = |reason: &str| Error::Transaction {
        block: block.number(),
        index: TxIndex(u32::try_from(index).expect("a block has fewer envelopes")),
        reason: reason.to_owned(),
    };
    if block.metadata().filter().get(index).is_some_and(|recorded| *recorded != code) {
        return Err(at("the store's record has another validation code than the block"));
    }
    if id.is_empty() {
        return Ok(());
    }
    if Transaction::decode(&block.envelope(index))
        .map_or(true, |transaction| transaction.header().indexed_tx_id() != *id)
    {
        return Err(at("the store's record has another transaction id than the block"));
    }
    let place = store
        .find_transaction(id)
        .map_err(|cause| Error::Store { cause: cause.to_string(), kind: cause.kind() })?
        .ok_or_else(|| at("the index of transactions does not know it"))?;
    let is_first = place.block == block.number();
    if !is_first && place.block > block.number() {
        return Err(at("the index of transactions finds a later one of the same id"));
    }
    if !is_first && code == 0 {
        return Err(at("it is marked valid, but an earlier block has a transaction of the same id"));
    }
    Ok(())
}
