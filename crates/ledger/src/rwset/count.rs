//! Counts the entries of a read-write set before its format is checked, so that the memory for them is in proportion to
//! the set's size.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::NAMESPACES_MAX;
use super::entries::{KeyRead, KeyWrite, NamespaceReadWriteSet};
use super::error::DecodeError;
use crate::wire::{FieldValue, Fields, Span};

/// The most bytes of memory that the kept entries of a set may take, for each byte of the set.
pub const KEPT_PER_BYTE: usize = 2;

/// The number of entries in a set, before its format is checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntryCounts {
    pub namespaces: usize,
    pub reads: usize,
    pub writes: usize,
}

impl EntryCounts {
    pub fn of(source: &[u8], set: Span) -> Result<EntryCounts, DecodeError> {
        let mut counts = EntryCounts::default();
        let mut fields = Fields::new(source, set);
        while let Some(field) = fields.next()? {
            let (2, FieldValue::Bytes(namespace)) = (field.number, field.value) else { continue };
            if counts.namespaces == NAMESPACES_MAX {
                return Err(DecodeError::TooMany { what: "namespaces", max: NAMESPACES_MAX });
            }
            counts.namespaces = counts.namespaces.saturating_add(1);
            // Errors end the count here; the format check finds them again and reports them.
            let mut inner = Fields::new(source, namespace);
            while let Ok(Some(field)) = inner.next() {
                if let (2, FieldValue::Bytes(entries)) = (field.number, field.value) {
                    counts.add(source, entries);
                }
            }
        }
        Ok(counts)
    }

    fn add(&mut self, source: &[u8], entries: Span) {
        let mut fields = Fields::new(source, entries);
        while let Ok(Some(field)) = fields.next() {
            match field.number {
                1 => self.reads = self.reads.saturating_add(1),
                3 => self.writes = self.writes.saturating_add(1),
                _ => {}
            }
        }
    }

    /// Whether these entries may be kept: they take at most [`KEPT_PER_BYTE`] bytes for each byte of the set.
    pub fn fit(&self, set_bytes: usize) -> bool {
        let namespaces = self.namespaces.saturating_mul(size_of::<NamespaceReadWriteSet>());
        let reads = self.reads.saturating_mul(size_of::<KeyRead>());
        let writes = self.writes.saturating_mul(size_of::<KeyWrite>());
        namespaces.saturating_add(reads).saturating_add(writes) <= set_bytes.saturating_mul(KEPT_PER_BYTE)
    }
}
