//! `Gateway.Evaluate`: one endorser runs the contract, and the gateway returns its answer. Nothing is signed. If the
//! client names several organisations, the gateway asks them one after the other until one can answer. If it names none,
//! the local endorser answers; the others are asked in turn if that one does not have the contract.

use std::sync::Arc;

use bytes::Bytes;
use chain::endorse::EndorseError;
use proto::gateway::EvaluateResponse;
use proto::protos::Response;

use super::proposal::ProposalRequest;
use super::{Endorser, PeerServiceCore, run_in_task};
use crate::events::Evaluated;
use crate::grpc::message::frame;
use crate::grpc::{Caller, GrpcCode, GrpcStatus};

/// Contracts answer with this status or a higher one when they refuse.
pub(super) const CONTRACT_ERROR_MIN: i32 = 400;

pub(super) async fn evaluate(
    state: &Arc<PeerServiceCore>,
    caller: &Caller,
    message: Bytes,
) -> Result<Bytes, GrpcStatus> {
    let request = ProposalRequest::read(&message)?;
    let endorsers: Vec<&Endorser> = match request.organizations.is_empty() {
        // Without the client's consent, transient data do not leave the organisation.
        true if request.has_transient_data => vec![&state.local],
        true => std::iter::once(&state.local).chain(&state.others).collect(),
        false => named(&state.local, &state.others, &request.organizations),
    };
    if endorsers.is_empty() {
        return Err(GrpcStatus::new(
            GrpcCode::FailedPrecondition,
            format!("no endorsing peers found for {}", request.named_organizations()),
        ));
    }
    let endorsers: Vec<Endorser> = endorsers.into_iter().cloned().collect();
    let is_named = !request.organizations.is_empty();
    let ProposalRequest { signed_proposal, channel, parts, .. } = request;
    let answer = run_in_task(async move {
        let response = ask(&endorsers, &signed_proposal, is_named).await?;
        Evaluated.add(1);
        Ok(frame(&EvaluateResponse { result: Some(response) }))
    })
    .await?;
    state.authenticate_caller(caller, &channel, &parts.signature_header);
    Ok(answer)
}

/// The endorsers of the organisations that the client names, except those that are not known here; the local one first,
/// because it is the nearest.
pub(super) fn named<'a>(local: &'a Endorser, others: &'a [Endorser], organizations: &[String]) -> Vec<&'a Endorser> {
    let is_named = |endorser: &&Endorser| organizations.iter().any(|msp_id| msp_id == endorser.msp_id.as_str());
    std::iter::once(local).chain(others).filter(is_named).collect()
}

/// The answer of the first endorser that can give one. If the client has named no organisations (`is_named`), others than the
/// local one are asked only if its peer cannot run the contract.
pub(super) async fn ask(
    endorsers: &[Endorser],
    signed_proposal: &Bytes,
    is_named: bool,
) -> Result<Response, GrpcStatus> {
    let (mut details, mut last) = (Vec::new(), None);
    for endorser in endorsers {
        let (code, message, asks_on) = match endorser.endorse.evaluate(signed_proposal.clone()).await {
            Ok(response) if response.status < CONTRACT_ERROR_MIN => return Ok(response),
            Ok(response) => (GrpcCode::Unknown, chaincode_response(response.status, &response.message), false),
            Err(error) => {
                let asks_on = if is_named { !is_final(&error) } else { cannot_run(&error) };
                (code(&error), error.to_string(), asks_on)
            }
        };
        details.push(endorser.detail(message.clone()));
        last = Some((code, message));
        if !asks_on {
            break;
        }
    }
    let (code, message) = last.expect("there is an endorser, and it was asked");
    let message = format!("evaluate call to endorser returned error: {message}");
    Err(GrpcStatus::new(code, message).with_details(details))
}

/// Whether the peer does not have the contract, which the peer of another organisation may have.
fn cannot_run(error: &EndorseError) -> bool {
    matches!(error, EndorseError::NotApproved { .. } | EndorseError::NotInstalled { .. })
}

pub(super) fn chaincode_response(status: i32, message: &str) -> String {
    format!("chaincode response {status}, {message}")
}

fn code(error: &EndorseError) -> GrpcCode {
    match error {
        EndorseError::Malformed(_) => GrpcCode::InvalidArgument,
        EndorseError::Invalid(_)
        | EndorseError::Denied(_)
        | EndorseError::Duplicate(_)
        | EndorseError::UnknownChaincode { .. }
        | EndorseError::NotApproved { .. }
        | EndorseError::NotInstalled { .. } => GrpcCode::FailedPrecondition,
        EndorseError::InvalidInvocation(_) => GrpcCode::Aborted,
        EndorseError::Expired(_) | EndorseError::UnknownChannel(_) => GrpcCode::Unavailable,
        EndorseError::Overloaded => GrpcCode::ResourceExhausted,
        EndorseError::TimedOut(_) => GrpcCode::DeadlineExceeded,
        _ => GrpcCode::Unavailable,
    }
}

/// Whether every other endorser would refuse as well.
pub(super) fn is_final(error: &EndorseError) -> bool {
    matches!(
        error,
        EndorseError::Malformed(_)
            | EndorseError::Invalid(_)
            | EndorseError::Denied(_)
            | EndorseError::Expired(_)
            | EndorseError::Duplicate(_)
            | EndorseError::InvalidInvocation(_)
    )
}
