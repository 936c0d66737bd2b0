//! The settings of a planned compute node for chaincodes outside of it.
//!
//! The files that the network's configuration names are copied to the process's folder, which may be moved to another host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::config::ChaincodeConfig;
use crate::network::{Network, NodeError, write_private};
use crate::process::file::ChaincodePortFile;

/// The folder of the copies.
pub(super) const FOLDER: &str = "chaincode-tls";

/// The chaincodes of one compute node.
pub(super) struct PlannedChaincodes<'a> {
    pub(super) network: &'a Network,
    /// The index of its organisation.
    pub(super) organization: usize,
    /// The process's folder.
    pub(super) folder: &'a Path,
}

impl PlannedChaincodes<'_> {
    /// The chaincodes that the configuration names for the organisation.
    ///
    /// # Errors
    /// A file that cannot be copied.
    pub(super) fn configured(&self) -> Result<Vec<ChaincodeConfig>, NodeError> {
        let config = self.network.config();
        let organization = &config.network.organizations[self.organization];
        let chaincodes = config.chaincodes.iter().enumerate().filter(|(_, chaincode)| chaincode.is_for(organization));
        let planned = chaincodes.map(|(index, chaincode)| {
            let copy = |path: &Option<PathBuf>, what: &str| {
                path.as_deref().map(|path| self.copy(path, &format!("{}-{what}.pem", index + 1))).transpose()
            };
            Ok(ChaincodeConfig {
                organizations: Vec::new(),
                tls_authority: copy(&chaincode.tls_authority, "authority")?,
                tls_certificate: copy(&chaincode.tls_certificate, "certificate")?,
                tls_key: copy(&chaincode.tls_key, "key")?,
                ..chaincode.clone()
            })
        });
        planned.collect()
    }

    /// The port for chaincodes that connect by themselves.
    ///
    /// # Errors
    /// The file with the authorities cannot be copied.
    pub(super) fn port(&self, listen: Option<SocketAddr>) -> Result<Option<ChaincodePortFile>, NodeError> {
        let Some(listen) = listen else { return Ok(None) };
        let config = &self.network.config().chaincode_port;
        Ok(Some(ChaincodePortFile { listen, authorities: self.copy(&config.authorities, "authorities.pem")? }))
    }

    /// Copies a file that the network's configuration names, and returns the copy's path in the process's folder.
    fn copy(&self, from: &Path, name: &str) -> Result<PathBuf, NodeError> {
        let from = self.network.path().join(from);
        let bytes = std::fs::read(&from).map_err(NodeError::file("reading", &from))?;
        let to = Path::new(FOLDER).join(name);
        write_private(&self.folder.join(&to), &bytes)?;
        Ok(to)
    }
}
