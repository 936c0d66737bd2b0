//! What a node that follows finds around it: the primary, memory and rows.
//!
//! Who accepts a link at a compute node's address for the others is the primary, or about to be, and says first under which epoch:
//! 8 bytes, little-endian. Then the link is one of [`state::disaggregated::readers`].

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::{self, Link};
use base::rt::{self, Instant};
use base::{Bytes, Epoch};
use futures_util::future::join_all;
use state::disaggregated::memory::{LentMemory, MemoryError};
use state::disaggregated::readers::{Helper, Surroundings};
use storage::StateStore;
use storage::node::{RemoteStateStore, newest_epoch};

use super::{ComputeNodeOptions, Shared};
use crate::validate::borrow::Lender;

/// How long another node may take to say whether it is the primary.
const GREETING_MAX: Duration = Duration::from_millis(200);
/// How long storage may take to name the newest epoch.
const EPOCH_MAX: Duration = Duration::from_secs(1);

/// What the primary says first.
pub(super) fn greeting(epoch: Epoch) -> Bytes {
    Bytes::copy_from_slice(&epoch.get().to_le_bytes())
}

/// What is known around a node that follows.
pub(super) struct Around {
    options: ComputeNodeOptions,
    /// Verifies signatures for the primary.
    lender: Arc<Lender>,
    remote: storage::node::RemoteOptions,
    /// The newest epoch, and since when it is known to be; nothing since storage did not answer.
    newest: Mutex<Option<(Epoch, Instant)>>,
}

impl Around {
    pub(super) fn new(shared: &Shared) -> Around {
        let options = shared.options.clone();
        let lender = Arc::new(Lender::new(shared.rules.clone(), options.settings.commit.borrowing.clone()));
        Around { options, lender, remote: shared.remote(Epoch(0)), newest: Mutex::default() }
    }

    /// The newest epoch, if it has been that for so long.
    pub(super) fn settled(&self, patience: Duration) -> Option<Epoch> {
        let newest = *self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.filter(|(_, since)| since.elapsed() >= patience).map(|(epoch, _)| epoch)
    }

    /// Something has changed that is not known here yet.
    pub(super) fn unsettle(&self) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn newest(&self) -> io::Result<Epoch> {
        let asked =
            rt::timeout(EPOCH_MAX, newest_epoch(&self.remote.address, &self.remote.token, &self.remote.channel)).await;
        let newest = match asked {
            Ok(Ok(newest)) => newest,
            silent => {
                self.unsettle();
                return Err(late(format!("storage does not say who is the primary: {silent:?}")));
            }
        };
        let mut known = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|(epoch, _)| epoch != newest) {
            *known = Some((newest, rt::now()));
        }
        Ok(newest)
    }
}

/// There may be a primary all the same.
fn late(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

/// A link to a node, and what it says.
async fn ask(address: &str) -> io::Result<(Epoch, Link)> {
    let greeted = async {
        let mut link = net::connect(address).await?;
        let ended = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        let greeting = link.receive().await.map_err(ended)?;
        let epoch = <[u8; 8]>::try_from(&greeting[..]).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok((Epoch(u64::from_le_bytes(epoch)), link))
    };
    rt::timeout(GREETING_MAX, greeted).await.unwrap_or_else(|_| Err(late(format!("{address} does not answer"))))
}

#[async_trait]
impl Surroundings for Around {
    async fn primary(&self) -> io::Result<Link> {
        let newest = self.newest().await?;
        let mut silent = None;
        for answer in join_all(self.options.others.iter().map(|address| ask(address))).await {
            match answer {
                // Of two epochs the newest is found at the next attempt.
                Ok((epoch, link)) if epoch >= newest => return Ok(link),
                // It does not know yet that it is the primary no longer.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => silent = Some(error),
                Err(_) => {}
            }
        }
        Err(silent.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "none of the others is the primary")))
    }

    async fn memory(&self) -> Result<Arc<dyn LentMemory>, MemoryError> {
        self.options.memory.lend().await
    }

    fn helper(&self) -> Option<Arc<dyn Helper>> {
        Some(self.lender.clone())
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(RemoteStateStore::open_reader(self.remote.clone()).await?))
    }
}
