//! The requests for private rows; see `docs/formats/storage-messages.md`. They travel in [`super::message::Request::Private`],
//! and their answers are those of the requests for the rows of the world state.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::net::GatherList;
use base::untrusted::AllocationBudget;
use base::{BlockNumber, Bytes, Epoch, Version};
use wire::{Malformed, Reader, Writer};

use super::message::{KeyList, read_key, read_keys};
use super::view::ViewId;
use crate::private::{PrivateRow, PrivateTable, RowsPage};
use crate::tables::NAMESPACE_BYTES_MAX;

const WRITE: u8 = 1;
const ROWS: u8 = 2;
const RANGE: u8 = 3;
const PRUNE: u8 = 4;
const WRITE_COPIED: u8 = 5;
const SCAN: u8 = 6;
const COPY: u8 = 7;
/// Bytes of a row key at most.
const ROW_KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Rows of a page of [`PrivateAsk::Scan`] at most.
pub const SCAN_ROWS_LIMIT: usize = 4096;

/// A request for private rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateRequest {
    /// Which rows.
    pub table: PrivateTable,
    /// What to do.
    pub ask: PrivateAsk,
}

/// What a write says that goes to all copies of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedWrite {
    /// The view that its writer knows.
    pub view: ViewId,
    /// The primary's number for the write; counts for committed data only.
    pub number: u64,
}

/// What a client asks of private rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrivateAsk {
    /// Write rows. The epoch counts for committed data only.
    Write { epoch: Epoch, copied: Option<CopiedWrite>, rows: Vec<PrivateRow> },
    /// The rows of all keys and versions, from a place on.
    Scan { from: Bytes, limit: u32 },
    /// Add rows that another copy has, unless they are here.
    Copy { epoch: Epoch, rows: Vec<PrivateRow> },
    /// Read rows.
    Rows { through: BlockNumber, keys: KeyList },
    /// Read a range.
    Range { through: BlockNumber, limit: u32, namespace: String, start: Bytes, end: Bytes },
    /// Prune under the primary's epoch.
    Prune { epoch: Epoch, oldest: BlockNumber },
}

/// Memory of a row besides its bytes.
const ROW_BYTES: usize = size_of::<PrivateRow>();
const TOO_SMALL: &str = "its rows would take too much memory for its size";

impl PrivateRequest {
    /// The body of the request, whose keys and values have lengths that the caller has checked.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u8(match self.table {
            PrivateTable::Committed => 0,
            PrivateTable::Transient => 1,
        });
        match &self.ask {
            PrivateAsk::Write { epoch, copied: None, rows } => {
                writer.u8(WRITE).u64(epoch.get());
                put_rows(&mut writer, rows);
            }
            PrivateAsk::Write { epoch, copied: Some(CopiedWrite { view, number }), rows } => {
                writer.u8(WRITE_COPIED).u64(epoch.get()).u64(view.number).u64(view.epoch.get()).u64(*number);
                put_rows(&mut writer, rows);
            }
            PrivateAsk::Scan { from, limit } => {
                writer.u8(SCAN).u32(*limit).long(from);
            }
            PrivateAsk::Copy { epoch, rows } => {
                writer.u8(COPY).u64(epoch.get());
                put_rows(&mut writer, rows);
            }
            PrivateAsk::Rows { through, keys } => {
                writer.u8(ROWS).u64(through.get());
                keys.put(&mut writer);
            }
            PrivateAsk::Range { through, limit, namespace, start, end } => {
                writer.u8(RANGE).u64(through.get()).u32(*limit).text(namespace).long(start).long(end);
            }
            PrivateAsk::Prune { epoch, oldest } => {
                writer.u8(PRUNE).u64(epoch.get()).u64(oldest.get());
            }
        }
        writer.done()
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: Bytes) -> Result<PrivateRequest, Malformed> {
        let mut allowance = AllocationBudget::authenticated(body.len());
        let mut fields = Reader::new(body);
        let table = match fields.u8()? {
            0 => PrivateTable::Committed,
            1 => PrivateTable::Transient,
            _ => return Err(fields.malformed("unknown private table")),
        };
        let ask = match fields.u8()? {
            WRITE => {
                let epoch = Epoch(fields.u64()?);
                PrivateAsk::Write { epoch, copied: None, rows: read_rows(&mut fields, &mut allowance)? }
            }
            WRITE_COPIED => {
                let epoch = Epoch(fields.u64()?);
                let view = ViewId { number: fields.u64()?, epoch: Epoch(fields.u64()?) };
                let copied = Some(CopiedWrite { view, number: fields.u64()? });
                PrivateAsk::Write { epoch, copied, rows: read_rows(&mut fields, &mut allowance)? }
            }
            SCAN => {
                let limit = fields.u32()?;
                PrivateAsk::Scan { from: fields.long(ROW_KEY_BYTES_MAX)?, limit }
            }
            COPY => {
                let epoch = Epoch(fields.u64()?);
                PrivateAsk::Copy { epoch, rows: read_rows(&mut fields, &mut allowance)? }
            }
            ROWS => PrivateAsk::Rows { through: BlockNumber(fields.u64()?), keys: read_keys(&mut fields)? },
            RANGE => {
                let (through, limit) = (BlockNumber(fields.u64()?), fields.u32()?);
                let namespace = fields.text(NAMESPACE_BYTES_MAX)?;
                PrivateAsk::Range {
                    through,
                    limit,
                    namespace,
                    start: read_key(&mut fields)?,
                    end: read_key(&mut fields)?,
                }
            }
            PRUNE => PrivateAsk::Prune { epoch: Epoch(fields.u64()?), oldest: BlockNumber(fields.u64()?) },
            _ => return Err(fields.malformed("unknown request for private rows")),
        };
        fields.end().map(|()| PrivateRequest { table, ask })
    }
}

fn put_rows(writer: &mut Writer, rows: &[PrivateRow]) {
    writer.u32(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    for PrivateRow { namespace, key, version, value } in rows {
        writer.text(namespace).long(key).u64(version.block).u32(version.tx).u8(u8::from(value.is_some()));
        writer.long(value.as_deref().unwrap_or_default());
    }
}

fn read_rows(fields: &mut Reader<Bytes>, allowance: &mut AllocationBudget) -> Result<Vec<PrivateRow>, Malformed> {
    let count = fields.u32()? as usize;
    let room = allowance.take(count, ROW_BYTES).ok_or_else(|| fields.malformed(TOO_SMALL))?;
    let mut rows = Vec::with_capacity(room);
    for _ in 0..count {
        rows.push(read_row(fields)?);
    }
    Ok(rows)
}

/// The answer to [`PrivateAsk::Scan`].
pub fn scanned(page: &RowsPage) -> GatherList {
    let mut writer = Writer::new();
    writer.flag(page.next.is_some()).long(page.next.as_deref().unwrap_or_default());
    put_rows(&mut writer, &page.rows);
    writer.done().into()
}

/// Reads that answer.
///
/// # Errors
/// [`Malformed`].
pub fn read_scanned(answer: Bytes) -> Result<RowsPage, Malformed> {
    let mut allowance = AllocationBudget::authenticated(answer.len());
    let mut fields = Reader::new(answer);
    let (has_more, next) = (fields.flag()?, fields.long(ROW_KEY_BYTES_MAX)?);
    if !has_more && !next.is_empty() {
        return Err(fields.malformed("a page has no next row, and names it"));
    }
    let rows = read_rows(&mut fields, &mut allowance)?;
    fields.end().map(|()| RowsPage { rows, next: has_more.then_some(next) })
}

fn read_row(fields: &mut Reader<Bytes>) -> Result<PrivateRow, Malformed> {
    let (namespace, key) = (fields.text(NAMESPACE_BYTES_MAX)?, read_key(fields)?);
    let version = Version::new(fields.u64()?, fields.u32()?);
    let is_live = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return Err(fields.malformed("a row is neither a value nor a deletion")),
    };
    let value = fields.long(usize::MAX)?;
    match is_live || value.is_empty() {
        true => Ok(PrivateRow { namespace, key, version, value: is_live.then_some(value) }),
        false => Err(fields.malformed("a deletion has a value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_encoding() {
        let rows = vec![
            PrivateRow {
                namespace: "n".to_owned(),
                key: Bytes::from_static(b"k"),
                version: Version::new(7, 2),
                value: Some(Bytes::from_static(b"v")),
            },
            PrivateRow {
                namespace: "n".to_owned(),
                key: Bytes::from_static(b"l"),
                version: Version::new(7, 3),
                value: None,
            },
        ];
        let (through, oldest) = (BlockNumber(9), BlockNumber(5));
        for ask in [
            PrivateAsk::Write { epoch: Epoch(3), copied: None, rows: rows.clone() },
            PrivateAsk::Write {
                epoch: Epoch(3),
                copied: Some(CopiedWrite { view: ViewId { number: 4, epoch: Epoch(2) }, number: 9 }),
                rows: rows.clone(),
            },
            PrivateAsk::Scan { from: Bytes::from_static(b"from"), limit: 5 },
            PrivateAsk::Copy { epoch: Epoch(3), rows: rows.clone() },
            PrivateAsk::Rows { through, keys: KeyList::new(&[("n", b"k"), ("m", b"")]) },
            PrivateAsk::Range {
                through,
                limit: 4,
                namespace: "n".to_owned(),
                start: Bytes::from_static(b"a"),
                end: Bytes::new(),
            },
            PrivateAsk::Prune { epoch: Epoch(3), oldest },
        ] {
            for table in [PrivateTable::Committed, PrivateTable::Transient] {
                let request = PrivateRequest { table, ask: ask.clone() };
                let encoded = request.encode();
                assert_eq!(PrivateRequest::decode(encoded.clone()), Ok(request));
                for length in 0..encoded.len() {
                    PrivateRequest::decode(encoded.slice(..length)).expect_err("it is cut off");
                }
            }
        }
    }

    #[test]
    fn pages_survive_their_encoding() {
        let row = PrivateRow { namespace: "n".to_owned(), key: Bytes::new(), version: Version::new(7, 2), value: None };
        for next in [None, Some(Bytes::from_static(b"row"))] {
            let page = RowsPage { rows: vec![row.clone()], next };
            let answer = scanned(&page).concat();
            assert_eq!(read_scanned(answer.clone()), Ok(page));
            for length in 0..answer.len() {
                read_scanned(answer.slice(..length)).expect_err("it is cut off");
            }
        }
    }

    #[test]
    fn a_count_that_the_bytes_cannot_hold_allocates_nothing() {
        let mut writer = Writer::new();
        let body = writer.u8(0).u8(WRITE).u64(1).u32(u32::MAX).done();
        PrivateRequest::decode(body).expect_err("there are no rows");
    }
}
