//! A block together with its encoded bytes, which are stored and sent as they are.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::{BlockNumber, Bytes, TxIndex};

use super::fields::{ENVELOPES_MAX, FIELD_DATA, FIELD_ENTRY, FIELD_HEADER, FIELD_METADATA, content, entries};
use super::header::BlockHeader;
use super::metadata::{BlockMetadata, SLOTS};
use crate::error::Error;
use crate::hash::{Hash, Sha256, ShortHash};
use crate::transaction::is_exact;
use crate::wire;
use crate::wire::{Fields, Span, set_once};

/// A block as its three encoded fields; one after the other they are the encoded `Block`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EncodedBlock {
    /// The field `header`, with its key and length.
    pub header: Bytes,
    /// The field `data`, with its key and length.
    pub data: Bytes,
    /// The field `metadata`, with its key and length; empty where there is none.
    pub metadata: Bytes,
}

impl EncodedBlock {
    /// The pieces in order, as a vectored write wants them.
    pub fn parts(&self) -> [Bytes; 3] {
        [self.header.clone(), self.data.clone(), self.metadata.clone()]
    }

    /// The length of the encoded block in bytes.
    pub fn len(&self) -> usize {
        self.header.len().saturating_add(self.data.len()).saturating_add(self.metadata.len())
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoded block in one piece. Copies.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.len());
        for part in self.parts() {
            bytes.extend_from_slice(&part);
        }
        bytes.into()
    }
}

/// A parsed block. Clones share everything.
#[derive(Clone, Debug)]
pub struct Block {
    pub(super) header: BlockHeader,
    hash: Hash,
    encoded: EncodedBlock,
    /// The places of the envelopes in `encoded.data`.
    envelopes: Arc<[Span]>,
    pub(super) metadata: BlockMetadata,
}

impl Block {
    /// Builds a block from encoded envelopes, with empty metadata. Copies each envelope once, into the data field.
    ///
    /// # Panics
    /// If `previous_hash` is missing for a block other than 0, or given for block 0; from 4 GiB of envelopes.
    pub fn build(number: BlockNumber, previous_hash: Option<Hash>, envelopes: &[Bytes]) -> Block {
        assert_eq!(number.get() == 0, previous_hash.is_none(), "only block 0 has no previous hash");
        assert!(envelopes.len() <= ENVELOPES_MAX, "the caller cuts blocks far below the limit");
        let length: usize = envelopes.iter().map(|envelope| wire::bytes_field_len(FIELD_ENTRY, envelope.len())).sum();
        let mut data = Vec::with_capacity(wire::bytes_field_len(FIELD_DATA, length));
        wire::put_bytes_header(&mut data, FIELD_DATA, length);
        let mut hasher = Sha256::new();
        for envelope in envelopes {
            wire::put_bytes(&mut data, FIELD_ENTRY, envelope);
            hasher.update(envelope);
        }
        let header = BlockHeader { number, previous_hash, data_hash: hasher.finish() };
        let mut header_field = Vec::with_capacity(96);
        header.encode_field(&mut header_field);
        let metadata = BlockMetadata::default();
        let encoded =
            EncodedBlock { header: header_field.into(), data: data.into(), metadata: metadata.encode_field() };
        Block::parse_parts(encoded).expect("what was just encoded parses")
    }

    /// Reads an encoded `Block`. The block shares, and keeps alive, the memory of `bytes`.
    ///
    /// No hash and no signature is checked here.
    ///
    /// # Errors
    /// What is malformed in the block's own messages.
    pub fn parse(bytes: &Bytes) -> Result<Block, Error> {
        Block::parse_pieces(std::slice::from_ref(bytes))
    }

    /// As [`Block::parse`], from pieces that stand one behind the other and of which none ends within a field of the
    /// block, such as [`Block::parts`].
    ///
    /// # Errors
    /// As [`Block::parse`]; where a piece ends within a field.
    pub fn parse_pieces(pieces: &[Bytes]) -> Result<Block, Error> {
        let malformed = |cause| Error::Malformed { what: "block", cause };
        let (mut header, mut data, mut metadata) = (None, None, None);
        for bytes in pieces {
            let mut fields = Fields::new(bytes, Span::whole(bytes).map_err(malformed)?);
            loop {
                let start = fields.position();
                let Some(field) = fields.next().map_err(malformed)? else { break };
                let place = match field.number {
                    FIELD_HEADER => &mut header,
                    FIELD_DATA => &mut data,
                    FIELD_METADATA => &mut metadata,
                    unknown => return Err(Error::UnknownField { what: "block", field: unknown }),
                };
                field.span().map_err(malformed)?;
                set_once(place, bytes.slice(start..fields.position())).map_err(malformed)?;
            }
        }
        Block::parse_parts(EncodedBlock {
            header: header.ok_or(Error::Missing { what: "the block's header" })?,
            data: data.ok_or(Error::Missing { what: "the block's data" })?,
            metadata: metadata.unwrap_or_default(),
        })
    }

    /// Reads a block from its three fields, as [`Block::parse`] does from one piece.
    ///
    /// # Errors
    /// What is malformed in the block's own messages.
    pub fn parse_parts(encoded: EncodedBlock) -> Result<Block, Error> {
        let header = BlockHeader::parse(&encoded.header, content(&encoded.header, FIELD_HEADER, "block header")?)?;
        let envelopes = entries(&encoded.data, FIELD_DATA, "block data", ENVELOPES_MAX)?;
        let metadata = BlockMetadata::parse(&encoded.metadata)?;
        Ok(Block { header, hash: header.hash(), encoded, envelopes: envelopes.into(), metadata })
    }

    /// The header.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// The block's number.
    pub fn number(&self) -> BlockNumber {
        self.header.number
    }

    /// The hash of the header, computed when the block was parsed.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The number of envelopes.
    pub fn len(&self) -> usize {
        self.envelopes.len()
    }

    /// Whether the block holds no envelope.
    pub fn is_empty(&self) -> bool {
        self.envelopes.is_empty()
    }

    /// One envelope, sharing the block's memory.
    ///
    /// # Panics
    /// If there is no envelope at `index`.
    pub fn envelope(&self, index: usize) -> Bytes {
        self.envelopes[index].slice(&self.encoded.data)
    }

    /// The envelopes in order, sharing the block's memory.
    pub fn envelopes(&self) -> impl ExactSizeIterator<Item = Bytes> + '_ {
        self.envelopes.iter().map(|span| span.slice(&self.encoded.data))
    }

    /// The envelopes in order, borrowed: without even a reference count.
    pub fn envelope_slices(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.envelopes.iter().map(|span| span.of(&self.encoded.data))
    }

    /// The metadata slots.
    pub fn metadata(&self) -> &BlockMetadata {
        &self.metadata
    }

    /// The same block with other metadata; header and data are shared.
    #[must_use]
    pub fn with_metadata(&self, metadata: BlockMetadata) -> Block {
        let mut block = self.clone();
        block.encoded.metadata = metadata.encode_field();
        block.metadata = metadata;
        block
    }

    /// The block as others may see it: without the derived updates that the peer noted for itself.
    #[must_use]
    pub fn without_derived_updates(self) -> Block {
        if self.metadata.derived_updates().is_empty() {
            return self;
        }
        let mut metadata = self.metadata.clone();
        metadata.set_derived_updates(Bytes::new());
        self.with_metadata(metadata)
    }

    /// As [`Block::without_derived_updates`], of a stored block in one piece. Copies only a block that has such updates.
    ///
    /// # Errors
    /// If the bytes are not a block.
    pub fn shown(bytes: Bytes) -> Result<Bytes, Error> {
        let mut slots = 0_usize;
        let malformed = |cause| Error::Malformed { what: "block", cause };
        let mut fields = Fields::new(&bytes, Span::whole(&bytes).map_err(malformed)?);
        while let Some(field) = fields.next().map_err(malformed)? {
            if field.number == FIELD_METADATA {
                let mut entries = Fields::new(&bytes, field.span().map_err(malformed)?);
                while entries.next().map_err(malformed)?.is_some() {
                    slots = slots.saturating_add(1);
                }
            }
        }
        if slots < SLOTS {
            return Ok(bytes);
        }
        Ok(Block::parse(&bytes)?.without_derived_updates().to_bytes())
    }

    /// The encoded fields.
    pub fn encoded(&self) -> &EncodedBlock {
        &self.encoded
    }

    /// The encoded fields in order, as a vectored write wants them.
    pub fn parts(&self) -> [Bytes; 3] {
        self.encoded.parts()
    }

    /// The encoded block in one piece. Copies.
    pub fn to_bytes(&self) -> Bytes {
        self.encoded.to_bytes()
    }

    /// Checks that the header's data hash covers the envelopes, and that they have the boundaries that the orderer gave
    /// them: each must be exactly a payload and a signature. The only envelope of block 0 has no signature.
    ///
    /// # Errors
    /// [`Error::DataHash`]; [`Error::Envelope`].
    pub fn check_data_hash(&self) -> Result<(), Error> {
        let mut hasher = Sha256::new();
        for envelope in self.envelope_slices() {
            hasher.update(envelope);
        }
        let found = hasher.finish();
        if found == self.header.data_hash {
            return self.check_envelopes();
        }
        Err(Error::DataHash {
            block: self.number(),
            expected: ShortHash(&self.header.data_hash).to_string(),
            found: ShortHash(&found).to_string(),
        })
    }

    fn check_envelopes(&self) -> Result<(), Error> {
        let wrong = match self.number().get() {
            0 if self.len() == 1 => None,
            _ => self.envelope_slices().position(|envelope| !is_exact(envelope)),
        };
        let at = |index| TxIndex(u32::try_from(index).expect("a block has fewer envelopes"));
        wrong.map_or(Ok(()), |index| Err(Error::Envelope { block: self.number(), index: at(index) }))
    }

    /// Checks that this block stands at `height` (the number of blocks before it) behind a block with hash `previous`.
    ///
    /// # Errors
    /// [`Error::Number`] or [`Error::PreviousHash`].
    pub fn check_follows(&self, height: u64, previous: Option<&Hash>) -> Result<(), Error> {
        if self.number().get() != height {
            return Err(Error::Number { expected: BlockNumber(height), found: self.number() });
        }
        if self.header.previous_hash.as_ref() == previous {
            return Ok(());
        }
        let short = |hash: Option<&Hash>| ShortHash(hash.map_or(&[], |hash| &hash[..])).to_string();
        Err(Error::PreviousHash {
            block: self.number(),
            expected: short(previous),
            found: short(self.header.previous_hash.as_ref()),
        })
    }

    /// Checks that the transactions filter has one code for each envelope.
    ///
    /// # Errors
    /// [`Error::FilterLength`].
    pub fn check_filter(&self) -> Result<(), Error> {
        let codes = self.metadata.filter().len();
        if codes == self.len() {
            return Ok(());
        }
        Err(Error::FilterLength { block: self.number(), codes, transactions: self.len() })
    }
}

#[cfg(test)]
mod tests;
