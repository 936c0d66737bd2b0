//! The second stage of validation: which transactions read something that has changed since.
//!
//! A function of the state before the block and of the read-write sets, in the order of the block:
//! 1. Versions of all keys that the block's candidates read are fetched at once.
//! 2. Of each candidate in turn, namespace by namespace: if a read key was written by an earlier valid transaction of the
//!    block, or has another version than was read (or exists where it did not, or the other way round), the transaction
//!    is invalid: [`Code::MVCC_READ_CONFLICT`].
//! 3. Then each scanned range is scanned again, over the state and the block's earlier valid writes; if it gives other
//!    keys or versions: [`Code::PHANTOM_READ_CONFLICT`]. A scan that had stopped early is repeated up to and with the last
//!    key that it handed out.
//! 4. The writes of a valid transaction join the block's batch with the version (block, position).
//!
//! Rule 2 makes any write by an earlier transaction of the same block a conflict for a reader, also one that deletes what
//! never existed: both of Fabric's.

use std::sync::Arc;

use base::Version;
use state::UpdateBatch;

use super::code::Code;
use super::view::{View, after};
use crate::rwset::merkle::{Outcome, Summarizer, Summary};
use crate::rwset::{Namespace, Range, RangeReads, ReadWriteSet};

/// What the block's valid transactions come to.
#[derive(Debug, Default)]
pub struct Resolved {
    /// One for each candidate, in order.
    pub codes: Vec<Code>,
    /// The last valid write to each key.
    pub batch: UpdateBatch,
}

/// Decides which of `candidates` are valid. Each is a position in the block and what the transaction there did.
///
/// # Errors
/// The state's; then nothing is decided.
pub async fn resolve(block: u64, candidates: &[(u32, &ReadWriteSet)], view: &View) -> Result<Resolved, state::Error> {
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

    let mut resolved = Resolved { codes: Vec::with_capacity(candidates.len()), batch: UpdateBatch::default() };
    let mut names = Names::default();
    for (position, set) in candidates {
        let mut code = Code::VALID;
        for namespace in &set.namespaces {
            // Every read takes its version, also when the verdict is known: the lists run in step.
            for _ in 0..namespace.reads {
                let (((name, key), seen), version) = current.next().expect("there is a version for each read");
                let unchanged = code == Code::VALID
                    && match (seen, version) {
                        (None, None) => true,
                        (Some(seen), Some(version)) => seen == version,
                        _ => false,
                    }
                    && resolved.batch.get(name, key).is_none();
                if code == Code::VALID && !unchanged {
                    code = Code::MVCC_READ_CONFLICT;
                }
            }
            for range in set.ranges(namespace) {
                if code == Code::VALID && !same_results(set, namespace, &range, view, &resolved.batch).await? {
                    code = Code::PHANTOM_READ_CONFLICT;
                }
            }
        }
        resolved.codes.push(code);
        if code == Code::VALID {
            let version = Version::new(block, *position);
            for namespace in set.namespaces.iter().filter(|namespace| namespace.writes > 0) {
                let name = names.shared(set.name(namespace));
                for write in set.writes(namespace) {
                    let value = set.write_value(&write);
                    resolved.batch.put(&name, set.write_key(&write).into(), value, version);
                }
            }
        }
    }
    Ok(resolved)
}

/// Namespaces of one block, which are few, as shared strings.
#[derive(Default)]
struct Names(Vec<Arc<str>>);

impl Names {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| known.as_ref() == name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.push(name.clone());
        name
    }
}

/// Whether a scan gives now what it gave when the contract ran.
async fn same_results(
    set: &ReadWriteSet,
    namespace: &Namespace,
    range: &Range,
    view: &View,
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

async fn same_summary(expected: &Summary, scan: &mut super::view::Scan) -> Result<bool, state::Error> {
    let mut summarizer = Summarizer::new(expected.degree);
    while let Some((key, version)) = scan.next().await? {
        summarizer.add(&key, version);
        if !summarizer.may_become(expected) {
            return Ok(false);
        }
    }
    Ok(matches!(summarizer.finish(), Outcome::Summary(summary) if summary == *expected))
}
