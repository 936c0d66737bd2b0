//! What an observer outside of the simulated world knows, and what it checks:
//!
//! 1. A block that was reported durable is at every member of the newest view, with the same bytes; so are all blocks before it.
//! 2. No two blocks of one number are reported durable. No primary has a block reported durable that it appended after a later
//!    one took office.
//! 3. The rows of each member are those of its blocks, at its savepoint, and its savepoint is not below the one reported.
//! 4. Private rows, committed and transient, that were reported written are at every member, unless they were replaced later.
//! 5. A follower finds every block, transaction and row that was reported durable before it asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{BlockNumber, Version};
use storage::tables::Row;

/// One attempt to write a private row, in the order of the attempts.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub version: u64,
    pub value: Option<String>,
    pub is_acknowledged: bool,
}

#[derive(Default)]
pub struct Evidence {
    /// Hash and text of blocks that were reported durable, by number.
    pub durable: BTreeMap<u64, ([u8; 32], String)>,
    /// Epochs of primaries in office.
    pub opened: Vec<u64>,
    /// The highest savepoint that was reported.
    pub savepoint: u64,
    /// Attempts by key.
    pub committed: BTreeMap<String, Vec<Attempt>>,
    /// Transient rows that were reported written.
    pub transient: BTreeMap<String, String>,
    pub accusations: Vec<String>,
    /// Answers that the follower got.
    pub followed: u64,
}

#[derive(Clone, Default)]
pub struct SharedEvidence(Arc<Mutex<Evidence>>);

impl SharedEvidence {
    pub fn lock(&self) -> MutexGuard<'_, Evidence> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn accuse(&self, what: impl Into<String>) {
        self.lock().accusations.push(what.into());
    }
}

impl Evidence {
    /// Blocks of `epoch` were reported durable; `newest` was in office when the first was appended.
    pub fn report(&mut self, epoch: u64, newest: u64, blocks: &[(u64, [u8; 32], String)]) {
        for (number, hash, text) in blocks {
            if newest > epoch {
                self.accusations.push(format!("epoch {epoch}: block {number} was appended after epoch {newest}"));
            }
            let known = self.durable.entry(*number).or_insert_with(|| (*hash, text.clone()));
            if known.0 != *hash {
                self.accusations.push(format!("epoch {epoch}: another block {number} was reported durable before"));
            }
        }
    }

    pub fn newest(&self) -> u64 {
        self.opened.iter().copied().max().unwrap_or(0)
    }

    /// Whether a member may have this row of a private key.
    pub fn is_acceptable(&self, key: &str, row: Option<&Row>) -> bool {
        let attempts = &self.committed[key];
        let order = |at: usize| (attempts[at].version, at);
        let last = (0..attempts.len()).filter(|at| attempts[*at].is_acknowledged).max_by_key(|at| order(*at));
        let candidates: Vec<&Attempt> = (0..attempts.len())
            .filter(|at| last.is_none_or(|last| order(*at) >= order(last)))
            .map(|at| &attempts[at])
            .collect();
        match row {
            None => last.is_none() || candidates.iter().any(|attempt| attempt.value.is_none()),
            Some(row) => {
                let value = row.value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                candidates.iter().any(|attempt| attempt.version == row.version.block && attempt.value == value)
            }
        }
    }
}

/// The rows of a chain, by namespace and key, as of its last block.
pub fn rows_of(texts: &[String]) -> BTreeMap<(String, String), (Version, Option<String>)> {
    let mut rows = BTreeMap::new();
    for (number, text) in texts.iter().enumerate() {
        for (tx, line) in text.lines().enumerate() {
            let mut words = line.split(' ').map(str::to_owned);
            let (Some(namespace), Some(key)) = (words.next(), words.next()) else { continue };
            rows.insert((namespace, key), (Version::new(number as u64, tx as u32), words.next()));
        }
    }
    rows
}

/// A block number below a height, for reads.
pub fn last_below(height: u64) -> BlockNumber {
    BlockNumber(height.saturating_sub(1))
}
