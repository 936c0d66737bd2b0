//! The history of a key: every change by a valid transaction, from the newest back (Fabric's `GetHistoryForKey`).
//!
//! 1. Storage finds the blocks that wrote the key ([`storage::History`]), a few at a time, newest first.
//! 2. Each of these blocks is read from the block store. The writes of its valid transactions to the key are extracted, the
//!    last transaction first, with the transaction's id and its client's time.
//!
//! A [`HistoryWalk`] starts below the height of a snapshot, so it shows the changes that led to that snapshot and is the
//! same at every peer. It holds the changes of few blocks at a time.
//!
//! Storage builds its history index at the first request, which may take long; a walk waits for the index for up to
//! [`WAIT_MAX`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockNumber, Bytes, ErrorKind, rt};
use contract::{HistoryPage, KeyModification, PAGE_BYTES_SOFT_MAX, Timestamp};
use ledger::Block;
use ledger::transaction::{Transaction, results_of_valid};
use storage::blocks::StoredBlocks;
use storage::{History, HistoryQuery};

use crate::Error;
use ledger::Code;
use ledger::rwset::visit_writes;

/// How long a request waits for an index that is being built, or for a storage node that is away.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The pause before the request is repeated.
const WAIT_PAUSE: Duration = Duration::from_millis(50);
/// The largest number of blocks that one request asks for.
const BLOCKS_AT_ONCE: usize = 64;

/// The history of a channel's keys.
pub struct KeyHistory {
    index: Arc<dyn History>,
    blocks: Arc<dyn StoredBlocks>,
}

impl KeyHistory {
    /// A history over the index and the blocks that storage keeps of a channel.
    pub fn new(index: Arc<dyn History>, blocks: Arc<dyn StoredBlocks>) -> KeyHistory {
        KeyHistory { index, blocks }
    }

    /// Step 1.
    async fn blocks_of(&self, namespace: &str, key: &str, below: u64) -> Result<Vec<BlockNumber>, Error> {
        let started = rt::now();
        let query = HistoryQuery { namespace, key: key.as_bytes(), below: BlockNumber(below), limit: BLOCKS_AT_ONCE };
        loop {
            match self.index.blocks_of(query).await {
                Err(error) if error.kind() == ErrorKind::Retry && started.elapsed() < WAIT_MAX => {
                    rt::sleep(WAIT_PAUSE).await;
                }
                asked => return Ok(asked?),
            }
        }
    }

    /// Step 2: the changes of one block, newest first.
    async fn changes_in(&self, number: BlockNumber, namespace: &str, key: &str) -> Result<Vec<KeyModification>, Error> {
        let broken = |reason: String| Error::Stored { block: number.get(), reason };
        let bytes = self.blocks.read(number).await?;
        let bytes = bytes.ok_or_else(|| broken("the history names it, and it is not there".to_owned()))?;
        let block = Block::parse(&bytes)?;
        block.check_filter()?;
        let mut changes = Vec::new();
        for (position, (envelope, code)) in block.envelope_slices().zip(block.metadata().filter()).enumerate() {
            if !Code(*code).is_valid() {
                continue;
            }
            let wrong = |reason: String| broken(format!("transaction {position}: {reason}"));
            let results = results_of_valid(envelope).map_err(|error| wrong(error.to_string()))?;
            let Some(results) = results else { continue };
            let mut written = None;
            visit_writes(envelope, results, |write| {
                let is_wanted = write.namespace == namespace && write.collection.is_empty();
                // Of several writes of a transaction to the key, Fabric's history shows the first.
                if is_wanted && write.key == key.as_bytes() && written.is_none() {
                    written = Some(write.value.map(|value| value.of(envelope)));
                }
            })
            .map_err(|error| wrong(error.to_string()))?;
            let Some(value) = written else { continue };
            let transaction =
                Transaction::decode(&block.envelope(position)).map_err(|error| wrong(error.to_string()))?;
            let (seconds, nanos) = transaction.header().timestamp().unwrap_or_default();
            changes.push(KeyModification {
                tx_id: transaction.header().to_tx_id(),
                timestamp: Timestamp { seconds, nanos },
                // A write of an empty value is a deletion, as everywhere.
                value: value.filter(|value| !value.is_empty()).map(Bytes::copy_from_slice),
            });
        }
        changes.reverse();
        Ok(changes)
    }
}

/// One pass through the history of a key.
pub struct HistoryWalk {
    namespace: Arc<str>,
    key: String,
    /// Storage was asked for the blocks from this number on.
    below: u64,
    /// Blocks that were not read yet, newest first.
    blocks: VecDeque<BlockNumber>,
    /// Changes that were not returned yet.
    changes: VecDeque<KeyModification>,
    /// Storage has no more blocks.
    exhausted: bool,
}

impl HistoryWalk {
    /// A walk over the blocks below a height.
    pub fn new(namespace: &Arc<str>, key: &str, height: u64) -> HistoryWalk {
        HistoryWalk {
            namespace: Arc::clone(namespace),
            key: key.to_owned(),
            below: height,
            blocks: VecDeque::new(),
            changes: VecDeque::new(),
            exhausted: false,
        }
    }

    /// The namespace of the key.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The next changes: at most `limit`, and no more once their values reach [`PAGE_BYTES_SOFT_MAX`] bytes.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Retry` if storage does not answer in time; an error for damaged data; the block store's.
    pub async fn page(&mut self, history: &KeyHistory, limit: usize) -> Result<HistoryPage, Error> {
        let bytes = |change: &KeyModification| change.value.as_ref().map_or(0, Bytes::len);
        // One change more than wanted shows whether there are more.
        while self.changes.len() <= limit && self.changes.iter().map(bytes).sum::<usize>() <= PAGE_BYTES_SOFT_MAX {
            let Some(number) = self.blocks.front().copied() else {
                if self.exhausted {
                    break;
                }
                let blocks = history.blocks_of(&self.namespace, &self.key, self.below).await?;
                self.exhausted = blocks.len() < BLOCKS_AT_ONCE;
                self.below = blocks.last().map_or(0, |block| block.get());
                self.blocks = blocks.into();
                continue;
            };
            let changes = history.changes_in(number, &self.namespace, &self.key).await?;
            self.blocks.pop_front();
            self.changes.extend(changes);
            rt::yield_now().await;
        }
        let mut page = HistoryPage::default();
        let mut taken = 0;
        while page.modifications.len() < limit
            && taken < PAGE_BYTES_SOFT_MAX
            && let Some(change) = self.changes.pop_front()
        {
            taken += bytes(&change);
            page.modifications.push(change);
        }
        page.has_more = !self.changes.is_empty() || !self.blocks.is_empty() || !self.exhausted;
        Ok(page)
    }
}
