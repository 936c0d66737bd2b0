//! Walks over the writes of a transaction that was found valid, without decoding the rest of its read-write set.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::entries::CollectionReadWriteSet;
use super::error::DecodeError;
use super::fields::{collection, hashed_write, write};
use crate::wire::{Fields, Span};

/// A write of a transaction that was found valid.
#[derive(Clone, Copy, Debug)]
pub struct VisitedWrite<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The collection; empty for a public key.
    pub collection: &'a str,
    /// The key; in a collection, its hash.
    pub key: &'a [u8],
    /// The position of the value in the source, or in a collection that of the value's hash; `None` for a delete.
    pub value: Option<Span>,
}

/// Calls `visit` with each write of a transaction that was found valid: namespace by namespace, public keys before
/// collections, otherwise in the order of the bytes. `set` is the position of its `TxReadWriteSet`. Reads and writes of
/// metadata are skipped.
///
/// # Errors
/// The bytes that were read are not a `TxReadWriteSet`.
pub fn visit_writes<'a>(
    source: &'a [u8],
    set: Span,
    mut visit: impl FnMut(VisitedWrite<'a>),
) -> Result<(), DecodeError> {
    let mut namespaces = Fields::new(source, set);
    while let Some(namespace) = namespaces.next()? {
        if namespace.number != 2 {
            continue;
        }
        let (mut name, mut writes, mut has_collections) = ("", Span::default(), false);
        let message = namespace.span()?;
        let mut fields = Fields::new(source, message);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => name = field.span()?.text(source)?,
                2 => writes = field.span()?,
                3 => has_collections = true,
                _ => {}
            }
        }
        let mut entries = Fields::new(source, writes);
        while let Some(entry) = entries.next()? {
            if entry.number == 3 {
                let write = write(source, entry.span()?)?;
                let (key, value) = (write.key.text(source)?.as_bytes(), (!write.is_delete).then_some(write.value));
                visit(VisitedWrite { namespace: name, collection: "", key, value });
            }
        }
        if !has_collections {
            continue;
        }
        let mut fields = Fields::new(source, message);
        while let Some(field) = fields.next()? {
            if field.number != 3 {
                continue;
            }
            let CollectionReadWriteSet { name: collection, entries, .. } = collection(source, field.span()?)?;
            let collection = collection.text(source)?;
            let mut entries = Fields::new(source, entries);
            while let Some(entry) = entries.next()? {
                if entry.number == 2 {
                    let write = hashed_write(source, entry.span()?)?;
                    let (key, value) = (write.key.of(source), (!write.is_delete).then_some(write.value));
                    visit(VisitedWrite { namespace: name, collection, key, value });
                }
            }
        }
    }
    Ok(())
}
