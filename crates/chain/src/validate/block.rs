//! A block's verdict, put together in the order of the chain.

use base::{Map, Set, TxId};
use ledger::CommitHasher;
use ledger::Hash;
use state::UpdateBatch;
use storage::blocks::Blocks;

use super::code::Code;
use super::conflicts::resolve;
use super::examine::Examined;
use super::view::View;
use crate::rwset::ReadWriteSet;

/// What a block comes to.
#[derive(Debug)]
pub struct Verdict {
    /// One code a transaction: the block's transactions filter.
    pub codes: Vec<Code>,
    /// What the valid transactions write.
    pub batch: UpdateBatch,
    /// The hash over filter and writes of this block and all before it.
    pub commit_hash: Hash,
}

/// Judges a block whose transactions were examined.
///
/// `committed` tells which transaction ids are in an earlier block; `view` is the state before this block.
///
/// # Errors
/// The state's or the block store's; then nothing is decided.
pub async fn judge(
    number: u64,
    examined: &[Examined],
    committed: &dyn Blocks,
    view: &View,
    previous_commit_hash: Option<&Hash>,
) -> Result<Verdict, crate::Error> {
    let mut codes = Vec::with_capacity(examined.len());
    let repeated = committed_before(examined, committed).await?;
    for (transaction, repeated) in examined.iter().zip(repeated) {
        codes.push(if transaction.form != Code::VALID {
            transaction.form
        } else if repeated {
            Code::DUPLICATE_TXID
        } else {
            transaction.endorsement
        });
    }
    mark_repeated(examined, &mut codes);
    let candidates: Vec<(u32, &ReadWriteSet)> = examined
        .iter()
        .zip(&codes)
        .enumerate()
        .filter(|(_, (_, code))| code.is_valid())
        .map(|(position, (transaction, _))| (position as u32, &transaction.set))
        .collect();
    let resolved = resolve(number, &candidates, view).await?;
    for ((position, _), code) in candidates.iter().zip(&resolved.codes) {
        codes[*position as usize] = *code;
    }
    let commit_hash = commit_hash(&codes, &resolved.batch, previous_commit_hash);
    Ok(Verdict { codes, batch: resolved.batch, commit_hash })
}

/// Of each transaction that is in form, whether its id is in an earlier block: one question for all of them, because the
/// store may be elsewhere.
async fn committed_before(examined: &[Examined], store: &dyn Blocks) -> Result<Vec<bool>, storage::Error> {
    let asked = |transaction: &Examined| transaction.tx_id.clone().filter(|_| transaction.form == Code::VALID);
    let ids: Vec<TxId> = examined.iter().filter_map(asked).collect();
    if ids.is_empty() {
        return Ok(vec![false; examined.len()]);
    }
    let mut places = store.find_transactions(&ids).await?.into_iter();
    let found = |transaction| asked(transaction).is_some() && places.next().flatten().is_some();
    Ok(examined.iter().map(found).collect())
}

/// Of transactions with one id that are valid so far, all but the first are duplicates.
fn mark_repeated(examined: &[Examined], codes: &mut [Code]) {
    let mut seen: Set<&TxId> = Set::with_capacity_and_hasher(examined.len(), Default::default());
    for (transaction, code) in examined.iter().zip(codes) {
        if let (true, Some(tx_id)) = (code.is_valid(), &transaction.tx_id)
            && !seen.insert(tx_id)
        {
            *code = Code::DUPLICATE_TXID;
        }
    }
}

/// The commit hash of a block, from its filter, its writes and the commit hash before it.
pub fn commit_hash(codes: &[Code], batch: &UpdateBatch, previous: Option<&Hash>) -> Hash {
    let filter: Vec<u8> = codes.iter().map(|code| code.0).collect();
    let mut hasher = CommitHasher::new(&filter);
    for (namespace, key, update) in batch.iter() {
        hasher.update(namespace, key, update.value.as_deref(), update.version);
    }
    hasher.finish(previous)
}

/// How often each code stands in a block.
pub fn tally(codes: &[Code]) -> Map<Code, u64> {
    let mut counts = Map::default();
    for code in codes {
        *counts.entry(*code).or_insert(0) += 1;
    }
    counts
}
