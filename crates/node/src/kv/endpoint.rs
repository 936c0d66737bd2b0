//! The file that names the addresses of running stores.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use gateway::client::{ClientTls, ConnectTarget};
use serde::{Deserialize, Serialize};

use super::token::KvToken;
use crate::network::{NodeError, write};

pub(super) const KV_FILE: &str = "kv.json";

/// Where stores can be reached: `kv.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KvEndpoint {
    /// The first store's address.
    pub address: SocketAddr,
    /// The address of each store.
    #[serde(default)]
    pub stores: Vec<SocketAddr>,
    /// If the parts are processes: the running ones. CPU nodes have a port for each store, and any of them may serve
    /// it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<KvProcessEndpoint>,
    /// The name in its certificate.
    pub host: String,
    /// The authority that clients trust, relative to the directory.
    pub authority: PathBuf,
    /// The file with the token that clients bear, if they need one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The process.
    pub process: u32,
}

impl KvEndpoint {
    /// Reads the endpoint of a directory's stores; `None` if none run.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn load(directory: &Path) -> Result<Option<KvEndpoint>, NodeError> {
        let path = directory.join(KV_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(NodeError::file("read", &path)(error)),
        };
        let damaged = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        serde_json::from_slice(&bytes).map(Some).map_err(|error| NodeError::file("understand", &path)(damaged(error)))
    }

    /// Writes the file. It is the last file that a client needs.
    pub(super) fn write(&self, directory: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string_pretty(self).expect("an endpoint has a JSON form");
        write(&directory.join(KV_FILE), (text + "\n").as_bytes())
    }

    /// All addresses at which a store, counted from 0, may be served.
    pub fn addresses_of(&self, store: usize) -> Vec<SocketAddr> {
        let parts: Vec<SocketAddr> = self.parts.iter().filter_map(|part| part.stores.get(store).copied()).collect();
        match parts.is_empty() {
            false => parts,
            true => self.stores.get(store).or((store == 0).then_some(&self.address)).copied().into_iter().collect(),
        }
    }

    /// The token that clients bear, if they need one.
    ///
    /// # Errors
    /// As [`KvToken::read`].
    pub fn token(&self) -> Result<Option<KvToken>, NodeError> {
        self.token_file.as_deref().map(KvToken::read).transpose()
    }

    /// How a client reaches the first store.
    ///
    /// # Errors
    /// The authority's certificate cannot be read.
    pub fn target(&self, directory: &Path) -> Result<ConnectTarget, NodeError> {
        self.target_of(directory, self.address)
    }

    /// How a client reaches one port of a store.
    ///
    /// # Errors
    /// As [`KvEndpoint::target`].
    pub fn target_of(&self, directory: &Path, address: SocketAddr) -> Result<ConnectTarget, NodeError> {
        let path = directory.join(&self.authority);
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
        Ok(ConnectTarget {
            address: address.to_string(),
            tls: Some(ClientTls { roots_pem, server_name: self.host.clone() }),
        })
    }
}

/// A running process, as `kv.json` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvProcessEndpoint {
    /// Its name.
    pub name: String,
    /// Its process ID.
    pub process: u32,
    /// A CPU node's ports, one for each store.
    #[serde(default)]
    pub stores: Vec<SocketAddr>,
}
