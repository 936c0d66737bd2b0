//! Reads the private writes of a transaction to one collection: an encoded `KVRWSet`, which members of the collection pass on.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use prost::Message;
use proto::kvrwset::{KvMetadataWrite, KvWrite, KvrwSet};

use super::ENTRIES_MAX;
use super::error::DecodeError;
use super::fields::write;
use crate::wire::{Fields, Span};

/// One private write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateWrite {
    /// The key.
    pub key: String,
    /// The new value; `None` deletes the key.
    pub value: Option<Bytes>,
}

/// The writes in a private set, in its order. Writes of metadata alone are left out: they carry no value.
///
/// # Errors
/// [`DecodeError`], also for more than [`ENTRIES_MAX`] entries.
pub fn private_writes(set: &Bytes) -> Result<Vec<PrivateWrite>, DecodeError> {
    let mut writes = Vec::new();
    let mut entries = 0_usize;
    let mut fields = Fields::new(set, Span::whole(set)?);
    while let Some(field) = fields.next()? {
        entries = entries.saturating_add(1);
        if entries > ENTRIES_MAX {
            return Err(DecodeError::TooMany { what: "private entries", max: ENTRIES_MAX });
        }
        if field.number != 3 {
            continue;
        }
        let write = write(set, field.span()?)?;
        let key = write.key.text(set)?.to_owned();
        writes.push(PrivateWrite { key, value: (!write.is_delete).then(|| write.value.slice(set)) });
    }
    Ok(writes)
}

/// A private set without the keys that `is_removed` names; `None` if it has none of them.
///
/// # Errors
/// As [`private_writes`].
pub fn without_keys(set: &Bytes, is_removed: impl Fn(&str) -> bool) -> Result<Option<Bytes>, DecodeError> {
    let writes = private_writes(set)?;
    if !writes.iter().any(|write| is_removed(&write.key)) {
        return Ok(None);
    }
    let kept = writes.into_iter().filter(|write| !is_removed(&write.key));
    let kept = kept.map(|PrivateWrite { key, value }| KvWrite {
        key,
        is_delete: value.is_none(),
        value: value.unwrap_or_default(),
    });
    let metadata = KvrwSet::decode(set.clone()).map(|set| set.metadata_writes).unwrap_or_default();
    let metadata: Vec<KvMetadataWrite> = metadata.into_iter().filter(|write| !is_removed(&write.key)).collect();
    let set = KvrwSet { writes: kept.collect(), metadata_writes: metadata, ..KvrwSet::default() };
    Ok(Some(set.encode_to_vec().into()))
}
