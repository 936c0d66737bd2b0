//! `Endorser.ProcessProposal`: the endorser itself, for tools that collect endorsements on their own.
//!
//! As in Fabric, a proposal that is refused before anything runs ends the call with an error; what fails while it runs
//! comes back as a response of status 500.

use std::sync::Arc;

use bytes::Bytes;
use chain::endorse::EndorseError;
use ledger::transaction::Header;
use proto::protos::{ProposalResponse, Response};

use super::proposal::field;
use super::{PeerState, in_a_task};
use crate::rpc::message::frame;
use crate::rpc::{Caller, Code, Status};

const FAILED: i32 = 500;

pub(super) async fn process(state: &Arc<PeerState>, caller: &Caller, message: Bytes) -> Result<Bytes, Status> {
    let (endorser, signed_proposal) = (state.local.clone(), message.clone());
    let (answer, is_signed) = in_a_task(async move {
        match endorser.endorse.process(message).await {
            Ok(response) => Ok((frame(&response), true)),
            Err(
                error @ (EndorseError::Malformed(_)
                | EndorseError::Invalid(_)
                | EndorseError::Expired(_)
                | EndorseError::Duplicate(_)
                | EndorseError::UnknownChannel(_)),
            ) => Err(Status::new(Code::Unknown, error.to_string())),
            Err(error @ EndorseError::Overloaded) => Err(Status::new(Code::ResourceExhausted, error.to_string())),
            Err(error @ (EndorseError::ChannelStopped { .. } | EndorseError::Stopped)) => {
                Err(Status::new(Code::Unavailable, error.to_string()))
            }
            Err(error) => {
                let response = Response { status: FAILED, message: error.to_string(), payload: Bytes::new() };
                Ok((frame(&ProposalResponse { response: Some(response), ..ProposalResponse::default() }), false))
            }
        }
    })
    .await?;
    if is_signed
        && !caller.is_member()
        && let Some(header) = header(&signed_proposal)
    {
        state.proven(caller, header.channel(), &Bytes::copy_from_slice(header.signature_header()));
    }
    Ok(answer)
}

fn header(signed_proposal: &Bytes) -> Option<Header> {
    let proposal = field(signed_proposal, 1).ok()?;
    Header::parse(&field(&proposal, 1).ok()?).ok()
}
