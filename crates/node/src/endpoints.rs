//! `endpoints.json`: the listening addresses of a network, for clients on the same machine.
//!
//! The file is rewritten at every start, before the network reports that it is ready. Readers do not take the network's
//! lock.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use gateway::client::{ClientTls, ConnectTarget};
use identity::Signer;
use identity::issue::MspDirectory;
use serde::{Deserialize, Serialize};

use crate::network::material::ADMIN_NAME;
use crate::network::{Endpoint, EndpointRole, Network, NodeError, write};
use crate::process::Ready;

const ENDPOINTS_FILE: &str = "endpoints.json";

/// The listening addresses of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// The channel's name.
    pub channel: String,
    /// Who must endorse: `any`, `majority`, `all` or a signature policy.
    pub policy: String,
    /// Whether gateways and orderer speak TLS.
    pub tls: bool,
    /// The process that runs the network.
    pub process: u32,
    /// One gateway per organisation, in order.
    pub gateways: Vec<GatewayEndpoint>,
    /// The orderer's port; with several orderers that have ports, the first one's.
    pub orderer: SocketAddr,
    /// The ports of all orderers, if several have one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orderers: Vec<SocketAddr>,
    /// The port of metrics and health.
    pub metrics: SocketAddr,
    /// The processes of the roles, if roles are processes of their own; `process` then supervises them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Ready>,
    /// The folder of their sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<PathBuf>,
    /// Whether its processes run on hosts of their own; `process` has then only made the plan.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_planned: bool,
}

/// One organisation's gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayEndpoint {
    /// Such as `Org1`.
    pub name: String,
    /// Such as `Org1MSP`.
    pub msp_id: String,
    /// Its address.
    pub address: SocketAddr,
    /// The name in its TLS certificate.
    pub host: String,
    /// The authority that clients trust for TLS, relative to the network's directory.
    pub tls_authority: PathBuf,
    /// The MSP directory of a user of the organisation, relative to the network's directory.
    pub user: PathBuf,
}

impl Endpoints {
    pub(crate) fn new(network: &Network, endpoints: &[Endpoint]) -> Endpoints {
        let address = |role: EndpointRole| {
            let endpoint = endpoints.iter().find(|endpoint| endpoint.role == role);
            endpoint.expect("a network that runs has one of each role").address
        };
        let orderers = endpoints.iter().filter(|endpoint| endpoint.role == EndpointRole::Orderer);
        let orderers: Vec<SocketAddr> = orderers.map(|endpoint| endpoint.address).collect();
        let relative = |path: PathBuf| path.strip_prefix(network.path()).map(Path::to_path_buf).unwrap_or(path);
        let peers = endpoints.iter().filter(|endpoint| endpoint.role == EndpointRole::Peer);
        Endpoints {
            channel: network.config().network.channel.clone(),
            policy: network.config().network.policy.clone(),
            tls: network.config().tls,
            process: std::process::id(),
            gateways: (network.organizations().iter().zip(peers))
                .map(|(organization, endpoint)| GatewayEndpoint {
                    name: organization.name.clone(),
                    msp_id: organization.msp_id.clone(),
                    address: endpoint.address,
                    host: endpoint.host.clone(),
                    tls_authority: relative(organization.user_folder.join("tls/ca.crt")),
                    user: relative(organization.user_folder.join("msp")),
                })
                .collect(),
            orderer: address(EndpointRole::Orderer),
            orderers: if orderers.len() > 1 { orderers } else { Vec::new() },
            metrics: address(EndpointRole::Metrics),
            processes: Vec::new(),
            sockets: None,
            is_planned: false,
        }
    }

    /// Reads the endpoints of the network in a directory.
    ///
    /// # Errors
    /// There is no network, it has never run, or the file is damaged.
    pub fn load(directory: &Path) -> Result<Endpoints, NodeError> {
        let path = directory.join(ENDPOINTS_FILE);
        let bytes = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            let damaged = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            NodeError::file("understand", &path)(damaged)
        })
    }

    pub(crate) fn store(&self, directory: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("endpoints have a JSON form");
        write(&directory.join(ENDPOINTS_FILE), (text + "\n").as_bytes())
    }

    /// How a client reaches organisation `number` (from 1).
    ///
    /// # Errors
    /// There is no such organisation, or its certificates cannot be read.
    pub fn target(&self, directory: &Path, number: usize) -> Result<ConnectTarget, NodeError> {
        let gateway = self.gateway(directory, number)?;
        let tls = match self.tls {
            false => None,
            true => {
                let path = directory.join(&gateway.tls_authority);
                let roots_pem = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
                Some(ClientTls { roots_pem, server_name: gateway.host.clone() })
            }
        };
        Ok(ConnectTarget { address: gateway.address.to_string(), tls })
    }

    /// The sample user of organisation `number` (from 1).
    ///
    /// # Errors
    /// As [`Endpoints::target`].
    pub fn user(&self, directory: &Path, number: usize) -> Result<Signer, NodeError> {
        let gateway = self.gateway(directory, number)?;
        Ok(MspDirectory::read(&directory.join(&gateway.user))?.signer(gateway.msp_id.as_str())?)
    }

    /// The administrator of organisation `number` (from 1), whose folder stands beside the sample user's.
    ///
    /// # Errors
    /// As [`Endpoints::target`].
    pub fn admin(&self, directory: &Path, number: usize) -> Result<Signer, NodeError> {
        let gateway = self.gateway(directory, number)?;
        let user = gateway.user.parent().unwrap_or(&gateway.user);
        let domain = user.file_name().and_then(|name| name.to_str()?.split_once('@')).map_or("", |(_, domain)| domain);
        let folder = directory.join(user.with_file_name(format!("{ADMIN_NAME}@{domain}"))).join("msp");
        Ok(MspDirectory::read(&folder)?.signer(gateway.msp_id.as_str())?)
    }

    fn gateway(&self, directory: &Path, number: usize) -> Result<&GatewayEndpoint, NodeError> {
        let found = number.checked_sub(1).and_then(|index| self.gateways.get(index));
        found.ok_or_else(|| {
            let missing = format!("there is no organisation {number}");
            NodeError::file("find an organisation in", &directory.join(ENDPOINTS_FILE))(std::io::Error::other(missing))
        })
    }
}
