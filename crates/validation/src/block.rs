//! Validates one block against the chain before it: checks duplicate transaction ids, policies of keys and conflicts,
//! then computes the commit hash and the expiries.

use base::{Bytes, Map, Set, TxId, Version};
use ledger::Code;
use ledger::lifecycle::LIFECYCLE;
use ledger::namespace::{MARKER, RULES, RULES_DEFINITIONS};
use ledger::rwset::ReadWriteSet;
use ledger::{Block, CommitHasher, Hash};
use rules::access::ChannelPolicies;
use state::UpdateBatch;
use storage::blocks::Blocks;

use crate::conflicts::{ConflictOutcome, check_conflicts};
use crate::expiry;
use crate::footprint::Footprint;
use crate::graph::TRANSACTIONS_MAX;
use crate::key_policies::BlockKeyPolicies;
use crate::known_rows::KnownRows;
use crate::parallel::{Candidate, WorkersConfig, check_conflicts_in_parallel};
use crate::updates::BlockUpdates;
use crate::verify::VerifiedTransaction;
use crate::view::BlockStateView;

/// The result of validating a block.
#[derive(Debug)]
pub struct BlockVerdict {
    /// One code per transaction: the block's validity filter.
    pub codes: Vec<Code>,
    /// The changes of the block to the state.
    pub batch: UpdateBatch,
    /// Whether the batch may differ from what the block's valid transactions write.
    pub is_derived: bool,
    /// The hash over the filters and writes of this block and of all earlier ones.
    pub commit_hash: Hash,
}

/// How the transactions of a block are checked for conflicts. Verdicts do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ConflictCheckMode {
    /// One after the other.
    #[default]
    Sequential,
    /// By several workers, which follow the dependency graph of the block, if enough of its transactions scan ranges.
    Parallel(WorkersConfig),
}

/// The rules and the state by which a block is validated.
pub struct BlockRules<'a> {
    /// The policies in force for the block.
    pub policies: &'a ChannelPolicies,
    /// The stored blocks, which tell whether an earlier block has a transaction id.
    pub committed: &'a dyn Blocks,
    /// The state before the block.
    pub view: &'a BlockStateView,
    /// The commit hash of the block before.
    pub previous_commit_hash: Option<&'a Hash>,
    /// How conflicts are found.
    pub mode: ConflictCheckMode,
}

/// Validates a block whose transactions' signatures and policies were checked under the policies in force for it.
///
/// # Errors
/// The state's or the block store's; in that case there is no verdict.
pub async fn validate_block(
    block: &Block,
    transactions: &mut [VerifiedTransaction],
    rules: &BlockRules<'_>,
    known: &mut KnownRows,
) -> Result<BlockVerdict, crate::Error> {
    let BlockRules { policies, committed, view, previous_commit_hash, mode } = *rules;
    let number = block.number().get();
    let mut codes = Vec::with_capacity(transactions.len());
    let repeated = committed_before(transactions, committed).await?;
    let mut key_policies = BlockKeyPolicies::default();
    for (index, (transaction, repeated)) in transactions.iter().zip(repeated).enumerate() {
        let code = if transaction.form != Code::VALID {
            transaction.form
        } else if transaction.is_config() && transactions.len() > 1 {
            // An orderer must put it into a block of its own: later transactions of the same block would be validated
            // by the old rules.
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
    let positions: Vec<u32> =
        (0..).zip(&codes).filter(|(_, code)| code.is_valid()).map(|(position, _)| position).collect();
    let conflicts = find_conflicts(number, transactions, &positions, mode, view, known).await?;
    for (position, code) in positions.iter().zip(&conflicts.codes) {
        codes[*position as usize] = *code;
    }
    let BlockUpdates { mut batch, is_derived, .. } = conflicts.updates;
    let commit_hash = commit_hash(&codes, &batch, previous_commit_hash);
    let has_expired = expiry::expire(&mut batch, own_version(block), policies, view, known).await?;
    let has_definitions = note_definitions(&mut batch, block);
    let is_derived = is_derived || has_expired || has_definitions;
    Ok(BlockVerdict { codes, batch, is_derived, commit_hash })
}

/// Checks the transactions at `positions`, which passed all earlier checks, for conflicts.
///
/// # Errors
/// The state's; in that case there is no result.
pub async fn find_conflicts(
    block: u64,
    transactions: &mut [VerifiedTransaction],
    positions: &[u32],
    mode: ConflictCheckMode,
    view: &BlockStateView,
    known: &mut KnownRows,
) -> Result<ConflictOutcome, state::Error> {
    let scans =
        |position: &&u32| transactions[**position as usize].set.namespaces.iter().any(|namespace| namespace.ranges > 0);
    let workers = match mode {
        ConflictCheckMode::Parallel(config) if positions.len() <= TRANSACTIONS_MAX => {
            config.workers(positions.iter().filter(scans).count())
        }
        _ => 1,
    };
    if workers > 1 {
        return in_parallel(block, transactions, positions, view, known, workers).await;
    }
    let set = |position: &u32| (*position, &transactions[*position as usize].set);
    let candidates: Vec<(u32, &ReadWriteSet)> = positions.iter().map(set).collect();
    check_conflicts(block, &candidates, view, known).await
}

async fn in_parallel(
    block: u64,
    transactions: &mut [VerifiedTransaction],
    positions: &[u32],
    view: &BlockStateView,
    known: &mut KnownRows,
    workers: usize,
) -> Result<ConflictOutcome, state::Error> {
    let candidate = |position: &u32| {
        let VerifiedTransaction { set, footprint, .. } = &mut transactions[*position as usize];
        let footprint = footprint.take().unwrap_or_else(|| Footprint::of(set));
        Candidate { position: *position, set: std::mem::take(set), footprint }
    };
    let candidates = positions.iter().map(candidate).collect();
    let (candidates, outcome) = check_conflicts_in_parallel(block, candidates, view, known, workers).await;
    for Candidate { position, set, footprint } in candidates {
        let transaction = &mut transactions[position as usize];
        (transaction.set, transaction.footprint) = (set, Some(footprint));
    }
    outcome
}

/// If the block writes to the namespace of definitions, notes that in the state. Returns whether it does.
fn note_definitions(batch: &mut UpdateBatch, block: &Block) -> bool {
    let changes = batch.namespaces().any(|name| **name == *LIFECYCLE);
    if changes {
        let marker = Some(Bytes::from_static(MARKER));
        batch.put(&RULES.into(), RULES_DEFINITIONS.into(), marker, own_version(block));
    }
    changes
}

/// The version of changes by the block itself: the position after its last transaction.
fn own_version(block: &Block) -> Version {
    Version::new(block.number().get(), u32::try_from(block.len()).unwrap_or(u32::MAX))
}

/// For each transaction, whether its id is in an earlier block; always `false` for configurations and for transactions
/// that failed steps 1 to 6. One request looks up all ids, because the store may be remote.
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

/// Marks all but the first of several transactions that share an id and are valid so far.
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

/// The commit hash of a block, from its filter, the changes of its transactions, and the previous commit hash. As in
/// Fabric, it does not cover the row of a configuration.
pub fn commit_hash(codes: &[Code], batch: &UpdateBatch, previous: Option<&Hash>) -> Hash {
    let filter: Vec<u8> = codes.iter().map(|code| code.0).collect();
    let mut hasher = CommitHasher::new(&filter);
    for (namespace, key, update) in batch.iter() {
        hasher.row(namespace, key, update.value.as_deref(), update.version);
    }
    hasher.finish(previous)
}

/// The number of transactions of a block with each code.
pub fn tally(codes: &[Code]) -> Map<Code, u64> {
    let mut counts = Map::default();
    for code in codes {
        *counts.entry(*code).or_insert(0) += 1;
    }
    counts
}
