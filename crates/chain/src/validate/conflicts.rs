//! The conflict check: finds the transactions that read a version which is no longer current.
//!
//! The result is a function of the state before the block and of the read-write sets, in the order of the block. The
//! *candidates* are the transactions of the block that passed all earlier checks.
//! 1. The versions of all keys that the candidates read are fetched at once.
//! 2. For each candidate in turn, namespace by namespace: the transaction is invalid with [`Code::MVCC_READ_CONFLICT`] if
//!    an earlier valid transaction of the block wrote a key that it read, or if the state now has another version of such a
//!    key. A key that appeared or disappeared since the read counts as changed.
//! 3. Then each range that the candidate scanned is scanned again, over the state and the block's earlier valid writes. If
//!    the keys or versions differ, the transaction is invalid with [`Code::PHANTOM_READ_CONFLICT`]. A scan that had stopped
//!    early is repeated up to and including the last key that it returned.
//! 4. The writes of a valid transaction join the block's batch with the version (block, position).
//!
//! By rule 2 every write of an earlier valid transaction of the block conflicts with a later read of the same key. This
//! includes a write that deletes a key that never existed. Fabric behaves the same way in both cases.

use std::sync::Arc;

use base::Version;
use state::UpdateBatch;

use super::code::Code;
use super::view::{BlockStateView, after};
use ledger::rwset::merkle::{MerkleSummary, RangeSummarizer, SummarizerOutcome};
use ledger::rwset::{NamespaceReadWriteSet, RangeReads, ReadWriteSet, ScannedRange};

/// The result of the conflict checks of a block.
#[derive(Debug, Default)]
pub struct ConflictOutcome {
    /// One code for each candidate, in order.
    pub codes: Vec<Code>,
    /// The last valid write to each key.
    pub batch: UpdateBatch,
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
) -> Result<ConflictOutcome, state::Error> {
    debug_assert!(candidates.is_sorted_by_key(|(position, _)| *position), "candidates come in block order");
    let namespaces =
        || candidates.iter().flat_map(|(_, set)| set.namespaces.iter().map(move |namespace| (set, namespace)));
    let count = namespaces().map(|(_, namespace)| namespace.reads as usize).sum();
    let (mut keys, mut seen) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (set, namespace) in namespaces() {
        let name = set.name(namespace);
        for read in set.reads(namespace) {
            keys.push((name, set.read_key(&read)));
            seen.push(read.version);
        }
    }
    let versions = if keys.is_empty() { Vec::new() } else { view.versions(&keys).await? };
    let mut current = keys.iter().zip(seen).zip(versions);

    let mut outcome = ConflictOutcome { codes: Vec::with_capacity(candidates.len()), batch: UpdateBatch::default() };
    let mut names = NamespaceNames::default();
    for (position, set) in candidates {
        let mut code = Code::VALID;
        for namespace in &set.namespaces {
            // Every read consumes its version, even if the transaction is invalid already: the lists run in step.
            for _ in 0..namespace.reads {
                let (((name, key), seen), version) = current.next().expect("there is a version for each read");
                let unchanged = code == Code::VALID
                    && match (seen, version) {
                        (None, None) => true,
                        (Some(seen), Some(version)) => seen == version,
                        _ => false,
                    }
                    && outcome.batch.get(name, key).is_none();
                if code == Code::VALID && !unchanged {
                    code = Code::MVCC_READ_CONFLICT;
                }
            }
            for range in set.ranges(namespace) {
                if code == Code::VALID && !same_results(set, namespace, &range, view, &outcome.batch).await? {
                    code = Code::PHANTOM_READ_CONFLICT;
                }
            }
        }
        outcome.codes.push(code);
        if code == Code::VALID {
            let version = Version::new(block, *position);
            for namespace in set.namespaces.iter().filter(|namespace| namespace.writes > 0) {
                let name = names.shared(set.name(namespace));
                for write in set.writes(namespace) {
                    let value = set.write_value(&write);
                    outcome.batch.put(&name, set.write_key(&write).into(), value, version);
                }
            }
        }
    }
    Ok(outcome)
}

/// The namespaces of one block, which are few, as shared strings.
#[derive(Default)]
struct NamespaceNames(Vec<Arc<str>>);

impl NamespaceNames {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| known.as_ref() == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.push(name.clone());
        name
    }
}

/// Whether a scan returns the same now as when the contract ran.
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

async fn same_summary(expected: &MerkleSummary, scan: &mut super::view::StateScan) -> Result<bool, state::Error> {
    let mut summarizer = RangeSummarizer::new(expected.degree);
    while let Some((key, version)) = scan.next().await? {
        summarizer.add(&key, version);
        if !summarizer.may_become(expected) {
            return Ok(false);
        }
    }
    Ok(matches!(summarizer.finish(), SummarizerOutcome::Summary(summary) if summary == *expected))
}
