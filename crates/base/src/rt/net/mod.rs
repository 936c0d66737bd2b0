//! Links: reliable, ordered streams of messages between two parties, until they break.
//!
//! 1. One side listens at an address, the other connects to it; both then hold a [`Link`].
//! 2. Messages arrive in the order of sending, each whole and at most once.
//! 3. A link ends when either side drops it (what was sent before still arrives) or when it breaks (messages in flight
//!    may be lost). From then on both sides see [`Closed`]. A sender never learns from the link how far its messages
//!    came; protocols acknowledge for themselves.
//!
//! An address is a name. In production "scheme:rest" goes to the [`Transport`] that is [registered](register) for the
//! scheme, and may lead to another host; any other address names a listener of this process. In simulation every address
//! names a listener of any node.
//!
//! Over a transport a link has buffers of the medium's own: a message that was sent may be on its way for long, and a
//! sender learns that the other side's receiver was dropped only after a while, at the latest by its own receiver.

mod arriving;
pub mod call;
mod door;
mod parties;
mod parts;
mod production;
mod transport;

use std::fmt;
use std::future::poll_fn;
use std::io;

use bytes::Bytes;

use super::channel::{Closed, TrySendError};
use super::{context, simulation};
use crate::admission::Principal;

pub use arriving::{ARRIVING_BYTES_MAX, Arriving};
pub use door::{Door, EVENTS, LinkBytesArriving, LinksOverdrawn, LinksRefused, LinksStalled, Place};
pub use parties::Parties;
pub use parts::Parts;
pub use transport::{BoxFuture, Listen, ReceiveHalf, SendHalf, Transport, register};

/// Messages in one direction of a link that were sent and not yet received; further senders wait.
pub const LINK_MESSAGES_MAX: usize = 256;
/// Links connected to a listener and not yet accepted; further connections wait.
pub const BACKLOG_LINKS_MAX: usize = 64;

/// Accepts links at an address. Dropping it frees the address; accepted links live on.
pub struct Listener {
    inner: ListenerInner,
    address: String,
}

enum ListenerInner {
    Production(production::Listener),
    Transport(Box<dyn Listen>),
    Simulation(simulation::Listener),
}

/// One end of a link. Dropping it ends the link.
#[derive(Debug)]
pub struct Link {
    // Dropped first, so that the other side learns that nobody receives before it learns of the end.
    receiver: LinkReceiver,
    sender: LinkSender,
    principal: Option<Principal>,
}

/// The sending half of one end. Dropping it lets the other end receive what was sent, then [`Closed`].
pub struct LinkSender {
    inner: SenderInner,
}

enum SenderInner {
    Production(super::channel::Sender<Parts>),
    Transport(Box<dyn SendHalf>),
    Simulation(simulation::LinkSender),
}

/// The receiving half of one end. Dropping it makes the other end's sends fail.
pub struct LinkReceiver {
    inner: ReceiverInner,
}

enum ReceiverInner {
    Production(super::channel::Receiver<Parts>),
    Transport(Box<dyn ReceiveHalf>),
    Simulation(simulation::LinkReceiver),
}

/// Listens at `address`.
///
/// # Errors
/// `AddrInUse` when another listener has it.
pub async fn listen(address: &str) -> io::Result<Listener> {
    if let Some(ambient) = context::ambient() {
        let inner = ListenerInner::Simulation(simulation::listen(ambient, address)?);
        return Ok(Listener { inner, address: address.to_owned() });
    }
    match transport::find(address) {
        Some((transport, scheme, rest)) => {
            let listener = transport.listen(rest).await?;
            let address = format!("{scheme}:{}", listener.address());
            Ok(Listener { inner: ListenerInner::Transport(listener), address })
        }
        None => {
            let inner = ListenerInner::Production(production::listen(address)?);
            Ok(Listener { inner, address: address.to_owned() })
        }
    }
}

/// Connects to the listener at `address`. Completes when the listener's side holds the link in its backlog.
///
/// # Errors
/// `ConnectionRefused` when nobody listens there, `TimedOut` when the other node cannot be reached, `PermissionDenied`
/// when one side does not prove to the other who it is.
pub async fn connect(address: &str) -> io::Result<Link> {
    if let Some(ambient) = context::ambient() {
        return simulation::connect(ambient, address).await.map(simulated);
    }
    match transport::find(address) {
        Some((transport, _, rest)) => transport.connect(rest).await,
        None => production::connect(address).await,
    }
}

/// Connects as [`connect`] does, to one of `parties` and nobody else.
///
/// # Errors
/// As [`connect`]; `PermissionDenied` when somebody else answers.
pub async fn connect_to(address: &str, parties: &Parties) -> io::Result<Link> {
    let link = connect(address).await?;
    if parties.include(&link) {
        return Ok(link);
    }
    LinksRefused.add(1);
    let peer = link.peer().unwrap_or_default();
    let reason = format!("{peer} answers at {address}, where one of these was expected: {parties}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn simulated((sender, receiver): (simulation::LinkSender, simulation::LinkReceiver)) -> Link {
    Link::of(SenderInner::Simulation(sender), ReceiverInner::Simulation(receiver))
}

impl Listener {
    /// The next link. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the node is going down.
    pub async fn accept(&mut self) -> Result<Link, Closed> {
        match &mut self.inner {
            ListenerInner::Production(listener) => listener.accept().await,
            ListenerInner::Transport(listener) => poll_fn(|cx| listener.poll_accept(cx)).await,
            ListenerInner::Simulation(listener) => listener.accept().await.map(simulated),
        }
    }

    /// The address to connect to: the one it was given, with what was left to chance (a port) filled in.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Link {
    fn of(sender: SenderInner, receiver: ReceiverInner) -> Link {
        Link { sender: LinkSender { inner: sender }, receiver: LinkReceiver { inner: receiver }, principal: None }
    }

    /// A link over a transport's halves. `peer` is the name that the other side proved to bear, if it did; it stands for an
    /// organisation with this one identity.
    pub fn new(sender: Box<dyn SendHalf>, receiver: Box<dyn ReceiveHalf>, peer: Option<&str>) -> Link {
        let mut link = Link::of(SenderInner::Transport(sender), ReceiverInner::Transport(receiver));
        link.principal = peer.map(|name| Principal::new(name, name));
        link
    }

    /// The same link, whose other side proved to be an identity of an organisation.
    #[must_use]
    pub fn with_principal(mut self, principal: Principal) -> Link {
        self.principal = Some(principal);
        self
    }

    /// The name that the other side proved to bear, which is its organisation's where links run between organisations;
    /// `None` where the transport asks for no proof.
    pub fn peer(&self) -> Option<&str> {
        self.principal.as_ref().map(|principal| &*principal.organization)
    }

    /// Who the other side proved to be.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// Waits for room, then sends. When the future is dropped before it completes, nothing was sent.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended. A message that was sent without an error may be lost all the same.
    pub async fn send(&self, message: impl Into<Parts>) -> Result<(), Closed> {
        self.sender.send(message).await
    }

    /// The next message. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended.
    pub async fn receive(&mut self) -> Result<Bytes, Closed> {
        self.receiver.receive().await
    }

    /// Both halves, to be used by different tasks.
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        (self.sender, self.receiver)
    }
}

impl LinkSender {
    /// As [`Link::send`].
    ///
    /// # Errors
    /// As [`Link::send`].
    pub async fn send(&self, message: impl Into<Parts>) -> Result<(), Closed> {
        let message = message.into();
        match &self.inner {
            SenderInner::Production(sender) => sender.send(message).await,
            SenderInner::Transport(sender) => match sender.try_send(message) {
                Ok(()) => Ok(()),
                Err(TrySendError::Full(message)) => sender.send(message).await,
                Err(TrySendError::Closed(_)) => Err(Closed),
            },
            SenderInner::Simulation(sender) => sender.send(message.concat()).await,
        }
    }
}

impl LinkReceiver {
    /// As [`Link::receive`].
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub async fn receive(&mut self) -> Result<Bytes, Closed> {
        self.receive_parts().await.map(Parts::concat)
    }

    /// Says that the bytes of the last message are accounted elsewhere, or not kept any more. The next call of
    /// [`LinkReceiver::receive`] says so too.
    pub fn release(&mut self) {
        if let ReceiverInner::Transport(receiver) = &mut self.inner {
            receiver.release();
        }
    }

    /// From now on the link's unfinished messages are accounted to an organisation.
    fn charge(&mut self, arriving: Arriving) {
        // Other links are of this process: both sides share its memory.
        if let ReceiverInner::Transport(receiver) = &mut self.inner {
            receiver.charge(arriving);
        }
    }

    /// As [`Link::receive`], in parts if it came in parts: within one process nothing is copied.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub async fn receive_parts(&mut self) -> Result<Parts, Closed> {
        match &mut self.inner {
            ReceiverInner::Production(receiver) => receiver.recv().await.ok_or(Closed),
            ReceiverInner::Transport(receiver) => poll_fn(|cx| receiver.poll_receive(cx)).await.map(Parts::from),
            ReceiverInner::Simulation(receiver) => receiver.receive().await.map(Parts::from),
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

impl fmt::Debug for LinkSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSender")
    }
}

impl fmt::Debug for LinkReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkReceiver")
    }
}
