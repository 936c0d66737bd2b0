//! `Gateway.CommitStatus`: waits until a transaction is committed at the local peer.
//!
//! The handler checks the caller's signature over the request's bytes. It accepts an expired certificate, as Fabric
//! does, and refuses a certificate on the operator's deny list. The channel registers the wait before it looks for the
//! transaction, so that it misses no commit.
//!
//! A request can be replayed. Fabric's request has no timestamp, no nonce and no channel header with a `tls_cert_hash`
//! that would bind it to a connection, and the port asks clients for no certificate. TLS hides requests, so only an
//! attacker inside the client or the server can copy one. A replay then works for as long as the caller may ask. It
//! returns the status of one transaction and changes nothing. The same holds for `ChaincodeEvents`.

use std::sync::Arc;

use base::TxId;
use bytes::Bytes;
use chain::view::ChannelView;
use identity::Identity;
use proto::gateway::{CommitStatusRequest, CommitStatusResponse, SignedCommitStatusRequest};

use super::caller_identity::principal;
use super::{PeerServiceCore, channel_status};
use crate::events::{CommitWaitTime, StatusesAnswered};
use crate::grpc::message::{decode, frame};
use crate::grpc::{Caller, GrpcCode, GrpcStatus};

/// The name under which a channel's configuration may set who may ask.
const RESOURCE: &str = "gateway/CommitStatus";

pub(super) async fn commit_status(
    state: &Arc<PeerServiceCore>,
    caller: &Caller,
    message: Bytes,
) -> Result<Bytes, GrpcStatus> {
    let begin = base::rt::now();
    let (signed, request) = read(message)?;
    let signature = Signature { identity: &request.identity, signed: &signed.request, signature: &signed.signature };
    let (channel, identity) = authorized(state, &request.channel_id, &signature, RESOURCE)?;
    caller.authenticate(|| principal(&identity));
    let tx_id = TxId::new(request.transaction_id);
    let rules = channel.policies();
    let status = tokio::select! {
        biased;
        status = channel.wait_committed(&tx_id) => status.map_err(|error| channel_status(&error))?,
        () = rules.denied(&identity) => {
            return Err(GrpcStatus::new(GrpcCode::PermissionDenied, identity::Error::Denied.to_string()));
        }
    };
    StatusesAnswered.add(1);
    CommitWaitTime.record_since(begin);
    Ok(frame(&CommitStatusResponse { result: i32::from(status.code.0), block_number: status.block }))
}

/// A request, with the bytes that were signed.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(super) fn read(message: Bytes) -> Result<(SignedCommitStatusRequest, CommitStatusRequest), GrpcStatus> {
    let signed: SignedCommitStatusRequest = decode(message)?;
    let request = decode(signed.request.clone())?;
    Ok((signed, request))
}

/// The signature of a request and its claimed creator.
pub(super) struct Signature<'a> {
    pub identity: &'a Bytes,
    pub signed: &'a [u8],
    pub signature: &'a [u8],
}

/// The channel and the caller, if the caller is a member of the channel, has signed these bytes and may use the resource.
///
/// # Errors
/// `PERMISSION_DENIED`, also for a channel that is not known here, so that non-members learn nothing. `UNAVAILABLE` while
/// the peer's channels are not known yet.
pub(super) fn authorized(
    state: &PeerServiceCore,
    channel: &str,
    signature: &Signature<'_>,
    resource: &str,
) -> Result<(Arc<dyn ChannelView>, Arc<Identity>), GrpcStatus> {
    let denied = |reason: String| GrpcStatus::new(GrpcCode::PermissionDenied, reason);
    let channel = state.known_channel(channel, GrpcCode::PermissionDenied)?;
    let rules = channel.policies();
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
