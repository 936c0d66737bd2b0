//! `Gateway.CommitStatus`: waits until a transaction is committed at the local peer.
//!
//! The caller's signature is checked over the request's bytes; an expired certificate is good enough, as in Fabric. The
//! channel registers the wait before it looks whether the transaction is there, so that no commit is missed.

use std::sync::Arc;

use base::TxId;
use bytes::Bytes;
use chain::view::ChannelView;
use proto::gateway::{CommitStatusRequest, CommitStatusResponse, SignedCommitStatusRequest};

use super::{PeerState, of_channel};
use crate::events::{CommitWaitTime, StatusesAnswered};
use crate::rpc::message::{decode, frame};
use crate::rpc::{Code, Status};

/// The name under which a channel's configuration may set who asks.
const RESOURCE: &str = "gateway/CommitStatus";

pub(super) async fn commit_status(state: &Arc<PeerState>, message: Bytes) -> Result<Bytes, Status> {
    let begin = base::rt::now();
    let signed: SignedCommitStatusRequest = decode(message)?;
    let request: CommitStatusRequest = decode(signed.request.clone())?;
    let channel =
        authorized(state, &request.channel_id, &request.identity, &signed.request, &signed.signature, RESOURCE)?;
    let tx_id = TxId::new(request.transaction_id);
    let status = channel.wait_committed(&tx_id).await.map_err(|error| of_channel(&error))?;
    StatusesAnswered.add(1);
    CommitWaitTime.record_since(begin);
    Ok(frame(&CommitStatusResponse { result: i32::from(status.code.0), block_number: status.block }))
}

/// The channel, if the caller is a member of it who signed these bytes and may use the resource.
///
/// # Errors
/// `PERMISSION_DENIED`, also for a channel that is not known here: who is no member learns nothing.
pub(super) fn authorized(
    state: &PeerState,
    channel: &str,
    identity: &Bytes,
    signed: &[u8],
    signature: &[u8],
    resource: &str,
) -> Result<Arc<dyn ChannelView>, Status> {
    let denied = |reason: String| Status::new(Code::PermissionDenied, reason);
    let channel = state.channel(channel).ok_or_else(|| denied(format!("channel {channel} is not known here")))?;
    let rules = channel.rules();
    let identity = rules.identify(identity).map_err(|error| denied(error.to_string()))?;
    identity.verify(signed, signature).map_err(|_| denied("the request's signature is not valid".to_owned()))?;
    if !rules.may_use(resource, &identity) {
        return Err(denied(format!("the caller may not use {resource}")));
    }
    Ok(channel)
}
