//! Which row versions may go.
//!
//! Rows of a key come newest first. With `oldest` the oldest block anybody may still read at:
//! 1. Versions above `oldest` stay.
//! 2. The newest one at or below `oldest` is the base: what a reader at `oldest` sees. It stays.
//! 3. Versions below the base are superseded: no admitted reader sees them.
//! 4. A base that is a deletion may go too, once the savepoint that covers it is durable and nothing is left below it; a
//!    deletion that went before its older versions would bring them back.

use super::PRUNE_ROWS_MIN;
use super::key::RowKey;

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Above the bound: it stays.
    Newer,
    /// The base of its key: it stays.
    Base,
    /// The base of its key, and a deletion that may go once all older rows of its key are gone.
    Deletion,
    /// Below the base: it may go.
    Superseded,
}

/// Judges rows that come in the order of their keys.
#[derive(Debug, Default)]
pub struct Judge {
    /// The key of the last row, and whether its base has been seen.
    prefix: Vec<u8>,
    has_base: bool,
}

impl Judge {
    /// `oldest` is the oldest block anybody may still read at; deletions by blocks below `durable` are covered.
    pub fn judge(&mut self, row: RowKey<'_>, oldest: u64, durable: u64) -> Verdict {
        if self.prefix != row.prefix {
            self.prefix.clear();
            self.prefix.extend_from_slice(row.prefix);
            self.has_base = false;
        }
        if self.has_base {
            return Verdict::Superseded;
        }
        if row.version.block > oldest {
            return Verdict::Newer;
        }
        self.has_base = true;
        if !row.live && row.version.block < durable { Verdict::Deletion } else { Verdict::Base }
    }
}

/// One bounded sweep over rows in the order of their keys.
#[derive(Debug)]
pub struct Sweep<K> {
    oldest: u64,
    durable: u64,
    rows_max: usize,
    judge: Judge,
    /// The base of the key whose older rows are being passed, and whether it is a deletion that goes after them.
    base: Option<(K, bool)>,
    /// Rows looked at.
    pub scanned: usize,
    /// Rows to be removed, as one.
    pub gone: Vec<K>,
    /// Where the next sweep begins; `None` when this one came to the end.
    pub next: Option<K>,
}

impl<K: AsRef<[u8]>> Sweep<K> {
    pub fn new(oldest: u64, durable: u64, rows_max: usize) -> Sweep<K> {
        let rows_max = rows_max.max(PRUNE_ROWS_MIN);
        let judge = Judge::default();
        Sweep { oldest, durable, rows_max, judge, base: None, scanned: 0, gone: Vec::new(), next: None }
    }

    /// Takes the next row; false when the sweep has done its share. `None` for what is no row key.
    pub fn offer(&mut self, bytes: K) -> Option<bool> {
        let row = RowKey::split(bytes.as_ref())?;
        let same_key = match &self.base {
            Some((base, _)) => RowKey::split(base.as_ref())?.prefix == row.prefix,
            None => false,
        };
        if self.scanned == self.rows_max {
            // Where older rows of a key remain, the next sweep begins at their base, which judges them. It gets on because
            // those passed here are gone by then.
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
        match self.judge.judge(row, self.oldest, self.durable) {
            Verdict::Superseded => self.gone.push(bytes),
            verdict => {
                self.end_key();
                if verdict != Verdict::Newer {
                    self.base = Some((bytes, verdict == Verdict::Deletion));
                }
            }
        }
        Some(true)
    }

    /// To be called after the last row.
    pub fn end_key(&mut self) {
        if let Some((base, true)) = self.base.take() {
            self.gone.push(base);
        }
    }
}
