//! The dependency graph of a block (FlexChain, section 5.1): which transactions must be checked before which.
//!
//! Two transactions *conflict* if one of them may write a key that the other reads (WR, RW), may write (WW), or has in
//! a range that it scanned. Metadata of a key counts as a key. The graph has a node for each transaction and an edge
//! from an earlier one to a later one, so that:
//!
//! * from every transaction a path leads to every later one that conflicts with it;
//! * no edge is implied by other edges.
//!
//! This is the transitive reduction of the order of conflicts. The paper leaves an edge out if one transaction in between
//! conflicts with both ends; here also if a longer path joins them, so there are never more edges than there, and the
//! same orders are allowed.
//!
//! [`GraphBuilder`] takes transactions one at a time, in the order of the block, so an orderer can build the graph while it
//! cuts the block:
//! 1. For each key that the transaction reads, the last earlier writer of the key is a candidate for an edge.
//! 2. For each key that it may write, the candidates are the readers since the last writer, or the last writer if
//!    nobody has read since.
//! 3. For each range that it scanned, the candidates are the last writers of the keys in the range; for each key that it
//!    may write in a namespace with scans, those whose ranges have the key.
//! 4. The candidates are taken from the newest to the oldest. One that an earlier taken candidate descends from, or is,
//!    gets no edge.
//!
//! Steps 1 and 2 suffice because earlier accesses of the key reach the candidate over the accesses in between.
//!
//! Invariants:
//! 1. The graph orders all conflicts. It may order more: transactions that turn out invalid are nodes like all others, a
//!    key that a transaction may write need not be written in the end, two keys may share a hash, and of many ranges only
//!    the hull is kept. More edges cost parallelism, never a verdict.
//! 2. Work and memory are bounded. A block with more than [`TRANSACTIONS_MAX`] transactions has no graph. Beyond
//!    [`COMPARISONS_MAX`] comparisons of keys with ranges, each further transaction comes after all before it.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use base::Map;
use ledger::rwset::{NamespaceReadWriteSet, ReadWriteSet, ScannedRange};

use crate::footprint::{Footprint, RowHash, visit_written_rows};
use crate::view::after;

/// The largest number of transactions in a graph.
pub const TRANSACTIONS_MAX: usize = 8192;
/// Comparisons of keys with ranges, after which transactions are ordered one after the other.
pub const COMPARISONS_MAX: usize = 1 << 20;
/// Ranges of one transaction in one namespace; of more, the hull counts.
const RANGES_MAX: usize = 16;
const NOBODY: u32 = u32::MAX;

/// The dependency graph of a block. Transactions are numbered in the order of the block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DependencyGraph {
    /// Where the edges into each transaction end in `predecessors`.
    ends: Vec<u32>,
    predecessors: Vec<u32>,
}

impl DependencyGraph {
    /// The number of transactions.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the graph has no transaction.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The transactions from which an edge leads to `transaction`, the newest first.
    pub fn predecessors(&self, transaction: usize) -> &[u32] {
        let start = transaction.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.predecessors[start as usize..self.ends[transaction] as usize]
    }
}

/// Builds the graph of one block. `S` is a [`ReadWriteSet`], or a reference to one.
#[derive(Debug)]
pub struct GraphBuilder<S> {
    graph: DependencyGraph,
    keys: Map<RowHash, KeyAccesses>,
    /// All lists of readers, each linked from its newest reader.
    readers: Vec<Reader>,
    /// The transactions so far, for the first scan of a namespace.
    sets: Vec<S>,
    scanned: BTreeMap<String, ScannedNamespace>,
    ancestors: Ancestors,
    comparisons_left: usize,
    candidates: Vec<u32>,
}

/// The accesses to a key that later ones can conflict with directly.
#[derive(Debug)]
struct KeyAccesses {
    /// The number of the key, in the order of first accesses.
    entry: u32,
    last_writer: u32,
    /// The newest reader since the last writer, in the builder's list of readers.
    newest_reader: u32,
}

#[derive(Debug)]
struct Reader {
    transaction: u32,
    /// The reader before, since the same writer.
    earlier: u32,
}

/// The writes and the scans in a namespace that has scans.
#[derive(Debug, Default)]
struct ScannedNamespace {
    last_writers: BTreeMap<String, u32>,
    scans: Vec<Scan>,
    /// Has all scans, so that most keys need not be compared with each.
    hull: Option<Scan>,
}

#[derive(Clone, Debug)]
struct Scan {
    transaction: u32,
    start: String,
    /// Exclusive; empty if there is no upper bound.
    end: String,
}

impl Scan {
    fn has(&self, key: &str) -> bool {
        *key >= *self.start && (self.end.is_empty() || *key < *self.end)
    }

    /// Grows to have this range too.
    fn include(&mut self, start: &str, end: &str) {
        if *start < *self.start {
            start.clone_into(&mut self.start);
        }
        if end.is_empty() {
            self.end.clear();
        } else if !self.end.is_empty() && *end > *self.end {
            end.clone_into(&mut self.end);
        }
    }
}

impl<S: Borrow<ReadWriteSet>> Default for GraphBuilder<S> {
    fn default() -> Self {
        GraphBuilder {
            graph: DependencyGraph::default(),
            keys: Map::default(),
            readers: Vec::new(),
            sets: Vec::new(),
            scanned: BTreeMap::new(),
            ancestors: Ancestors::default(),
            comparisons_left: COMPARISONS_MAX,
            candidates: Vec::new(),
        }
    }
}

impl<S: Borrow<ReadWriteSet>> GraphBuilder<S> {
    /// A builder with room for the accesses of the transactions to come.
    pub fn with_capacity(transactions: usize, accesses: usize) -> GraphBuilder<S> {
        GraphBuilder {
            graph: DependencyGraph { ends: Vec::with_capacity(transactions), predecessors: Vec::new() },
            keys: Map::with_capacity_and_hasher(accesses, Default::default()),
            readers: Vec::with_capacity(accesses),
            sets: Vec::with_capacity(transactions),
            ..GraphBuilder::default()
        }
    }

    /// Adds the next transaction of the block.
    ///
    /// # Panics
    /// Beyond [`TRANSACTIONS_MAX`] transactions.
    pub fn add(&mut self, footprint: &Footprint, set: S) {
        let transaction = self.graph.len() as u32;
        assert!((transaction as usize) < TRANSACTIONS_MAX, "blocks with more transactions have no graph");
        self.candidates.clear();
        for read in footprint.reads() {
            self.read(*read, transaction);
        }
        for write in footprint.writes() {
            self.write(*write, transaction);
        }
        if footprint.has_scans() || !self.scanned.is_empty() {
            self.scan_and_write(set.borrow(), transaction);
        }
        if self.comparisons_left == 0 {
            self.candidates.clear();
            self.candidates.extend(0..transaction);
        }
        self.sets.push(set);
        self.candidates.sort_unstable_by(|one, other| other.cmp(one));
        self.candidates.dedup();
        self.ancestors.reduce(transaction, &self.candidates, &mut self.graph.predecessors);
        self.graph.ends.push(self.graph.predecessors.len() as u32);
    }

    /// The graph of the transactions so far.
    pub fn finish(self) -> DependencyGraph {
        self.graph
    }

    /// The graph, and the keys that its transactions access.
    pub(crate) fn finish_with_keys(self) -> (DependencyGraph, KeyNumbers) {
        (self.graph, KeyNumbers(self.keys))
    }

    /// Step 1.
    fn read(&mut self, key: RowHash, transaction: u32) {
        let accesses = accesses_to(&mut self.keys, key);
        if accesses.last_writer != NOBODY {
            self.candidates.push(accesses.last_writer);
        }
        let is_known = self.readers.get(accesses.newest_reader as usize);
        if is_known.is_none_or(|newest| newest.transaction != transaction) {
            self.readers.push(Reader { transaction, earlier: accesses.newest_reader });
            accesses.newest_reader = self.readers.len() as u32 - 1;
        }
    }

    /// Step 2.
    fn write(&mut self, key: RowHash, transaction: u32) {
        let accesses = accesses_to(&mut self.keys, key);
        let mut at = accesses.newest_reader;
        if at == NOBODY && accesses.last_writer != NOBODY && accesses.last_writer != transaction {
            self.candidates.push(accesses.last_writer);
        }
        while let Some(reader) = self.readers.get(at as usize) {
            if reader.transaction != transaction {
                self.candidates.push(reader.transaction);
            }
            at = reader.earlier;
        }
        (accesses.last_writer, accesses.newest_reader) = (transaction, NOBODY);
    }

    /// Step 3.
    fn scan_and_write(&mut self, set: &ReadWriteSet, transaction: u32) {
        for namespace in &set.namespaces {
            let name = set.name(namespace);
            let scans = scans_of(set, namespace, transaction);
            if !scans.is_empty() && !self.scanned.contains_key(name) {
                let mut known = ScannedNamespace::default();
                for (earlier, set) in (0..).zip(&self.sets) {
                    visit_written_rows(set.borrow(), |namespace, key| {
                        if namespace == name {
                            known.last_writers.insert(key.to_owned(), earlier);
                        }
                    });
                }
                self.scanned.insert(name.to_owned(), known);
            }
            if let Some(known) = self.scanned.get_mut(name) {
                for scan in &scans {
                    known.writers_in(scan, &mut self.candidates, &mut self.comparisons_left);
                }
            }
        }
        visit_written_rows(set, |namespace, key| {
            let Some(known) = self.scanned.get_mut(namespace) else { return };
            known.scanners_of(key, &mut self.candidates, &mut self.comparisons_left);
            known.last_writers.insert(key.to_owned(), transaction);
        });
        for namespace in set.namespaces.iter().filter(|namespace| namespace.ranges > 0) {
            let known = self.scanned.get_mut(set.name(namespace)).expect("step 3 has noted it");
            for scan in scans_of(set, namespace, transaction) {
                match &mut known.hull {
                    Some(hull) => hull.include(&scan.start, &scan.end),
                    None => known.hull = Some(scan.clone()),
                }
                known.scans.push(scan);
            }
        }
    }
}

fn accesses_to(keys: &mut Map<RowHash, KeyAccesses>, key: RowHash) -> &mut KeyAccesses {
    let entry = keys.len() as u32;
    keys.entry(key).or_insert(KeyAccesses { entry, last_writer: NOBODY, newest_reader: NOBODY })
}

/// The keys that the transactions of a block access, numbered.
#[derive(Debug)]
pub(crate) struct KeyNumbers(Map<RowHash, KeyAccesses>);

impl KeyNumbers {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of a key; `None` if no transaction accesses it.
    pub(crate) fn number(&self, key: RowHash) -> Option<usize> {
        self.0.get(&key).map(|accesses| accesses.entry as usize)
    }
}

/// The ranges of one transaction in one namespace, or their hull if there are many.
fn scans_of(set: &ReadWriteSet, namespace: &NamespaceReadWriteSet, transaction: u32) -> Vec<Scan> {
    let bounds = |range: ScannedRange| {
        let (start, end) = set.bounds(&range);
        // A scan that stopped early has its last key as its end, and read that key.
        (start.to_owned(), if range.exhausted { end.to_owned() } else { after(end) })
    };
    let mut scans: Vec<Scan> = Vec::new();
    for (start, end) in set.ranges(namespace).map(bounds) {
        if scans.len() < RANGES_MAX {
            scans.push(Scan { transaction, start, end });
            continue;
        }
        scans.last_mut().expect("there are as many as may be").include(&start, &end);
    }
    scans
}

impl ScannedNamespace {
    fn writers_in(&self, scan: &Scan, candidates: &mut Vec<u32>, comparisons_left: &mut usize) {
        for (_, writer) in self.last_writers.range(scan.start.clone()..).take_while(|(key, _)| scan.has(key)) {
            let Some(left) = comparisons_left.checked_sub(1) else { return };
            *comparisons_left = left;
            candidates.push(*writer);
        }
    }

    fn scanners_of(&self, key: &str, candidates: &mut Vec<u32>, comparisons_left: &mut usize) {
        if self.hull.as_ref().is_none_or(|hull| !hull.has(key)) {
            return;
        }
        let Some(left) = comparisons_left.checked_sub(self.scans.len()) else {
            *comparisons_left = 0;
            return;
        };
        *comparisons_left = left;
        candidates.extend(self.scans.iter().filter(|scan| scan.has(key)).map(|scan| scan.transaction));
    }
}

/// For each transaction, the set of those from which a path leads to it.
#[derive(Debug, Default)]
struct Ancestors {
    /// Bit sets, empty for transactions without ancestors.
    of: Vec<Box<[u64]>>,
}

impl Ancestors {
    /// Step 4: appends to `edges` those candidates that are no ancestors of other candidates. `candidates` come from the
    /// newest to the oldest.
    fn reduce(&mut self, transaction: u32, candidates: &[u32], edges: &mut Vec<u32>) {
        if candidates.is_empty() {
            self.of.push(Box::default());
            return;
        }
        let mut all = vec![0_u64; (transaction as usize).div_ceil(64)].into_boxed_slice();
        for candidate in candidates {
            let (word, bit) = (*candidate as usize / 64, 1_u64 << (candidate % 64));
            if all[word] & bit != 0 {
                continue;
            }
            edges.push(*candidate);
            for (all, theirs) in all.iter_mut().zip(&self.of[*candidate as usize]) {
                *all |= theirs;
            }
            all[word] |= bit;
        }
        self.of.push(all);
    }
}
