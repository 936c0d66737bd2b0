//! Serves peers that ask for blocks. See [`crate::protocol`].
//!
//! Over a link that proves its caller's organisation, the source sends only blocks of channels of which that
//! organisation is a member.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt;
use base::rt::net::{Link, LinkAcceptor, LinkPermit, LinksRejected};

use crate::events;
use crate::protocol::{BLOCK_ACKNOWLEDGED, DeliverRequest, DeliverResponse, KEEPALIVE, WINDOW_BLOCKS};
use crate::source::BlockSource;

/// How long a peer may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a peer that acknowledges no blocks keeps its link. Each 64 KiB on their way to the peer add one second.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The smallest number of bytes a second that a peer must take.
const BYTES_A_SECOND_MIN: usize = 64 << 10;
/// How long a source that may lag lets a peer with more blocks wait while it catches up.
const LAG_MAX: Duration = Duration::from_secs(2);

/// Serves the links of an acceptor, until the source stops or the acceptor fails.
pub async fn serve(source: Arc<dyn BlockSource>, mut acceptor: LinkAcceptor) {
    while let Some(Ok((link, permit))) = source.stopping().run_until_cancelled(acceptor.accept()).await {
        drop(rt::spawn(connection(source.clone(), link, permit)));
    }
}

async fn connection(source: Arc<dyn BlockSource>, link: Link, permit: LinkPermit) {
    // The link ends if the peer left, misbehaved or has newer links, or if the source stops; the peer then asks again.
    let stop = source.stopping().clone();
    stop.run_until_cancelled(permit.displaced().run_until_cancelled(serve_link(source, link))).await;
}

/// The result of a step that needs the peer's part, while `bytes` are on their way to the peer; `None` after a
/// time-out.
async fn within_timeout<T>(step: impl Future<Output = T>, bytes: usize) -> Option<T> {
    let limit = ACKNOWLEDGE_TIMEOUT + Duration::from_secs((bytes / BYTES_A_SECOND_MIN) as u64);
    rt::timeout(limit, step).await.ok()
}

/// Serves one peer until its link ends, it misbehaves, or the channel stops. Always returns `None`, at whichever of
/// these comes first.
pub async fn serve_link(source: Arc<dyn BlockSource>, mut link: Link) -> Option<()> {
    let request = rt::timeout(REQUEST_TIMEOUT, link.receive()).await.ok()?.ok()?;
    let request = match DeliverRequest::decode(&request) {
        Ok(request) => request,
        Err(malformed) => return reject(&link, malformed.to_string()).await,
    };
    let Some(chain) = source.channel(&request.channel) else {
        return reject(&link, format!("channel {} is not known here", request.channel)).await;
    };
    if let Some(organization) = link.peer()
        && !chain.is_member(organization)
    {
        LinksRejected.add(1);
        tracing::warn!(channel = request.channel, organization, "refused blocks: it is no member of the channel");
        return reject(&link, format!("{organization} is no member of channel {}", request.channel)).await;
    }
    let mut durable = chain.deliverable();
    let mut next = request.from;
    // Bytes of each block that the peer has not acknowledged yet.
    let mut unacknowledged = VecDeque::with_capacity(WINDOW_BLOCKS);
    if next > chain.height() && chain.may_lag() {
        // An orderer may be a little behind the others of its group.
        let caught_up = rt::timeout(LAG_MAX, durable.wait_for(|height| *height >= next));
        let _ = chain.stopping().run_until_cancelled(caught_up).await?;
    }
    if next > chain.height() {
        // The peer is ahead of its orderer: the orderer has lost blocks that it had shown, and this must not go
        // unnoticed.
        return reject(&link, format!("this orderer has {} blocks", chain.height())).await;
    }
    loop {
        while next < chain.height() {
            // Messages of the peer are received only here: at most one waits for each block in the window.
            if unacknowledged.len() == WINDOW_BLOCKS {
                if within_timeout(link.receive(), unacknowledged.iter().sum()).await?.ok()?.as_ref()
                    != BLOCK_ACKNOWLEDGED
                {
                    return reject(&link, "not a message of the block protocol".to_owned()).await;
                }
                unacknowledged.pop_front();
            }
            let block: Bytes = match chain.block(next) {
                Ok(Some(block)) => block,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(channel = request.channel, block = next, %error, "reading the orderer's log");
                    return reject(&link, "the block cannot be read".to_owned()).await;
                }
            };
            unacknowledged.push_back(block.len());
            within_timeout(link.send(DeliverResponse::Block(block).encode()), unacknowledged.iter().sum())
                .await?
                .ok()?;
            events::BlocksServed.add(1);
            next += 1;
        }
        let more =
            chain.stopping().run_until_cancelled(rt::timeout(KEEPALIVE, durable.wait_for(|height| *height > next)));
        match more.await {
            Some(Ok(Ok(_))) => {}
            Some(Err(_)) => within_timeout(link.send(DeliverResponse::Keepalive.encode()), unacknowledged.iter().sum())
                .await?
                .ok()?,
            // The channel ends. An orderer that opens it next sends the blocks that became durable during the stop.
            _ => return None,
        }
    }
}

async fn reject(link: &Link, reason: String) -> Option<()> {
    link.send(DeliverResponse::Rejection(reason).encode()).await.ok()
}
