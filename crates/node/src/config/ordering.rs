//! `[ordering]`: what puts transactions in order.

use consensus::group::NODES_MAX;
use serde::{Deserialize, Serialize};

/// Orderers of one network.
const ORDERERS_MAX: usize = 9;
/// The smallest log: it must have room for some blocks.
const LOG_BYTES_LEAST: u64 = 1 << 20;
/// The largest: the next leader has that of each memory node in memory.
const LOG_BYTES_MOST: u64 = consensus::LOG_BYTES_MAX;

/// What orders a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// One orderer with a durable log.
    #[default]
    Solo,
    /// Several orderers, which keep the log in passive memory nodes and on their disks.
    Sift,
    /// Several orderers, each with a log of its own.
    Raft,
}

impl Engine {
    /// Its word, as in `--ordering sift`.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Solo => "solo",
            Engine::Sift => "sift",
            Engine::Raft => "raft",
        }
    }
}

/// When an orderer cuts a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// As soon as no other block is under way, and at the latest at a limit of the channel.
    #[default]
    Idle,
    /// At a limit of the channel.
    Limits,
}

/// What puts transactions in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ordering {
    /// What orders the channel.
    pub engine: Engine,
    /// When a block is cut.
    pub cut: Cut,
    /// Orderers, where several order.
    pub orderers: usize,
    /// Memory nodes of the log, where the engine has some.
    pub memory_nodes: usize,
    /// Bytes of that log.
    pub log_bytes: u64,
    /// Whether blocks are shown before they are on disks.
    pub volatile: bool,
}

impl Default for Ordering {
    fn default() -> Ordering {
        Ordering {
            engine: Engine::Solo,
            cut: Cut::Idle,
            orderers: 3,
            memory_nodes: 3,
            log_bytes: 64 << 20,
            volatile: false,
        }
    }
}

impl Ordering {
    /// How many orderers there are.
    pub fn count(&self) -> usize {
        match self.engine {
            Engine::Solo => 1,
            Engine::Sift | Engine::Raft => self.orderers,
        }
    }

    /// How many memory nodes the log has.
    pub fn memory_count(&self) -> usize {
        match self.engine {
            Engine::Sift => self.memory_nodes,
            Engine::Solo | Engine::Raft => 0,
        }
    }

    /// Checks the values: a key and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.engine != Engine::Sift && self.volatile {
            let engine = self.engine.name();
            let problem = format!(
                "is true, and an orderer of {engine:?} goes on from what its disk has; set it to false, or choose the \
                 engine \"sift\""
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
        if !bytes.is_multiple_of(4096) || !(LOG_BYTES_LEAST..=LOG_BYTES_MOST).contains(&bytes) {
            let problem =
                format!("is {bytes}; it must be a multiple of 4096 from {LOG_BYTES_LEAST} to {LOG_BYTES_MOST}");
            return Err(("ordering.log_bytes", problem));
        }
        Ok(())
    }
}
