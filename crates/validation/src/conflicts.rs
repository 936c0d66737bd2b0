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

use std::borrow::Cow;

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
    let sets = || candidates.iter().map(|(_, set)| *set);
    let hashed = HashedReads::of_all(sets());
    let reads = ReadKeys::of(sets(), &hashed);
    let versions = reads.current_versions(view).await?;
    let mut current = reads.with_versions(versions);

    let mut outcome = ConflictOutcome { codes: Vec::with_capacity(candidates.len()), updates: BlockUpdates::default() };
    for (position, set) in candidates {
        let code = check_candidate(set, &mut current, view, &outcome.updates.batch).await?;
        outcome.codes.push(code);
        if code == Code::VALID {
            outcome.updates.apply(set, Version::new(block, *position), view, known).await?;
        }
    }
    Ok(outcome)
}

/// What earlier valid candidates of the block have changed.
pub(crate) trait EarlierChanges {
    /// Whether one of them has changed this row; it is read number `read` of the candidate.
    fn have_row(&self, read: usize, namespace: &str, key: &str) -> bool;

    /// A batch that has all their changes in this range of rows, and may have others.
    fn in_range(&self, namespace: &str, start: &str, end: &str) -> Cow<'_, UpdateBatch>;
}

impl EarlierChanges for UpdateBatch {
    fn have_row(&self, _read: usize, namespace: &str, key: &str) -> bool {
        self.get(namespace, key).is_some()
    }

    fn in_range(&self, _namespace: &str, _start: &str, _end: &str) -> Cow<'_, UpdateBatch> {
        Cow::Borrowed(self)
    }
}

/// Steps 2 to 4 for one candidate. `reads` goes on with the first read of the candidate, and afterwards with that of the
/// next one.
///
/// # Errors
/// The state's.
pub(crate) async fn check_candidate<'a>(
    set: &ReadWriteSet,
    reads: &mut (impl Iterator<Item = CurrentRead<'a>> + Send),
    view: &BlockStateView,
    earlier: &(impl EarlierChanges + Sync),
) -> Result<Code, state::Error> {
    let (mut code, mut number) = (Code::VALID, 0);
    // Every read consumes its version, even if the transaction is invalid already, so that reads and versions stay
    // aligned.
    let mut check_reads = |count: usize, code: &mut Code| {
        for read in reads.by_ref().take(count) {
            let CurrentRead { namespace, key, .. } = read;
            if *code == Code::VALID && (!read.is_current() || earlier.have_row(number, namespace, key)) {
                *code = Code::MVCC_READ_CONFLICT;
            }
            number += 1;
        }
    };
    for namespace in &set.namespaces {
        check_reads(namespace.reads as usize, &mut code);
        for range in set.ranges(namespace) {
            if code == Code::VALID && !same_results(set, namespace, &range, view, earlier).await? {
                code = Code::PHANTOM_READ_CONFLICT;
            }
        }
        for collection in set.collections(namespace) {
            check_reads(set.hashed_reads(&collection).count(), &mut code);
        }
    }
    Ok(code)
}

/// A key that a candidate read, with the version that it saw and the version that is current.
pub(crate) struct CurrentRead<'a> {
    namespace: &'a str,
    key: &'a str,
    seen: Option<ReadVersion>,
    current: Option<Version>,
}

impl CurrentRead<'_> {
    fn is_current(&self) -> bool {
        match (self.seen, self.current) {
            (None, None) => true,
            (Some(seen), Some(version)) => seen == version,
            _ => false,
        }
    }
}

/// The keys that candidates read, under their names in the state: namespace by namespace, public keys before private
/// ones.
pub(crate) struct ReadKeys<'a> {
    keys: Vec<(&'a str, &'a str)>,
    seen: Vec<Option<ReadVersion>>,
}

impl<'a> ReadKeys<'a> {
    /// `hashed` are the private keys of the same candidates.
    pub(crate) fn of(sets: impl Iterator<Item = &'a ReadWriteSet> + Clone, hashed: &'a [HashedReads]) -> ReadKeys<'a> {
        let namespaces = sets.clone().flat_map(|set| &set.namespaces);
        let count = namespaces.map(|namespace| namespace.reads as usize).sum::<usize>();
        let count = count + hashed.iter().map(|reads| reads.keys.len()).sum::<usize>();
        let mut all = ReadKeys { keys: Vec::with_capacity(count), seen: Vec::with_capacity(count) };
        let mut of_collections = hashed.iter();
        for set in sets {
            for namespace in &set.namespaces {
                let name = set.name(namespace);
                for read in set.reads(namespace) {
                    all.keys.push((name, set.read_key(&read)));
                    all.seen.push(read.version);
                }
                for reads in of_collections.by_ref().take(namespace.collections as usize) {
                    for (key, version) in &reads.keys {
                        all.keys.push((&reads.namespace, key));
                        all.seen.push(*version);
                    }
                }
            }
        }
        all
    }

    /// The version of each key in the state before the block.
    pub(crate) async fn current_versions(&self, view: &BlockStateView) -> Result<Vec<Option<Version>>, state::Error> {
        if self.keys.is_empty() { Ok(Vec::new()) } else { view.versions(&self.keys).await }
    }

    /// The reads with the current versions of their keys, in order.
    pub(crate) fn with_versions(&self, versions: Vec<Option<Version>>) -> impl Iterator<Item = CurrentRead<'a>> {
        let seen = self.keys.iter().zip(&self.seen).zip(versions);
        seen.map(|(((namespace, key), seen), current)| CurrentRead { namespace, key, seen: *seen, current })
    }
}

/// The private keys of one collection that a transaction read, under their names in the state.
pub(crate) struct HashedReads {
    namespace: String,
    keys: Vec<(String, Option<ReadVersion>)>,
}

impl HashedReads {
    /// Those of several candidates, in order.
    pub(crate) fn of_all<'a>(sets: impl Iterator<Item = &'a ReadWriteSet>) -> Vec<HashedReads> {
        let namespaces = sets.flat_map(|set| set.namespaces.iter().map(move |namespace| (set, namespace)));
        namespaces.flat_map(|(set, namespace)| HashedReads::of(set, namespace)).collect()
    }

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
    earlier: &impl EarlierChanges,
) -> Result<bool, state::Error> {
    let (start, end) = set.bounds(range);
    let inclusive;
    let end = if range.exhausted {
        end
    } else {
        inclusive = after(end);
        &inclusive
    };
    let mut scan = view.scan(set.name(namespace), start, end, &earlier.in_range(set.name(namespace), start, end));
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
