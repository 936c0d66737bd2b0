//! A transaction whose envelope and headers are decoded, and checks of its form.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use proto::common::HeaderType;
use proto::protos::TxValidationCode;

use super::action::EndorsedAction;
use super::header::TransactionHeader;
use super::invalid::{InvalidTransaction, fields_1_2};
use crate::wire;
use crate::wire::Span;

/// An envelope of any type that a block may hold, with its headers decoded. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Transaction {
    envelope: Bytes,
    payload: Span,
    signature: Span,
    data: Span,
    header: TransactionHeader,
}

impl Transaction {
    /// Reads an envelope and its headers, and checks the headers' form: a known type, epoch 0, a nonce and a creator.
    ///
    /// # Errors
    /// `INVALID_OTHER_REASON`, `BAD_PAYLOAD` or `BAD_COMMON_HEADER`.
    pub fn parse(envelope: &Bytes) -> Result<Transaction, InvalidTransaction> {
        let transaction = Transaction::decode(envelope)?;
        transaction.header.check_form()?;
        Ok(transaction)
    }

    /// As [`Transaction::parse`], without the check of the headers' form: a genesis block's envelope has no creator.
    ///
    /// # Errors
    /// `INVALID_OTHER_REASON`, `BAD_PAYLOAD` or `BAD_COMMON_HEADER`.
    pub fn decode(envelope: &Bytes) -> Result<Transaction, InvalidTransaction> {
        use TxValidationCode as Code;
        let (payload, signature) = fields_1_2(envelope, Span::whole(envelope))
            .map_err(InvalidTransaction::of(Code::InvalidOtherReason, "the envelope is malformed"))?;
        let (payload, signature) = (payload.unwrap_or_default(), signature.unwrap_or_default());
        let bad_payload = InvalidTransaction::of(Code::BadPayload, "the payload is malformed");
        let (header, data) = fields_1_2(envelope, Ok(payload)).map_err(&bad_payload)?;
        let parts = header.map(|header| fields_1_2(envelope, Ok(header))).transpose().map_err(&bad_payload)?;
        let (channel_header, signature_header) =
            parts.ok_or(InvalidTransaction::new(Code::BadCommonHeader, "the payload has no header"))?;
        let header = TransactionHeader::parse_parts(
            envelope.clone(),
            channel_header.unwrap_or_default(),
            signature_header.unwrap_or_default(),
        )?;
        Ok(Transaction { envelope: envelope.clone(), payload, signature, data: data.unwrap_or_default(), header })
    }

    /// The whole envelope.
    pub fn envelope(&self) -> &Bytes {
        &self.envelope
    }

    /// The bytes that the creator signed.
    pub fn payload(&self) -> &[u8] {
        self.payload.of(&self.envelope)
    }

    /// The creator's signature; empty where there is none.
    pub fn signature(&self) -> &[u8] {
        self.signature.of(&self.envelope)
    }

    /// The decoded headers.
    pub fn header(&self) -> &TransactionHeader {
        &self.header
    }

    /// The payload's data: an encoded `Transaction` or `ConfigEnvelope`, by the header's type.
    pub fn data(&self) -> Bytes {
        self.data.slice(&self.envelope)
    }

    /// Whether this is an endorser transaction.
    pub fn is_endorser_transaction(&self) -> bool {
        self.header.kind() == HeaderType::EndorserTransaction as i32
    }

    /// Whether this is a channel configuration.
    pub fn is_config(&self) -> bool {
        self.header.kind() == HeaderType::Config as i32
    }

    /// Checks that a block may hold a transaction of this type.
    ///
    /// # Errors
    /// `UNSUPPORTED_TX_PAYLOAD`.
    pub fn check_type(&self) -> Result<(), InvalidTransaction> {
        if self.is_endorser_transaction() || self.is_config() {
            return Ok(());
        }
        Err(InvalidTransaction::new(
            TxValidationCode::UnsupportedTxPayload,
            "a block holds no transaction of this type",
        ))
    }

    /// Decodes the body of an endorser transaction and checks that it belongs to the proposal in the header.
    ///
    /// # Errors
    /// `INVALID_ENDORSER_TRANSACTION`.
    pub fn action(&self) -> Result<EndorsedAction, InvalidTransaction> {
        EndorsedAction::parse(self.envelope.clone(), self.data, &self.header)
    }
}

/// Whether these bytes are an encoded `Envelope` as Fabric's orderers take it: the payload, then the signature, neither
/// empty, each length as short as can be, and nothing else.
///
/// Such bytes say where they end, so that several of them, one after the other, can be told apart in one way only.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn is_exact(envelope: &[u8]) -> bool {
    let Ok((Some(payload), Some(signature))) = fields_1_2(envelope, Span::whole(envelope)) else { return false };
    // Anything beside the two fields, and any longer form of them, would add bytes.
    let length = wire::bytes_field_len(1, payload.len()) + wire::bytes_field_len(2, signature.len());
    !payload.is_empty() && !signature.is_empty() && payload.start() < signature.start() && envelope.len() == length
}

#[cfg(test)]
mod tests;
