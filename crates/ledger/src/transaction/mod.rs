//! A transaction as it stands in a block, read in place.
//!
//! An endorser transaction nests a dozen messages. [`Transaction`], [`EndorsedAction`] and [`ActionOutcome`] decode
//! each message once, in the order in which validation needs it. Each keeps a reference to the envelope's bytes, and
//! positions in them. The last column names the validation codes with which a step may fail:
//!
//! | step | call | validation codes |
//! |---|---|---|
//! | 1 | [`Transaction::parse`]: envelope, payload, both headers and their form | 255, 2, 3 |
//! | 2 | the creator's signature over [`Transaction::payload`], by the caller | 4 |
//! | 3 | [`Transaction::check_type`] | 7 |
//! | 4 | [`TransactionHeader::check_tx_id`] | 8 |
//! | 5 | [`Transaction::action`]: the body and the proposal hash | 5 |
//! | 6 | the channel, by [`TransactionHeader::check_channel`]; duplicates of the transaction id, by the caller | 14, 9 |
//! | 7 | [`EndorsedAction::outcome`]: header extension and chaincode action | 19, 21 |
//! | 8 | the read-write set in [`ActionOutcome::results`], by the caller | 22 |
//! | 9 | [`ActionOutcome::check`]: chaincode and event | 255, 25 |
//! | 10 | namespaces, endorsement policies and conflicts, by the caller | 23, 25, 10, 11, 12 |
//!
//! The order is Fabric's, so that a transaction with several faults gets the code that Fabric gives it. The checks are
//! pure functions of the envelope.
//!
//! Left to the caller: every check that needs identities or state.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod action;
mod header;
mod results;
#[cfg(test)]
mod tests;

pub use action::{ActionEvent, ActionOutcome, EndorsedAction, Endorsement, proposal_hash};
pub use header::{ChaincodeName, TransactionHeader};
pub use results::results_of_valid;

use base::{Bytes, ErrorKind};
use proto::common::HeaderType;
use proto::protos::TxValidationCode;

use crate::wire::{self, Fields, Span, WireError, set_once};

/// Why a transaction is not valid: the code for the block's filter, and a reason for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason} ({})", self.code.as_str_name())]
pub struct InvalidTransaction {
    /// The code in the transactions filter.
    pub code: TxValidationCode,
    /// What is wrong.
    pub reason: &'static str,
}

impl InvalidTransaction {
    /// A transaction that gets `code` for `reason`.
    pub const fn new(code: TxValidationCode, reason: &'static str) -> InvalidTransaction {
        InvalidTransaction { code, reason }
    }

    /// The code as the byte in the transactions filter.
    pub fn code_byte(&self) -> u8 {
        code_byte(self.code)
    }

    /// The kind of the error: the same transaction will always be rejected.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Rejected
    }

    fn of(code: TxValidationCode, reason: &'static str) -> impl Fn(WireError) -> InvalidTransaction {
        move |_| InvalidTransaction { code, reason }
    }
}

/// A validation code as a byte of the transactions filter.
pub fn code_byte(code: TxValidationCode) -> u8 {
    u8::try_from(code as i32).expect("validation codes fit a byte")
}

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

/// The fields 1 and 2 of a message whose others do not matter, both bytes. Unknown fields are passed over, as a protobuf
/// library does; a repeated one is refused.
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

fn fields_1_2(source: &[u8], message: Result<Span, WireError>) -> Result<(Option<Span>, Option<Span>), WireError> {
    let (mut first, mut second) = (None, None);
    let mut fields = Fields::new(source, message?);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut first, field.span()?)?,
            2 => set_once(&mut second, field.span()?)?,
            _ => {}
        }
    }
    Ok((first, second))
}
