//! Links: reliable, ordered streams of messages between two parties, until they break.
//!
//! 1. One end listens at an address, the other connects to it; both then hold a [`Link`].
//! 2. Messages arrive in the order of sending, each whole and at most once.
//! 3. A link ends when one end drops it or when it breaks. From then on both ends see [`Closed`]. Messages that were
//!    sent before the drop still arrive; when a link breaks, messages in flight may be lost, and with one of them all later ones.
//!    A sender does not learn which of its messages arrived, so protocols need their own acknowledgements.
//!
//! An address is a name. In production "scheme:rest" goes to the [`Transport`] that is [registered](register) for the
//! scheme, and may lead to another host; any other address names a listener of this process. In simulation every
//! address names a listener, on whatever node it is.
//!
//! A transport buffers messages, so a sent message may be in transit for a long time. When one end drops its receiver,
//! the transport sends a notice to the other end, after earlier messages. Sends at the other end fail only from the
//! arrival of this notice on, or when the connection is lost.

mod acceptor;
mod gather_list;
mod parties;
mod production;
mod receive_account;
pub mod rpc;
mod transport;

use std::future::poll_fn;
use std::{fmt, io};

use bytes::Bytes;

use super::channel::{Closed, TrySendError};
use super::{context, simulation};
use crate::admission::Principal;

pub use acceptor::{EVENTS, LinkAcceptor, LinkBytesArriving, LinkPermit, LinksOverdrawn, LinksRejected, LinksStalled};
pub use gather_list::GatherList;
pub use parties::Parties;
pub use receive_account::{ReceiveAccount, UNFINISHED_BYTES_MAX};
pub use transport::{BoxFuture, ReceiveHalf, SendHalf, Transport, TransportListener, register};

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
    Transport(Box<dyn TransportListener>),
    Simulation(simulation::Listener),
}

/// One end of a link. Dropping it ends the link.
#[derive(Debug)]
pub struct Link {
    // Dropped first, so that the other end learns that this one no longer receives before it learns of the end.
    receiver: LinkReceiver,
    sender: LinkSender,
    principal: Option<Principal>,
}

/// The sending half of one end. When it is dropped, the other end receives what was sent, then [`Closed`].
pub struct LinkSender {
    inner: SenderInner,
}

enum SenderInner {
    Production(super::channel::Sender<GatherList>),
    Transport(Box<dyn SendHalf>),
    Simulation(simulation::LinkSender),
}

/// The receiving half of one end. Dropping it makes the other end's sends fail.
pub struct LinkReceiver {
    inner: ReceiverInner,
}

enum ReceiverInner {
    Production(super::channel::Receiver<GatherList>),
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

/// Connects to the listener at `address`. Completes when the link is in the listener's backlog.
///
/// # Errors
/// `ConnectionRefused` when there is no listener, `TimedOut` when the other node cannot be reached, `PermissionDenied` when one
/// end fails to authenticate to the other.
pub async fn connect(address: &str) -> io::Result<Link> {
    if let Some(ambient) = context::ambient() {
        return simulation::connect(ambient, address).await.map(simulated);
    }
    match transport::find(address) {
        Some((transport, _, rest)) => transport.connect(rest).await,
        None => production::connect(address).await,
    }
}

/// Connects as [`connect`] does, but only to one of `parties`.
///
/// # Errors
/// As [`connect`]; `PermissionDenied` when another party answers.
pub async fn connect_to(address: &str, parties: &Parties) -> io::Result<Link> {
    let link = connect(address).await?;
    if parties.include(&link) {
        return Ok(link);
    }
    LinksRejected.add(1);
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

    /// The address to connect to: the given address, with the parts that the system chose (a port).
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Link {
    fn of(sender: SenderInner, receiver: ReceiverInner) -> Link {
        Link { sender: LinkSender { inner: sender }, receiver: LinkReceiver { inner: receiver }, principal: None }
    }

    /// A link over a transport's halves. `peer` is the name that the other end proved, if any; it stands for an organisation
    /// with this one identity.
    pub fn new(sender: Box<dyn SendHalf>, receiver: Box<dyn ReceiveHalf>, peer: Option<&str>) -> Link {
        let mut link = Link::of(SenderInner::Transport(sender), ReceiverInner::Transport(receiver));
        link.principal = peer.map(|name| Principal::new(name, name));
        link
    }

    /// The same link, whose other end proved an identity of an organisation.
    #[must_use]
    pub fn with_principal(mut self, principal: Principal) -> Link {
        self.principal = Some(principal);
        self
    }

    /// The name that the other end proved. On links between organisations this is its organisation. `None` if the transport
    /// does not authenticate.
    pub fn peer(&self) -> Option<&str> {
        self.principal.as_ref().map(|principal| &*principal.organization)
    }

    /// The identity that the other end proved.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// Waits for space, then sends. When the future is dropped before it completes, nothing was sent.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended. A message that was sent without an error may still be lost.
    pub async fn send(&self, message: impl Into<GatherList>) -> Result<(), Closed> {
        self.sender.send(message).await
    }

    /// The next message. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended.
    pub async fn receive(&mut self) -> Result<Bytes, Closed> {
        self.receiver.receive().await
    }

    /// Both halves, for use by different tasks.
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        (self.sender, self.receiver)
    }
}

impl LinkSender {
    /// As [`Link::send`].
    ///
    /// # Errors
    /// As [`Link::send`].
    pub async fn send(&self, message: impl Into<GatherList>) -> Result<(), Closed> {
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
        self.receive_parts().await.map(GatherList::concat)
    }

    /// Tells the link that the bytes of the last message are accounted elsewhere, or are no longer kept. The next call of
    /// [`LinkReceiver::receive`] implies this too.
    pub fn release(&mut self) {
        if let ReceiverInner::Transport(receiver) = &mut self.inner {
            receiver.release();
        }
    }

    /// From now on the link's unfinished messages count against an organisation.
    fn charge(&mut self, arriving: ReceiveAccount) {
        // Other links are within this process: both ends share its memory.
        if let ReceiverInner::Transport(receiver) = &mut self.inner {
            receiver.charge(arriving);
        }
    }

    /// As [`Link::receive`], in the parts in which it came: within one process nothing is copied.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub async fn receive_parts(&mut self) -> Result<GatherList, Closed> {
        match &mut self.inner {
            ReceiverInner::Production(receiver) => receiver.recv().await.ok_or(Closed),
            ReceiverInner::Transport(receiver) => poll_fn(|cx| receiver.poll_receive(cx)).await.map(GatherList::from),
            ReceiverInner::Simulation(receiver) => receiver.receive().await.map(GatherList::from),
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
