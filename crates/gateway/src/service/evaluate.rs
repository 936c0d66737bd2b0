//! `Gateway.Evaluate`: one endorser runs the contract, and the gateway returns its answer. Nothing is signed. If the
//! client names several organisations, the gateway asks them one after the other until one can answer.

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
    let endorsers = if request.organizations.is_empty() {
        vec![&state.local]
    } else {
        named(&state.local, &state.others, &request.organizations)
    };
    if endorsers.is_empty() {
        return Err(GrpcStatus::new(
            GrpcCode::FailedPrecondition,
            format!("no endorsing peers found for {}", request.named_organizations()),
        ));
    }
    let endorsers: Vec<Endorser> = endorsers.into_iter().cloned().collect();
    let ProposalRequest { signed_proposal, channel, parts, .. } = request;
    let answer = run_in_task(async move {
        let response = ask(&endorsers, &signed_proposal).await?;
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

/// The answer of the first endorser that can give one.
pub(super) async fn ask(endorsers: &[Endorser], signed_proposal: &Bytes) -> Result<Response, GrpcStatus> {
    let mut details = Vec::new();
    for (index, endorser) in endorsers.iter().enumerate() {
        let (code, message, may_differ) = match endorser.endorse.evaluate(signed_proposal.clone()).await {
            Ok(response) if response.status < CONTRACT_ERROR_MIN => return Ok(response),
            Ok(response) => (GrpcCode::Unknown, chaincode_response(response.status, &response.message), false),
            Err(error) => (code(&error), error.to_string(), !is_final(&error)),
        };
        details.push(endorser.detail(message.clone()));
        if !may_differ || index + 1 == endorsers.len() {
            let message = format!("evaluate call to endorser returned error: {message}");
            return Err(GrpcStatus::new(code, message).with_details(details));
        }
    }
    unreachable!("the last endorser's answer is returned, and there is one")
}

pub(super) fn chaincode_response(status: i32, message: &str) -> String {
    format!("chaincode response {status}, {message}")
}

fn code(error: &EndorseError) -> GrpcCode {
    match error {
        EndorseError::Malformed(_) => GrpcCode::InvalidArgument,
        EndorseError::Invalid(_)
        | EndorseError::Duplicate(_)
        | EndorseError::UnknownChaincode { .. }
        | EndorseError::NotApproved { .. } => GrpcCode::FailedPrecondition,
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
        EndorseError::Malformed(_) | EndorseError::Invalid(_) | EndorseError::Expired(_) | EndorseError::Duplicate(_)
    )
}
