//! Settings of the engine.

/// Settings of the engine. All but the cache sizes are fixed when a channel's tables are created.
#[derive(Clone, Debug)]
pub struct FjallConfig {
    /// Cache of the engine's blocks, for all channels.
    pub cache_bytes: u64,
    /// Rows of one channel that are gathered in memory before they are flushed in sorted order.
    pub memtable_bytes: u64,
    /// Total size of the journal's files; reaching it flushes memtables. At least 64 MiB.
    pub journal_bytes_max: u64,
    /// Threads that flush and merge, at least [`WORKER_THREADS_MIN`].
    pub worker_threads: usize,
    /// Compress blocks of rows (LZ4). Saves space, costs processor time.
    pub compression: bool,
    /// Values from this length on are kept outside the merge tree; `None` keeps all inside.
    pub separate_value_bytes: Option<u32>,
    /// Memory for the newest versions of recently used keys, for each channel (40 bytes a key).
    pub hint_bytes: usize,
}

impl Default for FjallConfig {
    fn default() -> Self {
        FjallConfig {
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            journal_bytes_max: 512 << 20,
            worker_threads: WORKER_THREADS_MIN,
            compression: false,
            separate_value_bytes: Some(2048),
            hint_bytes: 16 << 20,
        }
    }
}

/// With a single worker the engine (fjall 3.1) can deadlock: writers fill its bounded queue with requests to rotate a full
/// memtable while the worker merges, and the worker then waits for space in the queue that only it empties.
pub const WORKER_THREADS_MIN: usize = 2;
