//! `endpoints.json`: what of a network listens where, for clients on the same machine.
//!
//! It is written anew at every start, before the network says that it is ready, and read without the network's lock.

use std::net::SocketAddr;
use std::path::Path;

use gateway::client::{Target, Tls};
use identity::Signer;
use identity::issue::MspDirectory;
use serde::{Deserialize, Serialize};

use crate::config::Endorsers;
use crate::error::NodeError;
use crate::founding::USER;
use crate::layout::{self, OrganizationNames};

/// What listens where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    pub channel: String,
    pub policy: Endorsers,
    pub tls: bool,
    /// The process that runs the network.
    pub process: u32,
    pub gateways: Vec<GatewayEndpoint>,
    pub orderer: SocketAddr,
    pub metrics: SocketAddr,
}

/// One organisation's gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayEndpoint {
    /// `org1`
    pub name: String,
    pub msp_id: String,
    pub address: SocketAddr,
    /// The name in its TLS certificate.
    pub peer_name: String,
}

impl Endpoints {
    /// Reads the endpoints of the network in a directory.
    ///
    /// # Errors
    /// There is no network, or it never ran, or the file is damaged.
    pub fn load(directory: &Path) -> Result<Endpoints, NodeError> {
        let path = layout::endpoints(directory);
        let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => NodeError::NoNetwork { path: directory.to_path_buf() },
            _ => NodeError::File { path: path.clone(), source },
        })?;
        serde_json::from_slice(&bytes).map_err(|error| NodeError::Damaged { path, what: error.to_string() })
    }

    pub(crate) fn store(&self, directory: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("endpoints have a JSON form");
        crate::founding::write(&layout::endpoints(directory), (text + "\n").as_bytes())
    }

    /// How a client reaches organisation `number` (from 1).
    ///
    /// # Errors
    /// There is no such organisation, or its certificates cannot be read.
    pub fn target(&self, directory: &Path, number: usize) -> Result<Target, NodeError> {
        let gateway = self.gateway(directory, number)?;
        let tls = match self.tls {
            false => None,
            true => {
                let path = layout::peer_identity(directory, &OrganizationNames::of(number)).join("tls/ca.crt");
                let roots_pem = std::fs::read(&path).map_err(|source| NodeError::File { path, source })?;
                Some(Tls { roots_pem, server_name: gateway.peer_name.clone() })
            }
        };
        Ok(Target { address: gateway.address.to_string(), tls })
    }

    /// The user that comes with organisation `number` (from 1).
    ///
    /// # Errors
    /// As [`Endpoints::target`].
    pub fn user(&self, directory: &Path, number: usize) -> Result<Signer, NodeError> {
        let gateway = self.gateway(directory, number)?;
        let home = layout::user_identity(directory, &OrganizationNames::of(number), USER);
        Ok(MspDirectory::read(&home.join("msp"))?.signer(gateway.msp_id.as_str())?)
    }

    fn gateway(&self, directory: &Path, number: usize) -> Result<&GatewayEndpoint, NodeError> {
        let found = number.checked_sub(1).and_then(|index| self.gateways.get(index));
        found.ok_or_else(|| NodeError::Damaged {
            path: layout::endpoints(directory),
            what: format!("there is no organisation {number}"),
        })
    }
}
