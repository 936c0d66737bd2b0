//! A network in one directory, run in one process: orderers, and for each organisation one peer with a gateway.
//!
//! ```text
//! <directory>
//!   VERSION, LOCK                       the format; the lock of the process that uses the directory
//!   heddle.toml                         the configuration
//!   organizations/                      certificates and keys, in the layout of Fabric's tools
//!   genesis.block                       written last: a directory without it is unfinished, and creation starts again
//!   orderer/blocks                      the orderer's log
//!   peers/<organisation>/blocks, state  blocks and world state, each a data directory of its own
//!   nodes/<process>                     files of each process, if roles are processes of their own; always each
//!                                       compute node's control socket, budget and rules.json
//!   denied.toml                         the deny list, if the operator wrote one
//!   profiles/, client/                  connection profiles, and a client to start from
//! ```
//!
//! 1. [`Network::create`] makes keys, certificates, the genesis block and the files.
//! 2. [`Network::open`] reads these files and checks that the configuration still agrees with the genesis block.
//! 3. [`Network::run`] starts everything; [`RunningNetwork::stop`] finishes the accepted work and persists the state.
//!    Alternatively, [`Network::plan`] writes the files of processes that run one role each ([`crate::process`]).
//!
//! Organisations share the process and immutable bytes only: each has its own keys, stores, state and identity cache.

pub(crate) mod layout;
pub(crate) mod material;
pub mod orderer_set;
mod run;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::durable::{self, FileAccess};
use base::{Bytes, ErrorKind};
use ledger::Block;
use storage::DataDirectory;

use crate::Boxed;
use crate::config::{ConfigError, HeddleConfig};

pub(crate) use material::{OrdererMaterial, OrganizationMaterial};
pub use run::RunningNetwork;

pub(crate) const CONFIG_FILE: &str = "heddle.toml";
/// The certificates and keys.
const ORGANIZATIONS: &str = "organizations";
const CREATED_FILE: &str = "organizations/created.toml";
const GENESIS_FILE: &str = "genesis.block";

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
    LinkTls(crate::transport::LinkTlsError),
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
    /// A consensus group, or a store on it.
    #[error(transparent)]
    Consensus(#[from] consensus::Error),
    /// The orderers cannot be changed.
    #[error("{0}")]
    Orderers(String),
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
            | NodeError::SocketPath(_) => ErrorKind::Rejected,
            NodeError::Provider { source, .. } => source.kind(),
            NodeError::Pool { source, .. } => source.kind(),
            NodeError::File { source, .. } => ErrorKind::of_io(source),
            NodeError::Consensus(error) => error.kind(),
            NodeError::Listen { .. } | NodeError::Port { .. } => ErrorKind::Retry,
        }
    }

    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError + use<> {
        let path = path.to_path_buf();
        move |source| NodeError::File { doing, path, source }
    }
}

/// What an endpoint is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointRole {
    /// Gateway, deliver and endorser services of an organisation.
    Peer,
    /// Broadcast and deliver services of the orderer.
    Orderer,
    /// Metrics over HTTP.
    Metrics,
}

/// A listening port.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What it serves.
    pub role: EndpointRole,
    /// The MSP ID of its organisation; empty for metrics.
    pub msp_id: String,
    /// The name in its TLS certificate; empty for metrics.
    pub host: String,
    /// The name that profiles give it: `host`, except for further orderers, whose certificates all bear the same host.
    /// Empty for metrics.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
}

/// A network that is not running. It holds the lock of its directory.
#[derive(Debug)]
pub struct Network {
    path: PathBuf,
    /// Held for its lock.
    _directory: DataDirectory,
    config: HeddleConfig,
    genesis: Block,
    organizations: Vec<OrganizationMaterial>,
    orderer: OrdererMaterial,
}

impl Network {
    /// Makes a network in a directory that is missing or empty.
    ///
    /// # Errors
    /// [`NodeError::Exists`] when the directory holds one; [`NodeError::Storage`] when another process uses the
    /// directory, or it holds other files.
    pub async fn create(path: &Path, config: &HeddleConfig) -> Result<Network, NodeError> {
        config.check("the configuration")?;
        crate::contracts::registry(config)?;
        let directory = DataDirectory::open(path).await?;
        let path = absolute(path)?;
        if path.join(GENESIS_FILE).exists() {
            return Err(NodeError::Exists(path));
        }
        let genesis = material::create(&path, config)?;
        write(&path.join(CREATED_FILE), config.to_text().as_bytes())?;
        write(&path.join(CONFIG_FILE), config.to_commented_text().as_bytes())?;
        crate::profile::write_client(&path)?;
        // Everything else is on disk by now; this file completes the network.
        write(&path.join(GENESIS_FILE), &genesis.to_bytes())?;
        Network::read(path, directory, None)
    }

    /// Opens the network in a directory, with the configuration stored there.
    ///
    /// # Errors
    /// [`NodeError::Absent`] when the directory holds none; [`NodeError::Storage`] when another process uses it or its
    /// format has another version.
    pub async fn open(path: &Path) -> Result<Network, NodeError> {
        Network::open_as(path, None).await
    }

    /// Opens the network in a directory, with another configuration than the one stored there.
    ///
    /// # Errors
    /// As [`Network::open`]; [`ConfigError::Fixed`] when the configuration belongs to another network.
    pub async fn open_with(path: &Path, config: &HeddleConfig) -> Result<Network, NodeError> {
        Network::open_as(path, Some(config)).await
    }

    /// Opens the network in a directory, or makes one there. Without a configuration, an existing network uses the
    /// stored one, and a new network the default.
    ///
    /// # Errors
    /// As [`Network::open_with`] and [`Network::create`].
    pub fn open_or_create<'a>(
        path: &'a Path,
        config: Option<&'a HeddleConfig>,
    ) -> Boxed<'a, Result<Network, NodeError>> {
        Box::pin(async move {
            if path.join(GENESIS_FILE).exists() {
                Network::open_as(path, config).await
            } else {
                Network::create(path, &config.cloned().unwrap_or_default()).await
            }
        })
    }

    async fn open_as(path: &Path, config: Option<&HeddleConfig>) -> Result<Network, NodeError> {
        if !path.join(GENESIS_FILE).exists() {
            return Err(NodeError::Absent(path.to_path_buf()));
        }
        let directory = open_directory(path).await?;
        Network::read(absolute(path)?, directory, config)
    }

    fn read(path: PathBuf, directory: DataDirectory, config: Option<&HeddleConfig>) -> Result<Network, NodeError> {
        for file in [GENESIS_FILE, CREATED_FILE, CONFIG_FILE].map(|file| path.join(file)) {
            if std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 0) {
                return Err(NodeError::Unfinished { file, network: path });
            }
        }
        let created = HeddleConfig::load(&path.join(CREATED_FILE))?;
        let config = match config {
            Some(config) => config.clone(),
            None => HeddleConfig::load(&path.join(CONFIG_FILE))?,
        };
        config.check("the configuration")?;
        config.check_same_network(&created)?;
        let genesis_path = path.join(GENESIS_FILE);
        let genesis = std::fs::read(&genesis_path).map_err(NodeError::file("reading", &genesis_path))?;
        let genesis = Block::parse(&Bytes::from(genesis))?;
        let (organizations, orderer) = material::read(&path, &config)?;
        Ok(Network { path, _directory: directory, config, genesis, organizations, orderer })
    }

    /// The network's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its configuration.
    pub fn config(&self) -> &HeddleConfig {
        &self.config
    }

    /// The channel's block 0.
    pub fn genesis(&self) -> &Block {
        &self.genesis
    }

    pub(crate) fn organizations(&self) -> &[OrganizationMaterial] {
        &self.organizations
    }

    pub(crate) fn orderer(&self) -> &OrdererMaterial {
        &self.orderer
    }

    /// Starts orderer, peers and gateways. On return every port answers. Needs a multi-threaded tokio runtime.
    ///
    /// # Errors
    /// [`NodeError::Port`] when a port is taken; [`NodeError::Chain`] when a store cannot be opened.
    pub fn run(self) -> Boxed<'static, Result<RunningNetwork, NodeError>> {
        Box::pin(run::start(self))
    }
}

/// Locks a network's directory, and migrates an earlier layout of its data to the current one.
///
/// # Errors
/// [`NodeError::Storage`] when another process uses the directory or its format has another version.
pub async fn open_directory(path: &Path) -> Result<DataDirectory, NodeError> {
    let directory = DataDirectory::open(path).await?;
    layout::bring_up(path)?;
    Ok(directory)
}

fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file("finding", path))
}

/// Writes a file that everyone may read, and creates the folders above it. Durable on return.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, FileAccess::Everybody).map_err(NodeError::file("writing", path))
}

/// As [`write`], but only the owner may read the file.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, FileAccess::Owner).map_err(NodeError::file("writing", path))
}
