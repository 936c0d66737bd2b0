//! One copy of the channel, as the primary reaches it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::{self, CancellationToken, Instant};
use base::{Epoch, ErrorKind};
use storage::blocks::Blocks;
use storage::node::{RemoteBlocks, RemotePrivateRows, RemoteStateStore};
use storage::{Error, PrivateTable, StateStore};

use crate::limits::{HEARTBEAT_PERIOD, LOST_AFTER};
use crate::set::{CopyNode, CopySet, passes};

/// Blocks, rows and private rows of one copy.
pub(crate) struct Member {
    pub node: CopyNode,
    pub blocks: RemoteBlocks,
    pub rows: RemoteStateStore,
    private: [RemotePrivateRows; 2],
    /// It is left out of the view, or about to be: calls that wait for it go on without it.
    pub left_out: CancellationToken,
    /// It has not confirmed the epoch in time.
    is_silent: AtomicBool,
    /// The durable height, and since when it has been that while more was appended.
    progress: Mutex<(u64, Instant)>,
}

impl Member {
    /// Opens a copy under the primary's epoch, within a time.
    ///
    /// # Errors
    /// `Retry` if it gives no answer in time; those of opening.
    pub async fn open(
        set: &CopySet,
        node: &CopyNode,
        channel: &str,
        epoch: Epoch,
        is_learner: bool,
        time_max: Duration,
    ) -> Result<Member, Error> {
        let remote = set.remote(node, channel, epoch);
        let opening = async {
            let blocks = match is_learner {
                false => RemoteBlocks::open(remote.clone()).await?,
                true => RemoteBlocks::open_learner(remote.clone()).await?,
            };
            let rows = RemoteStateStore::open(remote.clone()).await?;
            Ok::<_, Error>((blocks, rows))
        };
        let (blocks, rows) = crate::election::within(node, time_max, opening).await?;
        let progress = Mutex::new((blocks.durable_height(), rt::now()));
        Ok(Member {
            node: node.clone(),
            blocks,
            rows,
            private: RemotePrivateRows::of_primary(remote),
            left_out: CancellationToken::new(),
            is_silent: AtomicBool::new(false),
            progress,
        })
    }

    pub fn name(&self) -> &str {
        &self.node.name
    }

    pub fn private(&self, table: PrivateTable) -> &RemotePrivateRows {
        match table {
            PrivateTable::Committed => &self.private[0],
            PrivateTable::Transient => &self.private[1],
        }
    }

    /// Step 7: asks the copy again and again to confirm the epoch. Returns when a later one has begun there.
    pub async fn watch(&self) -> Error {
        loop {
            match rt::timeout(LOST_AFTER, self.rows.confirm()).await {
                Ok(Ok(())) => self.is_silent.store(false, Ordering::Release),
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return error,
                Ok(Err(_)) | Err(_) => self.is_silent.store(true, Ordering::Release),
            }
            rt::sleep(HEARTBEAT_PERIOD).await;
        }
    }

    /// Why the copy is to be left out; `None` while it works.
    pub fn trouble(&self) -> Option<String> {
        if let Some(error) = self.blocks.failure() {
            return Some(error.to_string());
        }
        let (durable, height) = (self.blocks.durable_height(), self.blocks.height());
        let mut progress = self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if durable != progress.0 || durable == height {
            *progress = (durable, rt::now());
        }
        let waited = progress.1.elapsed();
        if waited > LOST_AFTER {
            return Some(format!("block {durable} has not been durable there for {} ms", waited.as_millis()));
        }
        self.is_silent.load(Ordering::Acquire).then(|| "it does not confirm the epoch".to_owned())
    }

    /// The error after which no primary of this epoch can go on.
    pub fn fatal(&self) -> Option<Error> {
        self.blocks.failure().filter(|error| error.kind() == ErrorKind::Fenced)
    }

    /// The error that no other attempt would mend.
    pub fn lasting(&self) -> Option<Error> {
        self.blocks.failure().filter(|error| !passes(error))
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("node", &self.node).finish_non_exhaustive()
    }
}
