//! What `heddle bench rma` measures, and the sizes of its verbs.

use std::time::Duration;

/// Bytes that verbs move.
pub(super) const SIZES: [usize; 5] = [8, 64, 1 << 10, 10 << 10, 1 << 20];
/// Latency ratios are those of verbs of at most this many bytes; beyond that, bandwidth counts.
pub(super) const LATENCY_BYTES_MAX: usize = 10 << 10;
/// Bandwidth ratios are those of reads and writes of this many bytes.
pub(super) const BANDWIDTH_BYTES: usize = 1 << 20;

/// The cost of TLS is measured with verbs of this many bytes.
pub(super) const TLS_BYTES: usize = 64 << 10;

/// How to measure.
#[derive(Clone, Debug)]
pub struct RmaConfig {
    /// Batches of each verb and of its floor, in turns.
    pub rounds: usize,
    /// The approximate length of one batch.
    pub batch: Duration,
    /// Bytes of the region that cold verbs go over.
    pub data_bytes: u64,
    /// Fixes the offsets.
    pub seed: u64,
    /// `shm` is measured.
    pub shm: bool,
    /// `tcp` is measured.
    pub tcp: bool,
    /// Latencies of the shaped interconnect.
    pub shapes: Vec<Duration>,
}

impl Default for RmaConfig {
    fn default() -> RmaConfig {
        RmaConfig {
            rounds: 31,
            batch: Duration::from_millis(3),
            data_bytes: 256 << 20,
            seed: 1,
            shm: true,
            tcp: true,
            shapes: vec![Duration::from_micros(2), Duration::from_micros(8)],
        }
    }
}
