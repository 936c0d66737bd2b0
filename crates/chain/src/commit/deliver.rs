//! Receiving blocks from orderers.
//!
//! 1. Connect to an orderer and ask for blocks from the first one that the pipeline has not been given.
//! 2. Verify each block as described in [`super`] and give it to the pipeline.
//! 3. When the link ends, is silent for too long, or brings anything else than the next block, turn to the next orderer.
//!    After every round without a block wait longer, up to [`BACKOFF_MAX`].
//!
//! Nothing that an orderer sends can do more than end its own connection.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::{self, net};
use ledger::Block;

use super::pipeline::{Ledger, Pipeline, Tip};
use crate::order::protocol::{Reply, Request, SILENCE_MAX, TAKEN};
use crate::{Error, events};

/// The wait after the first failure.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("it cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("the link ended")]
    Link,
    #[error("it was silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    #[error("it refused: {0}")]
    Refused(String),
    #[error("it sent bytes that are no message")]
    Malformed,
    #[error("it sent a bad block: {0}")]
    BadBlock(#[from] ledger::Error),
    /// The channel is stopping.
    #[error(transparent)]
    Stopped(Error),
}

/// Receives blocks until the channel stops, then stops the pipeline.
pub async fn follow(ledger: Arc<Ledger>, pipeline: Pipeline, mut tip: Tip, orderers: Vec<String>) {
    let mut wait = BACKOFF_MIN;
    let mut attempt = 0;
    while !ledger.stop().is_stopped() && !orderers.is_empty() {
        let orderer = &orderers[attempt % orderers.len()];
        attempt += 1;
        let height_before = tip.height;
        let connection = receive(&ledger, &pipeline, &mut tip, orderer);
        let ended = match ledger.stop().or_stopped(connection).await {
            None | Some(Ended::Stopped(_)) => break,
            Some(ended) => ended,
        };
        let channel = ledger.rules.channel();
        match ended {
            Ended::BadBlock(_) | Ended::Malformed => {
                events::BlocksRefused.add(1);
                tracing::warn!(%channel, orderer, %ended, "left an orderer");
            }
            Ended::Refused(_) => tracing::info!(%channel, orderer, %ended, "left an orderer"),
            _ => tracing::debug!(%channel, orderer, %ended, "left an orderer"),
        }
        wait = if tip.height > height_before { BACKOFF_MIN } else { (wait * 2).min(BACKOFF_MAX) };
        // Spread out, so that peers that lost the same orderer do not come back together.
        let spread = wait / 2 + Duration::from_nanos(rt::random_below((wait / 2).as_nanos() as u64 + 1));
        if ledger.stop().or_stopped(rt::sleep(spread)).await.is_none() {
            break;
        }
    }
    if orderers.is_empty() {
        ledger.stop().stopped().await;
    }
    pipeline.stop().await;
}

async fn receive(ledger: &Ledger, pipeline: &Pipeline, tip: &mut Tip, orderer: &str) -> Ended {
    match receive_blocks(ledger, pipeline, tip, orderer).await {
        Err(ended) => ended,
        Ok(never) => match never {},
    }
}

async fn receive_blocks(
    ledger: &Ledger,
    pipeline: &Pipeline,
    tip: &mut Tip,
    orderer: &str,
) -> Result<std::convert::Infallible, Ended> {
    let mut link = net::connect(orderer).await.map_err(Ended::Unreachable)?;
    events::DeliverConnections.add(1);
    let request = Request { channel: ledger.rules.channel().to_string(), from: tip.height };
    link.send(request.encode()).await.map_err(|_| Ended::Link)?;
    loop {
        let message = rt::timeout(SILENCE_MAX, link.receive()).await.map_err(|_| Ended::Silent)?;
        let message = message.map_err(|_| Ended::Link)?;
        match Reply::decode(message).map_err(|_| Ended::Malformed)? {
            Reply::Alive => {}
            Reply::Refusal(reason) => return Err(Ended::Refused(reason)),
            Reply::Block(bytes) => {
                let block = verified(ledger, tip, &bytes)?;
                let hash = block.hash();
                pipeline.offer(block).await.map_err(Ended::Stopped)?;
                *tip = Tip { height: tip.height + 1, hash: Some(hash), ..*tip };
                link.send(Bytes::from_static(TAKEN)).await.map_err(|_| Ended::Link)?;
            }
        }
    }
}

/// Reads a block and checks everything about it that does not concern its transactions.
fn verified(ledger: &Ledger, tip: &Tip, bytes: &Bytes) -> Result<Block, ledger::Error> {
    let block = Block::parse(bytes)?;
    block.check_follows(tip.height, tip.hash.as_ref())?;
    block.check_data_hash()?;
    block.verify_signatures(ledger.rules.config())?;
    Ok(block)
}
