//! What `heddle bench state` measures.

use std::time::Duration;

/// Blocks between savepoints.
pub(crate) const PERSIST_BLOCKS: u64 = 32;

/// How to measure.
#[derive(Clone, Debug)]
pub struct StateConfig {
    /// Bytes of values in remote memory for reads.
    pub data_bytes: u64,
    /// Bytes of one value for reads.
    pub value_bytes: usize,
    /// How long each pair of runs of the load takes, for each form.
    pub seconds: f64,
    /// Pairs of runs of the load.
    pub pairs: usize,
    /// Fixes the choice of keys.
    pub seed: u64,
    /// Latencies of the shaped interconnect.
    pub shapes: Vec<Duration>,
    /// How long updates run within constant memory.
    pub steady: Duration,
    /// The part to measure; all of them if `None`.
    pub only: Option<StatePart>,
}

/// A part of the figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatePart {
    /// Reads of the state at each level of its caches.
    Reads,
    /// The application of blocks.
    Blocks,
    /// The load against both forms of a peer.
    Load,
    /// Updates within constant memory.
    Pressure,
}

impl Default for StateConfig {
    fn default() -> StateConfig {
        StateConfig {
            data_bytes: 256 << 20,
            value_bytes: 1024,
            seconds: 3.0,
            pairs: 5,
            seed: 1,
            shapes: vec![Duration::from_micros(2), Duration::from_micros(8)],
            steady: Duration::from_secs(30),
            only: None,
        }
    }
}
