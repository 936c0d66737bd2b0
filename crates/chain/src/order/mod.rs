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
//! 5. If [`BroadcastConfig::reorder`] is set, the leader changes the order of the transactions within a block, so that more of
//!    them are valid ([`predictor`], [`reorder`]). It never drops one, and never moves one to another block.
//! 6. A configuration update becomes the next configuration, alone in its block ([`config`]). From the next block on, the
//!    leader checks envelopes and cuts blocks by the new configuration.
//!
//! Invariants:
//! 1. A block is committed before any peer sees it: it is on this orderer's disk if the orderer orders alone, and on
//!    the disks of a majority if there are several. After any crash the chain continues after the last committed block,
//!    and no peer has ever seen another block in its place.
//! 2. An acknowledged envelope is in the queue, as in Fabric; with [`AcknowledgeMode::Durable`] it is in a committed block.
//!    A crash loses the envelopes that were queued and not committed, but never reorders envelopes within their channel. The
//!    order of blocks is that of the queue; that within a block is too, unless [`BroadcastConfig::reorder`] is set.
//!    With [`AcknowledgeMode::Durable`] the client learns the outcome: [`BroadcastError::NotLeading`] means that no block
//!    of this orderer contains the envelope; [`BroadcastError::Ambiguous`] means that a block may contain it.
//! 3. The queue (by count and bytes), the blocks in flight, the connections and the ring of recent blocks are bounded. If
//!    the queue is full, the caller gets [`BroadcastError::Overloaded`].
//!
//! A transaction that arrives twice is ordered twice, and peers mark the second one as a duplicate. So it is harmless to
//! resend an envelope that may have been ordered already ([`crate::remote::RemoteOrderers`]).

mod broadcast;
mod config;
pub mod cutter;
pub mod filter;
pub mod log_store;
mod orderer;
pub mod orderer_channel;
pub mod pacer;
pub mod predictor;
pub mod reorder;

pub use broadcast::{AcknowledgeMode, BLOCK_BYTES_MAX, Broadcast, BroadcastConfig, BroadcastError, CuttingMode};
pub use log_store::{OrderingEngines, SoloEngines};
pub use orderer::{Orderer, OrdererSetup};
