//! The fields of an encoded block, and the entries of its repeated ones.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use crate::error::Error;
use crate::wire::{Fields, Span};

pub(super) const FIELD_HEADER: u32 = 1;
pub(super) const FIELD_DATA: u32 = 2;
pub(super) const FIELD_METADATA: u32 = 3;
/// The field of `BlockData` and of `BlockMetadata` that repeats.
pub(super) const FIELD_ENTRY: u32 = 1;

/// The most envelopes a block may hold. Fabric sets no limit; the version of a key has 32 bits for a transaction, and a
/// block of this many empty envelopes already costs half a gigabyte of index.
pub const ENVELOPES_MAX: usize = 1 << 24;
/// Entries of a block that may be of any size.
pub(super) const ENTRIES_FREE: usize = 1024;
/// Bytes of the others, on average: no envelope that an orderer takes is shorter. It has a payload and a signature.
pub(super) const ENTRY_BYTES_MIN: usize = 8;

/// The place of the message in a single encoded field.
pub(super) fn content(field: &[u8], number: u32, what: &'static str) -> Result<Span, Error> {
    let malformed = |cause| Error::Malformed { what, cause };
    let mut fields = Fields::new(field, Span::whole(field).map_err(malformed)?);
    let first = fields.next().map_err(malformed)?.ok_or(Error::Missing { what })?;
    if first.number != number {
        return Err(Error::UnknownField { what, field: first.number });
    }
    if let Some(second) = fields.next().map_err(malformed)? {
        return Err(Error::UnknownField { what, field: second.number });
    }
    first.span().map_err(malformed)
}

/// The places of the entries of `BlockData` or `BlockMetadata` in its encoded field.
pub(super) fn entries(field: &[u8], number: u32, what: &'static str, limit: usize) -> Result<Vec<Span>, Error> {
    let malformed = |cause| Error::Malformed { what, cause };
    let content = content(field, number, what)?;
    let limit = limit.min(ENTRIES_FREE.saturating_add(content.len() / ENTRY_BYTES_MIN));
    // Counted before there is room for any: two bytes are enough for an entry, and nobody has signed them yet.
    let mut count = 0_usize;
    let mut fields = Fields::new(field, content);
    while let Some(entry) = fields.next().map_err(malformed)? {
        if entry.number != FIELD_ENTRY {
            return Err(Error::UnknownField { what, field: entry.number });
        }
        entry.span().map_err(malformed)?;
        count = count.saturating_add(1);
        if count > limit {
            return Err(Error::TooMany { what, count: count as u64, limit: limit as u64 });
        }
    }
    let mut entries = Vec::with_capacity(count);
    let mut fields = Fields::new(field, content);
    while let Some(entry) = fields.next().map_err(malformed)? {
        entries.push(entry.span().map_err(malformed)?);
    }
    Ok(entries)
}
