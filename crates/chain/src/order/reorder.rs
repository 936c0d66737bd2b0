//! Finds an order of a block's transactions in which more of them are valid than in the order of their arrival: a pure
//! state machine.
//!
//! A transaction is invalid if an earlier valid transaction of its block writes a row that it reads. So a reader goes
//! before the writers of the row:
//! 1. The [predictor](super::predictor) names *suspects*: transactions that read versions which an earlier block
//!    replaced. They go to the end. They protect no row and spoil none, because they are probably invalid.
//! 2. While some of the others write no row that another one still has to read, they are placed, in the order of their
//!    arrival.
//! 3. If none is left of these, the transactions form cycles. Of the [`WINDOW`] that arrived first, the one that spoils
//!    the fewest reads is placed. The transactions whose reads it spoils go to the end, and protect no row any more.
//! 4. The end has the order of arrival. If the spoiler of one of these turns out to be invalid for another reason, the
//!    spoiled transaction may still be valid.
//!
//! A scan counts as a read of its whole namespace, and every write of a public key as a write of its namespace. This
//! finds more conflicts than there are, so a scan goes before the writers of its namespace where it can.
//!
//! A transaction whose accesses are unknown is a *barrier*: no other transaction passes it. That is one that has more
//! accesses than the limits allow, or that writes metadata, which decides how peers judge later writers of the key. A
//! transaction that cannot be read has no accesses, since peers find it invalid wherever it stands.
//!
//! Invariants:
//! 1. The result is a permutation of the block: no transaction is added, lost or repeated.
//! 2. By the prediction, more transactions are valid in the result than in the order of arrival. If no such order is found, the
//!    block keeps the order of arrival. So a block without conflicts does.
//! 3. The work is bounded: linear in the accesses, of which a block has at most [`BLOCK_ACCESSES_MAX`] that count, apart
//!    from step 3, which reads at most [`CYCLE_READS_MAX`] rows. When these are used up, the rest keeps the order of arrival.

use std::collections::BTreeSet;

use base::{Bytes, Map, Set};
use ledger::rwset::ReadWriteSet;
use ledger::transaction::results_of_valid;
use proto::common::HeaderType;
use validation::accesses::Accesses;
use validation::footprint::RowHash;
use validation::verify::claimed;

/// The most accesses of a transaction that is no barrier. A queue of such transactions takes less memory than their envelopes may.
pub const TRANSACTION_ACCESSES_MAX: usize = 512;
/// The most accesses of the transactions of a block that change places. Those that follow are barriers.
pub const BLOCK_ACCESSES_MAX: usize = 1 << 18;
/// The transactions among which step 3 chooses.
pub const WINDOW: usize = 256;
/// The most rows that step 3 looks at in a block.
pub const CYCLE_READS_MAX: usize = 1 << 20;

/// What is known of a transaction that waits for its block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionFootprint {
    /// A hash of the id that it claims.
    pub id: Option<RowHash>,
    /// What it accesses; `None` for a barrier.
    pub accesses: Option<Accesses>,
}

impl TransactionFootprint {
    /// That of an envelope. The bytes may be anything.
    pub fn of(envelope: &Bytes) -> TransactionFootprint {
        let (tx_id, kind) = claimed(envelope);
        let id = tx_id.map(|tx_id| RowHash::of("", tx_id.as_str()));
        let invalid = Some(Accesses::default());
        let set = match results_of_valid(envelope) {
            Ok(Some(place)) if kind == HeaderType::EndorserTransaction as i32 => {
                ReadWriteSet::decode(place.slice(envelope))
            }
            _ => return TransactionFootprint { id, accesses: invalid },
        };
        let accesses = set.map_or(invalid, |set| Accesses::of(&set, TRANSACTION_ACCESSES_MAX));
        TransactionFootprint { id, accesses }
    }
}

/// What the transactions of a block access, in the order of their arrival; `None` for barriers.
pub fn known_accesses(block: &[TransactionFootprint]) -> Vec<Option<&Accesses>> {
    let mut left = BLOCK_ACCESSES_MAX;
    let known = block.iter().map(|transaction| {
        let accesses = transaction.accesses.as_ref()?;
        left = left.saturating_sub(accesses.len());
        (left > 0).then_some(accesses)
    });
    known.collect()
}

/// The rows of a block that one transaction reads and another one writes, numbered, and the transactions that access
/// them.
#[derive(Debug, Default)]
pub struct BlockConflicts {
    rows: usize,
    transactions: Vec<ConflictAccesses>,
}

/// The numbered rows that a transaction accesses, sorted, each once.
#[derive(Clone, Debug, Default)]
pub struct ConflictAccesses {
    /// Rows that it reads.
    pub reads: Vec<u32>,
    /// Rows that it writes.
    pub writes: Vec<u32>,
    /// Whether it is a barrier.
    pub is_barrier: bool,
}

/// More than one transaction writes a row.
const SEVERAL: usize = usize::MAX;

impl BlockConflicts {
    /// The conflicts of a block, from [`known_accesses`]; `None` if it has none.
    pub fn of(block: &[Option<&Accesses>]) -> Option<BlockConflicts> {
        let each = || block.iter().enumerate().filter_map(|(position, accesses)| Some((position, (*accesses)?)));
        let mut writers: Map<RowHash, usize> = Map::default();
        for (position, accesses) in each() {
            for row in written_rows(accesses) {
                writers
                    .entry(row)
                    .and_modify(|writer| *writer = if *writer == position { position } else { SEVERAL })
                    .or_insert(position);
            }
        }
        let mut numbers: Map<RowHash, u32> = Map::default();
        for (position, accesses) in each() {
            for row in read_rows(accesses) {
                if writers.get(&row).is_some_and(|writer| *writer != position) {
                    let next = numbers.len() as u32;
                    numbers.entry(row).or_insert(next);
                }
            }
        }
        if numbers.is_empty() {
            return None;
        }
        let numbered = |rows: &mut dyn Iterator<Item = RowHash>| {
            let mut rows: Vec<u32> = rows.filter_map(|row| numbers.get(&row).copied()).collect();
            rows.sort_unstable();
            rows.dedup();
            rows
        };
        let transactions = block.iter().map(|accesses| match accesses {
            Some(accesses) => ConflictAccesses {
                reads: numbered(&mut read_rows(accesses)),
                writes: numbered(&mut written_rows(accesses)),
                is_barrier: false,
            },
            None => ConflictAccesses { is_barrier: true, ..ConflictAccesses::default() },
        });
        Some(BlockConflicts { rows: numbers.len(), transactions: transactions.collect() })
    }

    /// The transactions that are valid in this order, by position in the block as it arrived, if those that are `doomed` are
    /// invalid and all others have the current versions at the start of the block.
    pub fn valid_in(&self, order: impl IntoIterator<Item = u32>, doomed: &[bool]) -> Vec<bool> {
        let (mut written, mut valid) = (vec![false; self.rows], vec![false; self.transactions.len()]);
        for position in order {
            let transaction = &self.transactions[position as usize];
            if !doomed[position as usize] && !transaction.reads.iter().any(|row| written[*row as usize]) {
                valid[position as usize] = true;
                transaction.writes.iter().for_each(|row| written[*row as usize] = true);
            }
        }
        valid
    }

    /// An order by steps 1 to 4. It need not be better than that of arrival.
    pub fn arrange(&self, doomed: &[bool]) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.transactions.len());
        let (mut written, mut cycle_reads) = (vec![false; self.rows], CYCLE_READS_MAX);
        let mut first = 0;
        for part in self.transactions.split_inclusive(|transaction| transaction.is_barrier) {
            let positions = first..first + part.len();
            first = positions.end;
            let barrier = part.last().is_some_and(|last| last.is_barrier).then(|| positions.end - 1);
            // A transaction that reads a row which was written before the last barrier is doomed too.
            let alive = |position: &usize| {
                let reads = &self.transactions[*position].reads;
                Some(*position) != barrier && !doomed[*position] && !reads.iter().any(|row| written[*row as usize])
            };
            let alive: Vec<u32> = positions.clone().filter(alive).map(|position| position as u32).collect();
            let placed = Segment::new(self, &alive).place(&mut cycle_reads);
            for position in &placed {
                self.transactions[*position as usize].writes.iter().for_each(|row| written[*row as usize] = true);
            }
            let is_placed: Set<u32> = placed.iter().copied().collect();
            order.extend(placed);
            let rest = positions.map(|position| position as u32).filter(|position| !is_placed.contains(position));
            order.extend(rest);
        }
        order
    }
}

fn read_rows(accesses: &Accesses) -> impl Iterator<Item = RowHash> {
    accesses.reads.iter().map(|read| read.row).chain(accesses.scanned.iter().copied())
}

fn written_rows(accesses: &Accesses) -> impl Iterator<Item = RowHash> {
    accesses.writes.iter().map(|write| write.row).chain(accesses.written_namespaces.iter().copied())
}

/// A row, and the transactions between two barriers that access it.
#[derive(Clone, Debug, Default)]
struct SegmentRow {
    /// The transactions that are still to be placed and read it: their number, ...
    waiting: u32,
    /// ... and all their positions, combined by exclusive or. So if one is left, this is its position.
    waiting_positions: u32,
    readers: Vec<u32>,
    writers: Vec<u32>,
}

/// The transactions between two barriers while they are placed.
struct Segment<'a> {
    transactions: &'a [ConflictAccesses],
    rows: Map<u32, SegmentRow>,
    /// For each transaction that is still to be placed: the number of rows it writes that another one still has to read.
    blocked: Map<u32, usize>,
    /// The transactions that are still to be placed.
    left: BTreeSet<u32>,
    /// Those of them that are not blocked.
    free: BTreeSet<u32>,
}

impl Segment<'_> {
    fn new<'a>(conflicts: &'a BlockConflicts, alive: &[u32]) -> Segment<'a> {
        let transactions = &conflicts.transactions[..];
        let mut rows: Map<u32, SegmentRow> = Map::default();
        for position in alive {
            let transaction = &transactions[*position as usize];
            for row in &transaction.reads {
                let row = rows.entry(*row).or_default();
                row.waiting += 1;
                row.waiting_positions ^= position;
                row.readers.push(*position);
            }
            for row in &transaction.writes {
                rows.entry(*row).or_default().writers.push(*position);
            }
        }
        let mut segment = Segment {
            transactions,
            rows,
            blocked: Map::default(),
            left: alive.iter().copied().collect(),
            free: BTreeSet::new(),
        };
        for position in alive {
            let writes = &transactions[*position as usize].writes;
            let blocked = writes.iter().filter(|row| segment.others_waiting(**row, *position) > 0).count();
            segment.blocked.insert(*position, blocked);
            if blocked == 0 {
                segment.free.insert(*position);
            }
        }
        segment
    }

    /// The transactions except this one that still have to read the row.
    fn others_waiting(&self, row: u32, position: u32) -> u32 {
        let waiting = self.rows.get(&row).map_or(0, |row| row.waiting);
        let is_reader = || self.transactions[position as usize].reads.binary_search(&row).is_ok();
        waiting - u32::from(waiting > 0 && is_reader())
    }

    /// Steps 2 and 3, until each transaction is placed or spoiled. `cycle_reads` is how many rows step 3 may still look
    /// at.
    fn place(mut self, cycle_reads: &mut usize) -> Vec<u32> {
        let mut placed = Vec::with_capacity(self.left.len());
        loop {
            let next = match self.free.pop_first() {
                Some(next) => next,
                None if self.left.is_empty() => return placed,
                None => match self.least_spoiling(cycle_reads) {
                    Some(next) => next,
                    None => {
                        placed.extend(self.left);
                        return placed;
                    }
                },
            };
            placed.push(next);
            self.leave(next);
            let transactions = self.transactions;
            for row in &transactions[next as usize].writes {
                let Some(row) = self.rows.get_mut(row).filter(|row| row.waiting > 0) else { continue };
                for spoiled in std::mem::take(&mut row.readers) {
                    if self.left.contains(&spoiled) {
                        self.leave(spoiled);
                    }
                }
            }
        }
    }

    /// Step 3; `None` if it has looked at too many rows.
    fn least_spoiling(&self, cycle_reads: &mut usize) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        for position in self.left.iter().take(WINDOW) {
            let writes = &self.transactions[*position as usize].writes;
            *cycle_reads = cycle_reads.checked_sub(writes.len())?;
            let spoils = writes.iter().map(|row| self.others_waiting(*row, *position)).sum();
            if best.is_none_or(|(least, _)| spoils < least) {
                best = Some((spoils, *position));
            }
        }
        best.map(|(_, position)| position)
    }

    /// A transaction waits no more: it was placed or spoiled.
    fn leave(&mut self, position: u32) {
        self.left.remove(&position);
        self.free.remove(&position);
        let transactions = self.transactions;
        for number in &transactions[position as usize].reads {
            let row = self.rows.get_mut(number).expect("each row of a transaction is in the map");
            row.waiting -= 1;
            row.waiting_positions ^= position;
            match row.waiting {
                // Only this one still blocked the other writers.
                0 => {
                    for writer in std::mem::take(&mut row.writers) {
                        self.unblock(writer);
                    }
                }
                // The last reader does not block itself.
                1 => {
                    let last = row.waiting_positions;
                    if transactions[last as usize].writes.binary_search(number).is_ok() {
                        row.writers.retain(|writer| *writer != last);
                        self.unblock(last);
                    }
                }
                _ => {}
            }
        }
    }

    fn unblock(&mut self, position: u32) {
        if !self.left.contains(&position) {
            return;
        }
        let blocked = self.blocked.get_mut(&position).expect("each transaction is in the map");
        *blocked -= 1;
        if *blocked == 0 {
            self.free.insert(position);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
