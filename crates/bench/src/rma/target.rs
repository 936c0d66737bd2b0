//! What is measured: a host with a region, and a connection to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use identity::issue::{Organization, Terms};
use identity::{KeyKind, Role};
use rma::shaped::{Shape, Shaped};
use rma::shm::Shm;
use rma::tcp::{Tcp, TcpOptions, TcpTls};
use rma::{Capability, Credential, Endpoint, Fabric, Host, HostOptions, NodeId, Rights, Token};

use super::copy::Memory;
use super::echo::Echo;
use super::processors::Placed;
use super::samples::Floor;
use super::verbs::{Caller, Case};
use crate::error::Error;

/// Bytes a second of a shaped link: 56 Gbit/s, as for `heddle bench state`.
const SHAPED_BYTES_PER_SECOND: u64 = 56_000_000_000 / 8;
/// Where nothing is cold, a region of this size does.
const WARM_BYTES: u64 = 8 << 20;
/// The region is touched in pieces of this size before anything is measured.
const TOUCHED_BYTES: usize = 1 << 20;

/// A connection over loopback has a speed of its own for as long as it lives, for the provider as for a bare socket: a round trip of
/// some takes 6.2 µs, of others 8.8, by where the kernel has put what it knows of both ends. So many are measured, of both.
const TCP_ROUNDS_EACH: usize = 2;

/// Names of hosts are those of the process.
static HOSTS: AtomicU64 = AtomicU64::new(0);

pub fn failed(what: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Part { what, reason: error.to_string() }
}

/// A way to reach memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    Shm,
    Tcp,
    /// With mutual TLS.
    TcpTls,
}

impl Provider {
    /// Its name in tables.
    pub fn name(self, latency: Option<Duration>) -> String {
        let name = match self {
            Provider::Shm => "shm",
            Provider::Tcp => "tcp",
            Provider::TcpTls => "tcp+tls",
        };
        match latency {
            None => name.to_owned(),
            Some(latency) => format!("{name} + {} µs", latency.as_micros()),
        }
    }

    fn fabric(self, latency: Option<Duration>) -> Result<Arc<dyn Fabric>, Error> {
        let bare: Arc<dyn Fabric> = match self {
            Provider::Shm => Arc::new(Shm::default()),
            Provider::Tcp => Arc::new(Tcp::default()),
            Provider::TcpTls => Arc::new(Tcp::new(TcpOptions { tls: Some(tls()?), ..TcpOptions::default() })),
        };
        Ok(match latency {
            None => bare,
            Some(latency) => Arc::new(Shaped::new(bare, Shape { latency, bytes_per_second: SHAPED_BYTES_PER_SECOND })),
        })
    }

    /// Where a host of it listens: any port, or a name of its own.
    fn address(self) -> String {
        match self {
            Provider::Shm => {
                format!("local:bench-rma-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed))
            }
            Provider::Tcp | Provider::TcpTls => "127.0.0.1:0".to_owned(),
        }
    }
}

/// Certificates for both ends.
fn tls() -> Result<TcpTls, Error> {
    let issued = |error: identity::Error| failed("issuing certificates", error);
    let organization = Organization::found("BenchMSP", "bench.heddle", &Terms::starting_now(KeyKind::P256));
    let organization = organization.map_err(issued)?;
    let own = organization.issue_tls(Role::Peer, "bench", &["127.0.0.1"]).map_err(issued)?;
    let roots = organization.tls_authority().certificate_pem();
    let tls = TcpTls::new(&own.certificate_pem, &own.key_pem, roots);
    tls.map_err(|error| failed("certificates of a host and a connection to it", error))
}

/// A connection to a host with a region.
pub struct Link {
    pub provider: Provider,
    pub endpoint: Endpoint,
    /// The host's end of the connection.
    pub accepted: Endpoint,
    pub capability: Capability,
    pub region_bytes: u64,
}

/// A connection, and what its verbs are compared with.
pub struct Target {
    fabric: Arc<dyn Fabric>,
    host: Arc<dyn Host>,
    credential: Credential,
    link: Link,
    /// Memory of this process that the copies of the floor go to; none where the floor is a socket.
    memory: Option<Memory>,
    placed: Placed,
}

impl Target {
    pub async fn start(provider: Provider, latency: Option<Duration>, data_bytes: u64) -> Result<Target, Error> {
        let failed = |error: rma::Error| failed("a host and a connection to it", error);
        let region_bytes = match provider {
            Provider::Shm => data_bytes.max(WARM_BYTES),
            Provider::Tcp | Provider::TcpTls => WARM_BYTES,
        };
        let token = Token::random();
        let expected = token.clone();
        let options = HostOptions { node: NodeId(1), tokens: Arc::new(move |_| Some(expected.clone())) };
        let fabric = provider.fabric(latency)?;
        let host = fabric.host(&provider.address(), options).await.map_err(failed)?;
        let region = host.register("bench", region_bytes).await.map_err(failed)?;
        let capability = host.grant(region, Rights::ALL, "bench").map_err(failed)?;
        let credential = Credential { name: "bench".to_owned(), token };
        let endpoint = fabric.connect(&host.address(), &credential).await.map_err(failed)?;
        let accepted = host.accept().await.map_err(failed)?;
        // Memory is given when it is first touched, which is not what is measured.
        let zeroes = Bytes::from(vec![0; TOUCHED_BYTES]);
        for at in (0..region_bytes).step_by(TOUCHED_BYTES) {
            let length = (region_bytes - at).min(TOUCHED_BYTES as u64) as usize;
            endpoint.write(&capability, at, &[zeroes.slice(..length)]).await.map_err(failed)?;
        }
        let memory = (provider == Provider::Shm).then(|| Memory::new(region_bytes as usize));
        let link = Link { provider, endpoint, accepted, capability, region_bytes };
        Ok(Target { fabric, host, credential, link, memory, placed: Placed::caller() })
    }

    /// Rounds between [`Target::renew`]s.
    pub fn rounds_each(&self) -> usize {
        match self.link.provider {
            Provider::Shm => usize::MAX,
            Provider::Tcp | Provider::TcpTls => TCP_ROUNDS_EACH,
        }
    }

    /// Takes another connection in place of the one that there is.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn renew(&mut self) -> Result<(), Error> {
        let failed = |error: rma::Error| failed("another connection to a host", error);
        self.link.endpoint = self.fabric.connect(&self.host.address(), &self.credential).await.map_err(failed)?;
        self.link.accepted = self.host.accept().await.map_err(failed)?;
        Ok(())
    }

    /// Whoever calls a verb, and its floor. Both go to the same places.
    pub async fn sides(&mut self, case: &Case, seed: u64) -> Result<(Caller<'_>, Box<dyn Floor + '_>), Error> {
        let places = case.places(self.link.region_bytes, seed);
        let floor: Box<dyn Floor> = match &mut self.memory {
            Some(memory) => Box::new(memory.floor(case, places.clone())),
            None => Box::new(Echo::start(case, TcpOptions::default().spin, &self.placed)?),
        };
        let caller = Caller::new(&self.link, case, places).await;
        Ok((caller.map_err(|error| failed("a verb", error))?, floor))
    }
}
