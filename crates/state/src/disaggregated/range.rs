//! Ranges: the delta's writes merged with storage's pages.
//!
//! 1. Copy from the delta the writes in the range that are visible to the view: their locations, not their values.
//! 2. Read storage's live rows page by page, as of the view's last block. A version leaves the delta only when it is in
//!    storage, and storage is read after the delta, so no version is missed. If both have a key, the row is the same
//!    version or an older one.
//! 3. Merge both in key order; a write of the delta, also a deletion, hides the row of its key.
//! 4. Read the values of the delta's writes from their locations.

pub(super) use std::cmp::Ordering;
use std::iter::Peekable;
use std::sync::Arc;

use base::BlockNumber;
use futures_util::future::join_all;
use storage::tables::{RangeEntry, RangeQuery};

use super::delta::{DeltaVersion, ValueLocation};
use super::fault::hold_up;
use super::record::{HEADER_BYTES, KeyName};
use super::{READS_AT_ONCE, StateView};
use crate::{Error, RANGE_BYTES_SOFT_MAX, RangePage, StateEntry, VersionPage, Versioned, events};

/// Rows of one page at most.
pub const PAGE_ENTRIES_MAX: usize = 1024;

/// Live rows of storage in key order, read page by page.
struct StoredRows<'a> {
    view: &'a StateView,
    namespace: &'a str,
    end: &'a str,
    page: std::vec::IntoIter<RangeEntry>,
    next: Option<base::Bytes>,
    page_entries: usize,
}

impl StoredRows<'_> {
    async fn next(&mut self) -> Result<Option<StateEntry>, Error> {
        loop {
            if let Some(RangeEntry { key, value, version }) = self.page.next() {
                let key =
                    std::str::from_utf8(&key).map_err(|_| Error::KeyNotText { namespace: self.namespace.into() })?;
                return Ok(Some(StateEntry { key: key.into(), versioned: Versioned { value, version } }));
            }
            let (Some(start), Some(through)) = (self.next.take(), self.view.height.checked_sub(1)) else {
                return Ok(None);
            };
            hold_up("state.range.page").await;
            let (end, through) = (self.end.as_bytes(), BlockNumber(through));
            let page = self
                .view
                .shared
                .store
                .range(RangeQuery { namespace: self.namespace, start: &start, end, through, limit: self.page_entries })
                .await;
            let page = page.map_err(|error| self.view.shared.storage_error(error, self.view.height))?;
            events::RangePages.add(1);
            self.next = page.next;
            self.page = page.entries.into_iter();
        }
    }
}

/// A live key of a range: a row of storage, or a write of the delta, whose value may still have to be fetched.
enum LiveEntry {
    Row(StateEntry),
    Write(Arc<str>, DeltaVersion),
}

/// Delta and storage as one.
struct MergedRange<'a> {
    writes: Peekable<std::vec::IntoIter<(Arc<str>, DeltaVersion)>>,
    rows: StoredRows<'a>,
    row: Option<StateEntry>,
}

impl MergedRange<'_> {
    /// Step 3.
    async fn next(&mut self) -> Result<Option<LiveEntry>, Error> {
        loop {
            if self.row.is_none() {
                self.row = self.rows.next().await?;
            }
            let order = match (self.writes.peek(), &self.row) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((key, _)), Some(row)) => key.as_ref().cmp(row.key.as_ref()),
            };
            let row = if order.is_ge() { self.row.take() } else { None };
            if order.is_gt() {
                return Ok(row.map(LiveEntry::Row));
            }
            let (key, written) = self.writes.next().expect("a write was compared");
            if !matches!(written.location, ValueLocation::Deleted) {
                return Ok(Some(LiveEntry::Write(key, written)));
            }
        }
    }
}

impl StateView {
    /// Steps 1 and 2, for at most `limit` live entries and one more.
    fn merged<'a>(
        &'a self,
        namespace: &'a str,
        start: &'a str,
        end: &'a str,
        limit: usize,
    ) -> Result<MergedRange<'a>, Error> {
        if self.shared.is_fenced() {
            return Err(Error::Fenced);
        }
        let writes: Vec<(Arc<str>, DeltaVersion)> = {
            let delta = self.shared.delta_in_order();
            // Deletions hide rows of storage, so all writes up to the one after the limit-th live one are needed.
            let mut live = 0;
            let writes = delta.range(namespace, start, end, self.height).take_while(|(_, written)| {
                let enough = live > limit;
                live += usize::from(!matches!(written.location, ValueLocation::Deleted));
                !enough
            });
            writes.map(|(key, written)| (key.clone(), written.clone())).collect()
        };
        let rows = StoredRows {
            view: self,
            namespace,
            end,
            page: Vec::new().into_iter(),
            next: Some(base::Bytes::copy_from_slice(start.as_bytes())),
            page_entries: limit.saturating_add(1).clamp(1, PAGE_ENTRIES_MAX),
        };
        Ok(MergedRange { writes: writes.into_iter().peekable(), rows, row: None })
    }

    /// See [`crate::Snapshot::range`].
    pub(super) async fn page(&self, namespace: &str, start: &str, end: &str, limit: usize) -> Result<RangePage, Error> {
        let mut merged = self.merged(namespace, start, end, limit)?;
        let mut more = false;
        let mut bytes = 0;
        let mut found = Vec::new();
        while let Some(live) = merged.next().await? {
            if found.len() >= limit || bytes >= RANGE_BYTES_SOFT_MAX {
                more = !found.is_empty();
                break;
            }
            // The length of a remote value follows from its record's length: the page ends at the same entry on all
            // peers.
            let live = match live {
                LiveEntry::Write(key, DeltaVersion { version, location: ValueLocation::Storage }) => {
                    let written = DeltaVersion { version, location: ValueLocation::Storage };
                    LiveEntry::Row(self.entry(namespace, key, written).await?)
                }
                live => live,
            };
            bytes += match &live {
                LiveEntry::Row(entry) => entry.key.len() + entry.versioned.value.len(),
                LiveEntry::Write(key, written) => match &written.location {
                    ValueLocation::Inline(value) => key.len() + value.len(),
                    ValueLocation::Remote(_, record) => {
                        (*record as usize).saturating_sub(HEADER_BYTES + namespace.len())
                    }
                    ValueLocation::Storage | ValueLocation::Deleted => key.len(),
                },
            };
            found.push(live);
        }
        let mut entries = Vec::with_capacity(found.len());
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() {
            let some = found.by_ref().take(READS_AT_ONCE).map(|live| async {
                match live {
                    LiveEntry::Row(entry) => Ok(entry),
                    LiveEntry::Write(key, written) => self.entry(namespace, key, written).await,
                }
            });
            for entry in join_all(some).await {
                entries.push(entry?);
            }
        }
        self.shared.admitted(self.height).map(|()| RangePage { entries, more })
    }

    /// Step 4.
    async fn entry(&self, namespace: &str, key: Arc<str>, written: DeltaVersion) -> Result<StateEntry, Error> {
        let found = self.written_or_cached(KeyName { namespace, key: &key }, &written).await?;
        Ok(StateEntry { key, versioned: found.ok_or(Error::Lost { version: written.version })? })
    }

    /// See [`crate::Snapshot::range_versions`].
    pub(super) async fn version_page(
        &self,
        namespace: &str,
        start: &str,
        end: &str,
        limit: usize,
    ) -> Result<VersionPage, Error> {
        let mut merged = self.merged(namespace, start, end, limit)?;
        let mut page = VersionPage::default();
        while let Some(live) = merged.next().await? {
            if page.entries.len() >= limit {
                page.more = !page.entries.is_empty();
                break;
            }
            page.entries.push(match live {
                LiveEntry::Row(entry) => (entry.key, entry.versioned.version),
                LiveEntry::Write(key, written) => (key, written.version),
            });
        }
        self.shared.admitted(self.height).map(|()| page)
    }

    async fn written_or_cached(&self, name: KeyName<'_>, written: &DeltaVersion) -> Result<Option<Versioned>, Error> {
        if let ValueLocation::Remote(pointer, _) = written.location
            && let Some(kept) = self.shared.caches.value_at(self.hash(name), pointer)
            && kept.version == written.version
        {
            return Ok(kept.into_versioned());
        }
        Ok(self.written(name, written).await?.into_versioned())
    }
}
