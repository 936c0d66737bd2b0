//! A signed proposal, read and checked in the order of Fabric's endorser.
//!
//! 1. [`Proposal::parse`]: the nested messages, a named chaincode and an input. A failure here means that the bytes are no
//!    proposal at all.
//! 2. [`Proposal::check_form`]: type, epoch, nonce, creator, transaction id, signature present.
//! 3. The creator's identity, signature and rights, and whether the transaction exists already, are checked by
//!    [`super::Endorser`], which has the channel.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, TxId};
use contract::Timestamp;
use ledger::hash::{Hash, sha256_of};
use ledger::transaction::Header;
use ledger::wire::{Fields, Span, WireError, bytes_field_len, put_bytes_header, set_once};
use prost::Message;
use proto::common::HeaderType;
use proto::protos::{ChaincodeInvocationSpec, ChaincodeProposalPayload};

use super::EndorseError;

/// A proposal whose form is known.
#[derive(Debug)]
pub struct Proposal {
    /// What the creator signed.
    pub bytes: Bytes,
    /// The creator's signature.
    pub signature: Bytes,
    /// The decoded headers.
    pub header: Header,
    /// The chaincode that is to run.
    pub chaincode: String,
    /// Its arguments, the function name first.
    pub args: Vec<Bytes>,
    /// What only endorsers see.
    pub transient: Arc<BTreeMap<String, Bytes>>,
    /// What ties the transaction to this proposal.
    pub hash: Hash,
    /// The transaction's id, as claimed until [`Proposal::check_form`].
    pub tx_id: TxId,
}

impl Proposal {
    /// Reads an encoded `SignedProposal`.
    ///
    /// # Errors
    /// [`EndorseError::Malformed`].
    pub fn parse(signed_proposal: &Bytes) -> Result<Proposal, EndorseError> {
        let (bytes, signature) = pair(signed_proposal).map_err(malformed("signed proposal"))?;
        let (bytes, signature) = (bytes.slice(signed_proposal), signature.slice(signed_proposal));
        let (header, payload) = pair(&bytes).map_err(malformed("proposal"))?;
        if header.is_empty() {
            return Err(EndorseError::Malformed("the proposal has no header".to_owned()));
        }
        let header = Header::parse(&header.slice(&bytes))
            .map_err(|invalid| EndorseError::Malformed(invalid.reason.to_owned()))?;
        let chaincode = match header.chaincode() {
            Ok(Some(chaincode)) if !chaincode.name.is_empty() => chaincode.name.to_owned(),
            Ok(_) => return Err(EndorseError::Malformed("the header names no chaincode".to_owned())),
            Err(invalid) => return Err(EndorseError::Malformed(invalid.reason.to_owned())),
        };
        let payload =
            ChaincodeProposalPayload::decode(payload.slice(&bytes)).map_err(undecodable("proposal payload"))?;
        let spec =
            ChaincodeInvocationSpec::decode(payload.input.clone()).map_err(undecodable("chaincode invocation"))?;
        let input = spec
            .chaincode_spec
            .and_then(|spec| spec.input)
            .ok_or_else(|| EndorseError::Malformed("the chaincode invocation has no input".to_owned()))?;
        let hash = proposal_hash(&header, &payload.input);
        let tx_id = header.to_tx_id();
        Ok(Proposal {
            bytes,
            signature,
            header,
            chaincode,
            args: input.args,
            transient: Arc::new(payload.transient_map),
            hash,
            tx_id,
        })
    }

    /// Checks what needs no identity.
    ///
    /// # Errors
    /// [`EndorseError::Invalid`].
    pub fn check_form(&self) -> Result<(), EndorseError> {
        let kind = self.header.kind();
        if kind != HeaderType::EndorserTransaction as i32 {
            return Err(EndorseError::Invalid(format!("invalid header type {kind}")));
        }
        self.header.check_form().map_err(|invalid| EndorseError::Invalid(invalid.reason.to_owned()))?;
        self.header.check_tx_id().map_err(|invalid| EndorseError::Invalid(invalid.reason.to_owned()))?;
        if self.signature.is_empty() {
            return Err(EndorseError::Invalid("the proposal is not signed".to_owned()));
        }
        Ok(())
    }

    /// The client's time, if it gave one.
    pub fn timestamp(&self) -> Option<Timestamp> {
        self.header.timestamp().map(|(seconds, nanos)| Timestamp { seconds, nanos })
    }
}

/// The fields 1 and 2 of a message, both bytes.
fn pair(message: &[u8]) -> Result<(Span, Span), WireError> {
    let (mut first, mut second) = (None, None);
    let mut fields = Fields::new(message, Span::whole(message)?);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut first, field.span()?)?,
            2 => set_once(&mut second, field.span()?)?,
            _ => {}
        }
    }
    Ok((first.unwrap_or_default(), second.unwrap_or_default()))
}

/// The hash over both headers as received and the payload without its transient map, which is its input alone.
fn proposal_hash(header: &Header, input: &[u8]) -> Hash {
    let mut field = Vec::new();
    if !input.is_empty() {
        field.reserve(bytes_field_len(1, input.len()) - input.len());
        put_bytes_header(&mut field, 1, input.len());
    }
    sha256_of(&[header.channel_header(), header.signature_header(), &field, input])
}

fn malformed(what: &'static str) -> impl Fn(WireError) -> EndorseError {
    move |cause| EndorseError::Malformed(format!("malformed {what}: {cause}"))
}

fn undecodable(what: &'static str) -> impl Fn(prost::DecodeError) -> EndorseError {
    move |cause| EndorseError::Malformed(format!("malformed {what}: {cause}"))
}
