//! Lists of keys and transaction ids, which the node reads in place.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, TxId};
use wire::{Input, Malformed, Reader, Writer};

use crate::state_store::KEYS_MAX;
use crate::tables::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, is_row_key};

/// The longest transaction id that a request may look up.
const ID_BYTES_MAX: usize = 64 << 10;
/// Transaction ids in one request.
pub const IDS_MAX: usize = 1 << 20;

/// Pairs of namespace and key, as encoded in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyList {
    pub(super) count: u32,
    /// Validated when the message was decoded.
    pub(super) encoded: Bytes,
}

/// Transaction ids, as encoded in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxIdList {
    pub(super) count: u32,
    /// Validated when the message was decoded.
    pub(super) encoded: Bytes,
}

/// The list was validated when its message was decoded.
const CHECKED: &str = "the form was checked when the message was read";

impl KeyList {
    /// Encodes pairs whose lengths the caller has checked.
    pub fn new(keys: &[(&str, &[u8])]) -> KeyList {
        let mut writer = Writer::new();
        keys.iter().for_each(|(namespace, key)| {
            writer.text(namespace).long(key);
        });
        KeyList { count: keys.len() as u32, encoded: writer.done() }
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = Reader::new(&self.encoded[..]);
        (0..self.count).map(move |_| KeyList::next(&mut rest).expect(CHECKED))
    }

    /// Appends the list to a message.
    pub fn put(&self, writer: &mut Writer) {
        writer.u32(self.count).put(&self.encoded);
    }

    fn next<'a>(reader: &mut Reader<&'a [u8]>) -> Result<(&'a str, &'a [u8]), Malformed> {
        Ok((reader.str(NAMESPACE_BYTES_MAX)?, read_key(reader)?))
    }
}

impl TxIdList {
    /// Encodes ids whose lengths the caller has checked.
    pub fn new(ids: &[TxId]) -> TxIdList {
        let mut writer = Writer::new();
        writer.reserve(ids.iter().map(|id| id.len().saturating_add(4)).sum());
        ids.iter().for_each(|id| {
            writer.long(id.as_str().as_bytes());
        });
        TxIdList { count: ids.len() as u32, encoded: writer.done() }
    }

    /// The ids in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = Reader::new(&self.encoded[..]);
        (0..self.count).map(move |_| TxIdList::next(&mut rest).expect(CHECKED))
    }

    fn next<'a>(reader: &mut Reader<&'a [u8]>) -> Result<&'a str, Malformed> {
        std::str::from_utf8(reader.long(ID_BYTES_MAX)?).map_err(|_| reader.malformed("an id is not UTF-8"))
    }
}

/// Reads a key that a row may have.
///
/// # Errors
/// [`Malformed`].
pub fn read_key<I: Input>(fields: &mut Reader<I>) -> Result<I, Malformed> {
    let key = fields.long(KEY_BYTES_MAX)?;
    match is_row_key(key.as_ref()) {
        true => Ok(key),
        false => Err(fields.malformed("a key is too long")),
    }
}

/// Reads the keys of a request.
///
/// # Errors
/// [`Malformed`].
pub fn read_keys(fields: &mut Reader<Bytes>) -> Result<KeyList, Malformed> {
    let count = fields.count(6, KEYS_MAX)?;
    let encoded = fields.span(|ahead| (0..count).try_for_each(|_| KeyList::next(ahead).map(drop)))?;
    Ok(KeyList { count: count as u32, encoded })
}

/// Reads the transaction ids of a request.
///
/// # Errors
/// [`Malformed`].
pub fn read_ids(fields: &mut Reader<Bytes>) -> Result<TxIdList, Malformed> {
    let count = fields.count(4, IDS_MAX)?;
    let encoded = fields.span(|ahead| (0..count).try_for_each(|_| TxIdList::next(ahead).map(drop)))?;
    Ok(TxIdList { count: count as u32, encoded })
}
