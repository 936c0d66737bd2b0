//! Opens the providers that the measurement compares, and connections over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::tcp::{TcpConfig, TcpProvider, TcpTls};
use rma::{Capability, Endpoint, Provider};

use measurement::error::Error;

/// Bytes a second of a shaped link: 56 Gbit/s, as for `heddle bench state`.
pub(super) const SHAPED_BYTES_PER_SECOND: u64 = 56_000_000_000 / 8;

/// Rounds over each connection. Some connections over loopback are slower than others for as long as they last: a round trip
/// takes 6.2 µs over one and 8.8 µs over another, depending on where the kernel allocated the state of both ends. This holds
/// for the provider and for a bare socket alike. Therefore the measurement opens a new connection after a few rounds.
pub(super) const TCP_ROUNDS_EACH: usize = 2;

/// Numbers the hosts of this process.
pub(super) static HOSTS: AtomicU64 = AtomicU64::new(0);

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

    pub(super) fn fabric(self, latency: Option<Duration>) -> Result<Arc<dyn Provider>, Error> {
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

    /// The address at which a host listens: any free TCP port, or a new name for shared memory.
    pub(super) fn address(self) -> String {
        match self {
            ProviderKind::Shm => {
                format!("local:bench-rma-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed))
            }
            ProviderKind::Tcp | ProviderKind::TcpTls => "127.0.0.1:0".to_owned(),
        }
    }
}

/// Certificates for both ends.
pub(super) fn tls() -> Result<TcpTls, Error> {
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
