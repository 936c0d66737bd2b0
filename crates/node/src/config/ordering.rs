//! `[ordering]`: how transactions are ordered.

use serde::{Deserialize, Serialize};
use sift::group::NODES_MAX;

/// Maximum of orderers in one network.
const ORDERERS_MAX: usize = 9;
/// The smallest log: it must hold several blocks.
const LOG_BYTES_MIN: u64 = 1 << 20;
/// The largest log: a new leader reads the whole log of each memory node into its memory.
const LOG_BYTES_MAX: u64 = sift::LOG_BYTES_MAX;

/// The ordering engine of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderingEngine {
    /// One orderer with a durable log.
    #[default]
    Solo,
    /// Several orderers, which keep the log in passive memory nodes and on their disks.
    Sift,
    /// Several orderers, each with its own log.
    Raft,
}

impl OrderingEngine {
    /// Its word, as in `--ordering sift`.
    pub fn name(self) -> &'static str {
        match self {
            OrderingEngine::Solo => "solo",
            OrderingEngine::Sift => "sift",
            OrderingEngine::Raft => "raft",
        }
    }
}

/// When an orderer cuts a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutSetting {
    /// As soon as no other block is in flight, and at the latest at a limit of the channel.
    #[default]
    Idle,
    /// At a limit of the channel.
    Limits,
}

/// How transactions are ordered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrderingConfig {
    /// The ordering engine.
    pub engine: OrderingEngine,
    /// When a block is cut.
    pub cut: CutSetting,
    /// Whether the leader changes the order of a block's transactions so that more of them are valid.
    pub reorder: bool,
    /// Whether gateways answer clients whose transactions can never be valid, instead of having them ordered.
    pub early_abort: bool,
    /// The number of orderers, for engines with several.
    pub orderers: usize,
    /// The number of the log's memory nodes, if the engine uses any.
    pub memory_nodes: usize,
    /// Bytes of the log on each of them.
    pub log_bytes: u64,
    /// Whether blocks are shown before they are on disk.
    pub volatile: bool,
}

impl Default for OrderingConfig {
    fn default() -> OrderingConfig {
        OrderingConfig {
            engine: OrderingEngine::Solo,
            cut: CutSetting::Idle,
            reorder: false,
            early_abort: false,
            orderers: 3,
            memory_nodes: 3,
            log_bytes: 64 << 20,
            volatile: false,
        }
    }
}

impl OrderingConfig {
    /// The number of orderers.
    pub fn count(&self) -> usize {
        match self.engine {
            OrderingEngine::Solo => 1,
            OrderingEngine::Sift | OrderingEngine::Raft => self.orderers,
        }
    }

    /// The number of memory nodes of the log.
    pub fn memory_count(&self) -> usize {
        match self.engine {
            OrderingEngine::Sift => self.memory_nodes,
            OrderingEngine::Solo | OrderingEngine::Raft => 0,
        }
    }

    /// Checks the values. An error is a key and its problem.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.engine != OrderingEngine::Sift && self.volatile {
            let engine = self.engine.name();
            let problem = format!(
                "is true, but an orderer of {engine:?} recovers from its own disk; set it to false, or choose the engine \
                 \"sift\""
            );
            return Err(("ordering.volatile", problem));
        }
        if !(1..=ORDERERS_MAX).contains(&self.orderers) {
            return Err(("ordering.orderers", format!("is {}; it must be from 1 to {ORDERERS_MAX}", self.orderers)));
        }
        let nodes = self.memory_nodes;
        if nodes.is_multiple_of(2) || nodes > NODES_MAX {
            let problem = format!("is {nodes}; it must be an odd number up to {NODES_MAX}: 2F+1 survive the loss of F");
            return Err(("ordering.memory_nodes", problem));
        }
        let bytes = self.log_bytes;
        if !bytes.is_multiple_of(4096) || !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
            let problem = format!("is {bytes}; it must be a multiple of 4096 from {LOG_BYTES_MIN} to {LOG_BYTES_MAX}");
            return Err(("ordering.log_bytes", problem));
        }
        Ok(())
    }
}
