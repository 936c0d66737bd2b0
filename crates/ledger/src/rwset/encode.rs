//! The encodings of the messages in `kvrwset` and `rwset`: fields in order of number, without defaults, as Fabric writes
//! them.

use crate::wire::{bytes_field_len, put_bytes, put_bytes_header, put_varint, varint_len};
use base::Version;

/// Fields of `KVRead`, `KVWrite`, `Version`.
const KEY: u32 = 1;
const READ_VERSION: u32 = 2;
const BLOCK_NUM: u32 = 1;
const TX_NUM: u32 = 2;

/// The bytes of a number's field, none where it is 0.
pub(super) const fn number_field_len(number: u64) -> usize {
    // Every field number here is below 16, so its key is one byte.
    if number == 0 { 0 } else { 1 + varint_len(number) }
}

pub(super) fn put_number(bytes: &mut Vec<u8>, field: u32, number: u64) {
    if number != 0 {
        put_varint(bytes, u64::from(field) << 3);
        put_varint(bytes, number);
    }
}

pub(super) fn put_text(bytes: &mut Vec<u8>, field: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(bytes, field, text.as_bytes());
    }
}

pub(super) const fn text_field_len(field: u32, length: usize) -> usize {
    if length == 0 { 0 } else { bytes_field_len(field, length) }
}

const fn version_len(block: u64, transaction: u64) -> usize {
    number_field_len(block) + number_field_len(transaction)
}

/// The length of a `KVRead` without its own header.
pub(super) fn read_len(key: &str, version: Option<(u64, u64)>) -> usize {
    let version = version.map_or(0, |(block, tx)| bytes_field_len(READ_VERSION, version_len(block, tx)));
    text_field_len(KEY, key.len()) + version
}

/// Appends a `KVRead` as field `field`.
pub(super) fn put_read(bytes: &mut Vec<u8>, field: u32, key: &str, version: Option<(u64, u64)>) {
    put_bytes_header(bytes, field, read_len(key, version));
    put_text(bytes, KEY, key);
    if let Some((block, tx)) = version {
        put_bytes_header(bytes, READ_VERSION, version_len(block, tx));
        put_number(bytes, BLOCK_NUM, block);
        put_number(bytes, TX_NUM, tx);
    }
}

/// The length of a `KVWrite` without its own header; a write of no bytes is a delete.
pub(super) fn write_len(key: &str, value: &[u8]) -> usize {
    let rest = if value.is_empty() { number_field_len(1) } else { bytes_field_len(3, value.len()) };
    text_field_len(KEY, key.len()) + rest
}

/// Appends a `KVWrite` as field `field`.
pub(super) fn put_write(bytes: &mut Vec<u8>, field: u32, key: &str, value: &[u8]) {
    put_bytes_header(bytes, field, write_len(key, value));
    put_text(bytes, KEY, key);
    if value.is_empty() {
        put_number(bytes, 2, 1);
    } else {
        put_bytes(bytes, 3, value);
    }
}

/// A version as the pair that Fabric encodes.
pub(super) fn pair(version: Version) -> (u64, u64) {
    (version.block, u64::from(version.tx))
}
