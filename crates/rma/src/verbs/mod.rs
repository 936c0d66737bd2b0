//! The provider over RDMA adapters: InfiniBand and RoCE through rdma-core's verbs.
//!
//! 1. A host listens on a TCP address. A client proves its name there, both ends exchange the addresses of a reliable queue
//!    pair, and the TCP connection stays open for control ([`wire`]).
//! 2. A holder that uses a capability for the first time presents it over that connection; the host registers the region for
//!    this connection and answers with the adapter's key ([`connection`]). From then on the host's processor takes no part.
//! 3. A verb becomes one work request at the adapter, or several if it is long. Messages are sends on the same queue pair, and
//!    a write with immediate data is a write followed by a small message ([`sender`], [`receiver`]). One progress thread per
//!    connection polls for completions for a short time, and then sleeps.
//! 4. Revoking a capability deregisters the region, after the holder has released the key or lost its queue pair ([`host`]).
//!
//! Invariants:
//! * The processor never touches a region's bytes, so the adapter alone executes atomic verbs on them. An owner that wants to
//!   use its own region connects to itself.
//! * Any failed work request ends the connection, and every verb in flight on it is ambiguous.
//! * Memory that the adapter may reach is not freed before the adapter has released it ([`device`]).
//!
//! The provider needs Debian's `libibverbs1` and `ibverbs-providers` at run time and supports x86-64 and ARM, both
//! little-endian. Without an adapter `cargo xtask rdma-guest` runs it over soft-RoCE.

// The compiler cannot see what the adapter does to memory.
#[allow(unsafe_code)]
mod connection;
#[allow(unsafe_code)]
mod device;
mod host;
#[allow(unsafe_code)]
mod memory;
mod receiver;
mod sender;
// Public for tests, which check the decoding of bytes from the other end.
#[doc(hidden)]
pub mod wire;

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::connection::VerbsConnection;
use self::device::Device;
pub use self::device::DeviceConfig;
pub use self::host::VerbsHost;
use crate::{Atomicity, Credential, Endpoint, Error, Host, HostConfig, Provider, ProviderProfile, VerbOrdering};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "adapters do atomics in the host's byte order, and words are little-endian"
);

/// Adapters place the packets of a message in any order, and execute the work of one queue pair in the order of posting; a work
/// request that could overtake an earlier read waits for it.
const PROFILE: ProviderProfile = ProviderProfile {
    provider: "verbs",
    atomicity: Atomicity::Adapter,
    ordering: VerbOrdering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};

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
