//! What a gateway reads of a request with a proposal.

use bytes::Bytes;
use ledger::transaction::Header;
use ledger::wire::{Fields, Span, WireError};

use super::assemble::Parts;
use crate::rpc::Status;

/// `EndorseRequest` or `EvaluateRequest`: their fields have the same numbers.
pub(super) struct ProposalRequest {
    /// The encoded `SignedProposal`, as it was received.
    pub signed_proposal: Bytes,
    /// The organisations that the client names.
    pub organizations: Vec<String>,
    /// The channel that the proposal is for.
    pub channel: String,
    /// The contract that is to run.
    pub contract: String,
    /// What goes into the transaction.
    pub parts: Parts,
}

impl ProposalRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`.
    pub(super) fn read(message: &Bytes) -> Result<ProposalRequest, Status> {
        let (mut signed, mut organizations) = (None, Vec::new());
        walk(message, |number, span| {
            match number {
                3 => signed = Some(span.slice(message)),
                4 => organizations.push(span.text(message)?.to_owned()),
                _ => {}
            }
            Ok(())
        })
        .map_err(|error| malformed("request", error))?;
        let signed_proposal = signed.ok_or_else(|| Status::invalid_argument("the request has no proposal"))?;
        let proposal = field(&signed_proposal, 1).map_err(|error| malformed("signed proposal", error))?;
        if proposal.is_empty() {
            return Err(Status::invalid_argument("the signed proposal is empty"));
        }
        let wrong = |error| malformed("proposal", error);
        let header_bytes = field(&proposal, 1).map_err(wrong)?;
        let payload = field(&proposal, 2).map_err(wrong)?;
        let input = field(&payload, 1).map_err(|error| malformed("proposal's payload", error))?;
        let header = Header::parse(&header_bytes)
            .map_err(|invalid| Status::invalid_argument(format!("the proposal's header: {}", invalid.reason)))?;
        let contract = header
            .chaincode()
            .map_err(|invalid| Status::invalid_argument(format!("the proposal's header: {}", invalid.reason)))?
            .map(|chaincode| chaincode.name.to_owned())
            .filter(|name| !name.is_empty())
            .ok_or_else(|| Status::invalid_argument("the proposal names no chaincode"))?;
        let signature_header = header_bytes.slice_ref(header.signature_header());
        Ok(ProposalRequest {
            channel: header.channel().to_owned(),
            contract,
            parts: Parts { signature_header, header: header_bytes, input },
            signed_proposal,
            organizations,
        })
    }
}

/// Calls `visit` with each field that has bytes.
pub(super) fn walk(
    message: &Bytes,
    mut visit: impl FnMut(u32, Span) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let mut fields = Fields::new(message, Span::whole(message)?);
    while let Some(field) = fields.next()? {
        // A field of another type is unknown to us, or wrong, which whoever decodes the message finds out.
        if let Ok(span) = field.span() {
            visit(field.number, span)?;
        }
    }
    Ok(())
}

/// The last field of that number; empty when there is none.
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

pub(super) fn malformed(what: &str, error: WireError) -> Status {
    Status::invalid_argument(format!("the {what} cannot be decoded: {error}"))
}
