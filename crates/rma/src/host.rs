//! Hosts: owners of regions, and how to reach them.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use base::BytesMut;

use crate::capability::equal_in_constant_time;
use crate::{Capability, Endpoint, Error, NodeId, RegionId, Rights};

/// Bytes of a [`Token`].
pub const TOKEN_BYTES: usize = 32;

/// A secret that two parties share, by which one proves to the other who it is.
#[derive(Clone)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// From its bytes.
    pub const fn new(bytes: [u8; TOKEN_BYTES]) -> Token {
        Token(bytes)
    }

    /// A new one, from the ambient randomness.
    pub fn random() -> Token {
        let mut bytes = [0; TOKEN_BYTES];
        base::rt::fill_random(&mut bytes);
        Token(bytes)
    }

    /// Its bytes. Never to be logged.
    pub const fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// Whether both are the same; takes the same time whatever the answer.
    pub fn matches(&self, other: &Token) -> bool {
        equal_in_constant_time(&self.0, &other.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Who connects.
#[derive(Clone, Debug)]
pub struct Credential {
    /// A name of at most 64 bytes.
    pub name: String,
    /// What only this name and the host know.
    pub token: Token,
}

/// The tokens of those who may connect, by name.
pub type Tokens = Arc<dyn Fn(&str) -> Option<Token> + Send + Sync>;

/// What a host is made of.
#[derive(Clone)]
pub struct HostOptions {
    /// Its number.
    pub node: NodeId,
    /// Who may connect.
    pub tokens: Tokens,
}

/// A way to reach hosts and to be one: a provider with its settings.
#[async_trait]
pub trait Fabric: Send + Sync + 'static {
    /// Connects to the host at `address`.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::Version`].
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error>;

    /// Becomes a host at `address`. Dropping the last handle ends it: connections are lost, regions are gone.
    ///
    /// # Errors
    /// [`Error::System`] when the address is taken or cannot be used.
    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error>;

    /// The name of the provider.
    fn provider(&self) -> &'static str;
}

/// Owns regions. All of this is control: it may wait, and none of it is on a data path.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// Its number.
    fn node(&self) -> NodeId;

    /// Makes a region of `bytes` zero bytes, a multiple of 4096. `name` is for logs and limits.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error>;

    /// Gives a capability of its own grant, so that it can be revoked by itself. It is good on connections whose other side
    /// proved to bear the name `holder`; on any other it is refused as one that the host never gave ([`Error::Unknown`]).
    ///
    /// # Errors
    /// [`Error::Unknown`]; [`Error::Exhausted`] when the region has as many grants as it may have.
    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error>;

    /// Revokes a grant. On return no verb under it takes effect, ever. Doing it again does no harm.
    ///
    /// Not cancellation safe: when dropped, the grant may or may not be revoked; call it again.
    ///
    /// # Errors
    /// [`Error::Unknown`]; [`Error::Ambiguous`] when the fence could not be confirmed: it must not be relied on then.
    async fn revoke(&self, capability: &Capability) -> Result<(), Error>;

    /// Revokes every grant of a region and gives its memory back.
    ///
    /// # Errors
    /// As [`Host::revoke`].
    async fn deregister(&self, region: RegionId) -> Result<(), Error>;

    /// Reads a part of a region, as its owner, without a capability. What verbs write meanwhile may be there in part.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::OutOfBounds`]; [`Error::Refused`] by a provider whose owners have no way to their memory.
    fn load(&self, region: RegionId, offset: u64, length: usize) -> Result<BytesMut, Error> {
        let _ = (region, offset, length);
        Err(Error::Refused("owners do not reach their memory with this provider".to_owned()))
    }

    /// Writes a part of a region, as its owner. Callers see to it that no verb reaches the part meanwhile.
    ///
    /// # Errors
    /// As [`Host::load`].
    fn store(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let _ = (region, offset, bytes);
        Err(Error::Refused("owners do not reach their memory with this provider".to_owned()))
    }

    /// The next connection. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the host has ended.
    async fn accept(&self) -> Result<Endpoint, Error>;

    /// Completes when the host has ended by a defect of its own, with the reason for people. Everything that it served is
    /// lost then, and [`Host::accept`] fails with [`Error::Closed`]. It never completes for a host that was closed. Dropping
    /// the future loses nothing.
    async fn failed(&self) -> String {
        std::future::pending().await
    }

    /// Where it can be reached: the address that was given, with what was left to chance filled in.
    fn address(&self) -> String;

    /// Ends it: connections are lost, regions are gone.
    async fn close(&self);
}
