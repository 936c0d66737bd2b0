//! `Gateway.Evaluate`: one endorser runs the contract; its answer goes back and nothing is signed.

use std::sync::Arc;

use bytes::Bytes;
use chain::endorse::EndorseError;
use proto::gateway::EvaluateResponse;

use super::proposal::ProposalRequest;
use super::{PeerState, in_a_task};
use crate::events::Evaluated;
use crate::rpc::message::frame;
use crate::rpc::{Code, Status};

/// Contracts answer with this status or a higher one when they refuse.
pub(super) const CONTRACT_ERROR_MIN: i32 = 400;

pub(super) async fn evaluate(state: &Arc<PeerState>, message: Bytes) -> Result<Bytes, Status> {
    let request = ProposalRequest::read(&message)?;
    let endorser = if request.organizations.is_empty() {
        &state.local
    } else {
        // The local endorser, if it is among those named: it is the nearest.
        let mut named = request.organizations.iter().map(|msp_id| state.endorser(msp_id));
        let first = named.next().flatten();
        let local = request.organizations.iter().any(|msp_id| msp_id.as_str() == state.local.msp_id.as_str());
        match (local, first) {
            (true, _) => &state.local,
            (false, Some(endorser)) => endorser,
            (false, None) => {
                return Err(Status::new(
                    Code::FailedPrecondition,
                    format!("no endorsing peers found for organizations {:?}", request.organizations),
                ));
            }
        }
    };
    let endorser = endorser.clone();
    in_a_task(async move {
        let failed = |code, message: String| {
            let detail = endorser.detail(message.clone());
            Status::new(code, format!("evaluate call to endorser returned error: {message}")).with_detail(detail)
        };
        match endorser.endorse.evaluate(request.signed_proposal).await {
            Ok(response) if response.status >= CONTRACT_ERROR_MIN => {
                Err(failed(Code::Unknown, chaincode_response(response.status, &response.message)))
            }
            Ok(response) => {
                Evaluated.add(1);
                Ok(frame(&EvaluateResponse { result: Some(response) }))
            }
            Err(error) => Err(failed(code(&error), error.to_string())),
        }
    })
    .await
}

pub(super) fn chaincode_response(status: i32, message: &str) -> String {
    format!("chaincode response {status}, {message}")
}

fn code(error: &EndorseError) -> Code {
    match error {
        EndorseError::Malformed(_) => Code::InvalidArgument,
        EndorseError::Invalid(_) | EndorseError::Duplicate(_) | EndorseError::UnknownChaincode { .. } => {
            Code::FailedPrecondition
        }
        EndorseError::Expired(_) | EndorseError::UnknownChannel(_) => Code::Unavailable,
        EndorseError::Overloaded => Code::ResourceExhausted,
        EndorseError::TimedOut(_) => Code::DeadlineExceeded,
        _ => Code::Unavailable,
    }
}
