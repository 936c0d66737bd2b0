//! Receiving blocks from orderers.
//!
//! 1. Connect to an orderer and ask for blocks from the first one that the [`BlockSink`] lacks.
//! 2. Verify each block: it continues the chain (number and previous hash), the hash of its data equals the data hash
//!    in its header, and it is signed as the channel's configuration requires. Give it to the sink, which may wait.
//! 3. When the link ends, is silent for too long, or delivers anything but the next block, turn to the next orderer.
//!    After each attempt that brought no block, back off for longer, up to [`BACKOFF_MAX`]. When all orderers in turn
//!    have rejected the request, tell the sink why no block comes ([`BlockSink::stall`]). If there are other orderers,
//!    also leave an orderer that sends keepalives and no block for [`IDLE_MAX`]: it may be cut off from the rest of its
//!    group. Such an attempt does not lengthen the back-off.
//! 4. End the channel with an error when more than half of the orderers have sent a properly signed block that has the
//!    next number but another previous hash than the peer's chain, and meanwhile no orderer has sent a block that
//!    continues the peer's chain. Then the orderers have lost blocks that this peer had received. The peer's state is
//!    not the channel's state, and nothing can reconcile the two.
//!
//! One orderer among several can at worst end its own connection.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::Bytes;
use base::rt::net::{self, Parties};
use base::rt::{self, Backoff, CancellationToken};
use ledger::config::ChannelConfig;
use ledger::{Block, Hash};

use crate::events;
use crate::protocol::{BLOCK_ACKNOWLEDGED, DeliverRequest, DeliverResponse, SILENCE_MAX};

/// The wait after the first failure.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// How long an orderer may send keepalives and no block, if there are other orderers.
pub const IDLE_MAX: Duration = SILENCE_MAX;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum DeliveryEnd {
    #[error("it cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("the link ended")]
    Link,
    #[error("it was silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    #[error("it has sent no block for {} s; another orderer may have some", IDLE_MAX.as_secs())]
    Idle,
    #[error("it rejected the request: {0}")]
    Rejected(String),
    #[error("it sent a malformed message")]
    Malformed,
    #[error("it sent a bad block: {0}")]
    BadBlock(#[from] ledger::Error),
    #[error("its chain has forked from the blocks of this peer: {0}")]
    OtherChain(ledger::Error),
    /// The channel is stopping.
    #[error(transparent)]
    Stopped(#[from] SinkStopped),
}

/// The addresses at which orderers serve blocks. They may change while a peer receives blocks. Clones share the
/// addresses.
#[derive(Clone, Debug, Default)]
pub struct SourceAddresses(Arc<Mutex<Arc<[String]>>>);

impl SourceAddresses {
    /// The current addresses.
    pub fn now(&self) -> Arc<[String]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the addresses. A connection to an orderer that is no longer among them continues until it ends.
    pub fn set(&self, addresses: &[String]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into();
    }
}

impl From<Vec<String>> for SourceAddresses {
    fn from(addresses: Vec<String>) -> SourceAddresses {
        SourceAddresses(Arc::new(Mutex::new(addresses.into())))
    }
}

/// The sink takes no more blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the channel has stopped")]
pub struct SinkStopped;

/// What takes the blocks of a channel at a peer.
pub trait BlockSink: Send + Sync {
    /// The configuration under which the next block is received: who the channel's orderers are, and how blocks must be
    /// signed.
    fn config(&self) -> Arc<ChannelConfig>;

    /// Cancelled when the channel stops.
    fn stop(&self) -> &CancellationToken;

    /// Takes the next block, whose place in the chain and signatures are verified. Waits while the sink is full.
    ///
    /// # Errors
    /// If the channel has stopped.
    fn offer(&self, block: Block) -> impl Future<Output = Result<(), SinkStopped>> + Send;

    /// Reports what the channel waits for, until the returned value is dropped.
    fn stall(&self, reason: String) -> Box<dyn Send + '_>;

    /// Ends the channel, since a majority of the orderers continues with another block of this number.
    fn fail_forked(&self, block: u64);
}

/// The blocks that a sink has received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedTip {
    /// Their number.
    pub height: u64,
    /// The header hash of the last one; `None` if there is none.
    pub hash: Option<Hash>,
}

/// Receives the blocks after `tip` until the channel stops or must end.
pub async fn receive_blocks(sink: &impl BlockSink, mut tip: ReceivedTip, sources: SourceAddresses) {
    let mut backoff = Backoff::spread(BACKOFF_MIN, BACKOFF_MAX);
    let mut attempt = 0;
    let mut against: BTreeSet<String> = BTreeSet::new();
    let mut rejections = 0;
    let mut stalled = None;
    let channel = sink.config().channel().clone();
    while !sink.stop().is_cancelled() {
        let orderers = sources.now();
        if orderers.is_empty() {
            break;
        }
        let orderer = &orderers[attempt % orderers.len()];
        attempt += 1;
        let height_before = tip.height;
        let connection = receive(sink, &mut tip, orderer, orderers.len() > 1, &mut stalled);
        let ended = match sink.stop().run_until_cancelled(connection).await {
            None | Some(DeliveryEnd::Stopped(_)) => break,
            Some(ended) => ended,
        };
        if tip.height > height_before {
            against.clear();
        }
        rejections = if matches!(ended, DeliveryEnd::Rejected(_)) { rejections + 1 } else { 0 };
        match &ended {
            DeliveryEnd::BadBlock(_) | DeliveryEnd::OtherChain(_) | DeliveryEnd::Malformed => {
                events::BlocksRejected.add(1);
                tracing::warn!(%channel, orderer, %ended, "left an orderer");
            }
            DeliveryEnd::Rejected(reason) => {
                tracing::info!(%channel, orderer, %ended, "left an orderer");
                if rejections >= orderers.len() {
                    let height = tip.height;
                    let reason = format!("no orderer sends what follows the {height} blocks of this peer: {reason}");
                    stalled.get_or_insert_with(|| sink.stall(reason));
                }
            }
            _ => tracing::debug!(%channel, orderer, %ended, "left an orderer"),
        }
        if matches!(ended, DeliveryEnd::OtherChain(_)) {
            against.insert(orderer.clone());
            let all: BTreeSet<&String> = orderers.iter().collect();
            if all.iter().filter(|one| against.contains(**one)).count() > all.len() / 2 {
                sink.fail_forked(tip.height);
                break;
            }
        }
        if tip.height > height_before || matches!(ended, DeliveryEnd::Idle) {
            backoff.reset();
        }
        if sink.stop().run_until_cancelled(backoff.wait()).await.is_none() {
            break;
        }
    }
    if sources.now().is_empty() {
        sink.stop().cancelled().await;
    }
}

async fn receive(
    sink: &impl BlockSink,
    tip: &mut ReceivedTip,
    orderer: &str,
    has_others: bool,
    stalled: &mut Option<Box<dyn Send + '_>>,
) -> DeliveryEnd {
    match receive_from(sink, tip, orderer, has_others, stalled).await {
        Err(ended) => ended,
        Ok(never) => match never {},
    }
}

async fn receive_from(
    sink: &impl BlockSink,
    tip: &mut ReceivedTip,
    orderer: &str,
    has_others: bool,
    stalled: &mut Option<Box<dyn Send + '_>>,
) -> Result<std::convert::Infallible, DeliveryEnd> {
    let config = sink.config();
    let orderers = Parties::of(config.orderers().iter().map(|organization| organization.msp_id.to_string()));
    let mut link = net::connect_to(orderer, &orderers).await.map_err(DeliveryEnd::Unreachable)?;
    events::DeliverConnections.add(1);
    let request = DeliverRequest { channel: config.channel().to_string(), from: tip.height };
    link.send(request.encode()).await.map_err(|_| DeliveryEnd::Link)?;
    let mut last = rt::now();
    loop {
        let message = rt::timeout(SILENCE_MAX, link.receive()).await.map_err(|_| DeliveryEnd::Silent)?;
        let message = message.map_err(|_| DeliveryEnd::Link)?;
        match DeliverResponse::decode(message).map_err(|_| DeliveryEnd::Malformed)? {
            DeliverResponse::Keepalive => {
                *stalled = None;
                if has_others && last.elapsed() >= IDLE_MAX && !rt::fault_point("chain.deliver.mutant.stays") {
                    return Err(DeliveryEnd::Idle);
                }
            }
            DeliverResponse::Rejection(reason) => return Err(DeliveryEnd::Rejected(reason)),
            DeliverResponse::Block(bytes) => {
                let block = verify_block(&sink.config(), tip, &bytes)?;
                *stalled = None;
                last = rt::now();
                let hash = block.hash();
                sink.offer(block).await?;
                *tip = ReceivedTip { height: tip.height + 1, hash: Some(hash) };
                link.send(Bytes::from_static(BLOCK_ACKNOWLEDGED)).await.map_err(|_| DeliveryEnd::Link)?;
            }
        }
    }
}

/// Reads a block and checks everything about it that does not concern its transactions.
fn verify_block(config: &ChannelConfig, tip: &ReceivedTip, bytes: &Bytes) -> Result<Block, DeliveryEnd> {
    let block = Block::parse(bytes)?;
    let other = match block.check_follows(tip.height, tip.hash.as_ref()) {
        // The orderer's signature, checked below, proves that it sent this.
        Err(error @ ledger::Error::PreviousHash { .. }) => Some(error),
        follows => follows.map(|()| None)?,
    };
    block.check_data_hash()?;
    block.verify_signatures(config)?;
    match other {
        None => Ok(block),
        Some(error) => Err(DeliveryEnd::OtherChain(error)),
    }
}
