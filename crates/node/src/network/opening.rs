//! Makes, opens and starts a network.

use std::path::{Path, PathBuf};

use base::Bytes;
use ledger::Block;
use storage::DataDirectory;

use crate::Boxed;
use crate::config::HeddleConfig;
use crate::network::error::NodeError;
use crate::network::files::{CONFIG_FILE, write};
use crate::network::opened::Network;
use crate::network::run::{self};
use crate::network::running::RunningNetwork;
use crate::network::{layout, material};

const CREATED_FILE: &str = "organizations/created.toml";
const GENESIS_FILE: &str = "genesis.block";

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
    /// As [`Network::open`]; `ConfigError::Fixed` when the configuration belongs to another network.
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
}

impl Network {
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
