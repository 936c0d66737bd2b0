//! The body of an endorser transaction: the proposal, its outcome and the endorsements of the outcome.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use identity::policy::SIGNATURES_MAX;
use proto::protos::TxValidationCode as Code;

use super::header::parse_chaincode_id;
use super::{ChaincodeName, InvalidTransaction, TransactionHeader, fields_1_2};
use crate::hash::{Hash, sha256_of};
use crate::wire::{Fields, Span, WireError, set_once};

/// Endorsements that an action keeps: one more than a policy looks at, so that too many stay too many. They are two
/// bytes each on the wire, and anybody may send millions.
const ENDORSEMENTS_KEPT_MAX: usize = SIGNATURES_MAX + 1;

/// The one action of an endorser transaction. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct EndorsedAction {
    source: Bytes,
    proposal_payload: Span,
    response_payload: Span,
    extension: Option<Span>,
    endorsements: Vec<(Span, Span)>,
}

/// One endorser's signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endorsement<'a> {
    /// The endorser: an encoded `SerializedIdentity`.
    pub endorser: &'a [u8],
    /// Its signature over the action's response payload and `endorser`, one after the other.
    pub signature: &'a [u8],
}

impl EndorsedAction {
    pub(super) fn parse(
        source: Bytes,
        data: Span,
        header: &TransactionHeader,
    ) -> Result<EndorsedAction, InvalidTransaction> {
        let malformed = InvalidTransaction::of(Code::InvalidEndorserTransaction, "the transaction is malformed");
        let invalid = |reason| Err(InvalidTransaction::new(Code::InvalidEndorserTransaction, reason));

        // Transaction: exactly one TransactionAction.
        let mut action = None;
        let mut fields = Fields::new(&source, data);
        while let Some(field) = fields.next().map_err(&malformed)? {
            if field.number == 1 && action.replace(field.span().map_err(&malformed)?).is_some() {
                return invalid("a transaction has exactly one action, this one has more");
            }
        }
        let Some(action) = action else {
            return invalid("a transaction has exactly one action, this one has none");
        };

        // TransactionAction: a signature header and a ChaincodeActionPayload.
        let (signature_header, payload) = fields_1_2(&source, Ok(action)).map_err(&malformed)?;
        let signature_header = signature_header.unwrap_or_default();
        let (creator, nonce) = fields_1_2(&source, Ok(signature_header)).map_err(&malformed)?;
        if creator.is_none_or(|span| span.is_empty()) || nonce.is_none_or(|span| span.is_empty()) {
            return invalid("the action's header has no creator or no nonce");
        }

        // ChaincodeActionPayload: the proposal's payload and a ChaincodeEndorsedAction.
        let (proposal_payload, endorsed) = fields_1_2(&source, Ok(payload.unwrap_or_default())).map_err(&malformed)?;
        let proposal_payload = proposal_payload.unwrap_or_default();
        let Some(endorsed) = endorsed else { return invalid("there is no endorsed action") };

        // ChaincodeEndorsedAction: a ProposalResponsePayload and the endorsements.
        let mut response_payload = None;
        let mut endorsements = Vec::new();
        let mut fields = Fields::new(&source, endorsed);
        while let Some(field) = fields.next().map_err(&malformed)? {
            match field.number {
                1 => set_once(&mut response_payload, field.span().map_err(&malformed)?).map_err(&malformed)?,
                2 => {
                    let span = field.span().map_err(&malformed)?;
                    let (endorser, signature) = fields_1_2(&source, Ok(span)).map_err(&malformed)?;
                    if endorsements.len() < ENDORSEMENTS_KEPT_MAX {
                        endorsements.push((endorser.unwrap_or_default(), signature.unwrap_or_default()));
                    }
                }
                _ => {}
            }
        }
        let response_payload = response_payload.unwrap_or_default();
        let (claimed, extension) = fields_1_2(&source, Ok(response_payload)).map_err(&malformed)?;

        if header.channel_header().is_empty() || proposal_payload.is_empty() {
            return invalid("there is no proposal to hash");
        }
        let hash = proposal_hash(header.channel_header(), signature_header.of(&source), proposal_payload.of(&source));
        if claimed.unwrap_or_default().of(&source) != hash {
            return invalid("the endorsed result is of another proposal");
        }
        Ok(EndorsedAction { source, proposal_payload, response_payload, extension, endorsements })
    }

    /// The proposal's payload without its transient map: an encoded `ChaincodeProposalPayload`.
    pub fn proposal_payload(&self) -> Bytes {
        self.proposal_payload.slice(&self.source)
    }

    /// The bytes that endorsers signed, each followed by its own identity: an encoded `ProposalResponsePayload`.
    pub fn response_payload(&self) -> &[u8] {
        self.response_payload.of(&self.source)
    }

    /// The endorsements in order; of more than [`SIGNATURES_MAX`] only the first ones, still more than that.
    pub fn endorsements(&self) -> impl ExactSizeIterator<Item = Endorsement<'_>> {
        self.endorsements.iter().map(|(endorser, signature)| Endorsement {
            endorser: endorser.of(&self.source),
            signature: signature.of(&self.source),
        })
    }

    /// An endorser as shared bytes, as the cache of identities wants it.
    ///
    /// # Panics
    /// If there is no endorsement at `index`.
    pub fn endorser(&self, index: usize) -> Bytes {
        self.endorsements[index].0.slice(&self.source)
    }

    /// The message that the endorser at `index` signed. Copies.
    ///
    /// # Panics
    /// If there is no endorsement at `index`.
    pub fn signed_message(&self, index: usize) -> Bytes {
        let endorser = self.endorsements[index].0.of(&self.source);
        [self.response_payload(), endorser].concat().into()
    }

    /// As [`EndorsedAction::signed_message`], in two pieces that share the transaction's memory.
    ///
    /// # Panics
    /// If there is no endorsement at `index`.
    pub fn signed_parts(&self, index: usize) -> [Bytes; 2] {
        [self.response_payload.slice(&self.source), self.endorser(index)]
    }

    /// A signature, sharing the transaction's memory.
    ///
    /// # Panics
    /// If there is no endorsement at `index`.
    pub fn signature(&self, index: usize) -> Bytes {
        self.endorsements[index].1.slice(&self.source)
    }

    /// Decodes what the endorsed chaincode did; `header` is that of the same transaction.
    ///
    /// # Errors
    /// `BAD_HEADER_EXTENSION` or `BAD_RESPONSE_PAYLOAD`.
    pub fn outcome(&self, header: &TransactionHeader) -> Result<ActionOutcome, InvalidTransaction> {
        header.chaincode()?;
        let Some(extension) = self.extension else {
            return Err(InvalidTransaction::new(Code::BadResponsePayload, "the endorsed result is empty"));
        };
        ActionOutcome::parse(self.source.clone(), extension)
            .map_err(InvalidTransaction::of(Code::BadResponsePayload, "the chaincode action is malformed"))
    }
}

/// What the chaincode did: a decoded `ChaincodeAction`. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct ActionOutcome {
    source: Bytes,
    results: Span,
    event: EventField,
    status: i32,
    message: Span,
    response: Span,
    chaincode: Option<(Span, Span)>,
}

#[derive(Clone, Copy, Debug)]
enum EventField {
    Absent,
    Malformed,
    Present { chaincode: Span, tx_id: Span, name: Span, payload: Span, encoded: Span },
}

/// The event that the chaincode set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionEvent<'a> {
    /// The chaincode's name.
    pub chaincode: &'a str,
    /// The transaction's id, as the endorsers wrote it.
    pub tx_id: &'a str,
    /// The event's name.
    pub name: &'a str,
    /// The event's payload.
    pub payload: Bytes,
}

impl ActionOutcome {
    /// Reads an encoded `ChaincodeAction`.
    fn parse(source: Bytes, action: Span) -> Result<ActionOutcome, WireError> {
        let (mut results, mut events, mut response, mut chaincode) = (None, None, None, None);
        let mut fields = Fields::new(&source, action);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut results, field.span()?)?,
                2 => set_once(&mut events, field.span()?)?,
                3 => set_once(&mut response, field.span()?)?,
                4 => set_once(&mut chaincode, parse_chaincode_id(&source, field.span()?)?)?,
                _ => {}
            }
        }
        let (mut status, mut message, mut payload) = (None, None, None);
        let mut fields = Fields::new(&source, response.unwrap_or_default());
        while let Some(field) = fields.next()? {
            match field.number {
                1 => set_once(&mut status, field.varint()? as i32)?,
                2 => set_once(&mut message, field.span()?)?,
                3 => set_once(&mut payload, field.span()?)?,
                _ => {}
            }
        }
        let message = message.unwrap_or_default();
        message.text(&source)?;
        let event = match events {
            None => EventField::Absent,
            Some(encoded) => EventField::parse(&source, encoded).unwrap_or(EventField::Malformed),
        };
        Ok(ActionOutcome {
            results: results.unwrap_or_default(),
            event,
            status: status.unwrap_or_default(),
            message,
            response: payload.unwrap_or_default(),
            chaincode,
            source,
        })
    }

    /// The read-write set: an encoded `TxReadWriteSet`.
    pub fn results(&self) -> Bytes {
        self.results.slice(&self.source)
    }

    /// The status of the chaincode's response.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The message of the chaincode's response.
    pub fn message(&self) -> &str {
        self.message.text(&self.source).expect("checked when the outcome was parsed")
    }

    /// The payload of the chaincode's response.
    pub fn response_payload(&self) -> Bytes {
        self.response.slice(&self.source)
    }

    /// The chaincode that ran, as the endorsers name it.
    pub fn chaincode(&self) -> Option<ChaincodeName<'_>> {
        let text = |span: Span| span.text(&self.source).expect("checked when the outcome was parsed");
        self.chaincode.map(|(name, version)| ChaincodeName { name: text(name), version: text(version) })
    }

    /// The event, if there is one and it is well formed.
    pub fn event(&self) -> Option<ActionEvent<'_>> {
        let EventField::Present { chaincode, tx_id, name, payload, .. } = self.event else { return None };
        let text = |span: Span| span.text(&self.source).expect("checked when the event was parsed");
        Some(ActionEvent {
            chaincode: text(chaincode),
            tx_id: text(tx_id),
            name: text(name),
            payload: payload.slice(&self.source),
        })
    }

    /// The event as an encoded `ChaincodeEvent`, if there is one and it is well formed.
    pub fn encoded_event(&self) -> Option<Bytes> {
        match self.event {
            EventField::Present { encoded, .. } => Some(encoded.slice(&self.source)),
            _ => None,
        }
    }

    /// Checks that header, result and event name the same chaincode, and returns it; `header` is that of the same
    /// transaction.
    ///
    /// # Errors
    /// `INVALID_OTHER_REASON` or `INVALID_CHAINCODE`.
    pub fn check<'a>(&'a self, header: &'a TransactionHeader) -> Result<ChaincodeName<'a>, InvalidTransaction> {
        let other = |reason| Err(InvalidTransaction::new(Code::InvalidOtherReason, reason));
        let chaincode = |reason| Err(InvalidTransaction::new(Code::InvalidChaincode, reason));
        let Some(asked) = header.chaincode()? else { return other("the header names no chaincode") };
        let Some(ran) = self.chaincode() else { return other("the result names no chaincode") };
        if asked.name.is_empty() {
            return chaincode("the header names a chaincode without a name");
        }
        if asked.name != ran.name {
            return chaincode("header and result name different chaincodes");
        }
        if ran.version.is_empty() {
            return chaincode("the result names no version of the chaincode");
        }
        match self.event {
            EventField::Malformed => other("the chaincode's event is malformed"),
            EventField::Present { chaincode, .. } if chaincode.of(&self.source) != ran.name.as_bytes() => {
                other("the event is one of another chaincode")
            }
            _ => Ok(ran),
        }
    }
}

impl EventField {
    fn parse(source: &[u8], encoded: Span) -> Result<EventField, WireError> {
        let (mut chaincode, mut tx_id, mut name, mut payload) = (None, None, None, None);
        let mut fields = Fields::new(source, encoded);
        while let Some(field) = fields.next()? {
            let place = match field.number {
                1 => &mut chaincode,
                2 => &mut tx_id,
                3 => &mut name,
                4 => &mut payload,
                _ => continue,
            };
            let span = field.span()?;
            if field.number != 4 {
                span.text(source)?;
            }
            set_once(place, span)?;
        }
        Ok(EventField::Present {
            chaincode: chaincode.unwrap_or_default(),
            tx_id: tx_id.unwrap_or_default(),
            name: name.unwrap_or_default(),
            payload: payload.unwrap_or_default(),
            encoded,
        })
    }
}

/// The hash that ties a transaction to its proposal: over channel header, signature header and the proposal's payload
/// without its transient map, each as it was received.
pub fn proposal_hash(channel_header: &[u8], signature_header: &[u8], proposal_payload: &[u8]) -> Hash {
    sha256_of(&[channel_header, signature_header, proposal_payload])
}
