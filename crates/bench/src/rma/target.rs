//! The measured endpoint: a host with a region, and a connection to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::tcp::{TcpConfig, TcpProvider, TcpTls};
use rma::{Capability, Credential, Endpoint, Host, HostConfig, NodeId, Provider, Rights, Token};

use super::copy::LocalMemory;
use super::cpu_affinity::PinnedCaller;
use super::echo::EchoFloor;
use super::samples::FloorOperation;
use super::verbs::{VerbCaller, VerbCase};
use crate::error::Error;

/// Bytes a second of a shaped link: 56 Gbit/s, as for `heddle bench state`.
const SHAPED_BYTES_PER_SECOND: u64 = 56_000_000_000 / 8;
/// If no case is cold, a region of this size suffices.
const WARM_BYTES: u64 = 8 << 20;
/// The region is touched in chunks of this size before the measurement.
const TOUCHED_BYTES: usize = 1 << 20;

/// Rounds over each connection. A connection over loopback has a constant speed of its own, for the provider as for a bare
/// socket: a round trip over some takes 6.2 µs, over others 8.8, depending on where the kernel has allocated the state of both
/// ends. So many connections of both are measured.
const TCP_ROUNDS_EACH: usize = 2;

/// Numbers the hosts of this process.
static HOSTS: AtomicU64 = AtomicU64::new(0);

pub fn failed(what: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Part { what, reason: error.to_string() }
}

/// A provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProviderKind {
    Shm,
    Tcp,
    /// With mutual TLS.
    TcpTls,
}

impl ProviderKind {
    /// Its name in tables.
    pub fn name(self, latency: Option<Duration>) -> String {
        let name = match self {
            ProviderKind::Shm => "shm",
            ProviderKind::Tcp => "tcp",
            ProviderKind::TcpTls => "tcp+tls",
        };
        match latency {
            None => name.to_owned(),
            Some(latency) => format!("{name} + {} µs", latency.as_micros()),
        }
    }

    fn fabric(self, latency: Option<Duration>) -> Result<Arc<dyn Provider>, Error> {
        let bare: Arc<dyn Provider> = match self {
            ProviderKind::Shm => Arc::new(ShmProvider::default()),
            ProviderKind::Tcp => Arc::new(TcpProvider::default()),
            ProviderKind::TcpTls => Arc::new(TcpProvider::new(TcpConfig { tls: Some(tls()?), ..TcpConfig::default() })),
        };
        Ok(match latency {
            None => bare,
            Some(latency) => Arc::new(ShapedProvider::new(
                bare,
                ShapingConfig { latency, bytes_per_second: SHAPED_BYTES_PER_SECOND },
            )),
        })
    }

    /// The address at which a host listens: any port, or a name of its own.
    fn address(self) -> String {
        match self {
            ProviderKind::Shm => {
                format!("local:bench-rma-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed))
            }
            ProviderKind::Tcp | ProviderKind::TcpTls => "127.0.0.1:0".to_owned(),
        }
    }
}

/// Certificates for both ends.
fn tls() -> Result<TcpTls, Error> {
    let issued = |error: identity::Error| failed("issuing certificates", error);
    let organization =
        IssuingOrganization::create("BenchMSP", "bench.heddle", &CertificateTerms::starting_now(KeyKind::P256));
    let organization = organization.map_err(issued)?;
    let own = organization.issue_tls(MemberRole::Peer, "bench", &["127.0.0.1"]).map_err(issued)?;
    let roots = organization.tls_authority().certificate_pem();
    let tls = TcpTls::new(&own.certificate_pem, &own.key_pem, roots);
    tls.map_err(|error| failed("certificates of a host and a connection to it", error))
}

/// A connection to a host with a region.
pub struct MeasuredConnection {
    pub provider: ProviderKind,
    pub endpoint: Endpoint,
    /// The host's end of the connection.
    pub accepted: Endpoint,
    pub capability: Capability,
    pub region_bytes: u64,
}

/// A connection, and the floor of its verbs.
pub struct RmaTarget {
    fabric: Arc<dyn Provider>,
    host: Arc<dyn Host>,
    credential: Credential,
    link: MeasuredConnection,
    /// Memory of this process that the copies of the floor go to; `None` if the floor is a socket.
    memory: Option<LocalMemory>,
    pinned: PinnedCaller,
}

impl RmaTarget {
    pub async fn start(provider: ProviderKind, latency: Option<Duration>, data_bytes: u64) -> Result<RmaTarget, Error> {
        let failed = |error: rma::Error| failed("a host and a connection to it", error);
        let region_bytes = match provider {
            ProviderKind::Shm => data_bytes.max(WARM_BYTES),
            ProviderKind::Tcp | ProviderKind::TcpTls => WARM_BYTES,
        };
        let token = Token::random();
        let expected = token.clone();
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(expected.clone())) };
        let fabric = provider.fabric(latency)?;
        let host = fabric.host(&provider.address(), options).await.map_err(failed)?;
        let region = host.register("bench", region_bytes).await.map_err(failed)?;
        let capability = host.grant(region, Rights::ALL, "bench").map_err(failed)?;
        let credential = Credential { name: "bench".to_owned(), token };
        let endpoint = fabric.connect(&host.address(), &credential).await.map_err(failed)?;
        let accepted = host.accept().await.map_err(failed)?;
        // The system gives memory when it is first touched, which is not to be measured.
        let zeroes = Bytes::from(vec![0; TOUCHED_BYTES]);
        for at in (0..region_bytes).step_by(TOUCHED_BYTES) {
            let length = (region_bytes - at).min(TOUCHED_BYTES as u64) as usize;
            endpoint.write(&capability, at, &[zeroes.slice(..length)]).await.map_err(failed)?;
        }
        let memory = (provider == ProviderKind::Shm).then(|| LocalMemory::new(region_bytes as usize));
        let link = MeasuredConnection { provider, endpoint, accepted, capability, region_bytes };
        Ok(RmaTarget { fabric, host, credential, link, memory, pinned: PinnedCaller::pin() })
    }

    /// Rounds between [`RmaTarget::reconnect`]s.
    pub fn rounds_each(&self) -> usize {
        match self.link.provider {
            ProviderKind::Shm => usize::MAX,
            ProviderKind::Tcp | ProviderKind::TcpTls => TCP_ROUNDS_EACH,
        }
    }

    /// Replaces the connection by another one.
    ///
    /// # Errors
    /// No connection can be made.
    pub async fn reconnect(&mut self) -> Result<(), Error> {
        let failed = |error: rma::Error| failed("another connection to a host", error);
        self.link.endpoint = self.fabric.connect(&self.host.address(), &self.credential).await.map_err(failed)?;
        self.link.accepted = self.host.accept().await.map_err(failed)?;
        Ok(())
    }

    /// The caller of a verb, and its floor. Both go to the same offsets.
    pub async fn pair(
        &mut self,
        case: &VerbCase,
        seed: u64,
    ) -> Result<(VerbCaller<'_>, Box<dyn FloorOperation + '_>), Error> {
        let places = case.offsets(self.link.region_bytes, seed);
        let floor: Box<dyn FloorOperation> = match &mut self.memory {
            Some(memory) => Box::new(memory.floor(case, places.clone())),
            None => Box::new(EchoFloor::start(case, TcpConfig::default().spin, &self.pinned)?),
        };
        let caller = VerbCaller::new(&self.link, case, places).await;
        Ok((caller.map_err(|error| failed("a verb", error))?, floor))
    }
}
