//! The bytes of row keys. Their byte order is the order in which scans read rows.
//!
//! ```text
//! row key  := 0x01 text(namespace) text(key) version kind
//! text(t)  := t with each 0x00 replaced by 0x00 0xff, then 0x00 0x01
//! version  := 8 bytes: complement of the block number, big-endian; 4 bytes: complement of the transaction's position
//! kind     := 0x00 the key was deleted | 0x01 the row holds a value
//! ```
//!
//! The byte order of row keys is the order of (namespace, key, version descending). This holds because the terminator
//! 0x00 0x01 sorts below every continuation of a text: the next byte of a longer text is either above 0x00, or is 0x00
//! and followed by 0xff. Keys may hold any bytes; Fabric's composite keys contain 0x00. The kind is part of the row
//! key, so that a value is stored exactly as it was given.
//!
//! Row keys begin with 0x01; metadata of the tables lies under 0x00.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Version;

use crate::Error;

/// The longest key of a row, in bytes as [`key_bytes`] counts them. With prefix, namespace and suffix, it fits the engine's limit
/// of 65,535.
pub const KEY_BYTES_MAX: usize = 64_100;
/// The longest namespace, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 700;

/// The key of the savepoint.
pub const SAVEPOINT: &[u8] = &[0x00, b's'];
/// Version and kind.
pub const SUFFIX_BYTES: usize = 13;

const ROW: u8 = 0x01;
const TERMINATOR: [u8; 2] = [0x00, 0x01];
const TERMINATOR_PASSED: [u8; 2] = [0x00, 0x02];
const ESCAPED_ZERO: [u8; 2] = [0x00, 0xff];
const DELETED: u8 = 0;
const LIVE: u8 = 1;

const _: () = assert!(1 + 2 * NAMESPACE_BYTES_MAX + 2 + KEY_BYTES_MAX + 2 + SUFFIX_BYTES <= u16::MAX as usize);

/// The bytes that a key takes in a row key: a zero byte is escaped, so it counts twice.
pub fn key_bytes(key: &[u8]) -> usize {
    key.len().saturating_add(key.iter().filter(|byte| **byte == 0).count())
}

/// Whether a row may have this key.
pub fn is_row_key(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX / 2 || key_bytes(key) <= KEY_BYTES_MAX
}

/// Rejects names that no row can have.
///
/// # Errors
/// [`Error::TooLarge`].
pub fn check(namespace: &str, key: &[u8]) -> Result<(), Error> {
    let too_large = |what, given: usize, max: usize| Error::TooLarge { what, given: given as u64, max: max as u64 };
    if namespace.len() > NAMESPACE_BYTES_MAX {
        return Err(too_large("bytes of a namespace", namespace.len(), NAMESPACE_BYTES_MAX));
    }
    match is_row_key(key) {
        true => Ok(()),
        false => Err(too_large("bytes of a key, zero bytes counted twice", key_bytes(key), KEY_BYTES_MAX)),
    }
}

#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn push_escaped(bytes: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        bytes.extend_from_slice(&rest[..zero]);
        bytes.extend_from_slice(&ESCAPED_ZERO);
        rest = &rest[zero + 1..];
    }
    bytes.extend_from_slice(rest);
}

/// Appends the common prefix of all rows of a key.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn push_prefix(bytes: &mut Vec<u8>, namespace: &str, key: &[u8]) {
    bytes.reserve(namespace.len() + key.len() + 5 + SUFFIX_BYTES + 8);
    bytes.push(ROW);
    push_escaped(bytes, namespace.as_bytes());
    bytes.extend_from_slice(&TERMINATOR);
    push_escaped(bytes, key);
    bytes.extend_from_slice(&TERMINATOR);
}

/// The common prefix of all rows of a key.
pub fn prefix(namespace: &str, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_prefix(&mut bytes, namespace, key);
    bytes
}

/// Appends version and kind to a prefix.
pub fn push_suffix(bytes: &mut Vec<u8>, version: Version, live: bool) {
    bytes.extend_from_slice(&(!version.block).to_be_bytes());
    bytes.extend_from_slice(&(!version.tx).to_be_bytes());
    bytes.push(if live { LIVE } else { DELETED });
}

/// Extends a prefix to the smallest possible row key of a version written by block `through` or an older one.
pub fn push_seek(bytes: &mut Vec<u8>, through: u64) {
    push_suffix(bytes, Version::new(through, u32::MAX), false);
}

/// Extends a prefix to the largest possible row key.
pub fn push_last(bytes: &mut Vec<u8>) {
    push_suffix(bytes, Version::new(0, 0), true);
}

/// A bound below the rows of all keys `>= start` and above those of all smaller keys in the namespace.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn range_bound(namespace: &str, start: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(namespace.len() + start.len() + 8);
    bytes.push(ROW);
    push_escaped(&mut bytes, namespace.as_bytes());
    bytes.extend_from_slice(&TERMINATOR);
    push_escaped(&mut bytes, start);
    bytes
}

/// A bound above all rows of a namespace and below those of the next one.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn namespace_end(namespace: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(namespace.len() + 8);
    bytes.push(ROW);
    push_escaped(&mut bytes, namespace.as_bytes());
    bytes.extend_from_slice(&TERMINATOR_PASSED);
    bytes
}

/// A bound below all rows.
pub fn first_row() -> Vec<u8> {
    vec![ROW]
}

/// A bound above all rows.
pub fn rows_end() -> Vec<u8> {
    vec![ROW + 1]
}

/// The parts of a row key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey<'a> {
    /// The common prefix of all rows of the key.
    pub prefix: &'a [u8],
    pub version: Version,
    pub live: bool,
}

impl<'a> RowKey<'a> {
    /// Splits a row key; `None` for bytes that are not one. Namespace and key stay encoded, see [`decode_prefix`].
    pub fn split(bytes: &'a [u8]) -> Option<RowKey<'a>> {
        let at = bytes.len().checked_sub(SUFFIX_BYTES)?;
        let (prefix, suffix) = bytes.split_at(at);
        if prefix.first() != Some(&ROW) || !prefix.ends_with(&TERMINATOR) {
            return None;
        }
        let (block, suffix) = suffix.split_first_chunk::<8>()?;
        let (tx, kind) = suffix.split_first_chunk::<4>()?;
        let live = match kind {
            [DELETED] => false,
            [LIVE] => true,
            _ => return None,
        };
        let version = Version::new(!u64::from_be_bytes(*block), !u32::from_be_bytes(*tx));
        Some(RowKey { prefix, version, live })
    }
}

/// Namespace and key of a prefix; `None` for bytes that are not one.
pub fn decode_prefix(prefix: &[u8]) -> Option<(String, Vec<u8>)> {
    let (namespace, rest) = unescape(prefix.strip_prefix(&[ROW])?)?;
    let (key, rest) = unescape(rest)?;
    if !rest.is_empty() {
        return None;
    }
    Some((String::from_utf8(namespace).ok()?, key))
}

/// Reads an escaped text and its terminator; also returns the bytes that follow.
fn unescape(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::new();
    let mut rest = bytes;
    loop {
        let zero = rest.iter().position(|byte| *byte == 0)?;
        text.extend_from_slice(&rest[..zero]);
        let (pair, after) = rest[zero..].split_first_chunk::<2>()?;
        rest = after;
        match *pair {
            ESCAPED_ZERO => text.push(0),
            TERMINATOR => return Some((text, rest)),
            _ => return None,
        }
    }
}
