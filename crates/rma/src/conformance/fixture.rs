//! The provider under test, and the helpers through which claims use it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, BytesMut, rt};

use crate::{Capability, Credential, Endpoint, Error, Host, RegionId, Rights};

/// Bytes of a region that a claim uses, unless it needs more.
pub(super) const REGION_BYTES: u64 = 1 << 16;

/// Fails a claim unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// The features of a fixture's provider, and the size of the tests.
#[derive(Clone, Copy, Debug)]
pub struct FixtureFeatures {
    /// [`Fixture::sever`] works.
    pub sever: bool,
    /// A rejected verb leaves the connection usable. Without this, claims take a new connection for each rejection.
    pub refusals_keep_connections: bool,
    /// Bytes of a large transfer and of a large message, at most [`crate::TRANSFER_BYTES_MAX`].
    pub large_bytes: usize,
    /// How often a test is repeated where more repetitions are better: a few hundred.
    pub rounds: usize,
    /// A claim that has not ended by then is broken.
    pub patience: Duration,
}

impl Default for FixtureFeatures {
    /// For a provider that runs at full speed and cannot sever connections.
    fn default() -> FixtureFeatures {
        FixtureFeatures {
            sever: false,
            refusals_keep_connections: true,
            large_bytes: 8 << 20,
            rounds: 300,
            patience: Duration::from_secs(120),
        }
    }
}

/// A provider set up for the suite.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A host without connections and with at least 256 MiB of free memory. Always the same one.
    fn host(&self) -> Arc<dyn Host>;

    /// A credential that the host accepts.
    fn credential(&self) -> Credential;

    /// A credential of another name that the host accepts.
    fn another_credential(&self) -> Credential;

    /// A new connection to the host.
    ///
    /// # Errors
    /// As [`crate::Provider::connect`].
    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error>;

    /// Loses a connection as a broken cable would: neither end closes it. Both must notice in the end.
    async fn sever(&self, connected: &Endpoint, accepted: &Endpoint) {
        let _ = (connected, accepted);
    }

    /// The features to test.
    fn features(&self) -> FixtureFeatures {
        FixtureFeatures::default()
    }
}

/// Adds the operation to the error of a failed one.
pub(super) fn while_doing<E: Display>(doing: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{doing}: {error}")
}

/// A connection's two ends.
pub(super) struct EndpointPair {
    pub(super) connected: Endpoint,
    pub(super) accepted: Endpoint,
}

impl EndpointPair {
    pub(super) async fn new(fixture: &dyn Fixture) -> Result<EndpointPair, String> {
        EndpointPair::of(fixture, &fixture.credential()).await
    }

    pub(super) async fn of(fixture: &dyn Fixture, credential: &Credential) -> Result<EndpointPair, String> {
        let host = fixture.host();
        let accepted = rt::spawn(async move { host.accept().await }).abort_on_drop();
        let connected = fixture.connect(credential).await.map_err(while_doing("connecting"))?;
        let accepted = accepted.await.map_err(while_doing("accepting"))?.map_err(while_doing("accepting"))?;
        Ok(EndpointPair { connected, accepted })
    }

    pub(super) async fn several(fixture: &dyn Fixture, count: usize) -> Result<Vec<EndpointPair>, String> {
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push(EndpointPair::new(fixture).await?);
        }
        Ok(pairs)
    }
}

/// A region of the host under test, and a capability for all of it.
pub(super) struct TestRegion {
    pub(super) host: Arc<dyn Host>,
    pub(super) id: RegionId,
    pub(super) bytes: u64,
    /// The holder of its capabilities: the name of the fixture's credential.
    holder: String,
    pub(super) all: Capability,
}

impl TestRegion {
    pub(super) async fn new(fixture: &dyn Fixture, bytes: u64) -> Result<TestRegion, String> {
        let host = fixture.host();
        let id = host.register("conformance", bytes).await.map_err(while_doing("registering a region"))?;
        let holder = fixture.credential().name;
        let all = host.grant(id, Rights::ALL, &holder).map_err(while_doing("granting"))?;
        Ok(TestRegion { host, id, bytes, holder, all })
    }

    pub(super) fn grant(&self, rights: Rights) -> Result<Capability, String> {
        self.host.grant(self.id, rights, &self.holder).map_err(while_doing("granting"))
    }

    pub(super) async fn contents(&self, endpoint: &Endpoint) -> Result<BytesMut, String> {
        let length = self.bytes as usize;
        endpoint.read(&self.all, 0, length, BytesMut::new()).await.map_err(while_doing("reading the region"))
    }

    pub(super) async fn end(self) -> Result<Option<&'static str>, String> {
        self.host.deregister(self.id).await.map_err(while_doing("deregistering"))?;
        Ok(None)
    }
}

pub(super) fn word(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

pub(super) fn number(bytes: &[u8]) -> Result<u64, String> {
    let word = bytes.try_into().map_err(|_| format!("{} bytes were read where 8 were asked for", bytes.len()))?;
    Ok(u64::from_le_bytes(word))
}

pub(super) async fn read_word(endpoint: &Endpoint, capability: &Capability, offset: u64) -> Result<u64, String> {
    let read = endpoint.read(capability, offset, 8, BytesMut::new()).await;
    number(&read.map_err(while_doing("reading a word"))?)
}

/// Bytes that differ from offset to offset and from seed to seed.
pub(super) fn pattern(seed: u64, length: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(length + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.freeze()
}

/// The offset at which two byte strings first differ; `None` when they are the same.
pub(super) fn difference(seen: &[u8], expected: &[u8]) -> Option<String> {
    if seen.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", seen.len(), expected.len()));
    }
    let at = seen.iter().zip(expected).position(|(seen, expected)| seen != expected)?;
    Some(format!("byte {at} is {:#04x} instead of {:#04x}", seen[at], expected[at]))
}
