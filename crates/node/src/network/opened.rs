//! A network that is open: its directory, configuration and keys.

use std::path::{Path, PathBuf};

use ledger::Block;
use storage::DataDirectory;

use crate::config::HeddleConfig;
use crate::network::material::{OrdererMaterial, OrganizationMaterial};

/// A network that is not running. It holds the lock of its directory.
#[derive(Debug)]
pub struct Network {
    pub(super) path: PathBuf,
    /// Held for its lock.
    pub(super) _directory: DataDirectory,
    pub(super) config: HeddleConfig,
    pub(super) genesis: Block,
    pub(super) organizations: Vec<OrganizationMaterial>,
    pub(super) orderer: OrdererMaterial,
}

impl Network {
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
}
