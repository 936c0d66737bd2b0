//! Counters, gauges and histograms, each declared once.
//!
//! 1. A crate declares its events with [`events!`](crate::events): a name in code, a name for Prometheus, a sentence of
//!    documentation.
//! 2. The code that does the work counts it: `BlocksCommitted.add(1)`, `CommitTime.record_since(start)`.
//! 3. Metrics ([`render_prometheus`]), assertions of tests ([`snapshot`]) and the metrics reference ([`catalogue`]) all come
//!    from that one declaration.
//!
//! An event registers itself at its first use. [`register`] registers all events of a crate at the start, so that
//! metrics show events that have not happened yet as zero. Counting is one relaxed atomic addition. Each simulation has
//! its own counts, so simulations on several threads of one test process do not disturb one another.
//!
//! Invariants: one declaration per name in the whole process; counters only grow.

mod histogram;
mod render;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use histogram::{Distribution, Histogram};
pub use render::{catalogue_markdown, render_prometheus};

use crate::rt;

/// The unit of a histogram's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Plain numbers.
    Count,
    /// Bytes.
    Bytes,
    /// Recorded in nanoseconds, shown in seconds.
    Seconds,
}

/// The type of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// A distribution of values.
    Histogram(Unit),
}

/// The declaration of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventDescription {
    /// The name that Prometheus sees.
    pub name: &'static str,
    /// The meaning of the event, in a sentence.
    pub documentation: &'static str,
    /// Counter, gauge or histogram.
    pub kind: EventKind,
}

/// The value of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventValue {
    /// Of a counter.
    Counter(u64),
    /// Of a gauge.
    Gauge(i64),
    /// Of a histogram.
    Histogram(Distribution),
}

/// Any declared event.
pub trait Event: Sync {
    /// Its declaration.
    fn description(&self) -> EventDescription;
    /// The value of this process, without simulations.
    fn process_value(&self) -> EventValue;
}

/// Values of all events at one moment, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventSnapshot {
    /// Name and value.
    pub values: BTreeMap<&'static str, EventValue>,
}

impl EventSnapshot {
    /// A counter's value; 0 when it has not been used.
    pub fn counter(&self, name: &str) -> u64 {
        match self.values.get(name) {
            Some(EventValue::Counter(count)) => *count,
            _ => 0,
        }
    }

    /// A gauge's value; 0 when it has not been used.
    pub fn gauge(&self, name: &str) -> i64 {
        match self.values.get(name) {
            Some(EventValue::Gauge(level)) => *level,
            _ => 0,
        }
    }
}

static REGISTRY: Mutex<BTreeMap<&'static str, &'static dyn Event>> = Mutex::new(BTreeMap::new());

fn registry() -> MutexGuard<'static, BTreeMap<&'static str, &'static dyn Event>> {
    // Consistent between any two statements, so a poisoned lock does no harm.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a crate's events before their first use. Doing so again changes nothing.
///
/// Panics when two declarations have one name.
pub fn register(events: &'static [&'static dyn Event]) {
    for event in events {
        register_one(*event);
    }
}

fn register_one(event: &'static dyn Event) {
    let description = event.description();
    let known = registry().entry(description.name).or_insert(event).description();
    assert!(known == description, "two events are declared with the name {}", description.name);
}

/// The declarations of all registered events, sorted by name.
pub fn catalogue() -> Vec<EventDescription> {
    registry().values().map(|event| event.description()).collect()
}

/// The values of all registered events: those of this simulation when called in one, otherwise those of the process.
pub fn snapshot() -> EventSnapshot {
    if let Some(values) = rt::simulated_events(|events| events.clone()) {
        return EventSnapshot { values: values.into_iter().collect() };
    }
    EventSnapshot { values: registry().iter().map(|(name, event)| (*name, event.process_value())).collect() }
}

/// Panics at compile time on a name that Prometheus or our conventions would not accept.
const fn check_name(name: &str, suffix: &str) {
    let name = name.as_bytes();
    let mut i = 0;
    while i < name.len() {
        assert!(matches!(name[i], b'a'..=b'z' | b'0'..=b'9' | b'_'), "event names are lower case with underscores");
        i += 1;
    }
    let suffix = suffix.as_bytes();
    assert!(name.len() > suffix.len(), "event names say what they count");
    let mut i = 0;
    while i < suffix.len() {
        assert!(
            name[name.len() - suffix.len() + i] == suffix[i],
            "counters end in _total, times in _seconds, bytes in _bytes"
        );
        i += 1;
    }
}

/// Registers an event at its first use; afterwards one relaxed load.
struct FirstUse(AtomicBool);

impl FirstUse {
    const fn new() -> FirstUse {
        FirstUse(AtomicBool::new(false))
    }

    #[inline]
    fn register_once(&self, event: &'static dyn Event) {
        if !self.0.load(Ordering::Relaxed) {
            register_one(event);
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Number of shards of a counter: threads on different shards share no cache line.
const SHARDS: usize = 8;

#[repr(align(64))]
struct CounterShard(AtomicU64);

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

/// A sum to which many threads add at a high rate. It is no metric.
pub struct ShardedSum([CounterShard; SHARDS]);

impl ShardedSum {
    /// Zero.
    pub const fn new() -> ShardedSum {
        ShardedSum([const { CounterShard(AtomicU64::new(0)) }; SHARDS])
    }

    /// Adds to the sum.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0[shard_of_thread()].0.fetch_add(count, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn value(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

impl Default for ShardedSum {
    fn default() -> ShardedSum {
        ShardedSum::new()
    }
}

/// A number that only grows. Declared with [`events!`](crate::events).
pub struct Counter {
    name: &'static str,
    documentation: &'static str,
    first_use: FirstUse,
    sum: ShardedSum,
}

impl Counter {
    /// For the macro.
    #[doc(hidden)]
    pub const fn new(name: &'static str, documentation: &'static str) -> Counter {
        check_name(name, "_total");
        Counter { name, documentation, first_use: FirstUse::new(), sum: ShardedSum::new() }
    }

    /// Counts `count` more.
    #[inline]
    pub fn add(&'static self, count: u64) {
        self.first_use.register_once(self);
        if rt::is_simulation() {
            self.add_simulated(count);
        } else {
            self.sum.add(count);
        }
    }

    #[cold]
    fn add_simulated(&self, count: u64) {
        rt::simulated_events(|events| {
            if let EventValue::Counter(value) = events.entry(self.name).or_insert(EventValue::Counter(0)) {
                *value += count;
            }
        });
    }

    /// The count: that of this simulation when called in one, otherwise that of the process.
    pub fn value(&self) -> u64 {
        match rt::simulated_events(|events| events.get(self.name).cloned()) {
            Some(Some(EventValue::Counter(count))) => count,
            Some(_) => 0,
            None => self.sum.value(),
        }
    }
}

impl Event for Counter {
    fn description(&self) -> EventDescription {
        EventDescription { name: self.name, documentation: self.documentation, kind: EventKind::Counter }
    }

    fn process_value(&self) -> EventValue {
        EventValue::Counter(self.sum.value())
    }
}

/// A number that goes up and down. Declared with [`events!`](crate::events).
pub struct Gauge {
    name: &'static str,
    documentation: &'static str,
    first_use: FirstUse,
    level: AtomicI64,
}

impl Gauge {
    /// For the macro.
    #[doc(hidden)]
    pub const fn new(name: &'static str, documentation: &'static str) -> Gauge {
        check_name(name, "");
        Gauge { name, documentation, first_use: FirstUse::new(), level: AtomicI64::new(0) }
    }

    /// Raises (or, with a negative number, lowers) the level.
    pub fn add(&'static self, change: i64) {
        self.update(|level| level + change, |level| level.fetch_add(change, Ordering::Relaxed));
    }

    /// Sets the level.
    pub fn set(&'static self, new: i64) {
        self.update(|_| new, |level| level.swap(new, Ordering::Relaxed));
    }

    fn update(&'static self, simulated: impl FnOnce(i64) -> i64, real: impl FnOnce(&AtomicI64) -> i64) {
        self.first_use.register_once(self);
        let in_simulation = rt::simulated_events(|events| {
            if let EventValue::Gauge(level) = events.entry(self.name).or_insert(EventValue::Gauge(0)) {
                *level = simulated(*level);
            }
        });
        if in_simulation.is_none() {
            real(&self.level);
        }
    }

    /// The level: that of this simulation when called in one, otherwise that of the process.
    pub fn value(&self) -> i64 {
        match rt::simulated_events(|events| events.get(self.name).cloned()) {
            Some(Some(EventValue::Gauge(level))) => level,
            Some(_) => 0,
            None => self.level.load(Ordering::Relaxed),
        }
    }
}

impl Event for Gauge {
    fn description(&self) -> EventDescription {
        EventDescription { name: self.name, documentation: self.documentation, kind: EventKind::Gauge }
    }

    fn process_value(&self) -> EventValue {
        EventValue::Gauge(self.level.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.name)
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gauge({})", self.name)
    }
}

/// Declares the events of a module, and `EVENTS`, the list of them for [`event::register`](crate::event::register).
///
/// ```
/// base::events! {
///     /// Blocks appended to the ledger.
///     counter BlocksCommitted("heddle_example_blocks_total");
///     /// Transactions waiting for their block.
///     gauge Waiting("heddle_example_waiting");
///     /// Time from cutting a block to its commit.
///     histogram CommitTime("heddle_example_commit_seconds", seconds);
///     /// Size of a block.
///     histogram BlockSize("heddle_example_block_bytes", bytes);
///     /// Transactions in a block.
///     histogram BlockLength("heddle_example_block_transactions", count);
/// }
/// BlocksCommitted.add(1);
/// CommitTime.record_duration(std::time::Duration::from_millis(2));
/// assert_eq!(BlocksCommitted.value(), 1);
/// assert_eq!(EVENTS.len(), 5);
/// ```
#[macro_export]
macro_rules! events {
    ($($(#[doc = $doc:literal])+ $sort:ident $name:ident($text:literal $(, $unit:ident)?));+ $(;)?) => {
        $(
            $(#[doc = $doc])+
            #[allow(non_upper_case_globals)]
            pub static $name: $crate::__event_type!($sort) =
                $crate::__event_new!($sort, $text, concat!($($doc),+) $(, $unit)?);
        )+

        /// All events declared here.
        #[allow(dead_code)]
        pub static EVENTS: &[&'static dyn $crate::event::Event] = &[$(&$name),+];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __event_type {
    (counter) => {
        $crate::event::Counter
    };
    (gauge) => {
        $crate::event::Gauge
    };
    (histogram) => {
        $crate::event::Histogram
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __event_new {
    (counter, $text:literal, $doc:expr) => {
        $crate::event::Counter::new($text, $doc)
    };
    (gauge, $text:literal, $doc:expr) => {
        $crate::event::Gauge::new($text, $doc)
    };
    (histogram, $text:literal, $doc:expr, seconds) => {
        $crate::event::Histogram::new($text, $doc, $crate::event::Unit::Seconds)
    };
    (histogram, $text:literal, $doc:expr, bytes) => {
        $crate::event::Histogram::new($text, $doc, $crate::event::Unit::Bytes)
    };
    (histogram, $text:literal, $doc:expr, count) => {
        $crate::event::Histogram::new($text, $doc, $crate::event::Unit::Count)
    };
}
