//! Ranges: what the delta has of them, merged with storage's pages.
//!
//! 1. The delta's writes in the range, as the view sees them, are copied: where they are, not their values.
//! 2. Storage's live rows are read page by page, as of the view's last block. What leaves the delta meanwhile is in storage
//!    by then, so that nothing is missed; what both have is the same version.
//! 3. Both are merged in the order of keys; a write of the delta hides the row of its key.
//! 4. Values of the delta's writes are fetched where they are.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::sync::Arc;

use base::BlockNumber;
use futures_util::future::join_all;
use storage::tables::RangeEntry;

use super::delta::{Place, Written};
use super::fault::hold_up;
use super::record::{HEADER_BYTES, Name};
use super::{READS_AT_ONCE, View};
use crate::{Entry, Error, RANGE_BYTES_SOFT_MAX, RangePage, VersionPage, Versioned, events};

/// Rows of one page at most.
pub const PAGE_ENTRIES_MAX: usize = 1024;

/// Live rows of storage in key order, read page by page.
struct Rows<'a> {
    view: &'a View,
    namespace: &'a str,
    end: &'a str,
    page: std::vec::IntoIter<RangeEntry>,
    next: Option<base::Bytes>,
    page_entries: usize,
}

impl Rows<'_> {
    async fn next(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            if let Some(RangeEntry { key, value, version }) = self.page.next() {
                let key =
                    std::str::from_utf8(&key).map_err(|_| Error::KeyNotText { namespace: self.namespace.into() })?;
                return Ok(Some(Entry { key: key.into(), versioned: Versioned { value, version } }));
            }
            let (Some(start), Some(through)) = (self.next.take(), self.view.height.checked_sub(1)) else {
                return Ok(None);
            };
            hold_up("state.range.page").await;
            let (end, through) = (self.end.as_bytes(), BlockNumber(through));
            let page = self.view.shared.store.range(self.namespace, &start, end, through, self.page_entries).await;
            let page = page.map_err(|error| self.view.shared.storage_error(error, self.view.height))?;
            events::RangePages.add(1);
            self.next = page.next;
            self.page = page.entries.into_iter();
        }
    }
}

/// A live key of a range: a row of storage, or a write of the delta, whose value may be elsewhere.
enum Live {
    Row(Entry),
    Write(Arc<str>, Written),
}

/// Delta and storage as one.
struct Merged<'a> {
    writes: Peekable<std::vec::IntoIter<(Arc<str>, Written)>>,
    rows: Rows<'a>,
    row: Option<Entry>,
}

impl Merged<'_> {
    /// Step 3.
    async fn next(&mut self) -> Result<Option<Live>, Error> {
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
                return Ok(row.map(Live::Row));
            }
            let (key, written) = self.writes.next().expect("a write was compared");
            if !matches!(written.place, Place::Deleted) {
                return Ok(Some(Live::Write(key, written)));
            }
        }
    }
}

impl View {
    /// Steps 1 and 2, for at most `limit` live entries and one more.
    fn merged<'a>(
        &'a self,
        namespace: &'a str,
        start: &'a str,
        end: &'a str,
        limit: usize,
    ) -> Result<Merged<'a>, Error> {
        if self.shared.is_fenced() {
            return Err(Error::Fenced);
        }
        let writes: Vec<(Arc<str>, Written)> = {
            let delta = self.shared.delta_in_order();
            // Deletions hide rows of storage, so all writes up to the one behind the limit-th live one are needed.
            let mut live = 0;
            let writes = delta.range(namespace, start, end, self.height).take_while(|(_, written)| {
                let enough = live > limit;
                live += usize::from(!matches!(written.place, Place::Deleted));
                !enough
            });
            writes.map(|(key, written)| (key.clone(), written.clone())).collect()
        };
        let rows = Rows {
            view: self,
            namespace,
            end,
            page: Vec::new().into_iter(),
            next: Some(base::Bytes::copy_from_slice(start.as_bytes())),
            page_entries: limit.saturating_add(1).clamp(1, PAGE_ENTRIES_MAX),
        };
        Ok(Merged { writes: writes.into_iter().peekable(), rows, row: None })
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
            // How long a value is that is elsewhere follows from its record's length: the page ends where it always does.
            let live = match live {
                Live::Write(key, Written { version, place: Place::Storage }) => {
                    let written = Written { version, place: Place::Storage };
                    Live::Row(self.entry(namespace, key, written).await?)
                }
                live => live,
            };
            bytes += match &live {
                Live::Row(entry) => entry.key.len() + entry.versioned.value.len(),
                Live::Write(key, written) => match &written.place {
                    Place::Here(value) => key.len() + value.len(),
                    Place::Remote(_, record) => (*record as usize).saturating_sub(HEADER_BYTES + namespace.len()),
                    Place::Storage | Place::Deleted => key.len(),
                },
            };
            found.push(live);
        }
        let mut entries = Vec::with_capacity(found.len());
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() {
            let some = found.by_ref().take(READS_AT_ONCE).map(|live| async {
                match live {
                    Live::Row(entry) => Ok(entry),
                    Live::Write(key, written) => self.entry(namespace, key, written).await,
                }
            });
            for entry in join_all(some).await {
                entries.push(entry?);
            }
        }
        self.shared.admitted(self.height).map(|()| RangePage { entries, more })
    }

    /// Step 4.
    async fn entry(&self, namespace: &str, key: Arc<str>, written: Written) -> Result<Entry, Error> {
        let found = self.written_or_cached(Name { namespace, key: &key }, &written).await?;
        Ok(Entry { key, versioned: found.ok_or(Error::Lost { version: written.version })? })
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
                Live::Row(entry) => (entry.key, entry.versioned.version),
                Live::Write(key, written) => (key, written.version),
            });
        }
        self.shared.admitted(self.height).map(|()| page)
    }

    async fn written_or_cached(&self, name: Name<'_>, written: &Written) -> Result<Option<Versioned>, Error> {
        if let Place::Remote(pointer, _) = written.place
            && let Some(kept) = self.shared.caches.kept(self.hash(name), pointer)
            && kept.version == written.version
        {
            return Ok(kept.into_versioned());
        }
        Ok(self.written(name, written).await?.into_versioned())
    }
}
