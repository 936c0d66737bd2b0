//! The history of requests and answers, as clients see it, and the checks of it.
//!
//! Each message starts with the name of the check that failed. A test that plants a mistake names the checks that may
//! catch it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::simulation::Sim;
use base::{Bytes, ErrorKind, rt};
use kv::{Precondition, SwapOutcome, VersionedValue};

/// Stands for "no answer yet".
const NEVER: u64 = u64::MAX;
/// Bound on the states that the search for an order examines for one key.
const STATES_MAX: usize = 4_000_000;

/// A client's operation on a key. All values differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Get,
    Put(u64),
    Delete,
    /// Compare-and-set: if the key has this value, or none, set that one.
    Swap(Option<u64>, u64),
}

/// The answer to an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done, and has this version.
    Done(u64),
    /// Nothing was done: the key has this value, with this version.
    Got(Option<(u64, u64)>),
}

impl Outcome {
    pub fn got(found: Option<VersionedValue>) -> Outcome {
        Outcome::Got(found.map(|found| (value_of(&found.value), found.version)))
    }

    pub fn deleted(done: Option<u64>) -> Outcome {
        done.map_or(Outcome::Got(None), Outcome::Done)
    }

    pub fn swapped(swap: SwapOutcome) -> Outcome {
        match swap {
            SwapOutcome::Done(version) => Outcome::Done(version),
            SwapOutcome::Mismatch(found) => Outcome::got(found),
        }
    }
}

pub fn key_of(key: u64) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

/// The bytes of a value: their length varies, and every byte identifies the value.
pub fn bytes_of(value: u64) -> Bytes {
    Bytes::from(value.to_le_bytes().repeat(1 + (value * 7 % 40) as usize))
}

pub fn value_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("torn: a part of a word")));
    let first = words.next().expect("torn: an empty value");
    assert!(words.all(|word| word == first), "torn: {bytes:?}");
    first
}

pub fn expected_of(value: Option<u64>) -> Precondition {
    value.map_or(Precondition::Absent, |value| Precondition::Value(bytes_of(value)))
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    key: u64,
    asked: Asked,
    from: u64,
    until: u64,
    outcome: Option<Outcome>,
}

/// Everything known so far.
pub struct History {
    sim: Sim,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    begun: BTreeMap<u64, Operation>,
    /// The value of each version, as far as some client has seen it.
    versions: BTreeMap<u64, (u64, Option<u64>)>,
    /// A value that each key had at some time.
    values: BTreeMap<u64, Option<u64>>,
    next: u64,
    operations: u64,
    failed: Option<String>,
}

impl Inner {
    fn is_version(&mut self, version: u64, key: u64, value: Option<u64>) {
        let before = *self.versions.entry(version).or_insert((key, value));
        assert!(
            before == (key, value),
            "changed: version {version} is {before:?} to one, {:?} to another",
            (key, value)
        );
    }
}

impl History {
    pub fn new(sim: &Sim) -> History {
        History { sim: sim.clone(), inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.sim.elapsed().as_nanos() as u64
    }

    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// One random operation on a random key; `perform` runs it on a store, whose errors are of some `kind`.
    pub async fn operate<F, E>(
        &self,
        keys: u64,
        kind: impl FnOnce(&E) -> ErrorKind,
        perform: impl FnOnce(Bytes, Asked) -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<Outcome, E>>,
    {
        let key = rt::random_below(keys);
        let asked = match rt::random_below(10) {
            0..5 => Asked::Get,
            5..8 => Asked::Put(self.next_value()),
            8 => Asked::Delete,
            _ => Asked::Swap(self.some_value(key), self.next_value()),
        };
        let begun = self.begin(key, asked);
        match perform(key_of(key), asked).await {
            Ok(outcome) => self.end(begun, outcome),
            Err(error) => {
                if kind(&error) != ErrorKind::Ambiguous {
                    self.refused(begun);
                }
                return Err(error);
            }
        }
        rt::sleep(Duration::from_micros(rt::random_below(6000))).await;
        Ok(())
    }

    fn next_value(&self) -> u64 {
        let mut inner = self.lock();
        inner.next += 1;
        inner.next
    }

    /// A value that a key may well have.
    fn some_value(&self, key: u64) -> Option<u64> {
        self.lock().values.get(&key).copied().flatten().filter(|_| rt::random_below(5) > 0)
    }

    fn begin(&self, key: u64, asked: Asked) -> u64 {
        let from = self.now();
        let mut inner = self.lock();
        inner.next += 1;
        let begun = inner.next;
        inner.begun.insert(begun, Operation { key, asked, from, until: NEVER, outcome: None });
        begun
    }

    fn end(&self, begun: u64, outcome: Outcome) {
        let now = self.now();
        let mut inner = self.lock();
        inner.operations += 1;
        let operation = inner.begun.get_mut(&begun).expect("it was begun");
        (operation.until, operation.outcome) = (now, Some(outcome));
        let Operation { key, asked, .. } = *operation;
        let value = match (asked, outcome) {
            (Asked::Put(value) | Asked::Swap(_, value), Outcome::Done(_)) => Some(value),
            (Asked::Delete, Outcome::Done(_)) => None,
            (_, Outcome::Got(found)) => found.map(|(value, _)| value),
            (Asked::Get, Outcome::Done(_)) => unreachable!("a get does nothing"),
        };
        match outcome {
            Outcome::Done(version) | Outcome::Got(Some((_, version))) => inner.is_version(version, key, value),
            Outcome::Got(None) => {}
        }
        inner.values.insert(key, value);
        let version = match outcome {
            Outcome::Done(version) => version,
            Outcome::Got(found) => found.map_or(0, |(_, version)| version),
        };
        self.sim.trace_numbers("ended", [key, value.unwrap_or_default(), version]);
    }

    /// The answer said that nothing happened.
    fn refused(&self, begun: u64) {
        self.lock().begun.remove(&begun);
    }

    /// A watcher of all keys saw a version, after another one.
    pub fn told(&self, last: Option<u64>, version: u64, key: &[u8], value: Option<u64>) {
        let key = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix("key-")?.parse().ok());
        let key: u64 = key.expect("changed: a key that nobody has named");
        if let Some(last) = last {
            assert!(version == last + 1, "watch: version {version} was told after {last}");
        }
        self.lock().is_version(version, key, value);
    }

    pub fn fail(&self, reason: String) {
        self.lock().failed.get_or_insert(reason);
    }

    pub fn check_failed(&self) {
        if let Some(reason) = &self.lock().failed {
            panic!("{reason}");
        }
    }

    /// Checks that each key's operations have an order that explains every answer.
    pub fn check_linearizable(&self) {
        let inner = self.lock();
        let keys: BTreeSet<u64> = inner.begun.values().map(|operation| operation.key).collect();
        for key in keys {
            let operations: Vec<Operation> = inner.begun.values().filter(|other| other.key == key).copied().collect();
            if let Err(reason) = check(operations) {
                panic!("linearizable: key {key}: {reason}");
            }
        }
    }
}

/// The value of a key after an operation, if the operation may return its answer in this state.
fn applied(operation: &Operation, has: Option<u64>) -> Option<Option<u64>> {
    let done = match (operation.asked, has) {
        (Asked::Get, _) | (Asked::Delete, None) => None,
        (Asked::Put(value), _) => Some(Some(value)),
        (Asked::Delete, Some(_)) => Some(None),
        (Asked::Swap(expected, value), _) => (expected == has).then_some(Some(value)),
    };
    match (operation.outcome, done) {
        (None, _) => Some(done.unwrap_or(has)),
        (Some(Outcome::Done(_)), Some(after)) => Some(after),
        (Some(Outcome::Got(found)), None) if found.map(|(value, _)| value) == has => Some(has),
        _ => None,
    }
}

/// Whether operations on one key are linearizable. Wing and Gong, Testing and verifying concurrent objects, 1993, with
/// a memory of the states examined (Lowe, Testing for linearizability, 2017): an operation may come next if no
/// remaining operation was answered before it started. An operation without an answer may take effect at any time after
/// its start, or never.
fn check(mut operations: Vec<Operation>) -> Result<(), String> {
    // An operation that changed nothing and was never answered explains nothing.
    operations.retain(|operation| operation.outcome.is_some() || operation.asked != Asked::Get);
    operations.sort_by_key(|operation| operation.from);
    let words = operations.len().div_ceil(64);
    let is_in = |set: &[u64], at: usize| set[at / 64] & (1 << (at % 64)) != 0;
    let mut seen: BTreeSet<(Vec<u64>, Option<u64>)> = BTreeSet::new();
    let mut stack = vec![(vec![0_u64; words], None)];
    let mut furthest = 0;
    while let Some((set, has)) = stack.pop() {
        let left = || (0..operations.len()).filter(|at| !is_in(&set, *at));
        let Some(first_answer) = left().map(|at| operations[at].until).filter(|until| *until != NEVER).min() else {
            return Ok(());
        };
        furthest = furthest.max(first_answer);
        for at in left().take_while(|at| operations[*at].from <= first_answer) {
            let Some(after) = applied(&operations[at], has) else { continue };
            let mut next = set.clone();
            next[at / 64] |= 1 << (at % 64);
            if seen.insert((next.clone(), after)) {
                stack.push((next, after));
            }
        }
        assert!(seen.len() < STATES_MAX, "too many operations at a time for this check");
    }
    let near: Vec<&Operation> = operations
        .iter()
        .filter(|operation| operation.from <= furthest && operation.until.saturating_add(50_000_000) >= furthest)
        .collect();
    Err(format!("no order explains what was answered until {furthest}: {near:#?}"))
}

#[test]
fn histories_that_no_key_has_are_told() {
    let operation = |asked, from, until, outcome| Operation { key: 0, asked, from, until, outcome: Some(outcome) };
    let open = |asked, from| Operation { key: 0, asked, from, until: NEVER, outcome: None };
    let got = |value: Option<u64>, from, until| {
        operation(Asked::Get, from, until, Outcome::Got(value.map(|value| (value, value))))
    };
    let put = |value, from, until| operation(Asked::Put(value), from, until, Outcome::Done(value));
    assert!(check(vec![put(1, 0, 5), got(Some(1), 6, 7), put(2, 8, 20), got(Some(1), 9, 10)]).is_ok());
    assert!(check(vec![put(1, 0, 5), put(2, 6, 7), got(Some(1), 8, 9)]).is_err(), "an old value");
    assert!(check(vec![put(1, 0, 5), open(Asked::Put(2), 6), got(Some(1), 8, 9), got(Some(2), 10, 11)]).is_ok());
    let flips = vec![put(1, 0, 5), open(Asked::Put(2), 6), got(Some(2), 8, 9), got(Some(1), 10, 11)];
    assert!(check(flips).is_err(), "seen, and then not");
    assert!(check(vec![put(1, 0, 5), open(Asked::Delete, 6), got(None, 8, 9)]).is_ok());
    assert!(check(vec![put(1, 0, 5), got(None, 8, 9)]).is_err(), "lost");
    let swap =
        |expected, value, from, until| operation(Asked::Swap(expected, value), from, until, Outcome::Done(value));
    assert!(check(vec![put(1, 0, 5), swap(Some(1), 2, 6, 9), got(Some(2), 10, 11)]).is_ok());
    assert!(check(vec![put(1, 0, 5), swap(Some(1), 2, 6, 9), swap(Some(1), 3, 6, 9)]).is_err(), "both from one value");
}
