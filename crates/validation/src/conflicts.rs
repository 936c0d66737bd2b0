//! The conflict check: finds the transactions that read a version that is no longer current.
//!
//! The result is a function of the state before the block and of the read-write sets, in the order of the block. The
//! *candidates* are the transactions of the block that passed all earlier checks.
//! 1. One request fetches the versions of all keys that the candidates read; private keys are named by their hashes.
//! 2. For each candidate in turn, namespace by namespace: the transaction is invalid with [`Code::MVCC_READ_CONFLICT`]
//!    if an earlier valid transaction of the block wrote a key that it read, or if the state now has another version of
//!    such a key. A key that appeared or disappeared since the read counts as changed.
//! 3. Then each range that the candidate scanned is scanned again, over the state and the block's earlier valid writes.
//!    If the keys or versions differ, the transaction is invalid with [`Code::PHANTOM_READ_CONFLICT`]. A scan that had
//!    stopped early is repeated up to and including the last key that it returned.
//! 4. The versions of the private keys that the candidate read in that namespace are compared as in step 2.
//! 5. The changes of a valid transaction join the block's batch with the version (block, position)
//!    ([`crate::updates`]).
//!
//! By step 2 every write of an earlier valid transaction of the block conflicts with a later read of the same key. This
//! includes a write that deletes a key that never existed. Fabric behaves the same way in both cases.

#[cfg(test)]
mod tests;

use base::Version;
use identity::hex;
use ledger::Code;
use ledger::namespace;
use ledger::rwset::merkle::{MerkleSummary, RangeSummarizer, SummarizerOutcome};
use ledger::rwset::{NamespaceReadWriteSet, RangeReads, ReadVersion, ReadWriteSet, ScannedRange};
use state::UpdateBatch;

use crate::known_rows::KnownRows;
use crate::updates::BlockUpdates;
use crate::view::{BlockStateView, after};

/// The result of the conflict checks of a block.
#[derive(Debug, Default)]
pub struct ConflictOutcome {
    /// One code for each candidate, in order.
    pub codes: Vec<Code>,
    /// The changes of the valid candidates.
    pub updates: BlockUpdates,
}

/// Decides which of `candidates` are valid. Each candidate is a position in the block and the read-write set of the
/// transaction there.
///
/// # Errors
/// The state's; in that case there is no result.
pub async fn check_conflicts(
    block: u64,
    candidates: &[(u32, &ReadWriteSet)],
    view: &BlockStateView,
    known: &mut KnownRows,
) -> Result<ConflictOutcome, state::Error> {
    debug_assert!(candidates.is_sorted_by_key(|(position, _)| *position), "candidates come in block order");
    let namespaces =
        || candidates.iter().flat_map(|(_, set)| set.namespaces.iter().map(move |namespace| (set, namespace)));
    // Hashed reads under their names in the state; the set names contract, collection and raw hash.
    let hashed: Vec<HashedReads> = namespaces().flat_map(|(set, namespace)| HashedReads::of(set, namespace)).collect();
    let count = namespaces().map(|(_, namespace)| namespace.reads as usize).sum::<usize>();
    let count = count + hashed.iter().map(|reads| reads.keys.len()).sum::<usize>();
    let (mut keys, mut seen) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut of_collections = hashed.iter();
    for (set, namespace) in namespaces() {
        let name = set.name(namespace);
        for read in set.reads(namespace) {
            keys.push((name, set.read_key(&read)));
            seen.push(read.version);
        }
        for reads in of_collections.by_ref().take(namespace.collections as usize) {
            for (key, version) in &reads.keys {
                keys.push((&reads.namespace, key));
                seen.push(*version);
            }
        }
    }
    let versions = if keys.is_empty() { Vec::new() } else { view.versions(&keys).await? };
    let mut current = keys.iter().zip(seen).zip(versions);

    let mut outcome = ConflictOutcome { codes: Vec::with_capacity(candidates.len()), updates: BlockUpdates::default() };
    let mut of_collections = hashed.iter();
    for (position, set) in candidates {
        let mut code = Code::VALID;
        for namespace in &set.namespaces {
            // Every read consumes its version, even if the transaction is invalid already, so that reads and versions
            // stay aligned.
            let mut check_reads = |count: usize, code: &mut Code, batch: &UpdateBatch| {
                for _ in 0..count {
                    let (((name, key), seen), version) = current.next().expect("there is a version for each read");
                    if *code != Code::VALID {
                        continue;
                    }
                    let is_current = match (seen, version) {
                        (None, None) => true,
                        (Some(seen), Some(version)) => seen == version,
                        _ => false,
                    };
                    if !is_current || batch.get(name, key).is_some() {
                        *code = Code::MVCC_READ_CONFLICT;
                    }
                }
            };
            check_reads(namespace.reads as usize, &mut code, &outcome.updates.batch);
            for range in set.ranges(namespace) {
                if code == Code::VALID && !same_results(set, namespace, &range, view, &outcome.updates.batch).await? {
                    code = Code::PHANTOM_READ_CONFLICT;
                }
            }
            for reads in of_collections.by_ref().take(namespace.collections as usize) {
                check_reads(reads.keys.len(), &mut code, &outcome.updates.batch);
            }
        }
        outcome.codes.push(code);
        if code == Code::VALID {
            outcome.updates.apply(set, Version::new(block, *position), view, known).await?;
        }
    }
    Ok(outcome)
}

/// The private keys of one collection that a transaction read, under their names in the state.
struct HashedReads {
    namespace: String,
    keys: Vec<(String, Option<ReadVersion>)>,
}

impl HashedReads {
    /// One for each collection message of a namespace, in order.
    fn of(set: &ReadWriteSet, namespace: &NamespaceReadWriteSet) -> impl Iterator<Item = HashedReads> {
        set.collections(namespace).map(|collection| {
            let keys = set.hashed_reads(&collection);
            HashedReads {
                namespace: namespace::values_of(set.name(namespace), set.collection_name(&collection)),
                keys: keys.map(|read| (hex::encode(set.read_hash(&read)), read.version)).collect(),
            }
        })
    }
}

/// Whether a scan returns the same keys and versions now as when the contract ran.
async fn same_results(
    set: &ReadWriteSet,
    namespace: &NamespaceReadWriteSet,
    range: &ScannedRange,
    view: &BlockStateView,
    batch: &UpdateBatch,
) -> Result<bool, state::Error> {
    let (start, end) = set.bounds(range);
    let inclusive;
    let end = if range.exhausted {
        end
    } else {
        inclusive = after(end);
        &inclusive
    };
    let mut scan = view.scan(set.name(namespace), start, end, batch);
    match &range.reads {
        RangeReads::Results(results) => {
            for read in set.results(results) {
                let Some((key, version)) = scan.next().await? else { return Ok(false) };
                if *key != *set.read_key(&read) || !read.version.is_some_and(|seen| seen == version) {
                    return Ok(false);
                }
            }
            Ok(scan.next().await?.is_none())
        }
        RangeReads::Summary(summary) => match set.summary(summary) {
            Some(summary) => same_summary(&summary, &mut scan).await,
            None => Ok(false),
        },
    }
}

async fn same_summary(expected: &MerkleSummary, scan: &mut crate::view::StateScan) -> Result<bool, state::Error> {
    let mut summarizer = RangeSummarizer::new(expected.degree);
    while let Some((key, version)) = scan.next().await? {
        summarizer.add(&key, version);
        if !summarizer.may_become(expected) {
            return Ok(false);
        }
    }
    Ok(matches!(summarizer.finish(), SummarizerOutcome::Summary(summary) if summary == *expected))
}
