//! The provider: it opens an adapter, connects endpoints and starts hosts.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rma::{Credential, Endpoint, Error, Host, HostConfig, Provider};

use crate::connection::verbs_connection::VerbsConnection;
use crate::device::{Device, DeviceConfig};
use crate::host::{self, VerbsHost};
use crate::profile::PROFILE;
use crate::wire;

/// How long a host may take to answer a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reaches hosts through one adapter. Addresses are `host:port` on the network that carries control.
pub struct VerbsProvider {
    device: Arc<Device>,
}

impl VerbsProvider {
    /// Opens the adapter.
    ///
    /// # Errors
    /// [`Error::System`] when there is none, or it lacks a needed feature.
    pub fn new(options: &DeviceConfig) -> Result<VerbsProvider, Error> {
        let device = Device::open(options).map_err(|error| Error::system("opening the RDMA adapter", &error))?;
        Ok(VerbsProvider { device })
    }

    /// As [`Provider::host`], with the concrete type.
    ///
    /// # Errors
    /// As [`Provider::host`].
    pub async fn start_host(&self, address: &str, options: HostConfig) -> Result<Arc<VerbsHost>, Error> {
        let (device, address) = (Arc::clone(&self.device), address.to_owned());
        base::rt::blocking(move || VerbsHost::start(&device, &address, options)).await.map(Arc::new)
    }
}

#[async_trait]
impl Provider for VerbsProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (device, address, credential) = (Arc::clone(&self.device), address.to_owned(), credential.clone());
        base::rt::blocking(move || {
            if credential.name.len() > wire::NAME_BYTES_MAX {
                return Err(Error::TooLarge(credential.name.len()));
            }
            let control = dial(&address)?;
            let shared = host::join(&device, control, &credential.name, &credential.token)?;
            Ok(Endpoint::new(Arc::new(VerbsConnection::new(shared))))
        })
        .await
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        Ok(self.start_host(address, options).await?)
    }

    fn name(&self) -> &'static str {
        PROFILE.provider
    }
}

/// Connects to the first address of the name that answers.
fn dial(address: &str) -> Result<TcpStream, Error> {
    let unreachable = |reason: String| Error::Unreachable { address: address.to_owned(), reason };
    let mut reason = "the name has no address".to_owned();
    for socket in address.to_socket_addrs().map_err(|error| unreachable(error.to_string()))? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(control) => return Ok(control),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(unreachable(reason))
}
