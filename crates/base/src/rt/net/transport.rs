//! Transports, which carry links beyond this process. The scheme of an address selects its transport.
//!
//! 1. The code that composes a process registers a transport for each scheme it serves: [`register`].
//! 2. [`super::listen`] and [`super::connect`] hand "scheme:rest" to the transport of the scheme. An address without a
//!    registered scheme names a listener of this process, even if it contains colons.
//! 3. The transport returns [`super::Link`]s that it builds with [`super::Link::new`] from its sending and receiving halves.
//!
//! A simulation uses no transport: there, every address is the name of a listener of a simulated node.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{GatherList, Link, ReceiveAccount};
use crate::rt::channel::{Closed, TrySendError};

/// A boxed future, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Carries links over a medium: sockets, TLS, a memory interconnect.
pub trait Transport: Send + Sync + 'static {
    /// Listens at the part of an address behind the scheme.
    ///
    /// # Errors
    /// `AddrInUse` when another listener has it; otherwise the medium's error.
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>>;

    /// Connects to the part of an address behind the scheme.
    ///
    /// # Errors
    /// `ConnectionRefused` when there is no listener, `PermissionDenied` when one end fails to authenticate, `TimedOut` when
    /// the other end does not answer.
    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>>;
}

/// A transport's listener. Dropping it frees the address; accepted links live on.
pub trait TransportListener: Send + 'static {
    /// The next link; a link that fails to open is skipped. A caller that stops polling loses no link.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>>;

    /// The address at which it can be reached, without the scheme, with the parts that the system chose (a port).
    fn address(&self) -> String;
}

/// A transport's sending half. When it is dropped, the other end receives what was sent, then [`Closed`].
pub trait SendHalf: Send + Sync + 'static {
    /// Sends if there is space now.
    ///
    /// # Errors
    /// The message, when there is no space or the link has ended.
    fn try_send(&self, message: GatherList) -> Result<(), TrySendError<GatherList>>;

    /// Waits for space, then sends. Called when [`SendHalf::try_send`] found none, so that boxing the future is off the hot
    /// path.
    fn send(&self, message: GatherList) -> BoxFuture<'_, Result<(), Closed>>;
}

/// A transport's receiving half. When it is dropped, the other end's sends fail, once that end learns of it.
pub trait ReceiveHalf: Send + Sync + 'static {
    /// The next message. A caller that stops polling loses no message.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>>;

    /// From now on the bytes of unfinished messages count against a budget; without this call they count against none. A half
    /// whose medium bounds them by itself may ignore the call.
    fn charge(&mut self, _arriving: ReceiveAccount) {}

    /// The bytes of the last message are accounted elsewhere from now on.
    fn release(&mut self) {}
}

/// The transports of this process.
static TRANSPORTS: RwLock<BTreeMap<String, Arc<dyn Transport>>> = RwLock::new(BTreeMap::new());

/// Registers `transport` for addresses that start with `scheme` and a colon, in place of an earlier one: links and listeners of
/// the earlier one stay alive. Simulations do not use it.
///
/// Panics when the scheme is empty or contains a colon.
pub fn register(scheme: &str, transport: Arc<dyn Transport>) {
    assert!(!scheme.is_empty() && !scheme.contains(':'), "a scheme is a word without colons");
    TRANSPORTS.write().unwrap_or_else(PoisonError::into_inner).insert(scheme.to_owned(), transport);
}

/// The transport of an address, its scheme and the rest of the address.
pub(super) fn find(address: &str) -> Option<(Arc<dyn Transport>, &str, &str)> {
    let (scheme, rest) = address.split_once(':')?;
    let transport = TRANSPORTS.read().unwrap_or_else(PoisonError::into_inner).get(scheme).cloned()?;
    Some((transport, scheme, rest))
}
