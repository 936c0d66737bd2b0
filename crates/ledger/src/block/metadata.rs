//! The metadata slots of a block: Fabric's five, and a sixth in the ledger of a peer.
//!
//! The header's hash does not cover the slots. The orderers fill slot 0, and each peer fills slots 2, 4 and 5 itself.
//!
//! | slot | content |
//! |---|---|
//! | 0 signatures | a `Metadata` message: orderer metadata and the orderers' signatures over it |
//! | 1 last configuration | superseded by slot 0; empty |
//! | 2 transactions filter | one validation code per transaction, one byte each |
//! | 3 orderer | superseded by slot 0; empty |
//! | 4 commit hash | a `Metadata` message whose value is the commit hash; from block 1 on |
//! | 5 derived updates | what the block changes in the state beyond the writes of its transactions ([`super::derived`]) |
//!
//! Invariant: a missing slot is equivalent to an empty one; [`BlockMetadata::encode_field`] always writes the first five, and the
//! sixth only if it is not empty. A peer shows no block with it ([`super::Block::without_derived_updates`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;

use super::{FIELD_ENTRY, FIELD_METADATA, entries};
use crate::error::Error;
use crate::hash::Hash;
use crate::wire::{self, Fields, Span, set_once};

/// The number of slots.
pub const SLOTS: usize = 6;
/// The slots that Fabric knows.
pub(super) const FABRIC_SLOTS: usize = 5;

const SLOT_SIGNATURES: usize = 0;
const SLOT_FILTER: usize = 2;
const SLOT_COMMIT_HASH: usize = 4;
const SLOT_DERIVED_UPDATES: usize = 5;

/// A block's metadata slots.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BlockMetadata {
    slots: [Bytes; SLOTS],
}

impl BlockMetadata {
    /// Reads the encoded field `metadata` of a block; no bytes stand for a block without the field.
    pub(super) fn parse(field: &Bytes) -> Result<BlockMetadata, Error> {
        let mut metadata = BlockMetadata::default();
        if field.is_empty() {
            return Ok(metadata);
        }
        let spans = entries(field, FIELD_METADATA, "block metadata", SLOTS)?;
        for (slot, span) in metadata.slots.iter_mut().zip(spans) {
            *slot = span.slice(field);
        }
        Ok(metadata)
    }

    /// The encoded field `metadata` of a block.
    pub(super) fn encode_field(&self) -> Bytes {
        let slots = if self.derived_updates().is_empty() { &self.slots[..FABRIC_SLOTS] } else { &self.slots[..] };
        let length: usize = slots.iter().map(|slot| wire::bytes_field_len(FIELD_ENTRY, slot.len())).sum();
        let mut bytes = Vec::with_capacity(wire::bytes_field_len(FIELD_METADATA, length));
        wire::put_bytes_header(&mut bytes, FIELD_METADATA, length);
        for slot in slots {
            wire::put_bytes(&mut bytes, FIELD_ENTRY, slot);
        }
        bytes.into()
    }

    /// Any slot.
    ///
    /// # Panics
    /// From [`SLOTS`] on.
    pub fn slot(&self, slot: usize) -> &Bytes {
        &self.slots[slot]
    }

    /// Replaces any slot.
    ///
    /// # Panics
    /// From [`SLOTS`] on.
    pub fn set_slot(&mut self, slot: usize, value: Bytes) {
        self.slots[slot] = value;
    }

    /// Slot 0: an encoded `common.Metadata` with the orderers' signatures; empty where there are none.
    pub fn signatures(&self) -> &Bytes {
        &self.slots[SLOT_SIGNATURES]
    }

    /// Replaces slot 0.
    pub fn set_signatures(&mut self, encoded: Bytes) {
        self.slots[SLOT_SIGNATURES] = encoded;
    }

    /// Slot 2: one validation code a transaction; empty before validation.
    pub fn filter(&self) -> &Bytes {
        &self.slots[SLOT_FILTER]
    }

    /// Replaces slot 2.
    pub fn set_filter(&mut self, codes: Bytes) {
        self.slots[SLOT_FILTER] = codes;
    }

    /// Slot 4, decoded: the commit hash, if there is one.
    ///
    /// # Errors
    /// If the slot is neither empty nor a commit hash.
    pub fn commit_hash(&self) -> Result<Option<Hash>, Error> {
        const WHAT: &str = "commit hash metadata";
        let slot = &self.slots[SLOT_COMMIT_HASH];
        let malformed = |cause| Error::Malformed { what: WHAT, cause };
        let mut value = None;
        let mut fields = Fields::new(slot, Span::whole(slot).map_err(malformed)?);
        while let Some(field) = fields.next().map_err(malformed)? {
            match field.number {
                1 => field.span().and_then(|span| set_once(&mut value, span)).map_err(malformed)?,
                unknown => return Err(Error::UnknownField { what: WHAT, field: unknown }),
            }
        }
        match value.unwrap_or_default().of(slot) {
            [] => Ok(None),
            bytes => bytes.try_into().map(Some).map_err(|_| Error::TooMany {
                what: "bytes of a commit hash",
                count: bytes.len() as u64,
                limit: 32,
            }),
        }
    }

    /// Slot 5: what the block changes in the state beyond the writes of its transactions; usually empty.
    pub fn derived_updates(&self) -> &Bytes {
        &self.slots[SLOT_DERIVED_UPDATES]
    }

    /// Replaces slot 5.
    pub fn set_derived_updates(&mut self, encoded: Bytes) {
        self.slots[SLOT_DERIVED_UPDATES] = encoded;
    }

    /// Replaces slot 4.
    pub fn set_commit_hash(&mut self, hash: &Hash) {
        let mut slot = Vec::with_capacity(34);
        wire::put_bytes(&mut slot, 1, hash);
        self.slots[SLOT_COMMIT_HASH] = slot.into();
    }
}
