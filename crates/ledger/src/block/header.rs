//! A block's header and the hash that chains it to the next block.
//!
//! The hash is taken over a DER encoding of the header, not over the protobuf message that carries it:
//!
//! ```text
//! 30 len                      SEQUENCE
//!    02 len number            INTEGER, two's complement, as short as possible (0 is 02 01 00, 2^63 has 9 bytes)
//!    04 len previous_hash     OCTET STRING, 32 bytes; empty in block 0
//!    04 20  data_hash         OCTET STRING, 32 bytes
//! ```
//!
//! Invariant: a [`BlockHeader`] holds hashes of exactly 32 bytes (or none before block 0), so that every length above
//! fits one byte.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::BlockNumber;

use crate::error::Error;
use crate::hash::{Hash, sha256};
use crate::wire::{self, Fields, Span, set_once};

/// What a block's hash covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The block's position in its ledger, from 0.
    pub number: BlockNumber,
    /// The header hash of the block before; `None` only in block 0.
    pub previous_hash: Option<Hash>,
    /// The hash of the block's envelopes, one after the other.
    pub data_hash: Hash,
}

/// 2 for the sequence, 2 + 9 for the number, 2 + 32 for each hash.
const DER_BYTES_MAX: usize = 2 + 11 + 34 + 34;
const _: () = assert!(DER_BYTES_MAX - 2 < 0x80, "a longer sequence would need a long length");

/// The DER encoding of a header.
#[derive(Clone, Copy)]
pub struct HeaderDer {
    bytes: [u8; DER_BYTES_MAX],
    length: usize,
}

impl HeaderDer {
    fn new() -> HeaderDer {
        HeaderDer { bytes: [0; DER_BYTES_MAX], length: 0 }
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn element(&mut self, tag: u8, content: &[u8]) {
        self.push(&[tag, content.len() as u8]);
        self.push(content);
    }
}

impl AsRef<[u8]> for HeaderDer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl BlockHeader {
    /// The bytes that the header's hash and the orderers' signatures cover.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn der(&self) -> HeaderDer {
        let mut content = HeaderDer::new();
        // A leading zero byte keeps numbers from 2^63 on positive.
        let mut number = [0; 9];
        number[1..].copy_from_slice(&self.number.get().to_be_bytes());
        let mut first = 0;
        while first < 8 && number[first] == 0 && number[first + 1] < 0x80 {
            first += 1;
        }
        content.element(0x02, &number[first..]);
        content.element(0x04, self.previous_hash.as_ref().map_or(&[], |hash| &hash[..]));
        content.element(0x04, &self.data_hash);
        let mut der = HeaderDer::new();
        der.element(0x30, content.as_ref());
        der
    }

    /// The block's hash, which the next block's header carries.
    pub fn hash(&self) -> Hash {
        sha256(self.der().as_ref())
    }

    /// The previous hash as 32 bytes: zeros before block 0.
    pub fn previous_hash_or_zero(&self) -> Hash {
        self.previous_hash.unwrap_or_default()
    }

    /// Appends the header as the field `header` of a `Block`.
    pub(super) fn encode_field(&self, bytes: &mut Vec<u8>) {
        let number = self.number.get();
        let mut message = Vec::with_capacity(11 + 34 + 34);
        if number != 0 {
            wire::put_varint(&mut message, 1 << 3);
            wire::put_varint(&mut message, number);
        }
        if let Some(previous) = &self.previous_hash {
            wire::put_bytes(&mut message, 2, previous);
        }
        wire::put_bytes(&mut message, 3, &self.data_hash);
        wire::put_bytes(bytes, super::FIELD_HEADER, &message);
    }

    /// Reads the `BlockHeader` message at `span`.
    pub(super) fn parse(source: &[u8], span: Span) -> Result<BlockHeader, Error> {
        let malformed = |cause| Error::Malformed { what: "block header", cause };
        let (mut number, mut previous, mut data) = (None, None, None);
        let mut fields = Fields::new(source, span);
        while let Some(field) = fields.next().map_err(malformed)? {
            match field.number {
                1 => field.varint().and_then(|value| set_once(&mut number, value)),
                2 => field.span().and_then(|value| set_once(&mut previous, value)),
                3 => field.span().and_then(|value| set_once(&mut data, value)),
                unknown => return Err(Error::UnknownField { what: "block header", field: unknown }),
            }
            .map_err(malformed)?;
        }
        let number = number.unwrap_or(0);
        let of = |span: Option<Span>| span.unwrap_or_default().of(source);
        let hash = |what, bytes: &[u8]| {
            Hash::try_from(bytes).map_err(|_| Error::HashLength { what, block: number, length: bytes.len() })
        };
        let previous_hash = match of(previous) {
            [] if number == 0 => None,
            bytes => Some(hash("previous hash", bytes)?),
        };
        if number == 0 && previous_hash.is_some() {
            return Err(Error::GenesisPrevious);
        }
        Ok(BlockHeader { number: BlockNumber(number), previous_hash, data_hash: hash("data hash", of(data))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_in_der(number: u64) -> String {
        let header = BlockHeader { number: BlockNumber(number), previous_hash: Some([1; 32]), data_hash: [2; 32] };
        let der = header.der();
        let bytes = der.as_ref();
        assert_eq!(bytes[0], 0x30);
        assert_eq!(bytes[1] as usize, bytes.len() - 2);
        let length = bytes[3] as usize;
        let rest = &bytes[4 + length..];
        assert_eq!(rest[..2], [0x04, 32]);
        assert_eq!(rest[2..34], [1; 32]);
        assert_eq!(rest[34..36], [0x04, 32]);
        assert_eq!(rest[36..], [2; 32]);
        hex::encode(&bytes[2..4 + length])
    }

    #[test]
    fn the_number_is_a_minimal_positive_integer() {
        for (number, der) in [
            (0, "020100"),
            (1, "020101"),
            (127, "02017f"),
            (128, "02020080"),
            (255, "020200ff"),
            (256, "02020100"),
            (32_767, "02027fff"),
            (32_768, "0203008000"),
            (u64::MAX >> 1, "02087fffffffffffffff"),
            (1 << 63, "0209008000000000000000"),
            (u64::MAX, "020900ffffffffffffffff"),
        ] {
            assert_eq!(number_in_der(number), der, "{number}");
        }
    }

    #[test]
    fn the_genesis_header_has_an_empty_previous_hash() {
        let header = BlockHeader { number: BlockNumber(0), previous_hash: None, data_hash: [7; 32] };
        let expected = format!("30270201000400{}{}", "0420", "07".repeat(32));
        assert_eq!(hex::encode(header.der()), expected);
    }
}
