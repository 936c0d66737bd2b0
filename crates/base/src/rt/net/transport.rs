//! Transports: what carries links beyond this process, by the scheme of an address.
//!
//! 1. Whoever composes a process registers a transport for each scheme it serves: [`register`].
//! 2. [`super::listen`] and [`super::connect`] hand "scheme:rest" to the transport of the scheme. An address without a
//!    registered scheme names a listener of this process, colons or not.
//! 3. The transport gives [`super::Link`]s made of its own halves: [`super::Link::new`].
//!
//! In simulation no transport is asked: the simulation's links carry every address, and an address is a name.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Arriving, Link, Parts};
use crate::rt::channel::{Closed, TrySendError};

/// A future on the heap, for traits that are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Carries links over something: sockets, TLS, a memory interconnect.
pub trait Transport: Send + Sync + 'static {
    /// Listens at what follows the scheme in an address.
    ///
    /// # Errors
    /// `AddrInUse` when another listener has it; whatever else the medium says.
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listen>>>;

    /// Connects to what follows the scheme in an address.
    ///
    /// # Errors
    /// `ConnectionRefused` when nobody listens there, `PermissionDenied` when one side does not prove who it is,
    /// `TimedOut` when nothing answers.
    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>>;
}

/// A transport's listener. Dropping it frees the address; accepted links live on.
pub trait Listen: Send + 'static {
    /// The next link; one that fails to come about is skipped. Losing the caller's interest loses no link.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>>;

    /// Where it can be reached, after the scheme: with what was left to chance (a port) filled in.
    fn address(&self) -> String;
}

/// A transport's sending half. Dropping it lets the other side receive what was sent, then [`Closed`].
pub trait SendHalf: Send + Sync + 'static {
    /// Sends if there is room now.
    ///
    /// # Errors
    /// The message, when there is none or the link has ended.
    fn try_send(&self, message: Parts) -> Result<(), TrySendError<Parts>>;

    /// Waits for room, then sends. Asked when [`SendHalf::try_send`] found none, so that its box is off the hot path.
    fn send(&self, message: Parts) -> BoxFuture<'_, Result<(), Closed>>;
}

/// A transport's receiving half. Dropping it makes the other side's sends fail, once it learns of it.
pub trait ReceiveHalf: Send + Sync + 'static {
    /// The next message. Losing the caller's interest loses no message.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>>;

    /// From now on the bytes of unfinished messages count against a budget; without one they count against none. A half
    /// whose medium bounds them by itself need not do anything.
    fn charge(&mut self, _arriving: Arriving) {}

    /// The bytes of the last message are accounted elsewhere.
    fn release(&mut self) {}
}

/// The transports of this process.
static TRANSPORTS: RwLock<BTreeMap<String, Arc<dyn Transport>>> = RwLock::new(BTreeMap::new());

/// Makes `transport` the one for addresses that begin with `scheme` and a colon, in place of an earlier one: links and
/// listeners that the earlier one gave live on. Simulations do not see it.
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
