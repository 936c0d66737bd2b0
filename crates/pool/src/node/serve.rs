//! One connection of an owner to a memory node.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use base::Bytes;
use base::rt::{self, sync::Permit};
use rma::{Endpoint, Incoming};

use super::owner::{Owner, Present};
use super::{INTRODUCTION_MAX, Shared};
use crate::events::ConnectionsRefused;
use crate::message::{PROTOCOL_VERSION, Refusal, Reply, Request};

/// Serves a connection until it ends, or says what it must not. It has a place among those that have not said hello, and
/// gives it back for one among those that have.
pub(super) async fn serve(shared: Arc<Shared>, endpoint: Endpoint, permit: Permit) {
    let stop = shared.stop.clone();
    let served = stop.or_stopped(converse(&shared, &endpoint, permit)).await;
    if served == Some(End::Refused) {
        ConnectionsRefused.add(1);
    }
    endpoint.close();
}

/// How a connection ended.
#[derive(PartialEq, Eq)]
enum End {
    Lost,
    Refused,
}

async fn converse(shared: &Arc<Shared>, endpoint: &Endpoint, permit: Permit) -> End {
    let introduced = rt::timeout(INTRODUCTION_MAX, introduce(shared, endpoint)).await;
    let (connection, present, _place) = match introduced {
        Ok(Ok(introduced)) => introduced,
        Ok(Err(end)) => return end,
        Err(rt::Elapsed) => return End::Refused,
    };
    drop(permit);
    loop {
        let message = match endpoint.receive().await {
            Ok(Incoming::Message(message)) => message,
            // Owners have no capability of ours that would allow it; pay no heed.
            Ok(Incoming::Immediate { .. }) => continue,
            Err(_) => return End::Lost,
        };
        let Some((number, request)) = decode(endpoint, &message).await else { return End::Refused };
        let (before, after) = fault_points(&request);
        if rt::fault_point(before) {
            return End::Lost;
        }
        let reply = perform(shared, &present.0, connection, endpoint, request).await;
        if rt::fault_point(after) {
            return End::Lost;
        }
        let ends = matches!(
            &reply,
            Reply::Refused { refusal: Refusal::Malformed | Refusal::Fenced | Refusal::Superseded, .. }
        );
        if !answer(endpoint, number, &reply).await {
            return End::Lost;
        }
        if ends {
            return End::Refused;
        }
    }
}

/// Hello: versions and sizes must agree. Gives the connection's number and place.
async fn introduce(shared: &Arc<Shared>, endpoint: &Endpoint) -> Result<(u64, Present, Permit), End> {
    let message = loop {
        match endpoint.receive().await {
            Ok(Incoming::Message(message)) => break message,
            Ok(Incoming::Immediate { .. }) => {}
            Err(_) => return Err(End::Lost),
        }
    };
    let Some((number, request)) = decode(endpoint, &message).await else { return Err(End::Refused) };
    if rt::fault_point("pool.hello.lost") {
        return Err(End::Lost);
    }
    let refusal = match request {
        Request::Hello { version, .. } if version != PROTOCOL_VERSION => (
            Refusal::Version,
            u64::from(PROTOCOL_VERSION),
            format!("this memory node speaks version {PROTOCOL_VERSION}, not {version}"),
        ),
        Request::Hello { section_bytes, .. } if section_bytes != shared.section_bytes => (
            Refusal::SectionSize,
            shared.section_bytes,
            format!("sections of this memory node have {} bytes, not {section_bytes}", shared.section_bytes),
        ),
        Request::Hello { .. } => match shared.connections.try_acquire().zip(shared.admit(endpoint.name())) {
            Some((place, present)) => {
                let welcome = Reply::Welcome {
                    version: PROTOCOL_VERSION,
                    node: shared.host.node().0,
                    section_bytes: shared.section_bytes,
                    budget_bytes: shared.budget_bytes,
                    free_bytes: shared.free_bytes(),
                    life: shared.life,
                };
                if rt::fault_point("pool.hello.answer_lost") || !answer(endpoint, number, &welcome).await {
                    return Err(End::Lost);
                }
                return Ok((shared.next_connection(), present, place));
            }
            None => (
                Refusal::TooMany,
                0,
                "this memory node has as many owners, or connections of this one, as it may".to_owned(),
            ),
        },
        _ => (Refusal::Malformed, 0, "the first message is a hello".to_owned()),
    };
    let (refusal, detail, text) = refusal;
    answer(endpoint, number, &Reply::Refused { refusal, detail, text }).await;
    Err(End::Refused)
}

async fn decode(endpoint: &Endpoint, message: &Bytes) -> Option<(u32, Request)> {
    match Request::decode(message) {
        Ok(decoded) => Some(decoded),
        Err(error) => {
            tracing::warn!(%error, owner = endpoint.name(), "a memory node's connection says what it must not");
            let text = error.to_string();
            let refusal = Reply::Refused { refusal: Refusal::Malformed, detail: 0, text };
            answer(endpoint, crate::message::NOTICE, &refusal).await;
            None
        }
    }
}

async fn perform(shared: &Arc<Shared>, owner: &Owner, connection: u64, endpoint: &Endpoint, request: Request) -> Reply {
    match request {
        Request::Hello { .. } => {
            let text = "a second hello".to_owned();
            Reply::Refused { refusal: Refusal::Malformed, detail: 0, text }
        }
        Request::Fence { epoch, holder } => shared.fence(owner, connection, endpoint, epoch, holder).await,
        Request::Grant { bytes } => shared.grant(owner, connection, bytes).await,
        Request::Release { section } => shared.release(owner, connection, section).await,
        Request::List => shared.list(owner, connection).await,
        Request::Share { section, reader } => shared.share(owner, connection, section, reader).await,
        Request::Unshare { reader } => shared.unshare(owner, connection, reader).await,
        Request::Room => Reply::Room { free_bytes: shared.free_bytes(), budget_bytes: shared.budget_bytes },
    }
}

/// Where a simulation may lose the connection: before a request is performed, and before it is answered.
fn fault_points(request: &Request) -> (&'static str, &'static str) {
    match request {
        Request::Hello { .. } => ("pool.hello.lost", "pool.hello.answer_lost"),
        Request::Fence { .. } => ("pool.fence.lost", "pool.fence.answer_lost"),
        Request::Grant { .. } => ("pool.grant.lost", "pool.grant.answer_lost"),
        Request::Release { .. } => ("pool.release.lost", "pool.release.answer_lost"),
        Request::List => ("pool.list.lost", "pool.list.answer_lost"),
        Request::Room => ("pool.room.lost", "pool.room.answer_lost"),
        Request::Share { .. } => ("pool.share.lost", "pool.share.answer_lost"),
        Request::Unshare { .. } => ("pool.unshare.lost", "pool.unshare.answer_lost"),
    }
}

/// Sends an answer; false when the connection has ended.
async fn answer(endpoint: &Endpoint, number: u32, reply: &Reply) -> bool {
    let sent = endpoint.send(&[reply.encode(number)]);
    endpoint.flush();
    sent.await.is_ok()
}
