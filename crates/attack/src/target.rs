//! The attacked network, as its directory describes it.
//!
//! Attackers and newcomers read the same files: `endpoints.json`, each process's `node.toml`, and keys. The definition
//! of an attack says which files its attacker may use. The attacks of strangers use none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::Value;

use crate::wire::dial;
use crate::wire::fabric::FabricUser;
use crate::wire::grpc::{FlowControlWindows, GrpcChannel};
use crate::wire::rma::{Credential, RmaClient};
use crate::wire::tls::{self, ClientIdentity};

/// The services that listen at ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TargetKind {
    /// gRPC of an organisation's gateway.
    Gateway,
    /// gRPC of an orderer.
    Orderer,
    /// Links over TLS: an orderer's blocks.
    Blocks,
    /// Links over TLS: an orderer's intake.
    Intake,
    /// Links over TLS: a peer, for other organisations.
    Others,
    /// Remote memory: a compute node, for its gateway.
    Compute,
    /// Remote memory: a primary, for its peer's other compute nodes.
    PeerNodes,
    /// Remote memory: a memory node.
    Memory,
    /// Remote memory: a storage node.
    Storage,
    /// HTTP: metrics and health.
    Metrics,
    /// gRPC of the key-value store.
    Kv,
}

impl TargetKind {
    /// All kinds of ports.
    pub const ALL: [TargetKind; 11] = [
        TargetKind::Gateway,
        TargetKind::Orderer,
        TargetKind::Blocks,
        TargetKind::Intake,
        TargetKind::Others,
        TargetKind::Compute,
        TargetKind::PeerNodes,
        TargetKind::Memory,
        TargetKind::Storage,
        TargetKind::Metrics,
        TargetKind::Kv,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            TargetKind::Gateway => "gateway",
            TargetKind::Orderer => "orderer",
            TargetKind::Blocks => "blocks",
            TargetKind::Intake => "intake",
            TargetKind::Others => "others",
            TargetKind::Compute => "compute",
            TargetKind::PeerNodes => "among",
            TargetKind::Memory => "memory",
            TargetKind::Storage => "storage",
            TargetKind::Metrics => "metrics",
            TargetKind::Kv => "kv",
        }
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TargetKind {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetKind, String> {
        let found = TargetKind::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("no kind of port: {text}"))
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct TargetPort {
    pub kind: TargetKind,
    /// `host:port`.
    pub address: String,
}

/// A network.
pub struct TargetNetwork {
    dir: PathBuf,
    endpoints: Value,
    /// The configurations of the processes, by name.
    nodes: Vec<(String, toml::Table)>,
}

impl TargetNetwork {
    /// Reads a network's directory, or a key-value store's.
    ///
    /// # Errors
    /// The directory does not contain one.
    pub fn read(dir: &Path) -> io::Result<TargetNetwork> {
        let endpoints = std::fs::read(dir.join("endpoints.json")).or_else(|_| std::fs::read(dir.join("kv.json")))?;
        let endpoints = serde_json::from_slice(&endpoints)?;
        let mut nodes = Vec::new();
        for entry in std::fs::read_dir(dir.join("nodes")).into_iter().flatten().flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path().join("node.toml")) else { continue };
            let table = text.parse().map_err(io::Error::other)?;
            nodes.push((entry.file_name().to_string_lossy().into_owned(), table));
        }
        nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(TargetNetwork { dir: dir.to_path_buf(), endpoints, nodes })
    }

    /// The channel's name.
    pub fn channel(&self) -> &str {
        self.endpoints["channel"].as_str().unwrap_or_default()
    }

    /// Whether gRPC ports speak TLS.
    pub fn has_tls(&self) -> bool {
        // A key-value store's description does not mention TLS, which it always uses.
        self.endpoints["tls"].as_bool().unwrap_or(true)
    }

    /// Whether its processes run on separate hosts.
    pub fn is_planned(&self) -> bool {
        self.endpoints["isPlanned"].as_bool().unwrap_or(false)
    }

    /// Organisations that have a gateway.
    pub fn organizations(&self) -> usize {
        self.endpoints["gateways"].as_array().map_or(0, Vec::len)
    }

    /// Names and ids of the processes that publish them: those of a network on this machine.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let roles = self.endpoints["processes"].as_array().into_iter().flatten();
        let roles = roles.filter_map(|role| Some((role["name"].as_str()?.to_owned(), number(&role["process"])?)));
        let own = number(&self.endpoints["process"]).filter(|_| !self.is_planned());
        roles.chain(own.map(|process| ("heddle".to_owned(), process))).collect()
    }

    /// The addresses of the health pages, of each process that publishes one.
    pub fn health(&self) -> Vec<String> {
        let roles = self.endpoints["processes"].as_array().into_iter().flatten();
        let mut found: Vec<String> = roles.filter_map(|role| role["metrics"].as_str()).map(str::to_owned).collect();
        if self.is_planned() {
            found.extend(self.nodes.iter().filter_map(|(_, node)| node["metrics"].as_str()).map(str::to_owned));
        } else {
            found.extend(self.endpoints["metrics"].as_str().map(str::to_owned));
        }
        found
    }

    /// The ports of a kind, the first organisation's first.
    pub fn ports(&self, kind: TargetKind) -> Vec<TargetPort> {
        let texts: Vec<String> = match kind {
            TargetKind::Gateway => {
                let gateways = self.endpoints["gateways"].as_array().into_iter().flatten();
                gateways.filter_map(|gateway| gateway["address"].as_str()).map(str::to_owned).collect()
            }
            TargetKind::Orderer => self.endpoints["orderer"].as_str().map(str::to_owned).into_iter().collect(),
            TargetKind::Metrics => self.health(),
            TargetKind::Kv => self.endpoints["address"].as_str().map(str::to_owned).into_iter().collect(),
            TargetKind::Blocks => self.settings(&["orderer", "blocks_address"]),
            TargetKind::Intake => self.settings(&["orderer", "intake_address"]),
            TargetKind::Others => self.settings(&["compute", "others_address"]),
            TargetKind::Compute => self.settings(&["compute", "address"]),
            TargetKind::PeerNodes => self.settings(&["compute", "peer_nodes", "address"]),
            TargetKind::Memory => self.settings(&["memory", "address"]),
            TargetKind::Storage => self.settings(&["storage", "address"]),
        };
        let address = |text: &String| {
            let address = text.strip_prefix("tcp:").or_else(|| text.strip_prefix("tls:")).unwrap_or(text);
            address.parse::<std::net::SocketAddr>().is_ok().then(|| address.to_owned())
        };
        texts.iter().filter_map(address).map(|address| TargetPort { kind, address }).collect()
    }

    /// The first port of a kind.
    ///
    /// # Errors
    /// The network has none.
    pub fn port(&self, kind: TargetKind) -> io::Result<TargetPort> {
        let none = || io::Error::new(io::ErrorKind::NotFound, format!("the network has no port of the kind {kind}"));
        self.ports(kind).into_iter().next().ok_or_else(none)
    }

    /// The port of a kind to attack: the first, or among compute nodes the one at which a primary listens.
    ///
    /// # Errors
    /// The network has none.
    pub async fn listening(&self, kind: TargetKind) -> io::Result<TargetPort> {
        if kind == TargetKind::PeerNodes {
            for (port, _) in self.peer_node_ports() {
                if dial(&port.address).await.is_ok() {
                    return Ok(port);
                }
            }
        }
        self.port(kind)
    }

    /// The signing user of an organisation, numbered from 1.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn user(&self, organization: usize) -> io::Result<FabricUser> {
        let gateway = &self.endpoints["gateways"][organization - 1];
        let text = |name: &str| gateway[name].as_str().unwrap_or_default();
        FabricUser::read(text("mspId"), &self.dir.join(text("user")))
    }

    /// The TLS certificate of an organisation's user: a client certificate, which is not a node's.
    ///
    /// # Errors
    /// The certificate does not exist.
    pub fn user_tls(&self, organization: usize) -> io::Result<ClientIdentity> {
        let gateway = &self.endpoints["gateways"][organization - 1];
        let msp = self.dir.join(gateway["user"].as_str().unwrap_or_default());
        ClientIdentity::read(&msp.with_file_name("tls"), "client")
    }

    /// The TLS certificate of a process.
    ///
    /// # Errors
    /// The process has no certificate.
    pub fn node_tls(&self, node: &str) -> io::Result<ClientIdentity> {
        ClientIdentity::read(&self.dir.join("nodes").join(node).join("tls"), "server")
    }

    /// The authority that issues an organisation's TLS certificates, with its key.
    ///
    /// # Errors
    /// The files do not exist.
    pub fn tls_authority(&self, organization: usize) -> io::Result<ClientIdentity> {
        let gateway = &self.endpoints["gateways"][organization - 1];
        let user = self.dir.join(gateway["user"].as_str().unwrap_or_default());
        let folder = user.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?.join("tlsca");
        let (mut certificate, mut key) = (None, None);
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let is_key = path.file_name().is_some_and(|name| name == "priv_sk");
            *(if is_key { &mut key } else { &mut certificate }) = Some(std::fs::read(path)?);
        }
        let missing = io::ErrorKind::NotFound;
        Ok(ClientIdentity { certificate_pem: certificate.ok_or(missing)?, key_pem: key.ok_or(missing)? })
    }

    /// A connection to a gRPC port.
    ///
    /// # Errors
    /// The port does not answer.
    pub async fn grpc(&self, port: &TargetPort, windows: FlowControlWindows) -> io::Result<GrpcChannel> {
        let config = self.grpc_tls(None)?;
        GrpcChannel::connect(&port.address, config.as_ref(), windows).await
    }

    /// TLS for gRPC ports; `None` if they use plain text.
    ///
    /// # Errors
    /// The certificate is unusable.
    pub fn grpc_tls(&self, identity: Option<&ClientIdentity>) -> io::Result<Option<Arc<ClientConfig>>> {
        self.has_tls().then(|| tls::config(identity, &["h2"])).transpose()
    }

    /// A connection to a port of remote memory with the credential of an authorised process.
    ///
    /// # Errors
    /// The port refuses.
    pub async fn caller(&self, port: &TargetPort, credential: &Credential) -> io::Result<RmaClient> {
        let tls = self.memory_tls(credential)?;
        RmaClient::connect(&port.address, tls.as_ref(), credential).await
    }

    /// TLS for ports of remote memory with the certificate of the process that the name belongs to; `None` if they use
    /// plain text.
    ///
    /// # Errors
    /// The certificate is unusable.
    pub fn memory_tls(&self, credential: &Credential) -> io::Result<Option<Arc<ClientConfig>>> {
        let says_so = |node: &toml::Table| node.get("tcp_tls").and_then(toml::Value::as_bool).unwrap_or(false);
        if !self.nodes.iter().any(|(_, node)| says_so(node)) {
            return Ok(None);
        }
        // An owner is an organisation; its compute node connects.
        let name = &credential.name;
        let node = if name.starts_with("org") { format!("compute-{name}") } else { name.clone() };
        tls::config(Some(&self.node_tls(&node)?), &[]).map(Some)
    }

    /// A name that may connect to a port of remote memory, and its token.
    ///
    /// # Errors
    /// There is no such name.
    pub fn credential(&self, kind: TargetKind, organization: usize) -> io::Result<Credential> {
        let (node, path, name) = match kind {
            TargetKind::Memory => ("memory-1".to_owned(), vec!["memory", "owners"], format!("org{organization}")),
            TargetKind::Compute => {
                let node = format!("compute-org{organization}");
                (node, vec!["compute", "gateways"], format!("gateway-org{organization}"))
            }
            TargetKind::PeerNodes => {
                let node = format!("compute-org{organization}");
                (node, vec!["compute", "peer_nodes", "nodes"], format!("compute-org{organization}-2"))
            }
            _ => {
                let node = format!("storage-org{organization}");
                (node, vec!["storage", "clients"], format!("compute-org{organization}"))
            }
        };
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{node} knows no {name}"));
        let (_, table) = self.nodes.iter().find(|(other, _)| *other == node).ok_or_else(missing)?;
        let mut value = table.get(path[0]);
        for key in path[1..].iter().chain([&name.as_str()]) {
            value = value.and_then(|value| value.get(key));
        }
        let token = value.and_then(toml::Value::as_str).ok_or_else(missing)?;
        Ok(Credential { name, token: hex::decode(token).map_err(io::Error::other)? })
    }

    /// The ports on which compute nodes of the first organisation's peer connect to one another, each with the name and
    /// token of another compute node. Only the primary listens.
    pub fn peer_node_ports(&self) -> Vec<(TargetPort, Credential)> {
        let own = |name: &str| name == "compute-org1" || name.starts_with("compute-org1-");
        let meeting = self.nodes.iter().filter(|(name, _)| own(name)).filter_map(|(_, node)| {
            let among = node.get("compute")?.get("peer_nodes")?;
            let address = among.get("address")?.as_str()?.strip_prefix("tcp:")?.to_owned();
            let (name, token) = among.get("nodes")?.as_table()?.iter().next()?;
            let token = hex::decode(token.as_str()?).ok()?;
            Some((TargetPort { kind: TargetKind::PeerNodes, address }, Credential { name: name.clone(), token }))
        });
        meeting.collect()
    }

    /// Bytes of a section of memory.
    pub fn section_bytes(&self) -> u64 {
        let memory = self.nodes.iter().find_map(|(_, node)| node.get("memory"));
        let bytes = memory.and_then(|memory| memory.get("section_bytes")).and_then(toml::Value::as_integer);
        bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(16 << 20)
    }

    fn settings(&self, path: &[&str]) -> Vec<String> {
        let found = self.nodes.iter().filter_map(|(_, node)| {
            let mut value = node.get(path[0])?;
            for key in &path[1..] {
                value = value.get(key)?;
            }
            value.as_str().map(str::to_owned)
        });
        found.collect()
    }
}
