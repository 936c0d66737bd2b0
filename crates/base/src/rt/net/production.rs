//! Links within one process: two bounded queues, found by the listener's name in a table of the process.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{BACKLOG_LINKS_MAX, LINK_MESSAGES_MAX, Link, ReceiverInner, SenderInner};
use crate::rt::channel::{Closed, Receiver, Sender, bounded};

/// Every listener of the process.
static LISTENERS: Mutex<BTreeMap<String, Sender<Link>>> = Mutex::new(BTreeMap::new());

fn listeners() -> MutexGuard<'static, BTreeMap<String, Sender<Link>>> {
    // The table is consistent between any two statements that could panic, so a poisoned lock does no harm.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Listener {
    address: String,
    backlog: Receiver<Link>,
}

pub fn listen(address: &str) -> io::Result<Listener> {
    let mut listeners = listeners();
    if listeners.contains_key(address) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("another listener has the address {address}")));
    }
    let (sender, backlog) = bounded(BACKLOG_LINKS_MAX);
    listeners.insert(address.to_owned(), sender);
    Ok(Listener { address: address.to_owned(), backlog })
}

pub async fn connect(address: &str) -> io::Result<Link> {
    let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, format!("there is no listener at {address}"));
    let backlog = listeners().get(address).cloned().ok_or_else(refused)?;
    let (near, far) = pair();
    backlog.send(far).await.map_err(|Closed| refused())?;
    Ok(near)
}

fn pair() -> (Link, Link) {
    let (to_far, at_far) = bounded(LINK_MESSAGES_MAX);
    let (to_near, at_near) = bounded(LINK_MESSAGES_MAX);
    let link = |sender, receiver| Link::of(SenderInner::Production(sender), ReceiverInner::Production(receiver));
    (link(to_far, at_near), link(to_near, at_far))
}

impl Listener {
    pub async fn accept(&mut self) -> Result<Link, Closed> {
        self.backlog.recv().await.ok_or(Closed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        listeners().remove(&self.address);
    }
}
