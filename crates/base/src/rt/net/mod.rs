//! Links: reliable, ordered streams of messages between two parties, until they break.
//!
//! 1. One side listens at an address, the other connects to it; both then hold a [`Link`].
//! 2. Messages arrive in the order of sending, each whole and at most once.
//! 3. A link ends when either side drops it (what was sent before still arrives) or when it breaks (messages in flight
//!    may be lost). From then on both sides see [`Closed`]. A sender never learns from the link how far its messages
//!    came; protocols acknowledge for themselves.
//!
//! An address is a name. In production it names a listener of this process (links to other hosts are a provider of a
//! later release); in simulation, a listener of any node.

pub mod call;
mod production;

use std::fmt;
use std::io;

use bytes::Bytes;

use super::channel::Closed;
use super::{context, simulation};

/// Messages in one direction of a link that were sent and not yet received; further senders wait.
pub const LINK_MESSAGES_MAX: usize = 256;
/// Links connected to a listener and not yet accepted; further connections wait.
pub const BACKLOG_LINKS_MAX: usize = 64;

/// Accepts links at an address. Dropping it frees the address; accepted links live on.
pub struct Listener {
    inner: ListenerInner,
}

enum ListenerInner {
    Production(production::Listener),
    Simulation(simulation::Listener),
}

/// One end of a link. Dropping it ends the link.
#[derive(Debug)]
pub struct Link {
    sender: LinkSender,
    receiver: LinkReceiver,
}

/// The sending half of one end. Dropping it lets the other end receive what was sent, then [`Closed`].
pub struct LinkSender {
    inner: SenderInner,
}

enum SenderInner {
    Production(super::channel::Sender<Bytes>),
    Simulation(simulation::LinkSender),
}

/// The receiving half of one end. Dropping it makes the other end's sends fail.
pub struct LinkReceiver {
    inner: ReceiverInner,
}

enum ReceiverInner {
    Production(super::channel::Receiver<Bytes>),
    Simulation(simulation::LinkReceiver),
}

/// Listens at `address`.
///
/// # Errors
/// `AddrInUse` when another listener has it.
pub async fn listen(address: &str) -> io::Result<Listener> {
    let inner = match context::ambient() {
        Some(ambient) => ListenerInner::Simulation(simulation::listen(ambient, address)?),
        None => ListenerInner::Production(production::listen(address)?),
    };
    Ok(Listener { inner })
}

/// Connects to the listener at `address`. Completes when the listener's side holds the link in its backlog.
///
/// # Errors
/// `ConnectionRefused` when nobody listens there, `TimedOut` when the other node cannot be reached.
pub async fn connect(address: &str) -> io::Result<Link> {
    match context::ambient() {
        Some(ambient) => simulation::connect(ambient, address).await.map(simulated),
        None => production::connect(address).await,
    }
}

fn simulated((sender, receiver): (simulation::LinkSender, simulation::LinkReceiver)) -> Link {
    Link {
        sender: LinkSender { inner: SenderInner::Simulation(sender) },
        receiver: LinkReceiver { inner: ReceiverInner::Simulation(receiver) },
    }
}

impl Listener {
    /// The next link. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the node is going down.
    pub async fn accept(&mut self) -> Result<Link, Closed> {
        match &mut self.inner {
            ListenerInner::Production(listener) => listener.accept().await,
            ListenerInner::Simulation(listener) => listener.accept().await.map(simulated),
        }
    }
}

impl Link {
    /// Waits for room, then sends. When the future is dropped before it completes, nothing was sent.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended. A message that was sent without an error may be lost all the same.
    pub async fn send(&self, message: Bytes) -> Result<(), Closed> {
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
    pub async fn send(&self, message: Bytes) -> Result<(), Closed> {
        match &self.inner {
            SenderInner::Production(sender) => sender.send(message).await,
            SenderInner::Simulation(sender) => sender.send(message).await,
        }
    }
}

impl LinkReceiver {
    /// As [`Link::receive`].
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub async fn receive(&mut self) -> Result<Bytes, Closed> {
        match &mut self.inner {
            ReceiverInner::Production(receiver) => receiver.recv().await.ok_or(Closed),
            ReceiverInner::Simulation(receiver) => receiver.receive().await,
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
