//! The options with which stores are started, and their limits.

use std::net::SocketAddr;
use std::path::PathBuf;

use kv::StoreGeometry;

/// The option that sets the first port.
pub(super) const LISTEN: &str = "the port of --listen";
/// Maximum of stores per process.
pub const STORES_MAX: u32 = 64;
/// Bytes of a group's own log, unless its store needs more.
pub(super) const GROUP_LOG_BYTES: u64 = 4 << 20;

/// What survives the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// The coordinator's tables in the storage engine.
    Coordinator {
        /// Whether a change is acknowledged only when the tables have it, so that every acknowledged change survives
        /// the process. Otherwise the last changes before the end may be lost.
        is_synchronous: bool,
    },
    /// Every acknowledged change: it is acknowledged when F+1 memory nodes have it on disk.
    Nodes,
}

/// The options of the stores.
#[derive(Clone, Debug)]
pub struct KvStoresConfig {
    /// The directory of `kv.json` and `ca.pem`, for clients.
    pub directory: PathBuf,
    /// The first store's port; each further store uses the next port. 0 for any free ports.
    pub listen: SocketAddr,
    /// The file with the token that clients present; required unless `listen` is a loopback address.
    pub token_file: Option<PathBuf>,
    /// The number of stores.
    pub stores: u32,
    /// The number of backup CPU nodes that all stores share.
    pub backups: u32,
    /// What survives the process.
    pub persistence: Persistence,
    /// The number of memory nodes: odd.
    pub memory_nodes: u32,
    /// The sizes of each store.
    pub sizes: StoreGeometry,
    /// Bytes of each coordinator's cache.
    pub cache_bytes: usize,
}

impl KvStoresConfig {
    /// The folder of a persistent memory node.
    pub(super) fn memory_folder(&self, slot: usize) -> PathBuf {
        self.directory.join(format!("memory-{slot}"))
    }

    /// How many memory nodes may fail to start: F of 2F+1 persistent ones.
    pub fn missing_max(&self) -> usize {
        match self.persistence {
            Persistence::Nodes => self.memory_nodes as usize / 2,
            Persistence::None | Persistence::Coordinator { .. } => 0,
        }
    }

    /// The advice for a memory node that does not start.
    pub fn remedy(&self, slot: usize, error: &dyn std::fmt::Display) -> String {
        let path = self.memory_folder(slot);
        format!(
            "memory-{slot} does not start: {error}\nthe stores continue on the other memory nodes; move {} away, and \
             memory-{slot} is rebuilt from their copies",
            path.display()
        )
    }
}
