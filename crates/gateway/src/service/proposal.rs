//! Reads the requests `Endorse` and `Evaluate`: the fields that the gateway needs, and those of the proposal inside.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use bytes::Bytes;
use ledger::transaction::TransactionHeader;
use ledger::wire::{Fields, Span, WireError};

use super::assemble::ProposalParts;
use crate::grpc::GrpcStatus;

/// Organisations that a client may name.
const ORGANIZATIONS_MAX: usize = 64;
/// Longest name of an organisation, a channel or a contract, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Organisations that an error names.
const NAMED_MAX: usize = 8;

/// `EndorseRequest` or `EvaluateRequest`: their fields have the same numbers.
pub(super) struct ProposalRequest {
    /// The encoded `SignedProposal`, as it was received.
    pub signed_proposal: Bytes,
    /// The organisations that the client names.
    pub organizations: Vec<String>,
    /// The channel that the proposal is for.
    pub channel: Arc<str>,
    /// The contract to run.
    pub contract: String,
    /// Whether the proposal has data for endorsers only.
    pub has_transient_data: bool,
    /// The parts that the transaction repeats.
    pub parts: ProposalParts,
}

/// `ChaincodeProposalPayload.TransientMap`.
const TRANSIENT: u32 = 2;

impl ProposalRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`.
    pub(super) fn read(message: &Bytes) -> Result<ProposalRequest, GrpcStatus> {
        let (mut signed, mut organizations, mut count) = (None, Vec::new(), 0usize);
        walk(message, |number, span| {
            match number {
                3 => signed = Some(span.slice(message)),
                // A name of two bytes on the wire would become a string of 24, so names are counted before they are stored.
                4 => {
                    count = count.saturating_add(1);
                    if count <= ORGANIZATIONS_MAX && span.len() <= NAME_BYTES_MAX {
                        organizations.push(span.text(message)?.to_owned());
                    }
                }
                _ => {}
            }
            Ok(())
        })
        .map_err(|error| malformed("request", error))?;
        if organizations.len() < count {
            return Err(GrpcStatus::invalid_argument(format!(
                "the request names {count} organizations; at most {ORGANIZATIONS_MAX} of {NAME_BYTES_MAX} bytes are taken"
            )));
        }
        let signed_proposal = signed.ok_or_else(|| GrpcStatus::invalid_argument("the request has no proposal"))?;
        let proposal = field(&signed_proposal, 1).map_err(|error| malformed("signed proposal", error))?;
        if proposal.is_empty() {
            return Err(GrpcStatus::invalid_argument("the signed proposal is empty"));
        }
        let wrong = |error| malformed("proposal", error);
        let header_bytes = field(&proposal, 1).map_err(wrong)?;
        let payload = field(&proposal, 2).map_err(wrong)?;
        let input = field(&payload, 1).map_err(|error| malformed("proposal's payload", error))?;
        let mut has_transient_data = false;
        walk(&payload, |number, _| {
            has_transient_data |= number == TRANSIENT;
            Ok(())
        })
        .map_err(|error| malformed("proposal's payload", error))?;
        let header = TransactionHeader::parse(&header_bytes)
            .map_err(|invalid| GrpcStatus::invalid_argument(format!("the proposal's header: {}", invalid.reason)))?;
        let contract = header
            .chaincode()
            .map_err(|invalid| GrpcStatus::invalid_argument(format!("the proposal's header: {}", invalid.reason)))?
            .map(|chaincode| chaincode.name)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| GrpcStatus::invalid_argument("the proposal names no chaincode"))?;
        let contract = name("chaincode", contract)?.to_owned();
        let signature_header = header_bytes.slice_ref(header.signature_header());
        Ok(ProposalRequest {
            channel: name("channel", header.channel())?.into(),
            contract,
            parts: ProposalParts { signature_header, header: header_bytes, input },
            signed_proposal,
            organizations,
            has_transient_data,
        })
    }
}

impl ProposalRequest {
    /// The organisations that the client names, as text for an error.
    pub(super) fn named_organizations(&self) -> String {
        let named = &self.organizations[..self.organizations.len().min(NAMED_MAX)];
        let others = self.organizations.len().saturating_sub(named.len());
        if others == 0 {
            format!("organizations {named:?}")
        } else {
            format!("organizations {named:?} and {others} more")
        }
    }
}

/// Checks that a name is short enough to be stored and printed.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn name<'a>(what: &str, name: &'a str) -> Result<&'a str, GrpcStatus> {
    if name.len() > NAME_BYTES_MAX {
        return Err(GrpcStatus::invalid_argument(format!(
            "the name of the {what} has {} bytes; at most {NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    Ok(name)
}

/// Calls `visit` with each length-delimited field.
pub(super) fn walk(
    message: &Bytes,
    mut visit: impl FnMut(u32, Span) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let mut fields = Fields::new(message, Span::whole(message)?);
    while let Some(field) = fields.next()? {
        // A field of another type is unknown here, or wrong; the full decoder of the message detects the latter.
        if let Ok(span) = field.span() {
            visit(field.number, span)?;
        }
    }
    Ok(())
}

/// The last field of that number; empty if there is none.
pub(super) fn field(message: &Bytes, wanted: u32) -> Result<Bytes, WireError> {
    let mut found = Bytes::new();
    walk(message, |number, span| {
        if number == wanted {
            found = span.slice(message);
        }
        Ok(())
    })?;
    Ok(found)
}

pub(super) fn malformed(what: &str, error: WireError) -> GrpcStatus {
    GrpcStatus::invalid_argument(format!("the {what} cannot be decoded: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rt::WallTime;
    use proptest::prelude::*;
    use prost::Message as _;
    use proto::common::{ChannelHeader, Envelope, Header as WireHeader, Payload, SignatureHeader};
    use proto::gateway::EndorseRequest;
    use proto::protos::{ChaincodeHeaderExtension, ChaincodeId, ChaincodeProposalPayload, Proposal, SignedProposal};

    use crate::service::seek::SeekRequest;

    fn header() -> WireHeader {
        let chaincode_id = Some(ChaincodeId { name: "basic".into(), ..Default::default() });
        let extension = ChaincodeHeaderExtension { chaincode_id, ..Default::default() };
        let channel_header = ChannelHeader {
            r#type: 3,
            channel_id: "mychannel".into(),
            timestamp: Some(prost_types::Timestamp { seconds: 1, nanos: 2 }),
            extension: extension.encode_to_vec().into(),
            ..Default::default()
        };
        let signature_header =
            SignatureHeader { creator: Bytes::from_static(b"creator"), nonce: Bytes::from_static(b"nonce") };
        WireHeader {
            channel_header: channel_header.encode_to_vec().into(),
            signature_header: signature_header.encode_to_vec().into(),
        }
    }

    fn request() -> Vec<u8> {
        let payload = ChaincodeProposalPayload { input: Bytes::from_static(b"input"), ..Default::default() };
        let proposal = Proposal {
            header: header().encode_to_vec().into(),
            payload: payload.encode_to_vec().into(),
            ..Default::default()
        };
        let signed = SignedProposal {
            proposal_bytes: proposal.encode_to_vec().into(),
            signature: Bytes::from_static(b"signature"),
        };
        let request = EndorseRequest {
            proposed_transaction: Some(signed),
            endorsing_organizations: vec!["Org1MSP".into(), "Org2MSP".into()],
            ..Default::default()
        };
        request.encode_to_vec()
    }

    #[test]
    fn a_request_is_read_in_place() {
        let read = ProposalRequest::read(&request().into()).unwrap_or_else(|status| panic!("{status}"));
        assert_eq!((&*read.channel, read.contract.as_str()), ("mychannel", "basic"));
        assert_eq!(read.organizations, ["Org1MSP", "Org2MSP"]);
        assert_eq!(read.parts.signature_header, header().signature_header);
        assert_eq!(read.parts.header, header().encode_to_vec());
        assert_eq!(read.parts.input[..], b"input"[..]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(
            noise in proptest::collection::vec(any::<u8>(), 0..64),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            // Refused or read: both are correct, as long as nothing panics.
            let _ = ProposalRequest::read(&noise.clone().into());
            let mut bytes = request();
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            let _ = ProposalRequest::read(&bytes.into());

            let payload = Payload { header: Some(header()), data: noise.into() };
            let envelope = Envelope { payload: payload.encode_to_vec().into(), signature: Bytes::new() };
            let mut bytes = envelope.encode_to_vec();
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Ok(seek) = SeekRequest::parse(bytes.into(), WallTime::from_nanos(1_000_000_000)) {
                let _ = seek.range(5);
            }
        }
    }
}
