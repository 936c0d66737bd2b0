//! The provider over RDMA adapters: InfiniBand and RoCE through rdma-core's verbs.
//!
//! 1. A host listens on a TCP address. Who connects proves its name there, both sides exchange the addresses of a reliable
//!    queue pair, and the TCP connection stays for control ([`wire`]).
//! 2. A holder that first uses a capability shows it over that connection; the host registers the region for this
//!    connection and answers with the adapter's key ([`connection`]). From then on the host's processor has no part.
//! 3. A verb becomes one piece of work at the adapter, or several where it is long; messages are sends on the same queue
//!    pair, and a write with immediate data is a write with a small message behind it ([`sender`], [`receiver`]). One
//!    progress thread a connection polls for completions, briefly, and then sleeps.
//! 4. Revoking a capability takes the registration away, after the holder has let go or lost its queue pair ([`host`]).
//!
//! Invariants:
//! * The processor never touches a region's bytes; the adapter's atomics are the only ones on it. An owner that wants to
//!   use its own region connects to itself.
//! * Any failed work ends the connection, and everything in flight on it is ambiguous.
//! * Memory that the adapter may reach is not given back before the adapter has let go of it ([`device`]).
//!
//! The provider needs Debian's `libibverbs1` and `ibverbs-providers` at run time and is made for x86-64 and ARM, both
//! little-endian. Without an adapter `cargo xtask rdma-guest` runs it over soft-RoCE.

// What the adapter does with memory is beyond the compiler's sight.
#[allow(unsafe_code)]
mod connection;
#[allow(unsafe_code)]
mod device;
mod host;
#[allow(unsafe_code)]
mod memory;
mod receiver;
mod sender;
// Open to tests: what bytes from the other side are read as.
#[doc(hidden)]
pub mod wire;

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::connection::Link;
use self::device::Device;
pub use self::device::DeviceOptions;
pub use self::host::VerbsHost;
use crate::{Atomicity, Credential, Endpoint, Error, Fabric, Host, HostOptions, Ordering, Profile};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "adapters do atomics in the host's byte order, and words are little-endian"
);

/// Adapters place the packets of a message in any order, and execute the work of one queue pair in the order of posting;
/// work that could overtake an earlier read waits for it.
const PROFILE: Profile = Profile {
    provider: "verbs",
    atomicity: Atomicity::Adapter,
    ordering: Ordering::Verbs,
    immediate: true,
    synchronous: false,
    host_progress: false,
};

/// How long a host may take to answer a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Reaches hosts through one adapter. Addresses are `host:port`, of the network over which control runs.
pub struct Verbs {
    device: Arc<Device>,
}

impl Verbs {
    /// Opens the adapter.
    ///
    /// # Errors
    /// [`Error::System`] when there is none, or it lacks what is needed.
    pub fn new(options: &DeviceOptions) -> Result<Verbs, Error> {
        let device = Device::open(options).map_err(|error| Error::system("opening the RDMA adapter", &error))?;
        Ok(Verbs { device })
    }

    /// As [`Fabric::host`], by its own type.
    ///
    /// # Errors
    /// As [`Fabric::host`].
    pub async fn start_host(&self, address: &str, options: HostOptions) -> Result<Arc<VerbsHost>, Error> {
        let (device, address) = (Arc::clone(&self.device), address.to_owned());
        base::rt::blocking(move || VerbsHost::start(&device, &address, options)).await.map(Arc::new)
    }
}

#[async_trait]
impl Fabric for Verbs {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (device, address, credential) = (Arc::clone(&self.device), address.to_owned(), credential.clone());
        base::rt::blocking(move || {
            if credential.name.len() > wire::NAME_BYTES_MAX {
                return Err(Error::TooLarge(credential.name.len()));
            }
            let control = dial(&address)?;
            let shared = host::join(&device, control, &credential.name, &credential.token)?;
            Ok(Endpoint::new(Arc::new(Link::new(shared))))
        })
        .await
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        Ok(self.start_host(address, options).await?)
    }

    fn provider(&self) -> &'static str {
        PROFILE.provider
    }
}

/// Connects to the first of a name's addresses that answers.
fn dial(address: &str) -> Result<TcpStream, Error> {
    let unreachable = |reason: String| Error::Unreachable { address: address.to_owned(), reason };
    let mut reason = "the name has no address".to_owned();
    for socket in address.to_socket_addrs().map_err(|error| unreachable(error.to_string()))? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIME) {
            Ok(control) => return Ok(control),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(unreachable(reason))
}
