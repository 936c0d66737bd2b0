//! Reading logs back: which entries continue a chain.
//!
//! The logs of several nodes are read as one: at each step the entry that continues the chain is looked for in all of
//! them, at the place where it must lie. An entry of one node fills the hole of another.
//!
//! An entry counts when its index is the next, it names the checksum of the entry before, and its term is one that the
//! header of its node allows ([`Header::adopted`]). So an entry that was never committed, left behind by a coordinator
//! whose term is over, ends the scan.
//!
//! Two entries can continue the chain at once: one that was never committed at the end of the log, and one of a later
//! coordinator that was too long for that place and went to the log's beginning. When a takeover has adopted the second, its
//! header allows both terms. The greater term is right: its coordinator took over a log that ended before the other.

use base::Bytes;

use crate::entry::{self, Entry, HEAD_BYTES, padded};
use crate::layout::{Cursor, Header, Layout};

/// The log of one node, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub header: Header,
    pub bytes: Bytes,
}

impl Log {
    /// The entry at an offset that continues a chain.
    fn at(&self, offset: u64, after: &Cursor) -> Option<Entry> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.bytes.len())?;
        let entry = entry::decode(&self.bytes.slice(offset..))?;
        let in_turn = Some(entry.index) == after.index.checked_add(1) && entry.previous == after.chain;
        let of_term = entry.index <= self.header.adopted || entry.term == self.header.term;
        (in_turn && of_term).then_some(entry)
    }

    /// Whether an entry stands at an offset, byte for byte.
    pub(crate) fn has(&self, offset: u64, entry: &Entry) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(entry.raw.len());
        self.bytes.get(start..end).is_some_and(|bytes| bytes == entry.raw)
    }
}

/// An entry and where it lies.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub entry: Entry,
    pub offset: u64,
    /// Behind it.
    pub after: Cursor,
}

/// The entry behind a cursor, if one of the logs has it.
pub(crate) fn next(after: &Cursor, logs: &[&Log], layout: &Layout) -> Option<Placed> {
    let places = [after.position, 0];
    let places = if after.position == 0 { &places[..1] } else { &places[..] };
    let places = places.iter().filter(|offset| layout.log_bytes - **offset >= HEAD_BYTES as u64);
    let mut best: Option<(u64, Entry)> = None;
    for offset in places {
        let mut here: Option<Entry> = None;
        for log in logs {
            // Most logs have the same: that one counts is known, and a comparison is cheaper than a checksum.
            if here.as_ref().is_some_and(|entry| log.has(*offset, entry)) {
                continue;
            }
            if let Some(entry) = log.at(*offset, after)
                && here.as_ref().is_none_or(|here| entry.term > here.term)
            {
                here = Some(entry);
            }
        }
        if let Some(entry) = here
            && best.as_ref().is_none_or(|(_, best)| entry.term > best.term)
        {
            best = Some((*offset, entry));
        }
    }
    let (offset, entry) = best?;
    let position = offset + padded(entry.raw.len() as u64);
    let after = Cursor { index: entry.index, position, chain: entry.checksum };
    Some(Placed { entry, offset, after })
}

/// All entries behind a cursor, in order.
pub(crate) fn all(mut after: Cursor, logs: &[&Log], layout: &Layout) -> Vec<Placed> {
    let mut entries = Vec::new();
    while let Some(placed) = next(&after, logs, layout) {
        after = placed.after;
        entries.push(placed);
    }
    entries
}

/// Bytes of the log that entries behind a position take, with what was skipped at its end.
pub(crate) fn bytes(mut position: u64, entries: &[Placed], layout: &Layout) -> u64 {
    let mut all = 0;
    for placed in entries {
        all += placed_bytes(position, placed, layout);
        position = placed.after.position;
    }
    all
}

/// The same of one entry.
pub(crate) fn placed_bytes(position: u64, placed: &Placed, layout: &Layout) -> u64 {
    let skipped = if placed.offset == position { 0 } else { layout.log_bytes - position };
    skipped + padded(placed.entry.raw.len() as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use base::bytes::{BufMut as _, BytesMut};

    use super::*;
    use crate::Term;
    use crate::entry::{Kind, Write, encode_head};

    pub(crate) const LAYOUT: Layout =
        Layout { log_bytes: 4096, direct_bytes: 0, memory_bytes: 64, block_bytes: 64, data_shares: 1 };

    /// A log that is written to.
    pub(crate) struct Tape {
        pub bytes: Vec<u8>,
        pub at: Cursor,
    }

    impl Tape {
        pub fn new() -> Tape {
            Tape { bytes: vec![0; LAYOUT.log_bytes as usize], at: Cursor::default() }
        }

        /// Appends as a coordinator does; gives the offset.
        pub fn append(&mut self, term: u64, bytes: usize) -> u64 {
            let writes = [Write { address: 0, bytes: vec![7; bytes].into() }];
            let mut raw = BytesMut::new();
            let chain = encode_head(self.at.index + 1, Term(term), self.at.chain, Kind::Record, &writes, &mut raw);
            raw.put_slice(&writes[0].bytes);
            let length = padded(raw.len() as u64);
            let offset = if self.at.position + length > LAYOUT.log_bytes { 0 } else { self.at.position };
            self.bytes[offset as usize..][..raw.len()].copy_from_slice(&raw);
            self.at = Cursor { index: self.at.index + 1, position: offset + length, chain };
            offset
        }

        pub fn log(&self, term: u64, adopted: u64) -> Log {
            self.log_applied(term, adopted, Cursor::default())
        }

        pub fn log_applied(&self, term: u64, adopted: u64, applied: Cursor) -> Log {
            let header = Header { sequence: 1, term: Term(term), adopted, applied, nodes: 3 };
            Log { header, bytes: self.bytes.clone().into() }
        }
    }

    fn indices(after: Cursor, logs: &[&Log]) -> Vec<u64> {
        all(after, logs, &LAYOUT).iter().map(|placed| placed.entry.index).collect()
    }

    #[test]
    fn entries_wrap_around_wherever_the_edge_falls() {
        // Every length of the last entry before the edge, one that fills the log exactly among them.
        for last in 0..=512 {
            let mut tape = Tape::new();
            for _ in 0..7 {
                tape.append(2, 512 - 56);
            }
            let applied = tape.at;
            assert_eq!(applied.position, 3584);
            tape.append(2, last);
            let wrapped = tape.append(2, 400);
            let fits = last <= 512 - 56;
            assert_eq!(wrapped, if fits { 0 } else { 576 }, "the entry behind one of {last} bytes");
            tape.append(2, 8);
            let log = tape.log(2, 0);
            assert_eq!(indices(applied, &[&log]), [8, 9, 10], "a last entry of {last} bytes");
        }
    }

    #[test]
    fn a_torn_entry_ends_the_scan_and_another_node_fills_the_hole() {
        let mut tape = Tape::new();
        tape.append(2, 100);
        let second = tape.append(2, 100) as usize;
        tape.append(2, 100);
        let whole = tape.log(2, 0);
        tape.bytes[second + 60] ^= 1;
        let torn = tape.log(2, 0);
        assert_eq!(indices(Cursor::default(), &[&torn]), [1]);
        assert_eq!(indices(Cursor::default(), &[&torn, &whole]), [1, 2, 3]);
    }

    #[test]
    fn what_an_earlier_coordinator_left_behind_does_not_count() {
        let mut tape = Tape::new();
        tape.append(2, 100);
        tape.append(2, 100);
        // The coordinator of term 3 adopted the first entry only.
        assert_eq!(indices(Cursor::default(), &[&tape.log(3, 1)]), [1]);
        assert_eq!(indices(Cursor::default(), &[&tape.log(3, 2)]), [1, 2]);
        // An entry of its own in the place of the second.
        let mut own = Tape::new();
        own.append(2, 100);
        own.append(3, 40);
        assert_eq!(indices(Cursor::default(), &[&own.log(3, 1), &tape.log(3, 1)]), [1, 2]);
    }

    /// Seed 3374: an entry that was left behind before the log's edge came back after the longer one that had taken its
    /// number, at the log's beginning, was committed and adopted.
    #[test]
    fn of_two_entries_before_and_behind_the_edge_the_later_coordinators_counts() {
        let mut tape = Tape::new();
        for _ in 0..31 {
            tape.append(2, 128 - 56);
        }
        let (applied, chain) = (tape.at, tape.at.chain);
        assert_eq!(tape.append(2, 128 - 56), 3968);
        tape.at = Cursor { chain, ..applied };
        assert_eq!(tape.append(3, 256 - 56), 0);
        tape.append(3, 100);
        let found = all(applied, &[&tape.log(4, 33)], &LAYOUT);
        assert_eq!(found.iter().map(|placed| placed.entry.term.0).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(indices(applied, &[&tape.log(3, 31)]), [32, 33]);
    }

    #[test]
    fn an_earlier_round_does_not_continue_the_chain() {
        let mut tape = Tape::new();
        for _ in 0..9 {
            tape.append(2, 1000 - 56);
        }
        let log = tape.log(2, 0);
        assert_eq!(indices(tape.at, &[&log]), [0; 0]);
    }
}
