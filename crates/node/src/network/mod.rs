//! A network of one orderer, and one peer with a gateway for each organisation, in one directory; run in one process.
//!
//! ```text
//! <directory>
//!   VERSION, LOCK                       the format, and one process at a time
//!   heddle.toml                         the configuration
//!   organizations/                      certificates and keys, laid out as Fabric's tools do
//!   genesis.block                       written last: a directory without it was not finished, and is begun again
//!   orderer/blocks                      the orderer's log
//!   peers/<organisation>/blocks, state  blocks and world state, each a data directory of its own
//!   nodes/<process>                     of each process, where the roles are processes of their own; of a compute node its
//!                                       control socket, budget and rules.json in any form
//!   denied.toml                         certificates that are turned away, if the operator wrote it
//!   profiles/, client/                  connection profiles, and a client to start from
//! ```
//!
//! 1. [`Network::create`] makes keys, certificates, the genesis block and the files.
//! 2. [`Network::open`] reads them back, and checks that the configuration still fits the genesis block.
//! 3. [`Network::run`] starts everything; [`Running::stop`] drains and persists it. [`Network::plan`] makes the files of
//!    processes instead, each of which runs one role ([`crate::process`]).
//!
//! Organisations share the process and immutable bytes, nothing else: each has its own keys, stores, state and cache of
//! identities.

pub(crate) mod layout;
pub(crate) mod material;
pub mod roster;
mod run;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::durable::{self, Access};
use base::{Bytes, ErrorKind};
use ledger::Block;
use storage::DataDirectory;

use crate::Boxed;
use crate::config::{Config, ConfigError};

pub(crate) use material::{OrdererOrganization, Organization};
pub use run::Running;

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
    /// Signatures cannot be verified as the configuration says.
    #[error(transparent)]
    Crypto(identity::Error),
    /// There is a network in the directory.
    #[error("{} holds a network already; run it, or choose another directory", .0.display())]
    Exists(PathBuf),
    /// A file that the network is made of has no bytes.
    #[error(
        "{} is empty, as power that is lost during the creation of a network leaves files of an earlier release; restore \
         it from a backup, or remove {} and create the network again", .file.display(), .network.display()
    )]
    Unfinished {
        /// The file.
        file: PathBuf,
        /// The network's directory.
        network: PathBuf,
    },
    /// There is no network in the directory.
    #[error("{} holds no network; create one first", .0.display())]
    Absent(PathBuf),
    /// The configuration names a contract that is not compiled in.
    #[error("contracts names {name}, which this program does not have; it has {known}")]
    UnknownContract {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A compute node would judge by other policies than so far.
    #[error(
        "the endorsement policies of {contracts} are not those by which this peer has judged its channel so far ({}); peers with \
         different policies come to different states. Restore them; or, if they were changed at all peers of the channel, remove \
         that file and start again", record.display()
    )]
    RulesChanged {
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
    /// A peer or the orderer.
    #[error("{who}: {source}")]
    Chain {
        /// Which.
        who: String,
        /// Why.
        source: chain::Error,
    },
    /// TLS.
    #[error(transparent)]
    Tls(#[from] gateway::server::TlsError),
    /// TLS of links.
    #[error(transparent)]
    LinkTls(crate::transport::TlsError),
    /// A provider of remote memory access.
    #[error("{who}: {source}")]
    Fabric {
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
    /// A host is given to a process that the network does not have.
    #[error("there is no process {name}; there are {known}")]
    UnknownProcess {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A port of another host is left open.
    #[error(
        "{key} is 0, any free port, and which ports of another host are free is not known here; name one: with \
         --{}, or as {key} in the configuration", .key.strip_prefix("ports.").unwrap_or(.key).to_owned() + "-port"
    )]
    AnyPort {
        /// Where it is set.
        key: &'static str,
    },
    /// The ports of a network reach beyond the last one that there is.
    #[error("{key} is {first}, and ports up to {more} behind it are needed, beyond 65535; choose a lower one")]
    NoPort {
        /// Where the first is set.
        key: &'static str,
        /// The first.
        first: u16,
        /// How far behind it the last one that is wanted lies.
        more: usize,
    },
    /// A socket's path is longer than the system takes.
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
    /// A consensus group, or what stands on it.
    #[error(transparent)]
    Consensus(#[from] consensus::Error),
    /// Orderers cannot be changed.
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
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            NodeError::Config(error) => error.kind(),
            NodeError::Crypto(error) => error.kind(),
            NodeError::Exists(_)
            | NodeError::Absent(_)
            | NodeError::UnknownContract { .. }
            | NodeError::RulesChanged { .. } => ErrorKind::Rejected,
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
            NodeError::Fabric { source, .. } => source.kind(),
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
pub enum Role {
    /// Gateway, deliver and endorser services of an organisation.
    Peer,
    /// Broadcast and deliver services of the orderer.
    Orderer,
    /// Metrics over HTTP.
    Metrics,
}

/// Something that listens.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What for.
    pub role: Role,
    /// Whose; empty for metrics.
    pub msp_id: String,
    /// The name that its TLS certificate bears; empty for metrics.
    pub host: String,
    /// The name that profiles give it: `host`, but for further orderers, whose certificates bear the same one. Empty for
    /// metrics.
    pub name: String,
    /// Where.
    pub address: SocketAddr,
}

/// A network that is not running. It holds the lock of its directory.
#[derive(Debug)]
pub struct Network {
    path: PathBuf,
    /// Held for its lock.
    _directory: DataDirectory,
    config: Config,
    genesis: Block,
    organizations: Vec<Organization>,
    orderer: OrdererOrganization,
}

impl Network {
    /// Makes a network in a directory that is missing or empty.
    ///
    /// # Errors
    /// [`NodeError::Exists`] when there is one; [`NodeError::Storage`] when another process uses the directory, or
    /// something else lies in it.
    pub async fn create(path: &Path, config: &Config) -> Result<Network, NodeError> {
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
        // Everything else is on disk by now: with this file the network is there.
        write(&path.join(GENESIS_FILE), &genesis.to_bytes())?;
        Network::read(path, directory, None)
    }

    /// Opens the network in a directory, with the configuration that lies there.
    ///
    /// # Errors
    /// [`NodeError::Absent`] when there is none; [`NodeError::Storage`] when another process uses it or its format is
    /// another version's.
    pub async fn open(path: &Path) -> Result<Network, NodeError> {
        Network::open_as(path, None).await
    }

    /// Opens the network in a directory, with another configuration than the one that lies there.
    ///
    /// # Errors
    /// As [`Network::open`]; [`ConfigError::Fixed`] when the configuration is one of another network.
    pub async fn open_with(path: &Path, config: &Config) -> Result<Network, NodeError> {
        Network::open_as(path, Some(config)).await
    }

    /// Opens the network in a directory, or makes one there. With no configuration, the one that lies there counts, or
    /// the default.
    ///
    /// # Errors
    /// As [`Network::open_with`] and [`Network::create`].
    pub fn open_or_create<'a>(path: &'a Path, config: Option<&'a Config>) -> Boxed<'a, Result<Network, NodeError>> {
        Box::pin(async move {
            if path.join(GENESIS_FILE).exists() {
                Network::open_as(path, config).await
            } else {
                Network::create(path, &config.cloned().unwrap_or_default()).await
            }
        })
    }

    async fn open_as(path: &Path, config: Option<&Config>) -> Result<Network, NodeError> {
        if !path.join(GENESIS_FILE).exists() {
            return Err(NodeError::Absent(path.to_path_buf()));
        }
        let directory = open_directory(path).await?;
        Network::read(absolute(path)?, directory, config)
    }

    fn read(path: PathBuf, directory: DataDirectory, config: Option<&Config>) -> Result<Network, NodeError> {
        for file in [GENESIS_FILE, CREATED_FILE, CONFIG_FILE].map(|file| path.join(file)) {
            if std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 0) {
                return Err(NodeError::Unfinished { file, network: path });
            }
        }
        let created = Config::load(&path.join(CREATED_FILE))?;
        let config = match config {
            Some(config) => config.clone(),
            None => Config::load(&path.join(CONFIG_FILE))?,
        };
        config.check("the configuration")?;
        config.check_same_network(&created)?;
        let genesis_path = path.join(GENESIS_FILE);
        let genesis = std::fs::read(&genesis_path).map_err(NodeError::file("reading", &genesis_path))?;
        let genesis = Block::parse(&Bytes::from(genesis))?;
        let (organizations, orderer) = material::read(&path, &config)?;
        Ok(Network { path, _directory: directory, config, genesis, organizations, orderer })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The channel's block 0.
    pub fn genesis(&self) -> &Block {
        &self.genesis
    }

    pub(crate) fn organizations(&self) -> &[Organization] {
        &self.organizations
    }

    pub(crate) fn orderer(&self) -> &OrdererOrganization {
        &self.orderer
    }

    /// Starts orderer, peers and gateways. On return every port answers. Run it on a tokio runtime with several threads.
    ///
    /// # Errors
    /// [`NodeError::Port`] when a port is taken; [`NodeError::Chain`] when a store cannot be opened.
    pub fn run(self) -> Boxed<'static, Result<Running, NodeError>> {
        Box::pin(run::start(self))
    }
}

/// Takes the lock of a network's directory, and brings an earlier layout of its data up to this one.
///
/// # Errors
/// [`NodeError::Storage`] when another process uses it or its format is another version's.
pub async fn open_directory(path: &Path) -> Result<DataDirectory, NodeError> {
    let directory = DataDirectory::open(path).await?;
    layout::bring_up(path)?;
    Ok(directory)
}

fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file("finding", path))
}

/// Writes a file that anyone may read, with the folders above it. Durable on return.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, Access::Everybody).map_err(NodeError::file("writing", path))
}

/// As [`write`], a file that only its owner may read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    durable::write(path, bytes, Access::Owner).map_err(NodeError::file("writing", path))
}
