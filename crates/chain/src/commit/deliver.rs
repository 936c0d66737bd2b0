//! Receiving blocks from orderers.
//!
//! 1. Connect to an orderer and ask for blocks from the first one that the pipeline has not been given.
//! 2. Verify each block as described in [`super`] and give it to the pipeline.
//! 3. When the link ends, is silent for too long, or brings anything else than the next block, turn to the next orderer.
//!    After every round without a block wait longer, up to [`BACKOFF_MAX`]. When all have refused, the channel says what they wait for.
//!    Where there are others, an orderer that gives signs of life and no block for [`IDLE_MAX`] is left as well: it may be cut off from
//!    those that order.
//! 4. More than half of the orderers have sent a block of the next number, properly signed, that continues other blocks than this peer
//!    has, and none has sent one that continues these: the orderers have lost blocks that this peer was shown. The channel ends, with
//!    an error that says so: its state is not that of the channel, and nothing brings them together.
//!
//! Nothing that one orderer of several sends can do more than end its own connection.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Bytes;
use base::rt::net::{self, Parties};
use base::rt::{self};
use ledger::Block;

use super::pipeline::{Ledger, Pipeline, Tip};
use crate::fault::Stalled;
use crate::order::protocol::{Reply, Request, SILENCE_MAX, TAKEN};
use crate::{Error, events};

/// The wait after the first failure.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// How long one of several orderers may give signs of life and no block.
pub const IDLE_MAX: Duration = SILENCE_MAX;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("it cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("the link ended")]
    Link,
    #[error("it was silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    #[error("it has sent no block for {} s, and others may have some", IDLE_MAX.as_secs())]
    Idle,
    #[error("it refused: {0}")]
    Refused(String),
    #[error("it sent bytes that are no message")]
    Malformed,
    #[error("it sent a bad block: {0}")]
    BadBlock(#[from] ledger::Error),
    #[error("it goes on with other blocks than there are here: {0}")]
    OtherChain(ledger::Error),
    /// The channel is stopping.
    #[error(transparent)]
    Stopped(Error),
}

/// Where orderers serve blocks; it may change while they are followed. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct BlockSources(Arc<Mutex<Arc<[String]>>>);

impl BlockSources {
    /// Where they do now.
    pub fn now(&self) -> Arc<[String]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on they do there. Whoever receives from one of the others goes on until that ends.
    pub fn set(&self, addresses: &[String]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
    }
}

impl From<Vec<String>> for BlockSources {
    fn from(addresses: Vec<String>) -> BlockSources {
        BlockSources(Arc::new(Mutex::new(addresses.into())))
    }
}

/// Receives blocks until the channel stops, then stops the pipeline.
pub async fn follow(ledger: Arc<Ledger>, pipeline: Pipeline, mut tip: Tip, sources: BlockSources) {
    let mut wait = BACKOFF_MIN;
    let mut attempt = 0;
    let mut against: BTreeSet<String> = BTreeSet::new();
    let mut refusals = 0;
    let mut stalled = None;
    while !ledger.stop().is_stopped() {
        let orderers = sources.now();
        if orderers.is_empty() {
            break;
        }
        let orderer = &orderers[attempt % orderers.len()];
        attempt += 1;
        let height_before = tip.height;
        let connection = receive(&ledger, &pipeline, &mut tip, orderer, orderers.len() > 1, &mut stalled);
        let ended = match ledger.stop().or_stopped(connection).await {
            None | Some(Ended::Stopped(_)) => break,
            Some(ended) => ended,
        };
        let channel = ledger.rules.channel();
        if tip.height > height_before {
            against.clear();
        }
        refusals = if matches!(ended, Ended::Refused(_)) { refusals + 1 } else { 0 };
        match &ended {
            Ended::BadBlock(_) | Ended::OtherChain(_) | Ended::Malformed => {
                events::BlocksRefused.add(1);
                tracing::warn!(%channel, orderer, %ended, "left an orderer");
            }
            Ended::Refused(reason) => {
                tracing::info!(%channel, orderer, %ended, "left an orderer");
                if refusals >= orderers.len() {
                    let height = tip.height;
                    let reason = format!("no orderer sends what follows the {height} blocks of this peer: {reason}");
                    stalled.get_or_insert_with(|| ledger.stall(reason));
                }
            }
            _ => tracing::debug!(%channel, orderer, %ended, "left an orderer"),
        }
        if matches!(ended, Ended::OtherChain(_)) {
            against.insert(orderer.clone());
            let all: BTreeSet<&String> = orderers.iter().collect();
            if all.iter().filter(|one| against.contains(**one)).count() > all.len() / 2 {
                ledger.fail(Error::OtherChain { channel: channel.clone(), block: tip.height });
                break;
            }
        }
        let was_well = tip.height > height_before || matches!(ended, Ended::Idle);
        wait = if was_well { BACKOFF_MIN } else { (wait * 2).min(BACKOFF_MAX) };
        // Spread out, so that peers that lost the same orderer do not come back together.
        let spread = wait / 2 + Duration::from_nanos(rt::random_below((wait / 2).as_nanos() as u64 + 1));
        if ledger.stop().or_stopped(rt::sleep(spread)).await.is_none() {
            break;
        }
    }
    if sources.now().is_empty() {
        ledger.stop().stopped().await;
    }
    pipeline.stop().await;
}

async fn receive<'a>(
    ledger: &'a Ledger,
    pipeline: &Pipeline,
    tip: &mut Tip,
    orderer: &str,
    has_others: bool,
    stalled: &mut Option<Stalled<'a>>,
) -> Ended {
    match receive_blocks(ledger, pipeline, tip, orderer, has_others, stalled).await {
        Err(ended) => ended,
        Ok(never) => match never {},
    }
}

async fn receive_blocks(
    ledger: &Ledger,
    pipeline: &Pipeline,
    tip: &mut Tip,
    orderer: &str,
    has_others: bool,
    stalled: &mut Option<Stalled<'_>>,
) -> Result<std::convert::Infallible, Ended> {
    let orderers = ledger.rules.config().orderers().iter().map(|organization| organization.msp_id.to_string());
    let orderers = Parties::of(orderers);
    let mut link = net::connect_to(orderer, &orderers).await.map_err(Ended::Unreachable)?;
    events::DeliverConnections.add(1);
    let request = Request { channel: ledger.rules.channel().to_string(), from: tip.height };
    link.send(request.encode()).await.map_err(|_| Ended::Link)?;
    let mut last = rt::now();
    loop {
        let message = rt::timeout(SILENCE_MAX, link.receive()).await.map_err(|_| Ended::Silent)?;
        let message = message.map_err(|_| Ended::Link)?;
        match Reply::decode(message).map_err(|_| Ended::Malformed)? {
            Reply::Alive => {
                *stalled = None;
                if has_others && last.elapsed() >= IDLE_MAX && !rt::fault_point("chain.deliver.mutant.stays") {
                    return Err(Ended::Idle);
                }
            }
            Reply::Refusal(reason) => return Err(Ended::Refused(reason)),
            Reply::Block(bytes) => {
                let block = verified(ledger, tip, &bytes)?;
                *stalled = None;
                last = rt::now();
                let hash = block.hash();
                pipeline.offer(block).await.map_err(Ended::Stopped)?;
                *tip = Tip { height: tip.height + 1, hash: Some(hash), ..*tip };
                link.send(Bytes::from_static(TAKEN)).await.map_err(|_| Ended::Link)?;
            }
        }
    }
}

/// Reads a block and checks everything about it that does not concern its transactions.
fn verified(ledger: &Ledger, tip: &Tip, bytes: &Bytes) -> Result<Block, Ended> {
    let block = Block::parse(bytes)?;
    let other = match block.check_follows(tip.height, tip.hash.as_ref()) {
        // Whether an orderer says that, its signature tells.
        Err(error @ ledger::Error::PreviousHash { .. }) => Some(error),
        follows => follows.map(|()| None)?,
    };
    block.check_data_hash()?;
    block.verify_signatures(ledger.rules.config())?;
    match other {
        None => Ok(block),
        Some(error) => Err(Ended::OtherChain(error)),
    }
}
