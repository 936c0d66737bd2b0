//! `Gateway.CommitStatus`: waits until a transaction is committed at the local peer.
//!
//! The caller's signature is checked over the request's bytes; an expired certificate is good enough, as in Fabric, but one
//! that the operator denies is not. The channel registers the wait before it looks whether the transaction is there, so
//! that no commit is missed.
//!
//! Fabric's request has neither a time nor a nonce nor a channel header, whose `tls_cert_hash` could bind it to a
//! connection (and the port asks clients for no certificate). Whoever sees one, which takes the client's or the server's
//! side of TLS, can ask it again for as long as the caller may ask. It answers the status of one transaction and changes
//! nothing. The same holds of `ChaincodeEvents`.

use std::sync::Arc;

use base::TxId;
use bytes::Bytes;
use chain::view::ChannelView;
use identity::Identity;
use proto::gateway::{CommitStatusRequest, CommitStatusResponse, SignedCommitStatusRequest};

use super::proof::principal;
use super::{PeerState, of_channel};
use crate::events::{CommitWaitTime, StatusesAnswered};
use crate::rpc::message::{decode, frame};
use crate::rpc::{Caller, Code, Status};

/// The name under which a channel's configuration may set who asks.
const RESOURCE: &str = "gateway/CommitStatus";

pub(super) async fn commit_status(state: &Arc<PeerState>, caller: &Caller, message: Bytes) -> Result<Bytes, Status> {
    let begin = base::rt::now();
    let (signed, request) = read(message)?;
    let signature = Signature { identity: &request.identity, signed: &signed.request, signature: &signed.signature };
    let (channel, identity) = authorized(state, &request.channel_id, &signature, RESOURCE)?;
    caller.authenticate(|| principal(&identity));
    let tx_id = TxId::new(request.transaction_id);
    let rules = channel.rules();
    let status = tokio::select! {
        biased;
        status = channel.wait_committed(&tx_id) => status.map_err(|error| of_channel(&error))?,
        () = rules.denied(&identity) => {
            return Err(Status::new(Code::PermissionDenied, identity::Error::Denied.to_string()));
        }
    };
    StatusesAnswered.add(1);
    CommitWaitTime.record_since(begin);
    Ok(frame(&CommitStatusResponse { result: i32::from(status.code.0), block_number: status.block }))
}

/// A request, with what was signed of it.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn read(message: Bytes) -> Result<(SignedCommitStatusRequest, CommitStatusRequest), Status> {
    let signed: SignedCommitStatusRequest = decode(message)?;
    let request = decode(signed.request.clone())?;
    Ok((signed, request))
}

/// What a request says who made it.
pub(super) struct Signature<'a> {
    pub identity: &'a Bytes,
    pub signed: &'a [u8],
    pub signature: &'a [u8],
}

/// The channel and the caller, if the caller is a member of it who signed these bytes and may use the resource.
///
/// # Errors
/// `PERMISSION_DENIED`, also for a channel that is not known here: who is no member learns nothing. `UNAVAILABLE` while
/// the peer's channels are not known yet.
pub(super) fn authorized(
    state: &PeerState,
    channel: &str,
    signature: &Signature<'_>,
    resource: &str,
) -> Result<(Arc<dyn ChannelView>, Arc<Identity>), Status> {
    let denied = |reason: String| Status::new(Code::PermissionDenied, reason);
    let channel = state.known_channel(channel, Code::PermissionDenied)?;
    let rules = channel.rules();
    let identity = rules.identify(signature.identity).map_err(|error| denied(error.to_string()))?;
    rules.check_denied(&identity, base::rt::wall_now()).map_err(|error| denied(error.to_string()))?;
    identity
        .verify(signature.signed, signature.signature)
        .map_err(|_| denied("the request's signature is not valid".to_owned()))?;
    if !rules.may_use(resource, &identity) {
        return Err(denied(format!("the caller may not use {resource}")));
    }
    Ok((channel, identity))
}
