//! Answering peers that ask for blocks. See [`super::protocol`].

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt;
use base::rt::net::{Link, Listener};
use base::rt::sync::Permit;
use consensus::ordered::Role;

use super::Orderer;
use super::protocol::{KEEPALIVE, Reply, Request, TAKEN, WINDOW_BLOCKS};
use crate::events;

/// How long a peer may take to say what it wants.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a peer that is ahead of an orderer that follows waits for it.
const LAG_MAX: Duration = Duration::from_secs(2);

pub(super) async fn accept(orderer: Arc<Orderer>, mut listener: Listener) {
    loop {
        // A place first: beyond the bound, connections wait in the listener's backlog.
        let Some(place) = orderer.stopping().or_stopped(orderer.connections().acquire()).await else { return };
        match orderer.stopping().or_stopped(listener.accept()).await {
            Some(Ok(link)) => drop(rt::spawn(connection(orderer.clone(), link, place))),
            _ => return,
        }
    }
}

async fn connection(orderer: Arc<Orderer>, link: Link, _place: Permit) {
    // Whether the peer left, misbehaved or this orderer stops: the link ends, and the peer asks again.
    let stop = orderer.stopping().clone();
    stop.or_stopped(answer(orderer, link)).await;
}

async fn answer(orderer: Arc<Orderer>, mut link: Link) -> Option<()> {
    let request = rt::timeout(REQUEST_WAIT_MAX, link.receive()).await.ok()?.ok()?;
    let request = match Request::decode(&request) {
        Ok(request) => request,
        Err(malformed) => return refuse(&link, malformed.to_string()).await,
    };
    let Some(chain) = orderer.chain(&request.channel) else {
        return refuse(&link, format!("channel {} is not known here", request.channel)).await;
    };
    let mut durable = chain.durable();
    let mut next = request.from;
    let mut untaken = 0;
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
            if untaken == WINDOW_BLOCKS {
                if link.receive().await.ok()?.as_ref() != TAKEN {
                    return refuse(&link, "not a message of the block protocol".to_owned()).await;
                }
                untaken -= 1;
            }
            let block: Bytes = match chain.block(next) {
                Ok(Some(block)) => block,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(channel = request.channel, block = next, %error, "reading the orderer's log");
                    return refuse(&link, "the block cannot be read".to_owned()).await;
                }
            };
            link.send(Reply::Block(block).encode()).await.ok()?;
            events::BlocksServed.add(1);
            next += 1;
            untaken += 1;
        }
        let more = chain.stopping().or_stopped(rt::timeout(KEEPALIVE, durable.wait_for(|height| *height > next)));
        match more.await {
            Some(Ok(Ok(_))) => {}
            Some(Err(_)) => link.send(Reply::Alive.encode()).await.ok()?,
            // The channel ends; what became durable on the way out is sent by whoever holds it next.
            _ => return None,
        }
    }
}

async fn refuse(link: &Link, reason: String) -> Option<()> {
    link.send(Reply::Refusal(reason).encode()).await.ok()
}
