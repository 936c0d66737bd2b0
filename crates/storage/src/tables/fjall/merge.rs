//! Drops superseded row versions when the engine merges runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::Map;
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};

use crate::tables::key::RowKey;
use crate::tables::prune::{self as row, PruneDecider};
use crate::{events, lock};

/// What merges may drop, by the keyspace's name.
#[derive(Default)]
pub struct MergeBounds(Mutex<Map<String, Arc<AtomicU64>>>);

impl MergeBounds {
    /// The bound of a keyspace: the oldest block that a reader may still ask for.
    pub fn of(&self, name: &str) -> Arc<AtomicU64> {
        Arc::clone(lock(&self.0).entry(name.to_string()).or_default())
    }
}

/// Creates the filter of each merge of one keyspace.
pub struct MergeFilterFactory {
    pub oldest: Arc<AtomicU64>,
}

impl Factory for MergeFilterFactory {
    fn name(&self) -> &str {
        "superseded row versions"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(MergeFilter {
            oldest: self.oldest.load(Ordering::Relaxed),
            decider: PruneDecider::default(),
            dropped: 0,
        })
    }
}

/// Drops rows that are superseded by a row of the same merge. Deletions stay: older rows of their key may lie in runs that
/// are not part of the merge.
struct MergeFilter {
    oldest: u64,
    decider: PruneDecider,
    dropped: u64,
}

impl CompactionFilter for MergeFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _context: &Context) -> CompactionFilterResult {
        let verdict = match RowKey::split(item.key()) {
            Some(row) => self.decider.decide(row, self.oldest, 0),
            None => row::PruneDecision::Newer, // The savepoint.
        };
        if verdict == row::PruneDecision::Superseded {
            self.dropped += 1;
            // No engine tombstone is needed: should an older copy of this very row appear, it is superseded as well.
            return Ok(Verdict::Destroy);
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        events::RowsPruned.add(self.dropped);
    }
}
