//! The orderers' signatures, in metadata slot 0.
//!
//! Slot 0 is a `Metadata` message:
//! 1. `value`: an encoded `OrdererBlockMetadata`, with the number of the newest configuration block and the data that the
//!    consensus protocol stores with the block;
//! 2. `signatures`: each signs `value ‖ header ‖ DER of the block's header`. Here `header` is an encoded `SignatureHeader`,
//!    which names the signer. Byzantine fault-tolerant orderers use an `IdentifierHeader` instead, which gives the signer's
//!    number in the channel's configuration.
//!
//! The block's hash does not cover the signatures, so any set of signatures that satisfies the channel's policy is
//! sufficient.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, rt};

use super::Block;
use crate::config::ChannelConfig;
use crate::error::Error;
use crate::wire::{self, Fields, Span, WireError, set_once};
use identity::Signer;
use identity::policy::{SIGNATURES_MAX, SignedData, SignedMessage};

/// The length of the nonce in a signature header, as Fabric's nodes make it.
const NONCE_BYTES: usize = 24;
const WHAT: &str = "signatures of a block";

/// What the orderers sign along with a block.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OrdererMetadata {
    /// The number of the newest configuration block up to and including this one.
    pub last_config: u64,
    /// Belongs to the consensus in use; may be empty.
    pub consenter: Bytes,
}

impl OrdererMetadata {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn encode(&self) -> Vec<u8> {
        let mut last_config = Vec::with_capacity(11);
        if self.last_config != 0 {
            wire::put_varint(&mut last_config, 1 << 3);
            wire::put_varint(&mut last_config, self.last_config);
        }
        let mut bytes = Vec::with_capacity(24 + self.consenter.len());
        wire::put_bytes(&mut bytes, 1, &last_config);
        if !self.consenter.is_empty() {
            wire::put_bytes(&mut bytes, 2, &self.consenter);
        }
        bytes
    }

    fn decode(source: &Bytes, span: Span) -> Result<OrdererMetadata, WireError> {
        let (mut last_config, mut consenter) = (None, None);
        let mut fields = Fields::new(source, span);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut last_config, field.span()?)?,
                2 => set_once(&mut consenter, field.span()?)?,
                _ => {}
            }
        }
        let mut index = None;
        let mut fields = Fields::new(source, last_config.unwrap_or_default());
        while let Some(field) = fields.next()? {
            if field.number == 1 {
                set_once(&mut index, field.varint()?)?;
            }
        }
        Ok(OrdererMetadata {
            last_config: index.unwrap_or_default(),
            consenter: consenter.unwrap_or_default().slice(source),
        })
    }
}

/// Slot 0, decoded as far as its own message goes.
struct BlockSignatures {
    value: Span,
    signatures: Vec<OneSignature>,
}

#[derive(Default)]
struct OneSignature {
    signature_header: Span,
    signature: Span,
    identifier_header: Span,
}

impl BlockSignatures {
    fn parse(slot: &[u8]) -> Result<BlockSignatures, WireError> {
        let mut value = None;
        let mut signatures = Vec::new();
        let mut fields = Fields::new(slot, Span::whole(slot)?);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut value, field.span()?)?,
                // A larger set is refused as a whole; one more than the limit is enough to see that.
                2 if signatures.len() <= SIGNATURES_MAX => signatures.push(OneSignature::parse(slot, field.span()?)?),
                _ => {}
            }
        }
        Ok(BlockSignatures { value: value.unwrap_or_default(), signatures })
    }
}

impl OneSignature {
    fn parse(slot: &[u8], span: Span) -> Result<OneSignature, WireError> {
        let (mut signature_header, mut signature, mut identifier_header) = (None, None, None);
        let mut fields = Fields::new(slot, span);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut signature_header, field.span()?)?,
                2 => set_once(&mut signature, field.span()?)?,
                3 => set_once(&mut identifier_header, field.span()?)?,
                _ => {}
            }
        }
        Ok(OneSignature {
            signature_header: signature_header.unwrap_or_default(),
            signature: signature.unwrap_or_default(),
            identifier_header: identifier_header.unwrap_or_default(),
        })
    }
}

impl Block {
    /// The same block with this orderer metadata and one signature over it, in place of what slot 0 held.
    #[must_use]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn sign(&self, signer: &Signer, metadata: &OrdererMetadata) -> Block {
        let mut nonce = [0; NONCE_BYTES];
        rt::fill_random(&mut nonce);
        let mut signature_header = Vec::with_capacity(signer.serialized().len() + NONCE_BYTES + 8);
        wire::put_bytes(&mut signature_header, 1, signer.serialized());
        wire::put_bytes(&mut signature_header, 2, &nonce);

        let value = metadata.encode();
        let signature = signer.sign_parts(&[&value, &signature_header, self.header.der().as_ref()]);

        let mut entry = Vec::with_capacity(signature_header.len() + signature.len() + 12);
        wire::put_bytes(&mut entry, 1, &signature_header);
        wire::put_bytes(&mut entry, 2, &signature);
        let mut slot = Vec::with_capacity(value.len() + entry.len() + 16);
        wire::put_bytes(&mut slot, 1, &value);
        wire::put_bytes(&mut slot, 2, &entry);

        let mut metadata = self.metadata.clone();
        metadata.set_signatures(slot.into());
        self.with_metadata(metadata)
    }

    /// What the orderers signed along with the block; the default where slot 0 is empty.
    ///
    /// # Errors
    /// If slot 0 is malformed.
    pub fn orderer_metadata(&self) -> Result<OrdererMetadata, Error> {
        let slot = self.metadata.signatures();
        BlockSignatures::parse(slot)
            .and_then(|signatures| OrdererMetadata::decode(slot, signatures.value))
            .map_err(|cause| Error::Malformed { what: WHAT, cause })
    }

    /// Checks that the orderers' signatures satisfy the channel's block validation policy. Costs one verification of a
    /// signature for each orderer that the policy asks for.
    ///
    /// A genesis block carries no signatures: a channel starts by trusting its genesis block as it is.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::OrdererSignatures`].
    pub fn verify_signatures(&self, config: &ChannelConfig) -> Result<(), Error> {
        let slot = self.metadata.signatures();
        let malformed = |cause| Error::Malformed { what: WHAT, cause };
        let parsed = BlockSignatures::parse(slot).map_err(malformed)?;
        let value = parsed.value.slice(slot);
        let der = Bytes::copy_from_slice(self.header.der().as_ref());
        let mut signed = Vec::with_capacity(parsed.signatures.len());
        for one in &parsed.signatures {
            let is_numbered = one.signature_header.is_empty() && !one.identifier_header.is_empty();
            let (header, identity) = if is_numbered {
                let number = first_number(slot, one.identifier_header).map_err(malformed)?;
                (one.identifier_header, config.consenter_identity(number).cloned().unwrap_or_default())
            } else {
                (one.signature_header, creator(slot, one.signature_header).map_err(malformed)?.slice(slot))
            };
            signed.push(SignedData {
                data: SignedMessage::from([value.clone(), header.slice(slot), der.clone()]),
                identity,
                signature: one.signature.slice(slot),
            });
        }
        config
            .block_validation_policy()
            .evaluate_signed(&signed, config.msps())
            .map_err(|cause| Error::OrdererSignatures { block: self.number(), cause: cause.to_string() })
    }
}

/// The creator in an encoded `SignatureHeader`.
fn creator(source: &[u8], span: Span) -> Result<Span, WireError> {
    let mut creator = None;
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            set_once(&mut creator, field.span()?)?;
        }
    }
    Ok(creator.unwrap_or_default())
}

/// The signer's number in an encoded `IdentifierHeader`.
fn first_number(source: &[u8], span: Span) -> Result<u32, WireError> {
    let mut number = None;
    let mut fields = Fields::new(source, span);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            set_once(&mut number, field.varint()?)?;
        }
    }
    Ok(number.unwrap_or_default() as u32)
}
