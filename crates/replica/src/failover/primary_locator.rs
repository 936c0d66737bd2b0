//! Finds the primary for a compute node that follows.
//!
//! Only the primary, or a node that is about to become it, accepts links at its address for the other compute nodes of
//! the peer. On each link that node first sends its epoch: 8 bytes, little-endian. After that the link carries the
//! protocol of [`crate::followers`].

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::rt::net::Link;
use base::rt::{Instant, net};
use base::{Bytes, Epoch, rt};
use futures_util::future::join_all;
use storage_copies::newest_epoch;

use crate::failover::addresses::PeerAddresses;

/// How long another node may take to send its epoch.
const GREETING_MAX: Duration = Duration::from_millis(200);
/// How long the storage node may take to name the newest epoch.
const EPOCH_MAX: Duration = Duration::from_secs(1);

/// The first message of a primary on a link: its epoch.
pub(super) fn greeting(epoch: Epoch) -> Bytes {
    Bytes::copy_from_slice(&epoch.get().to_le_bytes())
}

/// Finds the newest primary of a peer.
pub struct PrimaryLocator {
    peer: PeerAddresses,
    /// The newest epoch, and the time since which it has been the newest; `None` after a failed question to the storage
    /// node.
    newest: Mutex<Option<(Epoch, Instant)>>,
}

impl PrimaryLocator {
    pub(super) fn new(peer: PeerAddresses) -> PrimaryLocator {
        PrimaryLocator { peer, newest: Mutex::default() }
    }

    /// The newest epoch, if it has not changed for `stable_for`.
    pub(super) fn stable_epoch(&self, stable_for: Duration) -> Option<Epoch> {
        let newest = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.filter(|(_, since)| since.elapsed() >= stable_for).map(|(epoch, _)| epoch)
    }

    /// Forgets the newest epoch, because it may have changed.
    pub(super) fn forget_epoch(&self) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A link to the primary that has the newest epoch; the epoch that it sends first has been received.
    ///
    /// # Errors
    /// `TimedOut` if a primary may be alive: the storage node or another compute node is silent. Any other kind if no
    /// other node is the primary.
    pub async fn find(&self) -> io::Result<Link> {
        let newest = self.newest().await?;
        let mut silent = None;
        for answer in join_all(self.peer.others.iter().map(|address| read_greeting(address))).await {
            match answer {
                // If two nodes claim an epoch, the next attempt finds the newer one.
                Ok((epoch, link)) if epoch >= newest => return Ok(link),
                // This node has not noticed yet that it is no longer the primary.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silent = Some(error),
                Err(_) => {}
            }
        }
        Err(silent.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no other compute node is the primary")))
    }

    async fn newest(&self) -> io::Result<Epoch> {
        let asked = rt::timeout(EPOCH_MAX, newest_epoch(&self.peer.storage, &self.peer.channel)).await;
        let newest = match asked {
            Ok(Ok(newest)) => newest,
            silent => {
                self.forget_epoch();
                return Err(late(format!("the storage node did not name the newest epoch: {silent:?}")));
            }
        };
        let mut known = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|(epoch, _)| epoch != newest) {
            *known = Some((newest, rt::now()));
        }
        Ok(newest)
    }
}

/// A time-out: it does not prove that there is no primary.
fn late(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// Connects to a node and receives its epoch.
async fn read_greeting(address: &str) -> io::Result<(Epoch, Link)> {
    let greeted = async {
        let mut link = net::connect(address).await?;
        let ended = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        let greeting = link.receive().await.map_err(ended)?;
        let mut greeting = wire::Reader::new(greeting);
        let epoch = greeting.u64().and_then(|epoch| greeting.end().map(|()| Epoch(epoch)));
        Ok((epoch.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?, link))
    };
    rt::timeout(GREETING_MAX, greeted).await.unwrap_or_else(|_| Err(late(format!("{address} does not answer"))))
}
