//! `Endorser.ProcessProposal`: direct access to the endorser, for tools that collect endorsements on their own.
//!
//! As in Fabric, the call ends with an error if the endorser refuses the proposal before it runs. If the proposal fails
//! while it runs, the answer is a response of status 500.

use std::sync::Arc;

use bytes::Bytes;
use chain::endorse::EndorseError;
use ledger::transaction::TransactionHeader;

use super::proposal::field;
use super::{PeerServiceCore, run_in_task};
use crate::grpc::message::frame;
use crate::grpc::{Caller, GrpcCode, GrpcStatus};

pub(super) async fn process(
    state: &Arc<PeerServiceCore>,
    caller: &Caller,
    message: Bytes,
) -> Result<Bytes, GrpcStatus> {
    let (endorser, signed_proposal) = (state.local.clone(), message.clone());
    let (answer, is_signed) = run_in_task(async move {
        match endorser.endorse.process(message).await {
            Ok(response) => Ok((frame(&response), true)),
            Err(error) => match (error.response(), &error) {
                (Some(response), _) => Ok((frame(&response), false)),
                (None, EndorseError::Overloaded) => {
                    Err(GrpcStatus::new(GrpcCode::ResourceExhausted, error.to_string()))
                }
                (None, EndorseError::ChannelStopped { .. } | EndorseError::Stopped) => {
                    Err(GrpcStatus::new(GrpcCode::Unavailable, error.to_string()))
                }
                (None, _) => Err(GrpcStatus::new(GrpcCode::Unknown, error.to_string())),
            },
        }
    })
    .await?;
    if is_signed
        && !caller.is_member()
        && let Some(header) = header(&signed_proposal)
    {
        state.authenticate_caller(caller, header.channel(), &Bytes::copy_from_slice(header.signature_header()));
    }
    Ok(answer)
}

fn header(signed_proposal: &Bytes) -> Option<TransactionHeader> {
    let proposal = field(signed_proposal, 1).ok()?;
    TransactionHeader::parse(&field(&proposal, 1).ok()?).ok()
}
