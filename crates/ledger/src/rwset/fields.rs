//! Decodes the entries of a read-write set, field by field.
//!
//! Fields that Fabric does not define are skipped. A field that may occur once is an error if it occurs twice.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::entries::{
    CollectionReadWriteSet, KeyRead, KeyWrite, MetadataWrite, RangeReads, RangeResults, RangeSummary, ReadVersion,
    ScannedRange,
};
use super::error::DecodeError;
use super::merkle::DEGREES_ACCEPTED;
use crate::wire::{Fields, Span, set_once};

/// SHA-256 of no bytes: the hash of an empty value, whose write deletes the key.
const EMPTY_VALUE_HASH: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27, 0xae, 0x41,
    0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

pub(super) fn read(source: &[u8], span: Span) -> Result<KeyRead, DecodeError> {
    let (mut key, mut version_at) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, field.span()?)?,
            2 => set_once(&mut version_at, field.span()?)?,
            _ => {}
        }
    }
    let version = version_at.map(|span| version(source, span)).transpose()?;
    Ok(KeyRead { key: key.unwrap_or_default(), version })
}

pub(super) fn version(source: &[u8], span: Span) -> Result<ReadVersion, DecodeError> {
    let (mut block, mut transaction) = (None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut block, field.varint()?)?,
            2 => set_once(&mut transaction, field.varint()?)?,
            _ => {}
        }
    }
    Ok(ReadVersion { block: block.unwrap_or(0), transaction: transaction.unwrap_or(0) })
}

pub(super) fn write(source: &[u8], span: Span) -> Result<KeyWrite, DecodeError> {
    let (mut key, mut is_delete, mut value) = (None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, field.span()?)?,
            2 => set_once(&mut is_delete, field.varint()? != 0)?,
            3 => set_once(&mut value, field.span()?)?,
            _ => {}
        }
    }
    let value = value.unwrap_or_default();
    let is_delete = is_delete.unwrap_or(false) || value.is_empty();
    Ok(KeyWrite { key: key.unwrap_or_default(), value, is_delete, is_purge: false })
}

/// As [`write`], with the hashes of key and value. As in Fabric, a write of an empty value deletes. `is_purge` decides
/// nothing about the state: Fabric sets `is_delete` with it.
pub(super) fn hashed_write(source: &[u8], span: Span) -> Result<KeyWrite, DecodeError> {
    let (mut key, mut is_delete, mut value, mut is_purge) = (None, None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut key, field.span()?)?,
            2 => set_once(&mut is_delete, field.varint()? != 0)?,
            3 => set_once(&mut value, field.span()?)?,
            4 => set_once(&mut is_purge, field.varint()? != 0)?,
            _ => {}
        }
    }
    let value = value.unwrap_or_default();
    let has_no_value = value.is_empty() || value.of(source) == EMPTY_VALUE_HASH;
    let (is_delete, is_purge) = (is_delete.unwrap_or(false) || has_no_value, is_purge.unwrap_or(false));
    Ok(KeyWrite { key: key.unwrap_or_default(), value, is_delete, is_purge })
}

pub(super) fn metadata_write(source: &[u8], place: Span) -> Result<MetadataWrite, DecodeError> {
    let mut key = None;
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            set_once(&mut key, field.span()?)?;
        }
    }
    Ok(MetadataWrite { key: key.unwrap_or_default(), place })
}

/// Name and value of an entry of metadata.
pub(super) fn metadata_entry(source: &[u8], place: Span) -> Result<(Span, Span), DecodeError> {
    let (mut name, mut value) = (None, None);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut name, field.span()?)?,
            2 => set_once(&mut value, field.span()?)?,
            _ => {}
        }
    }
    Ok((name.unwrap_or_default(), value.unwrap_or_default()))
}

pub(super) fn collection(source: &[u8], place: Span) -> Result<CollectionReadWriteSet, DecodeError> {
    let (mut name, mut entries, mut private_hash) = (None, None, None);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut name, field.span()?)?,
            2 => set_once(&mut entries, field.span()?)?,
            3 => set_once(&mut private_hash, field.span()?)?,
            _ => {}
        }
    }
    Ok(CollectionReadWriteSet {
        name: name.unwrap_or_default(),
        entries: entries.unwrap_or_default(),
        private_hash: private_hash.unwrap_or_default(),
    })
}

pub(super) fn range(source: &[u8], span: Span) -> Result<ScannedRange, DecodeError> {
    let (mut start, mut end, mut exhausted, mut results, mut summary_at) = (None, None, None, None, None);
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut start, field.span()?)?,
            2 => set_once(&mut end, field.span()?)?,
            3 => set_once(&mut exhausted, field.varint()? != 0)?,
            4 => set_once(&mut results, field.span()?)?,
            5 => set_once(&mut summary_at, field.span()?)?,
            _ => {}
        }
    }
    let reads = match (results, summary_at) {
        (Some(_), Some(_)) => return Err(DecodeError::RangeReads),
        (None, Some(span)) => RangeReads::Summary(summary(source, span)?),
        (results, None) => RangeReads::Results(RangeResults(results.unwrap_or_default())),
    };
    Ok(ScannedRange {
        start: start.unwrap_or_default(),
        end: end.unwrap_or_default(),
        exhausted: exhausted.unwrap_or(false),
        reads,
    })
}

pub(super) fn summary(source: &[u8], place: Span) -> Result<RangeSummary, DecodeError> {
    let (mut degree, mut level, mut count) = (None, None, 0_u32);
    let mut fields = Fields::new(source, place);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut degree, field.varint()?)?,
            2 => set_once(&mut level, field.varint()?)?,
            3 => {
                field.span()?;
                count = count.saturating_add(1);
            }
            _ => {}
        }
    }
    let degree = degree.unwrap_or(0);
    let accepted = u32::try_from(degree).ok().filter(|degree| DEGREES_ACCEPTED.contains(degree));
    let degree = accepted.ok_or(DecodeError::Degree(degree))?;
    // No scan produces a level beyond 32 bits, nor the largest level of 32 bits, which stands for all of them.
    let level = u32::try_from(level.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(RangeSummary { place, degree, level, count })
}
