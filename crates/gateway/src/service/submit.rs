//! `Gateway.Submit`: sends an envelope to an orderer. The answer means that the orderer has accepted the envelope;
//! validation comes later. A transaction that can never be valid, as far as the peer notes the rows that its blocks write,
//! is not sent: the answer is `ABORTED` at once ([`chain::early_abort`]).

use std::sync::Arc;

use base::ErrorKind;
use bytes::Bytes;
use chain::commit::recent_writes::OutdatedRead;
use chain::order::BroadcastError;
use ledger::wire::WireError;
use proto::gateway::{ErrorDetail, SubmitResponse};

use super::PeerServiceCore;
use super::proposal::{field, malformed, name, walk};
use crate::events::{AbortedEarly, SubmitTime, Submitted};
use crate::grpc::message::frame;
use crate::grpc::{Caller, GrpcCode, GrpcStatus};

pub(super) async fn submit(state: &Arc<PeerServiceCore>, caller: &Caller, message: Bytes) -> Result<Bytes, GrpcStatus> {
    let begin = base::rt::now();
    let Submission { channel, envelope } = Submission::read(&message)?;
    let channel = &*channel;
    let view = state.live_channel(channel)?;
    if let Some(outdated) = chain::early_abort::outdated_read(&*view, &envelope).await {
        AbortedEarly.add(1);
        let message = conflict_text(&outdated);
        let (address, msp_id) = (state.local.address.to_string(), state.local.msp_id.to_string());
        let detail = ErrorDetail { address, msp_id, message: message.clone() };
        return Err(GrpcStatus::new(GrpcCode::Aborted, message).with_detail(detail));
    }
    let mut details = Vec::new();
    for orderer in &state.orderers {
        let detail = |error: &BroadcastError| ErrorDetail {
            address: orderer.address.to_string(),
            msp_id: orderer.msp_id.to_string(),
            message: match error {
                BroadcastError::Rejected { status, reason } => {
                    let status = status.as_str_name();
                    format!("received unsuccessful response from orderer: status={status}, info={reason}")
                }
                error => error.to_string(),
            },
        };
        match orderer.broadcast.broadcast(channel, envelope.clone()).await {
            Ok(()) => {
                Submitted.add(1);
                SubmitTime.record_since(begin);
                if !caller.is_member()
                    && let Ok(signature_header) = signature_header(&envelope)
                {
                    state.authenticate_caller(caller, channel, &signature_header);
                }
                return Ok(frame(&SubmitResponse {}));
            }
            Err(error @ BroadcastError::Rejected { .. }) if error.kind() == ErrorKind::Rejected => {
                // Another orderer would reject it too.
                let detail = detail(&error);
                return Err(GrpcStatus::new(GrpcCode::Aborted, detail.message.clone()).with_detail(detail));
            }
            // It is unknown whether the envelope is ordered: trying another orderer could order it twice.
            Err(error @ BroadcastError::Ambiguous) => {
                return Err(GrpcStatus::new(
                    GrpcCode::Unavailable,
                    format!("{error}; ask for the commit status before you submit again"),
                )
                .with_detail(detail(&error)));
            }
            Err(error) => details.push(detail(&error)),
        }
    }
    Err(GrpcStatus::new(GrpcCode::Unavailable, "no orderers could successfully process transaction")
        .with_details(details))
}

/// For the client: why its transaction was not sent to an orderer, and what to do.
fn conflict_text(outdated: &OutdatedRead) -> String {
    let OutdatedRead { contract, seen, newest } = outdated;
    format!(
        "MVCC_READ_CONFLICT: chaincode {contract} read a key that transaction {} of block {} has written since (the version \
         read is of block {}); the transaction was not ordered; endorse it again",
        newest.transaction, newest.block, seen.block
    )
}

/// A `SubmitRequest`.
pub(super) struct Submission {
    channel: Arc<str>,
    /// The encoded `Envelope`, which carries a signature.
    envelope: Bytes,
}

impl Submission {
    /// Reads a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`.
    pub(super) fn read(message: &Bytes) -> Result<Submission, GrpcStatus> {
        let (mut channel, mut envelope) = (Bytes::new(), None);
        walk(message, |number, span| {
            match number {
                2 => channel = span.slice(message),
                3 => envelope = Some(span.slice(message)),
                _ => {}
            }
            Ok(())
        })
        .map_err(|error| malformed("request", error))?;
        let envelope = envelope.ok_or_else(|| GrpcStatus::invalid_argument("a prepared transaction is required"))?;
        let signature = field(&envelope, 2).map_err(|error| malformed("prepared transaction", error))?;
        if signature.is_empty() {
            return Err(GrpcStatus::invalid_argument("prepared transaction must be signed"));
        }
        let channel = std::str::from_utf8(&channel)
            .map_err(|_| GrpcStatus::invalid_argument("the channel's name is not UTF-8"))?;
        Ok(Submission { channel: name("channel", channel)?.into(), envelope })
    }
}

/// The encoded `SignatureHeader` of an encoded `Envelope`.
fn signature_header(envelope: &Bytes) -> Result<Bytes, WireError> {
    let payload = field(envelope, 1)?;
    field(&field(&payload, 1)?, 2)
}
