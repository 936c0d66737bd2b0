//! Decides which row versions may be removed.
//!
//! The rows of a key are examined from the newest to the oldest. Let `oldest` be the oldest block that a reader may
//! still ask for:
//! 1. Versions above `oldest` stay.
//! 2. The newest version at or below `oldest` is the base: the version that a reader at `oldest` sees. It stays.
//! 3. Versions below the base are superseded and may be removed: no admitted reader sees them.
//! 4. A base that is a deletion may be removed too, but only when the savepoint that covers it is durable and no
//!    version is left below it. If the deletion were removed before the older versions, these versions would become
//!    visible again.

use super::PRUNE_ROWS_MIN;
use super::key::RowKey;

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneDecision {
    /// Above `oldest`: it stays.
    Newer,
    /// The base of its key: it stays.
    Base,
    /// The base of its key, and a deletion that may be removed once all older rows of its key are gone.
    Deletion,
    /// Below the base: it may be removed.
    Superseded,
}

/// Classifies rows that come in the order of their keys.
#[derive(Debug, Default)]
pub struct PruneDecider {
    /// The key of the last row, and whether its base was found.
    prefix: Vec<u8>,
    has_base: bool,
}

impl PruneDecider {
    /// `oldest` is the oldest block that a reader may still ask for; deletions by blocks below `durable` are covered.
    pub fn decide(&mut self, row: RowKey<'_>, oldest: u64, durable: u64) -> PruneDecision {
        if self.prefix != row.prefix {
            self.prefix.clear();
            self.prefix.extend_from_slice(row.prefix);
            self.has_base = false;
        }
        if self.has_base {
            return PruneDecision::Superseded;
        }
        if row.version.block > oldest {
            return PruneDecision::Newer;
        }
        self.has_base = true;
        if !row.live && row.version.block < durable { PruneDecision::Deletion } else { PruneDecision::Base }
    }
}

/// One bounded sweep over rows in the order of their keys.
#[derive(Debug)]
pub struct PruneSweep<K> {
    oldest: u64,
    durable: u64,
    rows_max: usize,
    decider: PruneDecider,
    /// The base of the key whose older rows are being examined, and whether it is a deletion to remove after them.
    base: Option<(K, bool)>,
    /// Rows examined.
    pub scanned: usize,
    /// Rows to be removed, atomically.
    pub gone: Vec<K>,
    /// Where the next sweep begins; `None` if this one reached the end.
    pub next: Option<K>,
}

impl<K: AsRef<[u8]>> PruneSweep<K> {
    pub fn new(oldest: u64, durable: u64, rows_max: usize) -> PruneSweep<K> {
        let rows_max = rows_max.max(PRUNE_ROWS_MIN);
        let judge = PruneDecider::default();
        PruneSweep { oldest, durable, rows_max, decider: judge, base: None, scanned: 0, gone: Vec::new(), next: None }
    }

    /// Takes the next row; false once the sweep has examined `rows_max` rows. `None` for bytes that are not a row key.
    pub fn offer(&mut self, bytes: K) -> Option<bool> {
        let row = RowKey::split(bytes.as_ref())?;
        let same_key = match &self.base {
            Some((base, _)) => RowKey::split(base.as_ref())?.prefix == row.prefix,
            None => false,
        };
        if self.scanned == self.rows_max {
            // If older rows of a key remain, the next sweep begins at their base, which classifies them. It makes progress,
            // because the rows examined here are gone by then.
            self.next = match self.base.take() {
                Some((base, _)) if same_key => Some(base),
                base => {
                    self.base = base;
                    Some(bytes)
                }
            };
            return Some(false);
        }
        self.scanned += 1;
        match self.decider.decide(row, self.oldest, self.durable) {
            PruneDecision::Superseded => self.gone.push(bytes),
            verdict => {
                self.end_key();
                if verdict != PruneDecision::Newer {
                    self.base = Some((bytes, verdict == PruneDecision::Deletion));
                }
            }
        }
        Some(true)
    }

    /// Must be called after the last row.
    pub fn end_key(&mut self) {
        if let Some((base, true)) = self.base.take() {
            self.gone.push(base);
        }
    }
}
