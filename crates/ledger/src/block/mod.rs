//! A block: header, envelopes and metadata, in the bytes that were received.
//!
//! In protobuf a `Block` message is the concatenation of its three encoded fields. So only the orderer encodes a block,
//! once, and everybody passes it on as [`EncodedBlock`]. Every peer keeps the received bytes of header and data, and
//! appends its own metadata field.
//!
//! 1. The orderer calls [`Block::build`], then [`Block::sign`], and sends [`Block::parts`].
//! 2. A peer calls [`Block::parse`] on the received bytes; nothing is copied. It then calls [`Block::check_follows`],
//!    [`Block::check_data_hash`] and [`Block::verify_signatures`], the cheapest check first.
//! 3. When the peer has validated the transactions, it sets the filter, the commit hash and the [`derived`] updates in the
//!    [`BlockMetadata`], and stores the parts of [`Block::with_metadata`].
//! 4. To everybody else the peer shows the block without the derived updates ([`Block::without_derived_updates`]).
//!
//! Invariants:
//! 1. Parsing is strict about the block's own three messages: each field at most once, no unknown field, hashes of 32
//!    bytes, only the metadata slots of [`BlockMetadata`]. Everything in a parsed block is either hashed or in one of
//!    those slots.
//! 2. The content of an envelope is read in [`crate::transaction`], not here. This module checks only the outline of
//!    each envelope, when it checks the data hash: the hash covers the concatenated envelopes, not the boundaries
//!    between them.
mod commit_hash;
pub mod derived;
mod encoded;
mod fields;
mod header;
mod metadata;
mod signature;

pub use commit_hash::CommitHasher;
pub use encoded::{Block, EncodedBlock};
pub use fields::ENVELOPES_MAX;
pub use header::{BlockHeader, HeaderDer};
pub use metadata::{BlockMetadata, SLOTS};
pub use signature::OrdererMetadata;

use fields::{FIELD_ENTRY, FIELD_HEADER, FIELD_METADATA, entries};
