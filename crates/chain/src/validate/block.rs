//! Validates one block against the chain before it: duplicate transaction ids, policies of keys, conflicts, expiry, and the commit
//! hash.

use base::{Bytes, Map, Set, TxId, Version};
use ledger::lifecycle::LIFECYCLE;
use ledger::namespace::{MARKER, RULES, RULES_DEFINITIONS};
use ledger::rwset::ReadWriteSet;
use ledger::{Block, CommitHasher, Hash};
use state::UpdateBatch;
use storage::blocks::Blocks;

use super::code::Code;
use super::conflicts::check_conflicts;
use super::expiry;
use super::key_policies::BlockKeyPolicies;
use super::known_rows::KnownRows;
use super::updates::BlockUpdates;
use super::verify::VerifiedTransaction;
use super::view::BlockStateView;
use crate::access::ChannelPolicies;

/// The result of validating a block.
#[derive(Debug)]
pub struct BlockVerdict {
    /// One code per transaction: the block's validity filter.
    pub codes: Vec<Code>,
    /// What the block changes.
    pub batch: UpdateBatch,
    /// Whether the batch may differ from what the block's valid transactions write.
    pub is_derived: bool,
    /// The hash over filter and writes of this block and of all earlier ones.
    pub commit_hash: Hash,
}

/// The rules and the state by which a block is validated.
pub struct BlockRules<'a> {
    /// The policies in force for the block.
    pub policies: &'a ChannelPolicies,
    /// Says which transaction ids are in an earlier block.
    pub committed: &'a dyn Blocks,
    /// The state before the block.
    pub view: &'a BlockStateView,
    /// The commit hash of the block before.
    pub previous_commit_hash: Option<&'a Hash>,
}

/// Validates a block whose transactions' signatures and policies were checked under the policies in force for it.
///
/// # Errors
/// The state's or the block store's; in that case there is no verdict.
pub async fn validate_block(
    block: &Block,
    transactions: &[VerifiedTransaction],
    rules: &BlockRules<'_>,
    known: &mut KnownRows,
) -> Result<BlockVerdict, crate::Error> {
    let BlockRules { policies, committed, view, previous_commit_hash } = *rules;
    let number = block.number().get();
    let mut codes = Vec::with_capacity(transactions.len());
    let repeated = committed_before(transactions, committed).await?;
    let mut key_policies = BlockKeyPolicies::default();
    for (index, (transaction, repeated)) in transactions.iter().zip(repeated).enumerate() {
        let code = if transaction.form != Code::VALID {
            transaction.form
        } else if transaction.is_config() && transactions.len() > 1 {
            // Its orderer has to cut it alone: what follows it in the block would be judged by old rules.
            Code::INVALID_CONFIG_TRANSACTION
        } else if repeated {
            Code::DUPLICATE_TXID
        } else {
            let envelope = || block.envelope(index);
            key_policies.check(transaction.endorsement, transaction, envelope, policies, view, known).await?
        };
        if code.is_valid() {
            key_policies.note_changes(&transaction.set);
        }
        codes.push(code);
    }
    mark_duplicates(transactions, &mut codes);
    let candidates: Vec<(u32, &ReadWriteSet)> = transactions
        .iter()
        .zip(&codes)
        .enumerate()
        .filter(|(_, (_, code))| code.is_valid())
        .map(|(position, (transaction, _))| (position as u32, &transaction.set))
        .collect();
    let conflicts = check_conflicts(number, &candidates, view, known).await?;
    for ((position, _), code) in candidates.iter().zip(&conflicts.codes) {
        codes[*position as usize] = *code;
    }
    let BlockUpdates { mut batch, is_derived, .. } = conflicts.updates;
    let commit_hash = commit_hash(&codes, &batch, previous_commit_hash);
    let has_expired = expiry::expire(&mut batch, own_version(block), policies, view, known).await?;
    let has_definitions = note_definitions(&mut batch, block);
    let is_derived = is_derived || has_expired || has_definitions;
    Ok(BlockVerdict { codes, batch, is_derived, commit_hash })
}

/// Notes in the state that the block changes a definition, if it does.
fn note_definitions(batch: &mut UpdateBatch, block: &Block) -> bool {
    let changes = batch.namespaces().any(|name| **name == *LIFECYCLE);
    if changes {
        let marker = Some(Bytes::from_static(MARKER));
        batch.put(&RULES.into(), RULES_DEFINITIONS.into(), marker, own_version(block));
    }
    changes
}

/// The version of what a block changes by itself, after its last transaction.
fn own_version(block: &Block) -> Version {
    Version::new(block.number().get(), u32::try_from(block.len()).unwrap_or(u32::MAX))
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

/// The commit hash of a block, from its filter, what its transactions change, and the previous commit hash. The row of a configuration
/// is left out, as in Fabric.
pub fn commit_hash(codes: &[Code], batch: &UpdateBatch, previous: Option<&Hash>) -> Hash {
    let filter: Vec<u8> = codes.iter().map(|code| code.0).collect();
    let mut hasher = CommitHasher::new(&filter);
    for (namespace, key, update) in batch.iter() {
        hasher.row(namespace, key, update.value.as_deref(), update.version);
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
