//! The state before a block: a snapshot, and the batches of earlier blocks that are not applied yet.
//!
//! Blocks are checked for conflicts while their predecessors wait for the disk, so the newest writes may be in batches that
//! no snapshot shows yet. A view looks for a key first in the batches, newest first, and then in the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Bytes, Version, rt};
use rules::definitions::StateReader;
use state::{Snapshot, Update, UpdateBatch, Versioned};

/// The largest number of the snapshot's entries that a scan holds at the same time.
const SCAN_PAGE_ENTRIES: usize = 512;

/// The state before one block.
#[derive(Clone)]
pub struct BlockStateView {
    snapshot: Arc<dyn Snapshot>,
    /// The batches of the blocks from the snapshot's height on, oldest first.
    pending: Vec<Arc<UpdateBatch>>,
}

impl BlockStateView {
    /// The state of `snapshot` after the blocks that follow it, oldest first.
    pub fn new(snapshot: Arc<dyn Snapshot>, pending: Vec<Arc<UpdateBatch>>) -> BlockStateView {
        BlockStateView { snapshot, pending }
    }

    /// The versions of many keys, in the order of `keys`.
    ///
    /// # Errors
    /// The state's.
    pub async fn versions(&self, keys: &[(&str, &str)]) -> Result<Vec<Option<Version>>, state::Error> {
        let mut versions = self.snapshot.versions(keys).await?;
        assert_eq!(versions.len(), keys.len(), "the state answers for every key");
        for batch in &self.pending {
            for (version, (namespace, key)) in versions.iter_mut().zip(keys) {
                if let Some(update) = batch.get(namespace, key) {
                    *version = update.value.is_some().then_some(update.version);
                }
            }
        }
        Ok(versions)
    }

    /// The value of one key and its version; `None` if there is none.
    ///
    /// # Errors
    /// The state's.
    pub async fn get(&self, namespace: &str, key: &str) -> Result<Option<Versioned>, state::Error> {
        match self.pending.iter().rev().find_map(|batch| batch.get(namespace, key)) {
            Some(Update { value, version }) => Ok(value.clone().map(|value| Versioned { value, version: *version })),
            None => self.snapshot.get(namespace, key).await,
        }
    }

    /// Starts a scan of `start..end`, with `newest` layered over this view. An empty `end` means no upper bound.
    pub fn scan(&self, namespace: &str, start: &str, end: &str, newest: &UpdateBatch) -> StateScan {
        let mut overlay = BTreeMap::new();
        // A client's range may end before it starts: it is empty.
        let is_empty = !end.is_empty() && end <= start;
        for batch in self.pending.iter().map(Arc::as_ref).chain([newest]) {
            for (key, update) in batch.range(namespace, start, end) {
                overlay.insert(key.clone(), update.value.is_some().then_some(update.version));
            }
        }
        StateScan {
            snapshot: self.snapshot.clone(),
            namespace: namespace.to_owned(),
            next: (!is_empty).then(|| start.to_owned()),
            end: end.to_owned(),
            page: Vec::new().into_iter(),
            head: None,
            overlay,
        }
    }
}

#[async_trait]
impl StateReader for BlockStateView {
    async fn value(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error> {
        Ok(self.get(namespace, key).await?.map(|found| found.value))
    }
}

/// The live keys of a range and their versions, in order.
pub struct StateScan {
    snapshot: Arc<dyn Snapshot>,
    namespace: String,
    /// Where the next page starts; `None` after the last page.
    next: Option<String>,
    end: String,
    page: std::vec::IntoIter<(Arc<str>, Version)>,
    /// The snapshot's next entry, if it was read already.
    head: Option<(Arc<str>, Version)>,
    /// The keys that newer batches have written; `None` for a deletion.
    overlay: BTreeMap<Arc<str>, Option<Version>>,
}

impl StateScan {
    /// The next live key.
    ///
    /// # Errors
    /// The state's.
    pub async fn next(&mut self) -> Result<Option<(Arc<str>, Version)>, state::Error> {
        loop {
            if self.head.is_none() {
                self.head = self.next_stored().await?;
            }
            let overlay_first = match (&self.head, self.overlay.first_key_value()) {
                (_, None) => return Ok(self.head.take()),
                (None, Some(_)) => true,
                (Some((stored, _)), Some((written, _))) => written <= stored,
            };
            if !overlay_first {
                return Ok(self.head.take());
            }
            let (key, version) = self.overlay.pop_first().expect("the overlay has a first entry");
            if self.head.as_ref().is_some_and(|(stored, _)| *stored == key) {
                self.head = None;
            }
            if let Some(version) = version {
                return Ok(Some((key, version)));
            }
        }
    }

    async fn next_stored(&mut self) -> Result<Option<(Arc<str>, Version)>, state::Error> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(start) = self.next.take() else { return Ok(None) };
            // A long range has many pages: yield to other tasks between them.
            rt::yield_now().await;
            let page = self.snapshot.range_versions(&self.namespace, &start, &self.end, SCAN_PAGE_ENTRIES).await?;
            if page.more {
                let (last, _) = page.entries.last().expect("a page that has more has an entry");
                self.next = Some(after(last));
            }
            self.page = page.entries.into_iter();
        }
    }
}

/// The first key after `key` in byte order.
pub fn after(key: &str) -> String {
    let mut next = String::with_capacity(key.len() + 1);
    next.push_str(key);
    next.push('\0');
    next
}
