//! Pages of rows of all versions.

use base::Bytes;

use super::SCAN_BYTES_SOFT_MAX;
use super::key::{RowKey, decode_prefix};
use crate::Error;
use crate::private::{PrivateRow, RowsPage};

/// A page that is being filled.
pub struct ScannedPage {
    page: RowsPage,
    limit: usize,
    bytes: usize,
}

impl ScannedPage {
    /// An empty page.
    pub fn new(limit: usize) -> ScannedPage {
        ScannedPage { page: RowsPage::default(), limit: limit.max(1), bytes: 0 }
    }

    /// Adds the next row; false if the page is full and the row begins the next one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a malformed row key; those of `value`.
    pub fn offer(&mut self, row: &[u8], value: impl FnOnce() -> Result<Bytes, Error>) -> Result<bool, Error> {
        if self.page.rows.len() >= self.limit || self.bytes >= SCAN_BYTES_SOFT_MAX {
            self.page.next = Some(Bytes::copy_from_slice(row));
            return Ok(false);
        }
        let malformed = Error::Invalid("a row has a malformed key");
        let RowKey { prefix, version, live } = RowKey::split(row).ok_or_else(|| malformed.clone())?;
        let (namespace, key) = decode_prefix(prefix).ok_or(malformed)?;
        let value = if live { Some(value()?) } else { None };
        self.bytes += row.len() + value.as_ref().map_or(0, Bytes::len);
        self.page.rows.push(PrivateRow { namespace, key: key.into(), version, value });
        Ok(true)
    }

    /// The page.
    pub fn done(self) -> RowsPage {
        self.page
    }
}
