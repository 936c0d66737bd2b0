//! Validates one block against the chain before it: duplicate transaction ids, conflicts, and the commit hash.

use base::{Map, Set, TxId};
use ledger::CommitHasher;
use ledger::Hash;
use ledger::config::CONFIG_NAMESPACE;
use state::UpdateBatch;
use storage::blocks::Blocks;

use super::code::Code;
use super::conflicts::check_conflicts;
use super::verify::VerifiedTransaction;
use super::view::BlockStateView;
use ledger::rwset::ReadWriteSet;

/// The result of validating a block.
#[derive(Debug)]
pub struct BlockVerdict {
    /// One code per transaction: the block's validity filter.
    pub codes: Vec<Code>,
    /// The writes of the valid transactions.
    pub batch: UpdateBatch,
    /// The hash over filter and writes of this block and of all earlier ones.
    pub commit_hash: Hash,
}

/// Validates a block whose transactions' signatures and policies were checked.
///
/// `committed` says which transaction ids are in an earlier block; `view` is the state before this block.
///
/// # Errors
/// The state's or the block store's; in that case there is no verdict.
pub async fn validate_block(
    number: u64,
    transactions: &[VerifiedTransaction],
    committed: &dyn Blocks,
    view: &BlockStateView,
    previous_commit_hash: Option<&Hash>,
) -> Result<BlockVerdict, crate::Error> {
    let mut codes = Vec::with_capacity(transactions.len());
    let repeated = committed_before(transactions, committed).await?;
    for (transaction, repeated) in transactions.iter().zip(repeated) {
        codes.push(if transaction.form != Code::VALID {
            transaction.form
        } else if transaction.is_config() && transactions.len() > 1 {
            // Its orderer has to cut it alone: what follows it in the block would be judged by old rules.
            Code::INVALID_CONFIG_TRANSACTION
        } else if repeated {
            Code::DUPLICATE_TXID
        } else {
            transaction.endorsement
        });
    }
    mark_duplicates(transactions, &mut codes);
    let candidates: Vec<(u32, &ReadWriteSet)> = transactions
        .iter()
        .zip(&codes)
        .enumerate()
        .filter(|(_, (_, code))| code.is_valid())
        .map(|(position, (transaction, _))| (position as u32, &transaction.set))
        .collect();
    let conflicts = check_conflicts(number, &candidates, view).await?;
    for ((position, _), code) in candidates.iter().zip(&conflicts.codes) {
        codes[*position as usize] = *code;
    }
    let commit_hash = commit_hash(&codes, &conflicts.batch, previous_commit_hash);
    Ok(BlockVerdict { codes, batch: conflicts.batch, commit_hash })
}

/// For each transaction but configurations that passed steps 1 to 6, whether its id is in an earlier block. One request asks for all of
/// them, because the store may be remote.
async fn committed_before(
    transactions: &[VerifiedTransaction],
    store: &dyn Blocks,
) -> Result<Vec<bool>, storage::Error> {
    let asked = |transaction: &VerifiedTransaction| {
        let may_repeat = transaction.form == Code::VALID && !transaction.is_config();
        transaction.tx_id.clone().filter(|_| may_repeat)
    };
    let ids: Vec<TxId> = transactions.iter().filter_map(asked).collect();
    if ids.is_empty() {
        return Ok(vec![false; transactions.len()]);
    }
    let mut places = store.find_transactions(&ids).await?.into_iter();
    let found = |transaction| asked(transaction).is_some() && places.next().flatten().is_some();
    Ok(transactions.iter().map(found).collect())
}

/// Of several transactions with one id that are valid so far, all but the first are duplicates.
fn mark_duplicates(transactions: &[VerifiedTransaction], codes: &mut [Code]) {
    let mut seen: Set<&TxId> = Set::with_capacity_and_hasher(transactions.len(), Default::default());
    for (transaction, code) in transactions.iter().zip(codes) {
        if let (true, Some(tx_id)) = (code.is_valid(), &transaction.tx_id)
            && !seen.insert(tx_id)
        {
            *code = Code::DUPLICATE_TXID;
        }
    }
}

/// The commit hash of a block, from its filter, its writes and the previous commit hash. The row of a configuration is left out,
/// as in Fabric.
pub fn commit_hash(codes: &[Code], batch: &UpdateBatch, previous: Option<&Hash>) -> Hash {
    let filter: Vec<u8> = codes.iter().map(|code| code.0).collect();
    let mut hasher = CommitHasher::new(&filter);
    for (namespace, key, update) in batch.iter().filter(|(namespace, ..)| ***namespace != *CONFIG_NAMESPACE) {
        hasher.update(namespace, key, update.value.as_deref(), update.version);
    }
    hasher.finish(previous)
}

/// How often each code occurs in a block.
pub fn tally(codes: &[Code]) -> Map<Code, u64> {
    let mut counts = Map::default();
    for code in codes {
        *counts.entry(*code).or_insert(0) += 1;
    }
    counts
}
