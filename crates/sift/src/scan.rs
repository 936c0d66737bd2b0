//! Reads logs back: finds the entries that continue a checksum chain.
//!
//! The logs of several nodes are read as one: at each step the scan looks for the next entry of the chain in all of
//! them, at the position where it must be. So an entry of one node fills a gap in the log of another node.
//!
//! An entry continues the chain if its index is the next one, it contains the checksum of the previous entry, and the
//! header of its node allows its term. The header allows every term up to the index [`CopyHeader::adopted`], and above
//! that index only the header's own term. So the scan ends before an uncommitted entry that a coordinator of an earlier
//! term has left behind.
//!
//! Two entries can both continue the chain: an uncommitted entry at the log's physical end, and an entry of a later
//! coordinator that was too long for that position and was written to the log's beginning. After a takeover has adopted
//! the later entry, a node's header allows both terms. The entry of the greater term is the right one: its coordinator
//! took over a log that ended before the other entry.

use base::Bytes;

use crate::entry::{self, HEAD_BYTES, LogEntry, padded};
use crate::layout::{CopyHeader, GroupLayout, LogCursor};

/// The log of one node, as it was read, with the node's header.
#[derive(Clone, Debug)]
pub(crate) struct LogCopy {
    pub header: CopyHeader,
    pub bytes: Bytes,
}

impl LogCopy {
    /// The entry at an offset that continues a chain.
    fn at(&self, offset: u64, after: &LogCursor) -> Option<LogEntry> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.bytes.len())?;
        let entry = entry::decode(&self.bytes.slice(offset..))?;
        let in_turn = Some(entry.index) == after.index.checked_add(1) && entry.previous == after.chain;
        let of_term = entry.index <= self.header.adopted || entry.term == self.header.term;
        (in_turn && of_term).then_some(entry)
    }

    /// Whether the log has an entry at an offset, byte for byte.
    pub(crate) fn has(&self, offset: u64, entry: &LogEntry) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(entry.raw.len());
        self.bytes.get(start..end).is_some_and(|bytes| bytes == entry.raw)
    }
}

/// An entry and its offset in the log.
#[derive(Clone, Debug)]
pub(crate) struct LocatedEntry {
    pub entry: LogEntry,
    pub offset: u64,
    /// The position after it.
    pub after: LogCursor,
}

/// The entry after a cursor, if one of the logs has it.
pub(crate) fn next(after: &LogCursor, logs: &[&LogCopy], layout: &GroupLayout) -> Option<LocatedEntry> {
    let places = [after.position, 0];
    let places = if after.position == 0 { &places[..1] } else { &places[..] };
    let places = places.iter().filter(|offset| layout.log_bytes - **offset >= HEAD_BYTES as u64);
    let mut best: Option<(u64, LogEntry)> = None;
    for offset in places {
        let mut here: Option<LogEntry> = None;
        for log in logs {
            // Most logs have the same bytes here: the entry is already known to count, and a comparison is cheaper than
            // a checksum.
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
    let after = LogCursor { index: entry.index, position, chain: entry.checksum };
    Some(LocatedEntry { entry, offset, after })
}

/// All entries after a cursor, in order.
pub(crate) fn all(mut after: LogCursor, logs: &[&LogCopy], layout: &GroupLayout) -> Vec<LocatedEntry> {
    let mut entries = Vec::new();
    while let Some(placed) = next(&after, logs, layout) {
        after = placed.after;
        entries.push(placed);
    }
    entries
}

/// Bytes of the log that entries after a position take, including the bytes skipped at the log's end.
pub(crate) fn bytes(mut position: u64, entries: &[LocatedEntry], layout: &GroupLayout) -> u64 {
    let mut all = 0;
    for placed in entries {
        all += located_bytes(position, placed, layout);
        position = placed.after.position;
    }
    all
}

/// The same for one entry.
pub(crate) fn located_bytes(position: u64, placed: &LocatedEntry, layout: &GroupLayout) -> u64 {
    let skipped = if placed.offset == position { 0 } else { layout.log_bytes - position };
    skipped + padded(placed.entry.raw.len() as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use base::bytes::{BufMut as _, BytesMut};

    use super::*;
    use crate::Term;
    use crate::entry::{EntryKind, MemoryWrite, encode_head};

    pub(crate) const LAYOUT: GroupLayout =
        GroupLayout { log_bytes: 4096, unlogged_bytes: 0, memory_bytes: 64, block_bytes: 64, data_shards: 1 };

    /// A log image that a test writes.
    pub(crate) struct LogImage {
        pub bytes: Vec<u8>,
        pub at: LogCursor,
    }

    impl LogImage {
        pub fn new() -> LogImage {
            LogImage { bytes: vec![0; LAYOUT.log_bytes as usize], at: LogCursor::default() }
        }

        /// Appends as a coordinator does; returns the offset.
        pub fn append(&mut self, term: u64, bytes: usize) -> u64 {
            let writes = [MemoryWrite { address: 0, bytes: vec![7; bytes].into() }];
            let mut raw = BytesMut::new();
            let chain = encode_head(self.at.index + 1, Term(term), self.at.chain, EntryKind::Record, &writes, &mut raw);
            raw.put_slice(&writes[0].bytes);
            let length = padded(raw.len() as u64);
            let offset = if self.at.position + length > LAYOUT.log_bytes { 0 } else { self.at.position };
            self.bytes[offset as usize..][..raw.len()].copy_from_slice(&raw);
            self.at = LogCursor { index: self.at.index + 1, position: offset + length, chain };
            offset
        }

        pub fn log(&self, term: u64, adopted: u64) -> LogCopy {
            self.log_applied(term, adopted, LogCursor::default())
        }

        pub fn log_applied(&self, term: u64, adopted: u64, applied: LogCursor) -> LogCopy {
            let header = CopyHeader { sequence: 1, term: Term(term), adopted, applied, nodes: 3 };
            LogCopy { header, bytes: self.bytes.clone().into() }
        }
    }

    fn indices(after: LogCursor, logs: &[&LogCopy]) -> Vec<u64> {
        all(after, logs, &LAYOUT).iter().map(|placed| placed.entry.index).collect()
    }

    #[test]
    fn entries_wrap_around_wherever_the_edge_falls() {
        // Every length of the last entry before the end of the log, including one that fills the log exactly.
        for last in 0..=512 {
            let mut tape = LogImage::new();
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
        let mut tape = LogImage::new();
        tape.append(2, 100);
        let second = tape.append(2, 100) as usize;
        tape.append(2, 100);
        let whole = tape.log(2, 0);
        tape.bytes[second + 60] ^= 1;
        let torn = tape.log(2, 0);
        assert_eq!(indices(LogCursor::default(), &[&torn]), [1]);
        assert_eq!(indices(LogCursor::default(), &[&torn, &whole]), [1, 2, 3]);
    }

    #[test]
    fn what_an_earlier_coordinator_left_behind_does_not_count() {
        let mut tape = LogImage::new();
        tape.append(2, 100);
        tape.append(2, 100);
        // The coordinator of term 3 adopted the first entry only.
        assert_eq!(indices(LogCursor::default(), &[&tape.log(3, 1)]), [1]);
        assert_eq!(indices(LogCursor::default(), &[&tape.log(3, 2)]), [1, 2]);
        // It appended an entry of its own at the position of the second.
        let mut own = LogImage::new();
        own.append(2, 100);
        own.append(3, 40);
        assert_eq!(indices(LogCursor::default(), &[&own.log(3, 1), &tape.log(3, 1)]), [1, 2]);
    }

    /// Seed 3374: an entry left over before the end of the log came back after the longer entry with the same index, at
    /// the log's beginning, had been committed and adopted.
    #[test]
    fn of_two_entries_before_and_behind_the_edge_the_later_coordinators_counts() {
        let mut tape = LogImage::new();
        for _ in 0..31 {
            tape.append(2, 128 - 56);
        }
        let (applied, chain) = (tape.at, tape.at.chain);
        assert_eq!(tape.append(2, 128 - 56), 3968);
        tape.at = LogCursor { chain, ..applied };
        assert_eq!(tape.append(3, 256 - 56), 0);
        tape.append(3, 100);
        let found = all(applied, &[&tape.log(4, 33)], &LAYOUT);
        assert_eq!(found.iter().map(|placed| placed.entry.term.0).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(indices(applied, &[&tape.log(3, 31)]), [32, 33]);
    }

    #[test]
    fn an_earlier_round_does_not_continue_the_chain() {
        let mut tape = LogImage::new();
        for _ in 0..9 {
            tape.append(2, 1000 - 56);
        }
        let log = tape.log(2, 0);
        assert_eq!(indices(tape.at, &[&log]), [0; 0]);
    }
}
