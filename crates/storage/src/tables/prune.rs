//! Which row versions may go.
//!
//! Rows of a key come newest first. With `oldest` the oldest block anybody may still read at:
//! 1. Versions above `oldest` stay.
//! 2. The newest one at or below `oldest` is the base: what a reader at `oldest` sees. It stays.
//! 3. Versions below the base are superseded: no admitted reader sees them.
//! 4. A base that is a deletion may go too, once the savepoint that covers it is durable and nothing is left below it; a
//!    deletion that went before its older versions would bring them back.

use super::key::RowKey;

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// A deletion that may go once all older rows of its key are gone.
    Deletion,
    Superseded,
}

/// Judges rows that come in the order of their keys.
#[derive(Debug, Default)]
pub struct Judge {
    /// The key whose base has been seen, if the key of the last row had one.
    prefix: Vec<u8>,
    has_base: bool,
}

impl Judge {
    /// `oldest` is the oldest block anybody may still read at, and must not decrease below what rows were judged by
    /// before; deletions by blocks below `durable` are covered.
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
            return Verdict::Keep;
        }
        self.has_base = true;
        if !row.live && row.version.block < durable { Verdict::Deletion } else { Verdict::Keep }
    }
}
