//! Hosts, the owners of regions, and the providers through which clients reach them.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use base::BytesMut;

use crate::capability::equal_in_constant_time;
use crate::{Capability, Endpoint, Error, NodeId, RegionId, Rights};

/// Bytes of a [`Token`].
pub const TOKEN_BYTES: usize = 32;

/// A secret that two parties share, with which each proves its identity to the other.
#[derive(Clone)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// From its bytes.
    pub const fn new(bytes: [u8; TOKEN_BYTES]) -> Token {
        Token(bytes)
    }

    /// A new token from the ambient random generator.
    pub fn random() -> Token {
        let mut bytes = [0; TOKEN_BYTES];
        base::rt::fill_random(&mut bytes);
        Token(bytes)
    }

    /// The bytes of the token. They must never be logged.
    pub const fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// Whether both are the same, in constant time.
    pub fn matches(&self, other: &Token) -> bool {
        equal_in_constant_time(&self.0, &other.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The identity with which a client connects.
#[derive(Clone, Debug)]
pub struct Credential {
    /// A name of at most 64 bytes.
    pub name: String,
    /// The secret shared with the host.
    pub token: Token,
}

/// The tokens of the names that may connect.
pub type TokenLookup = Arc<dyn Fn(&str) -> Option<Token> + Send + Sync>;

/// The identity of a host and its clients.
#[derive(Clone)]
pub struct HostConfig {
    /// The number of the host.
    pub node: NodeId,
    /// The clients that may connect.
    pub tokens: TokenLookup,
}

/// A provider with its options: connects to hosts and starts hosts.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Connects to the host at `address`.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Rejected`], [`Error::Version`].
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error>;

    /// Starts a host at `address`. Dropping the last handle ends it: connections are lost and regions are freed.
    ///
    /// # Errors
    /// [`Error::System`] when the address is taken or cannot be used.
    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error>;

    /// The name of the provider.
    fn name(&self) -> &'static str;
}

/// Owns regions. These are control operations: they may block, and none is on a data path.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// The number of the host.
    fn node(&self) -> NodeId;

    /// Registers a region of `bytes` zero bytes, a multiple of 4096. `name` is for logs and limits.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error>;

    /// Returns a capability with a grant of its own, so that it can be revoked by itself. It is valid on connections whose
    /// other end has proved the name `holder`; on any other connection it is rejected like a capability that the host never
    /// granted ([`Error::Unknown`]).
    ///
    /// # Errors
    /// [`Error::Unknown`]; [`Error::Exhausted`] when the region has the maximum number of grants.
    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error>;

    /// Revokes a grant. On return no verb under it takes effect, ever. Repeating the call does no harm.
    ///
    /// Not cancellation safe: if the future is dropped, the grant may or may not be revoked; call it again.
    ///
    /// # Errors
    /// [`Error::Unknown`]; [`Error::Ambiguous`] when the fence could not be confirmed: then callers must not rely on it.
    async fn revoke(&self, capability: &Capability) -> Result<(), Error>;

    /// Revokes every grant of a region and frees its memory.
    ///
    /// # Errors
    /// As [`Host::revoke`].
    async fn deregister(&self, region: RegionId) -> Result<(), Error>;

    /// Reads a part of a region, as its owner, without a capability. A concurrent write may be visible in part.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::OutOfBounds`]; [`Error::Rejected`] by a provider that gives owners no access to their
    /// memory.
    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        let _ = (region, offset, length);
        Err(Error::Rejected("this provider gives owners no access to their memory".to_owned()))
    }

    /// Writes a part of a region, as its owner. The caller ensures that no verb reaches that part meanwhile.
    ///
    /// # Errors
    /// As [`Host::load`].
    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let _ = (region, offset, bytes);
        Err(Error::Rejected("this provider gives owners no access to their memory".to_owned()))
    }

    /// The next connection. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the host has ended.
    async fn accept(&self) -> Result<Endpoint, Error>;

    /// Completes when a defect of its own has ended the host, with a reason for the operator. All its connections and regions
    /// are lost then, and [`Host::accept`] fails with [`Error::Closed`]. It never completes for a host that was closed.
    /// Dropping the future loses nothing.
    async fn failed(&self) -> String {
        std::future::pending().await
    }

    /// The address at which clients reach the host: the given address, with the parts that the system chose.
    fn address(&self) -> String;

    /// Ends the host: connections are lost and regions are freed.
    async fn close(&self);
}
