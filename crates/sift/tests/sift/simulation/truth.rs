//! The observed state of a group, as the simulation sees it from outside, and the checks of its invariants.
//!
//! Each message starts with the name of the check that failed. A test that plants a mistake names the checks that may
//! catch it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::rt::simulation::Sim;
use sift::{Coordinator, EntryKind, LogEntry, MemoryWrite, Term};

/// Bytes of a key, and of a record.
const KEY_BYTES: u64 = super::BLOCK as u64;
/// Stands for "no answer yet".
const NEVER: u64 = u64::MAX;

/// Everything known so far.
pub struct Truth {
    sim: Sim,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    elected: BTreeMap<Term, &'static str>,
    /// The time since which each term has served.
    served: BTreeMap<Term, u64>,
    /// Every entry whose write was acknowledged.
    committed: BTreeMap<u64, Vec<(u64, u64)>>,
    writes: BTreeMap<u64, Operation>,
    reads: Vec<(usize, u64, Operation)>,
    values: u64,
    operations: u64,
    direct: u64,
    /// The acknowledged records, and the index up to which they were trimmed.
    records: BTreeMap<u64, u64>,
    trimmed: u64,
    current: Option<(Term, Coordinator)>,
    /// When a coordinator last said that it serves.
    seen: u64,
    failed: Option<String>,
}

impl Inner {
    fn current_at(&self, since: u64) -> Option<Coordinator> {
        let (_, coordinator) = self.current.as_ref().filter(|_| self.seen >= since)?;
        Some(coordinator.clone())
    }
}

/// An operation on keys.
#[derive(Clone, Debug)]
struct Operation {
    keys: Vec<usize>,
    from: u64,
    until: u64,
    /// The answer said that nothing happened.
    refused: bool,
}

/// A write that was started.
#[derive(Clone, Copy)]
pub struct Begun(pub u64);

impl Truth {
    pub fn new(sim: &Sim) -> Truth {
        Truth { sim: sim.clone(), inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> u64 {
        self.sim.elapsed().as_nanos() as u64
    }

    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// The coordinator of the greatest term, if it serves.
    pub fn current(&self) -> Option<Coordinator> {
        const FRESH: u64 = 5_000_000;
        let now = self.now();
        self.lock().current_at(now - FRESH.min(now))
    }

    pub fn terms(&self) -> u64 {
        self.lock().served.len() as u64
    }

    /// A CPU node has won an election.
    pub fn elected(&self, term: Term, node: &'static str) {
        let before = self.lock().elected.insert(term, node);
        assert!(before.is_none(), "term: {before:?} and {node} are both elected for term {term}");
    }

    /// A coordinator starts to serve.
    pub fn serves(&self, coordinator: &Coordinator) {
        let (now, term) = (self.now(), coordinator.term());
        let mut inner = self.lock();
        let before = inner.served.insert(term, now);
        assert!(before.is_none(), "term: two coordinators serve in term {term}");
        if let Some((newest, _)) = inner.served.last_key_value() {
            assert!(*newest == term, "serving: term {term} begins to serve after term {newest}");
        }
        let end = coordinator.status().committed;
        if let Some((last, _)) = inner.committed.last_key_value() {
            assert!(*last <= end, "lost: entry {last} was committed, term {term} begins behind entry {end}");
        }
        for entry in coordinator.recovered() {
            if let Some(committed) = inner.committed.get(&entry.index) {
                let found: Vec<(u64, u64)> =
                    committed.iter().filter_map(|(address, _)| Some((*address, value_at(entry, *address)?))).collect();
                assert!(
                    found == *committed,
                    "changed: entry {}: {committed:?} was committed, {found:?} found",
                    entry.index
                );
            }
        }
        for (index, value) in inner.records.range(inner.trimmed + 1..) {
            let found = coordinator.recovered().iter().find(|entry| entry.index == *index);
            let found = found.filter(|entry| entry.kind == EntryKind::Record).and_then(|entry| value_at(entry, 0));
            assert!(found == Some(*value), "record: {value} was appended as entry {index}, {found:?} found");
        }
        inner.current = Some((term, coordinator.clone()));
        self.sim.trace_numbers("serves", [term.0, end, 0]);
    }

    /// A coordinator says, on its own node, that it serves.
    pub fn is_serving(&self, term: Term) {
        let now = self.now();
        let mut inner = self.lock();
        inner.seen = now;
        if let Some((newest, since)) = inner.served.last_key_value() {
            assert!(*newest <= term, "serving: term {term} serves at {}, term {newest} since {since}", self.now());
        }
    }

    /// A write is about to start.
    pub fn begin_write(&self, keys: &[usize]) -> Begun {
        let from = self.now();
        let mut inner = self.lock();
        inner.values += 1;
        let value = inner.values;
        inner.writes.insert(value, Operation { keys: keys.to_vec(), from, until: NEVER, refused: false });
        Begun(value)
    }

    /// A write was acknowledged as an entry.
    pub fn wrote(&self, begun: Begun, index: u64, writes: &[MemoryWrite]) {
        let now = self.now();
        let mut inner = self.lock();
        inner.operations += 1;
        let content = writes.iter().map(|write| (write.address, value_of(&write.bytes))).collect();
        if let Some(before) = inner.committed.insert(index, content) {
            panic!("changed: entry {index} was committed as {before:?}, and again");
        }
        inner.writes.get_mut(&begun.0).expect("it was begun").until = now;
        self.sim.trace_numbers("wrote", [begun.0, index, 0]);
    }

    /// The answer said that a write did not happen.
    pub fn refused(&self, begun: Begun) {
        self.lock().writes.get_mut(&begun.0).expect("it was begun").refused = true;
    }

    /// A read was answered.
    pub fn read(&self, key: usize, value: u64, from: u64) {
        let until = self.now();
        let mut inner = self.lock();
        inner.operations += 1;
        inner.reads.push((key, value, Operation { keys: vec![key], from, until, refused: false }));
        self.sim.trace_numbers("read", [key as u64, value, 0]);
    }

    /// A value for a record.
    pub fn next_record(&self) -> u64 {
        self.next_direct()
    }

    /// A record was acknowledged as an entry.
    pub fn recorded(&self, value: u64, index: u64) {
        let mut inner = self.lock();
        let before = inner.records.insert(index, value);
        assert!(before.is_none() && !inner.committed.contains_key(&index), "changed: entry {index} was there before");
        self.sim.trace_numbers("recorded", [value, index, 0]);
    }

    /// Records up to an index are about to be trimmed.
    pub fn trims(&self, index: u64) {
        let mut inner = self.lock();
        inner.trimmed = inner.trimmed.max(index);
    }

    /// A value for the unlogged region; later coordinators get greater values.
    pub fn next_direct(&self) -> u64 {
        let mut inner = self.lock();
        inner.values += 1;
        inner.values
    }

    pub fn wrote_direct(&self, value: u64) {
        let mut inner = self.lock();
        inner.direct = inner.direct.max(value);
        inner.operations += 1;
    }

    /// Checks the copies of the unlogged region that a majority holds.
    pub fn read_direct(&self, copies: &[u64]) {
        let inner = self.lock();
        let newest = copies.iter().max().copied().unwrap_or_default();
        assert!(newest >= inner.direct, "direct: {} was written, a majority has {copies:?}", inner.direct);
    }

    pub fn fail(&self, reason: String) {
        self.lock().failed.get_or_insert(reason);
    }

    pub fn check_failed(&self) {
        if let Some(reason) = &self.lock().failed {
            panic!("{reason}");
        }
    }

    /// Checks that the history of every key is that of one register.
    pub fn check_linearizable(&self, keys: usize) {
        let inner = self.lock();
        for key in 0..keys {
            let mut clusters: BTreeMap<u64, Cluster> = BTreeMap::new();
            clusters.insert(0, Cluster { written: 0, first_answer: 0, last_begin: 0, reads: 0 });
            for (value, write) in &inner.writes {
                if write.keys.contains(&key) {
                    let cluster =
                        Cluster { written: write.from, first_answer: write.until, last_begin: write.from, reads: 0 };
                    clusters.insert(*value, cluster);
                }
            }
            for (_, value, read) in inner.reads.iter().filter(|(other, _, _)| *other == key) {
                let Some(cluster) = clusters.get_mut(value) else {
                    panic!("linearizable: key {key} was read as {value}, which nobody wrote there");
                };
                assert!(
                    !inner.writes.get(value).is_some_and(|write| write.refused),
                    "linearizable: key {key} was read as {value}, whose write was refused"
                );
                assert!(
                    read.until >= cluster.written,
                    "linearizable: key {key} was read as {value} before it was written"
                );
                cluster.first_answer = cluster.first_answer.min(read.until);
                cluster.last_begin = cluster.last_begin.max(read.from);
                cluster.reads += 1;
            }
            if let Err(reason) = check_register(&clusters) {
                panic!("linearizable: key {key}: {reason}");
            }
        }
    }
}

/// A write and the reads that returned its value.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    written: u64,
    first_answer: u64,
    last_begin: u64,
    reads: u64,
}

/// Whether the operations on one register are linearizable, where all writes write different values. Gibbons and
/// Korach, Testing shared memories, 1997: a cluster whose first answer comes before its last start holds the register
/// for all of the time between the two; no two such times overlap, and no other cluster lies within one.
fn check_register(clusters: &BTreeMap<u64, Cluster>) -> Result<(), String> {
    let seen = clusters.iter().filter(|(_, cluster)| cluster.first_answer != NEVER);
    let (forward, backward): (Vec<_>, Vec<_>) =
        seen.partition(|(_, cluster)| cluster.first_answer < cluster.last_begin);
    let mut forward: Vec<(u64, u64, u64)> =
        forward.iter().map(|(value, cluster)| (cluster.first_answer, cluster.last_begin, **value)).collect();
    forward.sort_unstable();
    for pair in forward.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(format!(
                "{} was there from {} to {}, and {} from {} to {}",
                pair[0].2, pair[0].0, pair[0].1, pair[1].2, pair[1].0, pair[1].1
            ));
        }
    }
    for (value, cluster) in backward {
        let before = forward.partition_point(|zone| zone.0 < cluster.last_begin);
        if let Some(zone) = before.checked_sub(1).map(|at| forward[at])
            && cluster.first_answer < zone.1
        {
            return Err(format!(
                "{value} was written from {} to {} while {} was there",
                cluster.last_begin, cluster.first_answer, zone.2
            ));
        }
    }
    Ok(())
}

/// The value that a block holds: every word is the value.
pub fn value_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let first = words.next().expect("a block");
    assert!(words.all(|word| word == first), "torn: a block of {bytes:?}");
    first
}

/// The value that an entry writes to the key at an address; an erasure-coded group logs whole blocks, of several keys.
fn value_at(entry: &LogEntry, address: u64) -> Option<u64> {
    let write =
        entry.writes.iter().rev().find(|write| {
            write.address <= address && address + KEY_BYTES <= write.address + write.bytes.len() as u64
        })?;
    Some(value_of(&write.bytes[(address - write.address) as usize..][..KEY_BYTES as usize]))
}

#[test]
fn histories_that_no_register_has_are_told() {
    let cluster = |written, first_answer, last_begin| Cluster { written, first_answer, last_begin, reads: 1 };
    let check = |clusters: &[Cluster]| check_register(&(1..).zip(clusters.iter().copied()).collect());
    assert!(check(&[cluster(0, 5, 9), cluster(6, 12, 20)]).is_ok());
    assert!(check(&[cluster(0, 5, 13), cluster(6, 12, 20)]).is_err(), "read again after the next was read");
    assert!(check(&[cluster(0, 5, 13), cluster(6, 12, 6)]).is_err(), "a write within");
    assert!(check(&[cluster(0, 5, 13), cluster(6, NEVER, 6)]).is_ok(), "a write that may not have happened");
    assert!(check(&[cluster(0, 5, 13), cluster(6, 14, 6)]).is_ok(), "a write that may come later");
}
