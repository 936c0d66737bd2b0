//! Putting transactions in order.
//!
//! 1. [`Broadcast::broadcast`]: an envelope is checked ([`filter`]) in the caller's task and joins the queue of its
//!    channel.
//! 2. The channel's cutter ([`cutter`]) puts envelopes into blocks: as soon as no block is in flight ([`pacer`]), and at
//!    the latest at a limit of count, bytes or time. The leader hashes and signs each block and hands it to the channel's
//!    ordering engine ([`orderer_channel`]). The other orderers reject envelopes with the name of the leader
//!    ([`BroadcastError::NotLeading`]).
//! 3. The engine ([`ordered_log`]) replicates blocks to the log of every orderer of its group ([`log_store`]), and
//!    reports which blocks are committed. While the next block is being cut, earlier blocks are on their way to memory and
//!    disks. Every orderer shows peers committed blocks only.
//! 4. Peers ask for blocks over links and follow the tip ([`block_transport`]).
//!
//! Invariants:
//! 1. A block is committed before any peer sees it: it is on this orderer's disk if the orderer orders alone, and on
//!    the disks of a majority if there are several. After any crash the chain continues after the last committed block,
//!    and no peer has ever seen another block in its place.
//! 2. An acknowledged envelope is in the queue, as in Fabric; with [`AcknowledgeMode::Durable`] it is in a committed block.
//!    A crash loses the envelopes that were queued and not committed, but never reorders envelopes within their channel.
//!    With [`AcknowledgeMode::Durable`] the client learns the outcome: [`BroadcastError::NotLeading`] means that no block
//!    of this orderer contains the envelope; [`BroadcastError::Ambiguous`] means that a block may contain it.
//! 3. The queue (by count and bytes), the blocks in flight, the connections and the ring of recent blocks are bounded. If
//!    the queue is full, the caller gets [`BroadcastError::Overloaded`].
//!
//! A transaction that arrives twice is ordered twice, and peers mark the second one as a duplicate. So it is harmless to
//! resend an envelope that may have been ordered already ([`crate::remote::RemoteOrderers`]).

pub mod cutter;
pub mod filter;
pub mod log_store;
pub mod orderer_channel;
pub mod pacer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::rt::net::{LinkAcceptor, Parties};
use base::rt::{self, CancellationToken, Task};
use base::{Bytes, ErrorKind};
use block_transport::{BlockSource, ChannelBlocks};
use ledger::{Block, ChannelConfig};
use ordered_log::{CpuNodeId, LogStore as _};
use proto::common::Status;
use storage::{GroupSync, WatermarkFile};

use crate::access::{ChannelPolicies, ContractDefinitions};
use crate::{Error, events};
use log_store::ChannelLogStore;
pub use log_store::{OrderingEngines, SoloEngines};
use orderer_channel::OrdererChannel;

/// Accepts envelopes for channels.
#[async_trait]
pub trait Broadcast: Send + Sync {
    /// Submits an envelope to be ordered. On return the envelope is acknowledged; see [`AcknowledgeMode`] for what that
    /// means.
    ///
    /// If the future is dropped, the envelope may or may not have been accepted.
    ///
    /// # Errors
    /// See [`BroadcastError`].
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError>;
}

/// Why an envelope was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BroadcastError {
    /// The envelope is rejected, and would be rejected again.
    #[error("{reason} ({})", status.as_str_name())]
    Rejected {
        /// Fabric's status: `BAD_REQUEST`, `FORBIDDEN` or `NOT_FOUND`.
        status: Status,
        /// The reason.
        reason: String,
    },
    /// The queue is full.
    #[error("the orderer's queue is full; back off and retry")]
    Overloaded,
    /// Another orderer is the leader. The envelope is in no block.
    #[error("this orderer is not the leader{}; retry at the leader or at another orderer", leader_text(*leader))]
    NotLeading {
        /// The leader, if it is known.
        leader: Option<CpuNodeId>,
    },
    /// The orderer has stopped.
    #[error("the orderer has stopped")]
    Stopped,
    /// The orderer stopped or lost leadership after the envelope was queued; the envelope may be in a block.
    #[error("the orderer stopped before the envelope's block was durable; the envelope may be in a block")]
    Ambiguous,
}

fn leader_text(leader: Option<CpuNodeId>) -> String {
    leader.map(|leader| format!(", orderer {leader} is")).unwrap_or_default()
}

impl BroadcastError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            BroadcastError::Rejected { .. } => ErrorKind::Rejected,
            BroadcastError::Overloaded | BroadcastError::NotLeading { .. } => ErrorKind::Retry,
            BroadcastError::Stopped => ErrorKind::Closed,
            BroadcastError::Ambiguous => ErrorKind::Ambiguous,
        }
    }

    /// The status that Fabric's `BroadcastResponse` carries.
    pub fn status(&self) -> Status {
        match self {
            BroadcastError::Rejected { status, .. } => *status,
            _ => Status::ServiceUnavailable,
        }
    }
}

/// When an envelope is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcknowledgeMode {
    /// Once the envelope is queued, as in Fabric.
    #[default]
    Queued,
    /// Once the envelope's block is durable.
    Durable,
}

/// The largest number of bytes of envelopes in a block, whatever the configuration allows. Clients of Fabric accept
/// messages of 100 MiB, and a peer stores ids and codes with the block; the ids are at worst as long as the envelopes.
pub const BLOCK_BYTES_MAX: u32 = 96 << 20;

const _: () = assert!(4 * BLOCK_BYTES_MAX as u64 <= storage::blocks::RECORD_BYTES_MAX);

/// When a block is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CuttingMode {
    /// As soon as no block is in flight, and at the latest at a limit of the channel; see [`pacer`].
    #[default]
    Idle,
    /// At a limit of the channel, as in Fabric.
    Limits,
}

/// The settings of an orderer.
#[derive(Clone, Debug)]
pub struct BroadcastConfig {
    /// Envelopes that may wait in a channel's queue.
    pub queue_messages_max: usize,
    /// Bytes of envelopes that may wait in a channel's queue; the largest envelope must fit.
    pub queue_bytes_max: u32,
    /// How long a caller waits for space in the queue before it is rejected; with zero it is rejected at once.
    pub queue_wait_max: Duration,
    /// When an envelope is acknowledged.
    pub acknowledge: AcknowledgeMode,
    /// When a block is cut.
    pub cutting: CuttingMode,
    /// Links that may be served at the same time at each address, divided between the organisations.
    pub connections_max: usize,
}

impl Default for BroadcastConfig {
    fn default() -> Self {
        BroadcastConfig {
            queue_messages_max: 4096,
            queue_bytes_max: 256 << 20,
            queue_wait_max: Duration::from_secs(2),
            acknowledge: AcknowledgeMode::Queued,
            cutting: CuttingMode::Idle,
            connections_max: 256,
        }
    }
}

/// What an orderer needs to run.
#[derive(Clone)]
pub struct OrdererSetup {
    /// Signs blocks.
    pub signer: identity::Signer,
    /// Holds one log for each channel.
    pub directory: Directory,
    /// Shared with everything else that writes to the same disk.
    pub sync: GroupSync,
    /// Order the channels: this orderer alone ([`SoloEngines`]), or a group.
    pub engines: Arc<dyn OrderingEngines>,
    /// Bounds of the queue, and when the orderer acknowledges and cuts.
    pub settings: BroadcastConfig,
    /// Holds the notes of how far each channel's log has come. `None` if a log may lose blocks, as a volatile one does.
    pub watermarks: Option<Directory>,
}

/// One ordering node.
pub struct Orderer {
    options: OrdererSetup,
    channels: RwLock<BTreeMap<String, Arc<OrdererChannel>>>,
    tasks: Mutex<Vec<Task<()>>>,
    unserved: CancellationToken,
    stop: CancellationToken,
}

impl Orderer {
    /// Opens every channel in the directory, and continues at the end of its log.
    ///
    /// # Errors
    /// If a log or a configuration cannot be read.
    pub async fn open(options: OrdererSetup) -> Result<Arc<Orderer>, Error> {
        let orderer = Orderer {
            options,
            channels: RwLock::default(),
            tasks: Mutex::default(),
            unserved: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        let names = orderer.options.directory.list().map_err(|error| Error::io("listing channels", &error))?;
        for name in names {
            if ledger::config::check_channel_name(&name).is_err() {
                tracing::warn!(name, "passed over: not a channel's log");
                continue;
            }
            let log_store = orderer.open_log_store(&name).await?;
            if log_store.height() == 0 {
                // The orderer stopped before the genesis block was durable: the channel is joined again.
                continue;
            }
            orderer.start_channel(log_store).await?;
        }
        Ok(Arc::new(orderer))
    }

    /// Joins the channel of this genesis block. Durable on return. Joining again with the same block does nothing.
    ///
    /// # Errors
    /// If the block is no genesis block, or if the channel exists here with another one.
    pub async fn join(&self, genesis: &Block) -> Result<(), Error> {
        let config = ChannelConfig::from_block(genesis)?;
        let name = config.channel().clone();
        if let Some(chain) = self.channel(&name) {
            let same = chain.store().number_by_hash(&genesis.hash())?.is_some_and(|number| number.get() == 0);
            return if same { Ok(()) } else { Err(Error::ChannelExists(name)) };
        }
        genesis.check_follows(0, None)?;
        genesis.check_data_hash()?;
        let log_store = self.open_log_store(&name).await?;
        if log_store.height() == 0 {
            let store = log_store.store();
            crate::commit::pipeline::append_block(&store, genesis, &[]).await?;
            store.sync().await?;
        }
        self.start_channel(log_store).await
    }

    async fn open_log_store(&self, channel: &str) -> Result<Arc<ChannelLogStore>, Error> {
        ledger::config::check_channel_name(channel)?;
        Ok(Arc::new(ChannelLogStore::open(&self.options.directory, channel, self.options.sync.clone()).await?))
    }

    async fn start_channel(&self, log_store: Arc<ChannelLogStore>) -> Result<(), Error> {
        let genesis = log_store
            .store()
            .read(base::BlockNumber(0))?
            .ok_or_else(|| Error::Stored { block: 0, reason: "the log has no genesis block".to_owned() })?;
        let config = Arc::new(ChannelConfig::from_block(&Block::parse(&genesis)?)?);
        let policies = Arc::new(ChannelPolicies::new(config, ContractDefinitions::new())?);
        let name = policies.channel().to_string();
        let OrdererSetup { engines, signer, settings, watermarks, .. } = &self.options;
        let watermark = watermarks.clone().map(|directory| WatermarkFile::open(directory, &name)).transpose()?;
        if let Some(watermark) = &watermark {
            log_store.check_watermark(watermark).await?;
        }
        let chain =
            OrdererChannel::start(policies, log_store, engines.as_ref(), signer.clone(), settings.clone(), watermark)
                .await?;
        self.channels.write().expect("no holder of this lock panics").insert(name, chain);
        Ok(())
    }

    /// One channel's log.
    pub fn channel(&self, channel: &str) -> Option<Arc<OrdererChannel>> {
        self.channels.read().expect("no holder of this lock panics").get(channel).cloned()
    }

    /// Serves peers at `address` until the orderer stops. Peers of the organisations that are now members of its
    /// channels may connect, and each may ask about its own channels only.
    ///
    /// # Errors
    /// If the address is in use.
    pub async fn serve(self: &Arc<Self>, address: &str) -> Result<(), Error> {
        let members = Parties::of(self.all_channels().iter().flat_map(|chain| chain.members()));
        let connections_max = self.options.settings.connections_max;
        let door =
            LinkAcceptor::open(address, &members, connections_max).await.map_err(|error| Error::io(address, &error))?;
        let task = rt::spawn({
            let orderer = self.clone();
            async move {
                block_transport::serve(orderer.clone(), door).await;
                orderer.unserved.cancel();
            }
        });
        self.tasks.lock().expect("no holder of this lock panics").push(task);
        Ok(())
    }

    /// Stopped when an address at which the orderer served peers is no longer served.
    pub fn unserved(&self) -> &CancellationToken {
        &self.unserved
    }

    fn all_channels(&self) -> Vec<Arc<OrdererChannel>> {
        self.channels.read().expect("no holder of this lock panics").values().cloned().collect()
    }

    /// Accepts no more envelopes, makes the waiting ones durable, and ends all connections.
    pub async fn stop(&self) {
        self.stop.cancel();
        let chains = std::mem::take(&mut *self.channels.write().expect("no holder of this lock panics"));
        for chain in chains.into_values() {
            chain.stop().await;
        }
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        for task in tasks {
            // A task that was aborted has nothing left to do.
            let _ = task.await;
        }
    }
}

impl BlockSource for Orderer {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelBlocks>> {
        Some(Orderer::channel(self, name)?)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stop
    }
}

#[async_trait]
impl Broadcast for Orderer {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if self.stop.is_cancelled() {
            return Err(BroadcastError::Stopped);
        }
        let Some(chain) = self.channel(channel) else {
            events::MessagesRejected.add(1);
            return Err(BroadcastError::Rejected {
                status: Status::NotFound,
                reason: format!("channel {channel} is not known here"),
            });
        };
        chain.broadcast(envelope).await
    }
}
