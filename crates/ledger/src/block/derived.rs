//! Derived updates: the changes of a block to the state beyond the writes of its transactions.
//!
//! Most blocks change exactly what their valid transactions write. Some changes also depend on the state before the
//! block: a transaction that writes only the metadata of a key gives its value a new version, and the hashes of a
//! collection expire after a number of blocks. The peer that validates the block computes these changes once and stores
//! them with the block, in a separate metadata slot. So every later reader of the stored block (a storage node, a
//! replay, a check of the ledger) knows its changes without the state before it.
//!
//! ```text
//! slot = one protobuf field 1 for each key: first the written and deleted keys, then the kept ones, each group in the
//!        order of namespace and key
//!     1 namespace      of the state, see `crate::namespace`
//!     2 key
//!     3 transaction    the position of the transaction that made the change; absent for 0. The position after the last
//!                      transaction marks a change by the block itself, such as an expiry, which no commit hash covers
//!     4 value          the new value; absent if the key is deleted or kept
//!     5 is_kept        1 if the key stays as it was, although a transaction of the block writes it; absent otherwise
//! ```
//!
//! Only the nodes of this peer see the slot: it is removed from blocks shown to others, and the validating peer
//! overwrites what a received block has there.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;

use crate::error::Error;
use crate::wire::{self, Fields, Span, WireError, set_once};

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DerivedUpdate<'a> {
    /// The namespace of the state.
    pub namespace: &'a str,
    /// The key.
    pub key: &'a str,
    /// How it changes.
    pub change: DerivedChange<'a>,
}

/// How a key changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DerivedChange<'a> {
    /// It stays as it was before the block.
    Kept,
    /// The transaction at this position, or the block, deletes it.
    Deleted(u32),
    /// The transaction at this position, or the block, gives it this value.
    Written(u32, &'a [u8]),
}

const WHAT: &str = "the derived updates of a block";

/// Encodes derived updates for the metadata slot.
pub fn encode<'a>(updates: impl IntoIterator<Item = DerivedUpdate<'a>>) -> Bytes {
    let (mut slot, mut entry) = (Vec::new(), Vec::new());
    for DerivedUpdate { namespace, key, change } in updates {
        entry.clear();
        wire::put_bytes(&mut entry, 1, namespace.as_bytes());
        wire::put_bytes(&mut entry, 2, key.as_bytes());
        match change {
            DerivedChange::Kept => entry.extend_from_slice(&[5 << 3, 1]),
            DerivedChange::Deleted(transaction) => put_number(&mut entry, transaction),
            DerivedChange::Written(transaction, value) => {
                put_number(&mut entry, transaction);
                wire::put_bytes(&mut entry, 4, value);
            }
        }
        wire::put_bytes(&mut slot, 1, &entry);
    }
    slot.into()
}

fn put_number(entry: &mut Vec<u8>, transaction: u32) {
    if transaction > 0 {
        entry.push(3 << 3);
        wire::put_varint(entry, transaction.into());
    }
}

/// Decodes a slot, one change after the other. An error ends the iteration.
///
/// # Errors
/// [`Error::Malformed`].
pub fn decode(slot: &[u8]) -> impl Iterator<Item = Result<DerivedUpdate<'_>, Error>> {
    let malformed = |cause| Error::Malformed { what: WHAT, cause };
    let mut fields = Span::whole(slot).map(|whole| Fields::new(slot, whole)).map_err(Some);
    std::iter::from_fn(move || {
        let walk = match &mut fields {
            Ok(walk) => walk,
            Err(cause) => return cause.take().map(|cause| Err(malformed(cause))),
        };
        let update = match walk.next() {
            Ok(None) => return None,
            Ok(Some(field)) => field.span().and_then(|entry| read(slot, entry)),
            Err(cause) => Err(cause),
        };
        if update.is_err() {
            fields = Err(None);
        }
        Some(update.map_err(malformed))
    })
}

fn read(slot: &[u8], entry: Span) -> Result<DerivedUpdate<'_>, WireError> {
    let (mut namespace, mut key, mut transaction, mut value, mut is_kept) = (None, None, None, None, None);
    let mut fields = Fields::new(slot, entry);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut namespace, field.span()?.text(slot)?)?,
            2 => set_once(&mut key, field.span()?.text(slot)?)?,
            3 => set_once(&mut transaction, u32::try_from(field.varint()?).map_err(|_| WireError::Overflow)?)?,
            4 => set_once(&mut value, field.span()?.of(slot))?,
            5 => set_once(&mut is_kept, field.varint()? != 0)?,
            _ => {}
        }
    }
    let transaction = transaction.unwrap_or_default();
    let change = match (is_kept.unwrap_or(false), value) {
        (true, _) => DerivedChange::Kept,
        (false, None) => DerivedChange::Deleted(transaction),
        (false, Some(value)) => DerivedChange::Written(transaction, value),
    };
    Ok(DerivedUpdate { namespace: namespace.unwrap_or_default(), key: key.unwrap_or_default(), change })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_have_the_documented_bytes_and_are_read_again() {
        let updates = [
            ("a", "k", DerivedChange::Written(0, b"v".as_slice())),
            ("a", "l", DerivedChange::Written(300, b"")),
            ("b", "", DerivedChange::Deleted(2)),
            ("b", "m", DerivedChange::Kept),
        ]
        .map(|(namespace, key, change)| DerivedUpdate { namespace, key, change });
        let encoded = encode(updates.clone());
        let expected: [&[u8]; 4] = [
            b"\x0a\x09\x0a\x01a\x12\x01k\x22\x01v",
            b"\x0a\x0b\x0a\x01a\x12\x01l\x18\xac\x02\x22\x00",
            b"\x0a\x07\x0a\x01b\x12\x00\x18\x02",
            b"\x0a\x08\x0a\x01b\x12\x01m\x28\x01",
        ];
        assert_eq!(encoded[..], expected.concat());
        let read: Result<Vec<DerivedUpdate<'_>>, Error> = decode(&encoded).collect();
        assert_eq!(read.expect("it was encoded here"), updates);
        assert!(decode(b"").next().is_none());
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_stored_is_read_or_an_error(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..80)) {
            if let Ok(updates) = decode(&bytes).collect::<Result<Vec<_>, _>>() {
                let encoded = encode(updates.clone());
                let again: Vec<_> = decode(&encoded).collect::<Result<_, _>>().expect("it was encoded here");
                proptest::prop_assert_eq!(again, updates);
            }
            // After an error there is no more.
            proptest::prop_assert!(decode(&bytes).filter(Result::is_err).count() <= 1);
        }
    }
}
