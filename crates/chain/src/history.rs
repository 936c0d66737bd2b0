//! What a key held: every change by a valid transaction, from the newest back (Fabric's `GetHistoryForKey`).
//!
//! 1. Storage says which blocks wrote the key ([`storage::History`]), some at a time, newest first.
//! 2. Each of these blocks is read from the block store, and what its valid transactions wrote to the key is taken out, the last
//!    transaction first, with the transaction's id and its client's time.
//!
//! A [`Walk`] begins below the height of a snapshot and so shows what that snapshot's state came from: it is the same at every
//! peer. It holds the changes of few blocks at a time.
//!
//! Storage makes its index when it is first asked and may take long over it; a walk waits for up to [`WAIT_MAX`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base::{BlockNumber, Bytes, ErrorKind, rt};
use contract::{HistoryPage, Modification, PAGE_BYTES_SOFT_MAX, Timestamp};
use ledger::Block;
use ledger::transaction::{Transaction, results_of_valid};
use storage::History;
use storage::blocks::StoredBlocks;

use crate::Error;
use crate::rwset::visit_writes;
use crate::validate::Code;

/// How long a question waits for an index that is being made, or for a storage node that is away.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The pause before it is asked again.
const WAIT_PAUSE: Duration = Duration::from_millis(50);
/// Blocks that storage is asked for at once.
const BLOCKS_AT_ONCE: usize = 64;

/// The history of a channel's keys.
pub struct KeyHistory {
    index: Arc<dyn History>,
    blocks: Arc<dyn StoredBlocks>,
}

impl KeyHistory {
    /// A history over what storage keeps of a channel.
    pub fn new(index: Arc<dyn History>, blocks: Arc<dyn StoredBlocks>) -> KeyHistory {
        KeyHistory { index, blocks }
    }

    /// Step 1.
    async fn blocks_of(&self, namespace: &str, key: &str, below: u64) -> Result<Vec<BlockNumber>, Error> {
        let started = rt::now();
        loop {
            let asked = self.index.blocks_of(namespace, key.as_bytes(), BlockNumber(below), BLOCKS_AT_ONCE).await;
            match asked {
                Err(error) if error.kind() == ErrorKind::Retry && started.elapsed() < WAIT_MAX => {
                    rt::sleep(WAIT_PAUSE).await;
                }
                asked => return Ok(asked?),
            }
        }
    }

    /// Step 2: the changes of one block, newest first.
    async fn changes_in(&self, number: BlockNumber, namespace: &str, key: &str) -> Result<Vec<Modification>, Error> {
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
            visit_writes(envelope, results, |of, name, value| {
                if of == namespace && name == key {
                    written = Some(value.map(|value| value.of(envelope)));
                }
            })
            .map_err(|error| wrong(error.to_string()))?;
            let Some(value) = written else { continue };
            let transaction =
                Transaction::decode(&block.envelope(position)).map_err(|error| wrong(error.to_string()))?;
            let (seconds, nanos) = transaction.header().timestamp().unwrap_or_default();
            changes.push(Modification {
                tx_id: transaction.header().to_tx_id(),
                timestamp: Timestamp { seconds, nanos },
                // A value of no bytes is a deletion, as everywhere.
                value: value.filter(|value| !value.is_empty()).map(Bytes::copy_from_slice),
            });
        }
        changes.reverse();
        Ok(changes)
    }
}

/// One way through the history of a key.
pub struct Walk {
    namespace: Arc<str>,
    key: String,
    /// Storage was asked for the blocks from here on.
    below: u64,
    /// Blocks that were not read yet, newest first.
    blocks: VecDeque<BlockNumber>,
    /// Changes that were not handed out yet.
    changes: VecDeque<Modification>,
    /// Storage has no more blocks.
    exhausted: bool,
}

impl Walk {
    /// A walk over the blocks below a height.
    pub fn new(namespace: &Arc<str>, key: &str, height: u64) -> Walk {
        Walk {
            namespace: Arc::clone(namespace),
            key: key.to_owned(),
            below: height,
            blocks: VecDeque::new(),
            changes: VecDeque::new(),
            exhausted: false,
        }
    }

    /// Whose key it is.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The next changes: at most `limit`, and no more once their values have [`PAGE_BYTES_SOFT_MAX`] bytes.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Retry` where storage does not answer in time; damage; the block store's.
    pub async fn page(&mut self, history: &KeyHistory, limit: usize) -> Result<HistoryPage, Error> {
        let bytes = |change: &Modification| change.value.as_ref().map_or(0, Bytes::len);
        // One more than wanted tells whether there are more.
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
