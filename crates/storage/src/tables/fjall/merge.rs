//! Dropping superseded row versions when the engine merges runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::Map;
use fjall::compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict};

use crate::tables::key::RowKey;
use crate::tables::prune::{self as row, Judge};
use crate::{events, lock};

/// What each keyspace's merges may drop, by the keyspace's name.
#[derive(Default)]
pub struct Bounds(Mutex<Map<String, Arc<AtomicU64>>>);

impl Bounds {
    /// The bound of a keyspace: the oldest block that anybody may still read at.
    pub fn of(&self, name: &str) -> Arc<AtomicU64> {
        Arc::clone(lock(&self.0).entry(name.to_string()).or_default())
    }
}

/// Makes the filter of each merge of one keyspace.
pub struct MergeFilterFactory {
    pub oldest: Arc<AtomicU64>,
}

impl Factory for MergeFilterFactory {
    fn name(&self) -> &str {
        "superseded row versions"
    }

    fn make_filter(&self, _context: &Context) -> Box<dyn CompactionFilter> {
        Box::new(MergeFilter { oldest: self.oldest.load(Ordering::Relaxed), judge: Judge::default(), dropped: 0 })
    }
}

/// Drops rows that are superseded by a row of the same merge. Deletions stay: older rows of their key may lie in runs that
/// take no part in the merge.
struct MergeFilter {
    oldest: u64,
    judge: Judge,
    dropped: u64,
}

impl CompactionFilter for MergeFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _context: &Context) -> CompactionFilterResult {
        let verdict = match RowKey::split(item.key()) {
            Some(row) => self.judge.judge(row, self.oldest, 0),
            None => row::Verdict::Newer, // The savepoint.
        };
        if verdict == row::Verdict::Superseded {
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
