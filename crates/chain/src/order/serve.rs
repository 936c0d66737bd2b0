//! Answering peers that ask for blocks. See [`super::protocol`].
//!
//! A link proves which organisation it is of; blocks of a channel go to the channel's organisations and to nobody else.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt;
use base::rt::net::{Door, Link, LinksRefused, Place};
use consensus::ordered::Role;

use super::Orderer;
use super::protocol::{KEEPALIVE, Reply, Request, TAKEN, WINDOW_BLOCKS};
use crate::events;

/// How long a peer may take to say what it wants.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a peer that takes no blocks keeps its link; longer by a second for each 64 KiB that are on their way to it.
const TAKE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes that the slowest peer takes in a second.
const BYTES_A_SECOND_MIN: usize = 64 << 10;
/// How long a peer that is ahead of an orderer that follows waits for it.
const LAG_MAX: Duration = Duration::from_secs(2);

pub(super) async fn accept(orderer: Arc<Orderer>, mut door: Door) {
    while let Some(Ok((link, place))) = orderer.stopping().or_stopped(door.accept()).await {
        drop(rt::spawn(connection(orderer.clone(), link, place)));
    }
    orderer.unserved().stop();
}

async fn connection(orderer: Arc<Orderer>, link: Link, place: Place) {
    // Whether the peer left, misbehaved, has newer links or this orderer stops: the link ends, and the peer asks again.
    let stop = orderer.stopping().clone();
    stop.or_stopped(place.displaced().or_stopped(answer(orderer, link))).await;
}

/// What comes of a step that the peer must do its part for, while so many bytes are on their way to it.
async fn patiently<T>(step: impl Future<Output = T>, bytes: usize) -> Option<T> {
    let limit = TAKE_WAIT_MAX + Duration::from_secs((bytes / BYTES_A_SECOND_MIN) as u64);
    rt::timeout(limit, step).await.ok()
}

pub(super) async fn answer(orderer: Arc<Orderer>, mut link: Link) -> Option<()> {
    let request = rt::timeout(REQUEST_WAIT_MAX, link.receive()).await.ok()?.ok()?;
    let request = match Request::decode(&request) {
        Ok(request) => request,
        Err(malformed) => return refuse(&link, malformed.to_string()).await,
    };
    let Some(chain) = orderer.chain(&request.channel) else {
        return refuse(&link, format!("channel {} is not known here", request.channel)).await;
    };
    if let Some(organization) = link.peer()
        && !chain.has_member(organization)
    {
        LinksRefused.add(1);
        tracing::warn!(channel = request.channel, organization, "refused blocks: it is no member of the channel");
        return refuse(&link, format!("{organization} is no member of channel {}", request.channel)).await;
    }
    let mut durable = chain.durable();
    let mut next = request.from;
    // Bytes of the blocks that the peer has not taken yet.
    let mut untaken = VecDeque::with_capacity(WINDOW_BLOCKS);
    if next > chain.height() && matches!(*chain.role().borrow(), Role::Following { .. }) {
        // It may be a little behind the others of its group.
        let caught_up = rt::timeout(LAG_MAX, durable.wait_for(|height| *height >= next));
        let _ = chain.stopping().or_stopped(caught_up).await?;
    }
    if next > chain.height() {
        // A peer ahead of its orderer: the orderer lost blocks that it had shown, which must not go unseen.
        return refuse(&link, format!("this orderer has {} blocks", chain.height())).await;
    }
    loop {
        while next < chain.height() {
            // What the peer says is read only here: there is never more of it than blocks in the window.
            if untaken.len() == WINDOW_BLOCKS {
                if patiently(link.receive(), untaken.iter().sum()).await?.ok()?.as_ref() != TAKEN {
                    return refuse(&link, "not a message of the block protocol".to_owned()).await;
                }
                untaken.pop_front();
            }
            let block: Bytes = match chain.block(next) {
                Ok(Some(block)) => block,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(channel = request.channel, block = next, %error, "reading the orderer's log");
                    return refuse(&link, "the block cannot be read".to_owned()).await;
                }
            };
            untaken.push_back(block.len());
            patiently(link.send(Reply::Block(block).encode()), untaken.iter().sum()).await?.ok()?;
            events::BlocksServed.add(1);
            next += 1;
        }
        let more = chain.stopping().or_stopped(rt::timeout(KEEPALIVE, durable.wait_for(|height| *height > next)));
        match more.await {
            Some(Ok(Ok(_))) => {}
            Some(Err(_)) => patiently(link.send(Reply::Alive.encode()), untaken.iter().sum()).await?.ok()?,
            // The channel ends; what became durable on the way out is sent by whoever holds it next.
            _ => return None,
        }
    }
}

async fn refuse(link: &Link, reason: String) -> Option<()> {
    link.send(Reply::Refusal(reason).encode()).await.ok()
}
