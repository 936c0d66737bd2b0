//! Why a network or a process cannot be created, opened or started.

use std::path::{Path, PathBuf};

use base::ErrorKind;

use crate::config::ConfigError;

/// Why a network could not be created, opened or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Signatures cannot be verified in the way that the configuration demands.
    #[error(transparent)]
    Crypto(identity::Error),
    /// The directory holds a network already.
    #[error("{} holds a network already; run it, or choose another directory", .0.display())]
    Exists(PathBuf),
    /// A file of the network is empty.
    #[error(
        "{} is empty: an earlier release left such files when power failed during the creation of a network; restore it from a \
         backup, or remove {} and create the network again", .file.display(), .network.display()
    )]
    Unfinished {
        /// The file.
        file: PathBuf,
        /// The network's directory.
        network: PathBuf,
    },
    /// The directory holds no network.
    #[error("{} holds no network; create one first", .0.display())]
    Absent(PathBuf),
    /// The configuration names a contract that is not compiled in.
    #[error("contracts names {name}, which this program does not have; it has {known}")]
    UnknownContract {
        /// The name.
        name: String,
        /// The names of the contracts that are compiled in.
        known: String,
    },
    /// The environment's values for templates in packages cannot be read.
    #[error("{0}; it must be a JSON object of texts and numbers")]
    ChaincodeValues(String),
    /// A compute node would validate under other policies than so far.
    #[error(
        "the endorsement policies of {contracts} differ from those under which this peer has validated its channel ({}); peers \
         with different policies diverge. Restore the old policies; or, if all peers of the channel have changed them, remove \
         that file and start again", record.display()
    )]
    PoliciesChanged {
        /// The contracts' names.
        contracts: String,
        /// The record.
        record: PathBuf,
    },
    /// Keys and certificates.
    #[error("certificates: {0}")]
    Identity(#[from] identity::Error),
    /// Blocks and their configuration.
    #[error("ledger: {0}")]
    Ledger(#[from] ledger::Error),
    /// The data directory or a store in it.
    #[error("storage: {0}")]
    Storage(#[from] storage::Error),
    /// A peer or an orderer.
    #[error("{who}: {source}")]
    Chain {
        /// Which.
        who: String,
        /// Why.
        source: chain::Error,
    },
    /// TLS.
    #[error(transparent)]
    Tls(#[from] gateway::server::ServerTlsError),
    /// TLS of links.
    #[error(transparent)]
    LinkTls(link_transport::LinkTlsError),
    /// A provider of remote memory access.
    #[error("{who}: {source}")]
    Provider {
        /// Which process.
        who: String,
        /// Why.
        source: rma::Error,
    },
    /// Pooled memory.
    #[error("{who}: {source}")]
    Pool {
        /// Which process.
        who: String,
        /// Why.
        source: pool::Error,
    },
    /// A host is assigned to a process that the network does not have.
    #[error("there is no process {name}; there are {known}")]
    UnknownProcess {
        /// The name.
        name: String,
        /// The names of the network's processes.
        known: String,
    },
    /// A port on another host is left open.
    #[error(
        "{key} is 0 (any free port), but free ports on another host are not known here; choose a port with --{}, or set {key} \
         in the configuration", .key.strip_prefix("ports.").unwrap_or(.key).to_owned() + "-port"
    )]
    AnyPort {
        /// Where it is set.
        key: &'static str,
    },
    /// A network needs ports beyond the last one.
    #[error("{key} is {first}, and the {more} ports after it are needed too, beyond 65535; choose a lower port")]
    NoPort {
        /// Where the first is set.
        key: &'static str,
        /// The first.
        first: u16,
        /// How many more ports are needed after the first.
        more: usize,
    },
    /// The path of a socket is longer than the system allows.
    #[error("the path of the socket {} is too long; set XDG_RUNTIME_DIR to a folder with a short path", .0.display())]
    SocketPath(PathBuf),
    /// A file.
    #[error("{doing} {}: {source}{}", path.display(), storage::advice(source))]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A group of memory nodes.
    #[error(transparent)]
    Sift(#[from] sift::Error),
    /// A key-value store.
    #[error(transparent)]
    KeyValueStore(#[from] kv::Error),
    /// The orderers cannot be changed.
    #[error("{0}")]
    Orderers(String),
    /// No compute node can be added.
    #[error("{0}")]
    Joining(String),
    /// A process cannot limit its processor time or its memory.
    #[error(
        "the limits compute.cpu_percent and memory_limit_bytes (pool.compute_cpu_percent, pool.compute_memory_bytes and \
         pool.storage_memory_bytes in the network's configuration) need a cgroup, and none can be made: {0}; run as root or in a \
         cgroup that is delegated to you with its cpu and memory controllers (such as `systemd-run --user --scope \
         -p Delegate=yes`), or set them to 0"
    )]
    Limits(String),
    /// A port that the command line names.
    #[error("cannot listen on {address}: {source}; stop what listens there, or name another address with --listen")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A port.
    #[error("cannot listen on {address}: {source}; stop what listens there, or change {key} in the configuration")]
    Port {
        /// The address.
        address: std::net::SocketAddr,
        /// Where it is set.
        key: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl NodeError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            NodeError::Config(error) => error.kind(),
            NodeError::Crypto(error) => error.kind(),
            NodeError::Exists(_)
            | NodeError::Absent(_)
            | NodeError::UnknownContract { .. }
            | NodeError::ChaincodeValues(_)
            | NodeError::PoliciesChanged { .. } => ErrorKind::Rejected,
            NodeError::Unfinished { .. } => ErrorKind::Corrupt,
            NodeError::Identity(error) => error.kind(),
            NodeError::Ledger(error) => error.kind(),
            NodeError::Storage(error) => error.kind(),
            NodeError::Chain { source, .. } => source.kind(),
            NodeError::Tls(error) => error.kind(),
            NodeError::LinkTls(_)
            | NodeError::UnknownProcess { .. }
            | NodeError::AnyPort { .. }
            | NodeError::NoPort { .. }
            | NodeError::Orderers(_)
            | NodeError::Joining(_)
            | NodeError::Limits(_)
            | NodeError::SocketPath(_) => ErrorKind::Rejected,
            NodeError::Provider { source, .. } => source.kind(),
            NodeError::Pool { source, .. } => source.kind(),
            NodeError::File { source, .. } => ErrorKind::of_io(source),
            NodeError::Sift(error) => error.kind(),
            NodeError::KeyValueStore(error) => error.kind(),
            NodeError::Listen { .. } | NodeError::Port { .. } => ErrorKind::Retry,
        }
    }

    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError + use<> {
        let path = path.to_path_buf();
        move |source| NodeError::File { doing, path, source }
    }
}
