//! One connection of an owner to a memory node.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::Bytes;
use base::rt::{self, sync::SemaphorePermit};
use rma::{Endpoint, IncomingEvent};
use wire::hello::HelloAnswer;

use super::owner::{ConnectionGuard, Owner};
use super::{HANDSHAKE_TIMEOUT, MemoryNodeCore};
use crate::events::ConnectionsRejected;
use crate::message::{PROTOCOL_VERSIONS, Rejection, Request, Response};

/// Serves a connection until it ends or sends an invalid message. The connection starts with a permit for connections
/// before their hello, and exchanges it for one for connections after it.
pub(super) async fn serve(shared: Arc<MemoryNodeCore>, endpoint: Endpoint, permit: SemaphorePermit) {
    let stop = shared.stop.clone();
    let served = stop.run_until_cancelled(serve_requests(&shared, &endpoint, permit)).await;
    if served == Some(ConnectionEnd::Rejected) {
        ConnectionsRejected.add(1);
    }
    endpoint.close();
}

/// How a connection ended.
#[derive(PartialEq, Eq)]
enum ConnectionEnd {
    Lost,
    Rejected,
}

async fn serve_requests(shared: &Arc<MemoryNodeCore>, endpoint: &Endpoint, permit: SemaphorePermit) -> ConnectionEnd {
    let introduced = rt::timeout(HANDSHAKE_TIMEOUT, handshake(shared, endpoint)).await;
    let (connection, present, _place) = match introduced {
        Ok(Ok(introduced)) => introduced,
        Ok(Err(end)) => return end,
        Err(rt::Elapsed) => return ConnectionEnd::Rejected,
    };
    drop(permit);
    loop {
        let message = match endpoint.receive().await {
            Ok(IncomingEvent::Message(message)) => message,
            // Owners have no capability of ours that would allow an immediate; ignore it.
            Ok(IncomingEvent::Immediate { .. }) => continue,
            Err(_) => return ConnectionEnd::Lost,
        };
        let Some((number, request)) = decode(endpoint, &message).await else { return ConnectionEnd::Rejected };
        let (before, after) = fault_points(&request);
        if rt::fault_point(before) {
            return ConnectionEnd::Lost;
        }
        let reply = perform(shared, &present.0, connection, endpoint, request).await;
        if rt::fault_point(after) {
            return ConnectionEnd::Lost;
        }
        let ends = matches!(
            &reply,
            Response::Rejected { rejection: Rejection::Malformed | Rejection::Fenced | Rejection::Superseded, .. }
        );
        if !respond(endpoint, number, &reply).await {
            return ConnectionEnd::Lost;
        }
        if ends {
            return ConnectionEnd::Rejected;
        }
    }
}

/// Hello: versions and sizes must agree. Returns the connection's number, its owner and its permit.
async fn handshake(
    shared: &Arc<MemoryNodeCore>,
    endpoint: &Endpoint,
) -> Result<(u64, ConnectionGuard, SemaphorePermit), ConnectionEnd> {
    let message = loop {
        match endpoint.receive().await {
            Ok(IncomingEvent::Message(message)) => break message,
            Ok(IncomingEvent::Immediate { .. }) => {}
            Err(_) => return Err(ConnectionEnd::Lost),
        }
    };
    let Some((number, request)) = decode(endpoint, &message).await else { return Err(ConnectionEnd::Rejected) };
    if rt::fault_point("pool.hello.lost") {
        return Err(ConnectionEnd::Lost);
    }
    let refusal = match request {
        Request::OtherVersions(versions) => {
            let ours = PROTOCOL_VERSIONS;
            tracing::warn!(owner = endpoint.name(), %versions, %ours, "an owner speaks other versions; upgrade the older side");
            respond(endpoint, number, &Response::OtherVersions(HelloAnswer::refuse(ours))).await;
            return Err(ConnectionEnd::Rejected);
        }
        Request::Hello { section_bytes, .. } if section_bytes != shared.section_bytes => (
            Rejection::SectionSize,
            shared.section_bytes,
            format!("sections of this memory node have {} bytes, not {section_bytes}", shared.section_bytes),
        ),
        Request::Hello { versions, .. } => match shared.connections.try_acquire().zip(shared.admit(endpoint.name())) {
            Some((place, present)) => {
                let welcome = Response::Welcome {
                    hello: HelloAnswer::to(PROTOCOL_VERSIONS, versions),
                    node: shared.host.node().0,
                    section_bytes: shared.section_bytes,
                    budget_bytes: shared.budget_bytes,
                    free_bytes: shared.free_bytes(),
                    incarnation: shared.incarnation,
                };
                if rt::fault_point("pool.hello.answer_lost") || !respond(endpoint, number, &welcome).await {
                    return Err(ConnectionEnd::Lost);
                }
                return Ok((shared.next_connection(), present, place));
            }
            None => (
                Rejection::TooMany,
                0,
                "this memory node is at its limit of owners, or of connections of this owner".to_owned(),
            ),
        },
        _ => (Rejection::Malformed, 0, "the first message must be a hello".to_owned()),
    };
    let (refusal, detail, text) = refusal;
    respond(endpoint, number, &Response::Rejected { rejection: refusal, detail, text }).await;
    Err(ConnectionEnd::Rejected)
}

async fn decode(endpoint: &Endpoint, message: &Bytes) -> Option<(u32, Request)> {
    match Request::decode(message) {
        Ok(decoded) => Some(decoded),
        Err(error) => {
            tracing::warn!(%error, owner = endpoint.name(), "an owner sent an invalid message; its connection is closed");
            let text = error.to_string();
            let refusal = Response::Rejected { rejection: Rejection::Malformed, detail: 0, text };
            respond(endpoint, crate::message::NOTIFICATION, &refusal).await;
            None
        }
    }
}

async fn perform(
    shared: &Arc<MemoryNodeCore>,
    owner: &Owner,
    connection: u64,
    endpoint: &Endpoint,
    request: Request,
) -> Response {
    match request {
        Request::Hello { .. } | Request::OtherVersions(_) => {
            let text = "a second hello".to_owned();
            Response::Rejected { rejection: Rejection::Malformed, detail: 0, text }
        }
        Request::Fence { epoch, nonce, keep } => shared.fence(owner, connection, endpoint, epoch, nonce, keep).await,
        Request::Grant { bytes, number } => shared.grant(owner, connection, bytes, number).await,
        Request::Release { section } => shared.release(owner, connection, section).await,
        Request::List => shared.list(owner, connection).await,
        Request::GrantRead { section, follower: reader } => shared.grant_read(owner, connection, section, reader).await,
        Request::RevokeReads { follower: reader } => shared.revoke_reads(owner, connection, reader).await,
        Request::Adopt { section } => shared.adopt(owner, connection, section).await,
        Request::Capacity => Response::Capacity { free_bytes: shared.free_bytes(), budget_bytes: shared.budget_bytes },
    }
}

/// Where a simulation may lose the connection: before a request is executed, and before it is answered.
#[cfg(debug_assertions)]
fn fault_points(request: &Request) -> (&'static str, &'static str) {
    match request {
        Request::Hello { .. } | Request::OtherVersions(_) => ("pool.hello.lost", "pool.hello.answer_lost"),
        Request::Fence { .. } => ("pool.fence.lost", "pool.fence.answer_lost"),
        Request::Grant { .. } => ("pool.grant.lost", "pool.grant.answer_lost"),
        Request::Release { .. } => ("pool.release.lost", "pool.release.answer_lost"),
        Request::List => ("pool.list.lost", "pool.list.answer_lost"),
        Request::Capacity => ("pool.room.lost", "pool.room.answer_lost"),
        Request::GrantRead { .. } => ("pool.read_grant.lost", "pool.read_grant.answer_lost"),
        Request::RevokeReads { .. } => ("pool.read_revoke.lost", "pool.read_revoke.answer_lost"),
        Request::Adopt { .. } => ("pool.adopt.lost", "pool.adopt.answer_lost"),
    }
}

/// The product has no fault points, and not their names either.
#[cfg(not(debug_assertions))]
fn fault_points(_request: &Request) -> (&'static str, &'static str) {
    ("", "")
}

/// Sends an answer; false when the connection has ended.
async fn respond(endpoint: &Endpoint, number: u32, reply: &Response) -> bool {
    let sent = endpoint.send(&[reply.encode(number)]);
    endpoint.flush();
    sent.await.is_ok()
}
