//! Putting transactions in order.
//!
//! 1. [`Broadcast::broadcast`]: an envelope is checked ([`filter`]) in the caller's task and joins the queue of its
//!    channel.
//! 2. The channel's cutter ([`cutter`]) puts envelopes into blocks, as soon as no block is under way ([`pace`]) and at the latest
//!    at a limit of count, bytes or time; each block is hashed, signed and handed to the channel's engine ([`chain`]), by whichever
//!    orderer leads. The others turn envelopes away, with the name of the leader ([`BroadcastError::NotLeading`]).
//! 3. The engine ([`consensus::ordered`]) brings blocks into the log of every orderer of its group ([`journal`]), and says which are
//!    safe. While the next block is being cut, those before it are on their way to memory and disks. Only safe blocks are shown to
//!    peers, by every orderer.
//! 4. Peers ask for blocks over links and follow the tip ([`serve`], [`protocol`]).
//!
//! Invariants:
//! 1. A block is safe before any peer sees it: on this orderer's disk where it orders alone, on a majority's where several do.
//!    After any crash the chain goes on behind the last such block, and no peer ever saw another block in its place.
//! 2. An acknowledged envelope is in the queue, as in Fabric; with [`Acknowledge::Durable`] it is in a safe block.
//!    Envelopes that were queued and not safe are lost in a crash, never reordered within their channel. With
//!    [`Acknowledge::Durable`] nobody is told otherwise: [`BroadcastError::NotLeading`] says that an envelope is in no block of this
//!    orderer's, [`BroadcastError::Ambiguous`] that nobody knows.
//! 3. Queue (by count and bytes), blocks in flight, connections and the ring of recent blocks are bounded; a full queue is an answer
//!    ([`BroadcastError::Overloaded`]).
//!
//! Transactions that arrive twice are ordered twice; peers mark the second one. So whoever sends again what may be ordered
//! ([`crate::remote::RemoteOrderers`]) changes nothing.

pub mod chain;
pub mod cutter;
pub mod filter;
pub mod journal;
pub mod pace;
pub mod protocol;
pub mod serve;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::rt::net::{Door, Parties};
use base::rt::{self, Stop, Task};
use base::{Bytes, ErrorKind};
use consensus::ordered::{Journal as _, Processor};
use ledger::{Block, ChannelConfig};
use proto::common::Status;
use storage::{GroupSync, WatermarkFile};

use crate::access::{Definitions, Rules};
use crate::{Error, events};
use chain::Chain;
use journal::ChainJournal;
pub use journal::{Engines, SoloEngines};

/// Takes envelopes into channels.
#[async_trait]
pub trait Broadcast: Send + Sync {
    /// Hands an envelope over to be ordered. On return it was taken; see [`Acknowledge`] for what that means.
    ///
    /// Dropping the future leaves it unknown whether the envelope was taken.
    ///
    /// # Errors
    /// See [`BroadcastError`].
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError>;
}

/// Why an envelope was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BroadcastError {
    /// The envelope is refused, and will be again.
    #[error("{reason} ({})", status.as_str_name())]
    Rejected {
        /// Fabric's status: `BAD_REQUEST`, `FORBIDDEN` or `NOT_FOUND`.
        status: Status,
        /// Why.
        reason: String,
    },
    /// More envelopes wait than the queue holds.
    #[error("the orderer is overloaded; try again")]
    Overloaded,
    /// Another orderer leads. The envelope is in no block.
    #[error("this orderer does not lead{}; try again, there or at another one", leader_text(*leader))]
    NotLeading {
        /// Which one does, if that is known.
        leader: Option<Processor>,
    },
    /// The orderer has stopped.
    #[error("the orderer has stopped")]
    Stopped,
    /// The orderer stopped, or lost the lead, after the envelope was queued; it may be in a block.
    #[error("the orderer stopped before the envelope's block was durable")]
    Ambiguous,
}

fn leader_text(leader: Option<Processor>) -> String {
    leader.map(|leader| format!(", number {leader} does")).unwrap_or_default()
}

impl BroadcastError {
    /// What the caller is to do.
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
pub enum Acknowledge {
    /// Once it is queued, as in Fabric.
    #[default]
    Queued,
    /// Once the block it is in is durable.
    Durable,
}

/// Bytes of envelopes that a block holds at most, whatever the configuration allows: clients of Fabric take messages of
/// 100 MiB, and a peer stores ids and codes with the block, the ids at worst as long as the envelopes.
pub const BLOCK_BYTES_MAX: u32 = 96 << 20;

const _: () = assert!(4 * BLOCK_BYTES_MAX as u64 <= storage::blocks::RECORD_BYTES_MAX);

/// When a block is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cutting {
    /// As soon as no block is under way, and at the latest at a limit of the channel; see [`pace`].
    #[default]
    Idle,
    /// At a limit of the channel, as in Fabric.
    Limits,
}

/// How an orderer behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Envelopes that may wait in a channel's queue.
    pub queue_messages_max: usize,
    /// Bytes of envelopes that may wait in a channel's queue; the largest envelope must fit.
    pub queue_bytes_max: u32,
    /// How long a caller waits for room in the queue before it is turned away; zero turns it away at once.
    pub queue_wait_max: Duration,
    /// When an envelope is acknowledged.
    pub acknowledge: Acknowledge,
    /// When a block is cut.
    pub cutting: Cutting,
    /// Links that may be served at once at each address, shared between the organisations.
    pub connections_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            queue_messages_max: 4096,
            queue_bytes_max: 256 << 20,
            queue_wait_max: Duration::from_secs(2),
            acknowledge: Acknowledge::Queued,
            cutting: Cutting::Idle,
            connections_max: 256,
        }
    }
}

/// What an orderer is made of.
#[derive(Clone)]
pub struct OrdererOptions {
    /// Signs blocks.
    pub signer: identity::Signer,
    /// Holds one log for each channel.
    pub directory: Directory,
    /// Shared with whoever else writes to the same disk.
    pub sync: GroupSync,
    /// Order the channels: alone ([`SoloEngines`]), or together with others.
    pub engines: Arc<dyn Engines>,
    pub settings: Settings,
    /// Holds the notes of how far each channel's log has come; none are kept where a log may go back, as a volatile one does.
    pub watermarks: Option<Directory>,
}

/// One ordering node.
pub struct Orderer {
    options: OrdererOptions,
    chains: RwLock<BTreeMap<String, Arc<Chain>>>,
    tasks: Mutex<Vec<Task<()>>>,
    unserved: Stop,
    stop: Stop,
}

impl Orderer {
    /// Opens every channel that the directory holds, and goes on where its log ends.
    ///
    /// # Errors
    /// If a log or a configuration cannot be read.
    pub async fn open(options: OrdererOptions) -> Result<Arc<Orderer>, Error> {
        let orderer = Orderer {
            options,
            chains: RwLock::default(),
            tasks: Mutex::default(),
            unserved: Stop::new(),
            stop: Stop::new(),
        };
        let names = orderer.options.directory.list().map_err(|error| Error::io("listing channels", &error))?;
        for name in names {
            if ledger::config::check_channel_name(&name).is_err() {
                tracing::warn!(name, "passed over: not a channel's log");
                continue;
            }
            let journal = orderer.open_journal(&name).await?;
            if journal.height() == 0 {
                // Joined, and stopped before its genesis block was durable: it is joined again.
                continue;
            }
            orderer.start_chain(journal).await?;
        }
        Ok(Arc::new(orderer))
    }

    /// Takes a channel in whose genesis block this is. Durable on return. Joining again with the same block does nothing.
    ///
    /// # Errors
    /// If the block is no genesis block, or the channel is held with another one.
    pub async fn join(&self, genesis: &Block) -> Result<(), Error> {
        let config = ChannelConfig::from_block(genesis)?;
        let name = config.channel().clone();
        if let Some(chain) = self.chain(&name) {
            let same = chain.store().number_by_hash(&genesis.hash())?.is_some_and(|number| number.get() == 0);
            return if same { Ok(()) } else { Err(Error::ChannelExists(name)) };
        }
        genesis.check_follows(0, None)?;
        genesis.check_data_hash()?;
        let journal = self.open_journal(&name).await?;
        if journal.height() == 0 {
            let store = journal.store();
            crate::commit::pipeline::append_block(&store, genesis, &[]).await?;
            store.sync().await?;
        }
        self.start_chain(journal).await
    }

    async fn open_journal(&self, channel: &str) -> Result<Arc<ChainJournal>, Error> {
        ledger::config::check_channel_name(channel)?;
        Ok(Arc::new(ChainJournal::open(&self.options.directory, channel, self.options.sync.clone()).await?))
    }

    async fn start_chain(&self, journal: Arc<ChainJournal>) -> Result<(), Error> {
        let genesis = journal
            .store()
            .read(base::BlockNumber(0))?
            .ok_or_else(|| Error::Stored { block: 0, reason: "the log has no genesis block".to_owned() })?;
        let config = Arc::new(ChannelConfig::from_block(&Block::parse(&genesis)?)?);
        let rules = Arc::new(Rules::new(config, Definitions::new())?);
        let name = rules.channel().to_string();
        let OrdererOptions { engines, signer, settings, watermarks, .. } = &self.options;
        let watermark = watermarks.clone().map(|directory| WatermarkFile::open(directory, &name)).transpose()?;
        if let Some(watermark) = &watermark {
            journal.check_watermark(watermark).await?;
        }
        let chain = Chain::start(rules, journal, engines.as_ref(), signer.clone(), settings.clone(), watermark).await?;
        self.chains.write().expect("no holder of this lock panics").insert(name, chain);
        Ok(())
    }

    /// Channels held here, sorted.
    pub fn channels(&self) -> Vec<String> {
        self.chains.read().expect("no holder of this lock panics").keys().cloned().collect()
    }

    /// One channel's log.
    pub fn chain(&self, channel: &str) -> Option<Arc<Chain>> {
        self.chains.read().expect("no holder of this lock panics").get(channel).cloned()
    }

    /// Answers peers at `address` until the orderer stops: those of organisations that are members of the channels it holds
    /// by now, and each about its own channels only.
    ///
    /// # Errors
    /// If the address is taken.
    pub async fn serve(self: &Arc<Self>, address: &str) -> Result<(), Error> {
        let members = Parties::of(self.chains().iter().flat_map(|chain| chain.members()));
        let connections_max = self.options.settings.connections_max;
        let door = Door::open(address, &members, connections_max).await.map_err(|error| Error::io(address, &error))?;
        let task = rt::spawn(serve::accept(self.clone(), door));
        self.tasks.lock().expect("no holder of this lock panics").push(task);
        Ok(())
    }

    /// Stopped when an address at which it answered peers is not served any more.
    pub fn unserved(&self) -> &Stop {
        &self.unserved
    }

    fn chains(&self) -> Vec<Arc<Chain>> {
        self.chains.read().expect("no holder of this lock panics").values().cloned().collect()
    }

    pub(crate) fn stopping(&self) -> &Stop {
        &self.stop
    }

    /// Takes no more envelopes, makes what waits durable, and ends all connections.
    pub async fn stop(&self) {
        self.stop.stop();
        let chains = std::mem::take(&mut *self.chains.write().expect("no holder of this lock panics"));
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

#[async_trait]
impl Broadcast for Orderer {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if self.stop.is_stopped() {
            return Err(BroadcastError::Stopped);
        }
        let Some(chain) = self.chain(channel) else {
            events::MessagesRefused.add(1);
            return Err(BroadcastError::Rejected {
                status: Status::NotFound,
                reason: format!("channel {channel} is not known here"),
            });
        };
        chain.broadcast(envelope).await
    }
}
