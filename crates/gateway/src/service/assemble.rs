//! Assembles the endorsed transaction that answers `Endorse`.
//!
//! ```text
//! EndorseResponse{ Envelope{ Payload{ header, Transaction{ TransactionAction{ signature header,
//!     ChaincodeActionPayload{ ChaincodeProposalPayload{ input },
//!         ChaincodeEndorsedAction{ response payload, endorsements }}}}}}}
//! ```
//! These messages are nested around a few kilobytes of content. Lengths are computed from the inside out, so that every
//! byte is written once. Headers are the client's bytes; the transient map is left out.

use base::Bytes;
use bytes::{BufMut as _, BytesMut};
use ledger::wire::{bytes_field_len, varint_len};
use proto::protos::Endorsement;

use crate::grpc::message::{PREFIX_BYTES, put_prefix};

/// The parts of a proposal that a transaction repeats.
#[derive(Clone, Debug, Default)]
pub(super) struct ProposalParts {
    /// The encoded `Header`.
    pub header: Bytes,
    /// The encoded `SignatureHeader` in it.
    pub signature_header: Bytes,
    /// The encoded `ChaincodeInvocationSpec`.
    pub input: Bytes,
}

/// An `EndorseResponse` with its prefix.
pub(super) fn endorse_response(parts: &ProposalParts, response_payload: &[u8], endorsements: &[&Endorsement]) -> Bytes {
    let endorsement_len =
        |endorsement: &Endorsement| optional(endorsement.endorser.len()) + optional(endorsement.signature.len());
    let action: usize = optional(response_payload.len())
        + endorsements.iter().map(|endorsement| bytes_field_len(2, endorsement_len(endorsement))).sum::<usize>();
    let proposal_payload = optional(parts.input.len());
    let action_payload = optional(proposal_payload) + bytes_field_len(2, action);
    let transaction_action = optional(parts.signature_header.len()) + bytes_field_len(2, action_payload);
    let transaction = bytes_field_len(1, transaction_action);
    let payload = optional(parts.header.len()) + bytes_field_len(2, transaction);
    let envelope = bytes_field_len(1, payload);
    let response = bytes_field_len(1, envelope);

    let mut out = BytesMut::with_capacity(PREFIX_BYTES + response);
    put_prefix(&mut out, response);
    put_key(&mut out, 1, envelope);
    put_key(&mut out, 1, payload);
    put_optional(&mut out, 1, &parts.header);
    put_key(&mut out, 2, transaction);
    put_key(&mut out, 1, transaction_action);
    put_optional(&mut out, 1, &parts.signature_header);
    put_key(&mut out, 2, action_payload);
    if proposal_payload > 0 {
        put_key(&mut out, 1, proposal_payload);
        put_optional(&mut out, 1, &parts.input);
    }
    put_key(&mut out, 2, action);
    put_optional(&mut out, 1, response_payload);
    for endorsement in endorsements {
        put_key(&mut out, 2, endorsement_len(endorsement));
        put_optional(&mut out, 1, &endorsement.endorser);
        put_optional(&mut out, 2, &endorsement.signature);
    }
    assert_eq!(out.len(), PREFIX_BYTES + response, "the computed lengths are the written lengths");
    out.freeze()
}

/// The length of a bytes field, which is omitted when it is empty. Field numbers here take one byte.
fn optional(length: usize) -> usize {
    if length == 0 { 0 } else { bytes_field_len(1, length) }
}

fn put_key(out: &mut BytesMut, number: u8, length: usize) {
    out.put_u8(number << 3 | 2);
    let mut rest = length;
    for _ in 1..varint_len(length as u64) {
        out.put_u8(rest as u8 & 0x7f | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn put_optional(out: &mut BytesMut, number: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_key(out, number, bytes.len());
        out.put_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use proto::common::{Envelope, Header, Payload};
    use proto::gateway::EndorseResponse;
    use proto::protos::{
        ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeProposalPayload, Transaction, TransactionAction,
    };

    fn expected(parts: &ProposalParts, response_payload: &[u8], endorsements: &[&Endorsement]) -> Vec<u8> {
        let action_payload = ChaincodeActionPayload {
            chaincode_proposal_payload: ChaincodeProposalPayload { input: parts.input.clone(), ..Default::default() }
                .encode_to_vec()
                .into(),
            action: Some(ChaincodeEndorsedAction {
                proposal_response_payload: Bytes::copy_from_slice(response_payload),
                endorsements: endorsements.iter().map(|&endorsement| endorsement.clone()).collect(),
            }),
        };
        let action = TransactionAction {
            header: parts.signature_header.clone(),
            payload: action_payload.encode_to_vec().into(),
        };
        let payload = Payload {
            header: Some(Header::decode(parts.header.clone()).expect("a header")),
            data: Transaction { actions: vec![action] }.encode_to_vec().into(),
        };
        let envelope = Envelope { payload: payload.encode_to_vec().into(), signature: Bytes::new() };
        EndorseResponse { prepared_transaction: Some(envelope) }.encode_to_vec()
    }

    #[test]
    fn the_bytes_are_those_that_an_encoder_writes() {
        for size in [1usize, 100, 127, 128, 200, 16_383, 16_384, 70_000] {
            let header = Header {
                channel_header: Bytes::from(vec![1; size]),
                signature_header: Bytes::from(vec![2; size / 2 + 1]),
            };
            let parts = ProposalParts {
                signature_header: header.signature_header.clone(),
                header: header.encode_to_vec().into(),
                input: Bytes::from(vec![3; size]),
            };
            let endorsement =
                Endorsement { endorser: Bytes::from(vec![4; size]), signature: Bytes::from_static(b"signature") };
            for endorsements in [&[][..], &[&endorsement], &[&endorsement, &endorsement, &endorsement]] {
                let response = vec![5; size];
                let framed = endorse_response(&parts, &response, endorsements);
                assert_eq!(framed[PREFIX_BYTES..], expected(&parts, &response, endorsements));
                assert_eq!(framed[1..PREFIX_BYTES], ((framed.len() - PREFIX_BYTES) as u32).to_be_bytes());
            }
        }
    }
}
