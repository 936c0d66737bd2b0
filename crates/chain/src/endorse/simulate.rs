//! Running a contract against one snapshot, recording what it does.
//!
//! 1. A [`Simulation`] holds the snapshot of one transaction, the recorder of its reads and writes in every namespace,
//!    and its open queries.
//! 2. A [`Call`] is one contract at work in it: the stub the contract sees. Contracts it calls get calls of their own in
//!    the same simulation, so that all namespaces end up in one read-write set.
//! 3. Of a call that failed, what it read and wrote stays recorded, as in Fabric; the caller decides what to make of it.
//!
//! Bounds: [`ENTRIES_MAX`] reads, writes and results of ranges, [`BYTES_MAX`] recorded and [`SCANNED_BYTES_MAX`] scanned
//! bytes, [`QUERIES_MAX`] open queries, [`CALLS_MAX`] calls, [`contract::CALL_DEPTH_MAX`] deep.
//!
//! A contract gives others their turn where it reads: that is where a time limit or its caller's end can stop it. One that
//! computes for long without reading has to give turns itself, as `kmeans` does.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, ChannelId, ErrorKind, TxId, rt};
use contract::key::{self, KeyRange};
use contract::{
    CALL_DEPTH_MAX, Entry, HistoryPage, PAGE_BYTES_SOFT_MAX, PAGE_ENTRIES_MAX, Page, QueryId, Registry, Response, Stub,
    StubError, Timestamp,
};
use state::{RangePage, Snapshot};

use crate::history::{KeyHistory, Walk};
use crate::rwset::{KEY_BYTES_MAX, RangeRecorder, Recorder};

/// Reads, writes and ranges that one transaction may record.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of keys and values that one transaction may record. Orderers refuse envelopes far below this.
pub const BYTES_MAX: usize = 64 << 20;
/// Bytes of keys and values that one transaction may scan in ranges.
pub const SCANNED_BYTES_MAX: usize = 256 << 20;
const _: () = assert!(state::RANGE_BYTES_SOFT_MAX <= PAGE_BYTES_SOFT_MAX, "a page of the state is one of a contract");
/// Reads after which a contract gives others their turn. State in memory answers at once, so that a contract that reads on
/// and on would otherwise hold its thread, and no time limit could end it.
const READS_PER_TURN: u32 = 32;
/// Queries that one transaction may have open.
pub const QUERIES_MAX: usize = 64;
/// Contract calls that one transaction may make, in all.
pub const CALLS_MAX: u32 = 1024;

/// What is fixed for one transaction.
#[derive(Clone)]
pub struct Context {
    pub channel: ChannelId,
    pub tx_id: TxId,
    pub timestamp: Timestamp,
    pub creator: Bytes,
    pub transient: Arc<BTreeMap<String, Bytes>>,
    pub registry: Registry,
    pub snapshot: Arc<dyn Snapshot>,
    pub history: Arc<KeyHistory>,
    /// Other channels' states, for contracts that read there.
    pub elsewhere: Arc<dyn Elsewhere>,
}

/// Where calls to contracts on other channels read.
#[async_trait::async_trait]
pub trait Elsewhere: Send + Sync {
    /// A snapshot of another channel and its history, if this peer holds it and `creator` may use it.
    async fn view(&self, channel: &str, creator: &Bytes) -> Option<(Arc<dyn Snapshot>, Arc<KeyHistory>)>;
}

/// A transaction in the making.
pub struct Simulation {
    context: Context,
    recorder: Recorder,
    queries: BTreeMap<QueryId, Query>,
    /// Open histories, each of a key of a namespace.
    histories: BTreeMap<QueryId, Walk>,
    queries_opened: u64,
    calls: u32,
    /// Results of ranges, and reads and writes on other channels.
    scanned: usize,
    /// Of results of ranges.
    scanned_bytes: usize,
    reads_this_turn: u32,
}

struct Query {
    namespace: Arc<str>,
    range: KeyRange,
    /// Where the next page starts.
    next: String,
    recorder: RangeRecorder,
    /// Ended or closed; kept for what it recorded.
    over: bool,
}

/// The event that a contract set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub payload: Bytes,
}

/// What one contract call came to.
#[derive(Debug)]
pub struct Outcome {
    pub response: Response,
    pub event: Option<Event>,
}

impl Outcome {
    /// An error of the contract's own.
    pub fn failure(message: String) -> Outcome {
        Outcome { response: Response::failure(Response::ERROR, message), event: None }
    }
}

impl Simulation {
    /// A transaction that has done nothing yet.
    pub fn new(context: Context) -> Simulation {
        Simulation {
            context,
            recorder: Recorder::new(),
            queries: BTreeMap::new(),
            histories: BTreeMap::new(),
            queries_opened: 0,
            calls: 0,
            scanned: 0,
            scanned_bytes: 0,
            reads_this_turn: 0,
        }
    }

    /// Runs the contract `name`.
    ///
    /// # Errors
    /// [`StubError::UnknownContract`], and the errors of a peer that cannot serve. Whatever else a contract does
    /// comes back as its response.
    pub async fn run(&mut self, name: &str, args: &[Bytes]) -> Result<Outcome, StubError> {
        self.call(name, args, 0).await
    }

    /// What was read and written, as an encoded `TxReadWriteSet`.
    pub fn finish(mut self) -> Bytes {
        // In the order of opening, which is that of the handles.
        for query in std::mem::take(&mut self.queries).into_values() {
            self.recorder.range(&query.namespace, query.recorder);
        }
        self.recorder.encode()
    }

    async fn call(&mut self, name: &str, args: &[Bytes], depth: usize) -> Result<Outcome, StubError> {
        let Some(contract) = self.context.registry.get(name).cloned() else {
            return Err(StubError::UnknownContract(name.to_owned()));
        };
        self.calls += 1;
        if self.calls > CALLS_MAX {
            return Err(StubError::LimitExceeded { what: "contract calls", max: u64::from(CALLS_MAX) });
        }
        let mut call = Call { simulation: self, namespace: name.into(), args, depth, event: None };
        let result = match contract::split_input(args) {
            Ok((function, rest)) => contract.invoke(&mut call, function, rest).await,
            Err(error) => Err(error),
        };
        let event = call.event;
        let response = match result {
            Ok(response) => response,
            Err(error) => error.into_response()?,
        };
        Ok(Outcome { response, event })
    }

    fn check_limits(&self) -> Result<(), StubError> {
        if self.recorder.entries() + self.scanned >= ENTRIES_MAX {
            return Err(StubError::LimitExceeded { what: "reads and writes", max: ENTRIES_MAX as u64 });
        }
        if self.recorder.bytes() >= BYTES_MAX {
            return Err(StubError::LimitExceeded { what: "bytes read and written", max: BYTES_MAX as u64 });
        }
        if self.scanned_bytes >= SCANNED_BYTES_MAX {
            return Err(StubError::LimitExceeded { what: "bytes scanned", max: SCANNED_BYTES_MAX as u64 });
        }
        Ok(())
    }

    fn new_query(&mut self) -> Result<QueryId, StubError> {
        let open = self.queries.values().filter(|query| !query.over).count() + self.histories.len();
        if open >= QUERIES_MAX {
            return Err(StubError::LimitExceeded { what: "open queries", max: QUERIES_MAX as u64 });
        }
        self.check_limits()?;
        self.queries_opened += 1;
        Ok(QueryId(self.queries_opened - 1))
    }

    async fn count_read(&mut self) {
        self.reads_this_turn += 1;
        if self.reads_this_turn >= READS_PER_TURN {
            self.end_turn().await;
        }
    }

    async fn end_turn(&mut self) {
        self.reads_this_turn = 0;
        rt::yield_now().await;
    }
}

fn check_key(key: &str) -> Result<(), StubError> {
    key::check(key)?;
    check_length(key)
}

fn check_length(key: &str) -> Result<(), StubError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(StubError::InvalidKey(format!("a key has at most {KEY_BYTES_MAX} bytes, not {}", key.len())));
    }
    Ok(())
}

fn state_error(error: state::Error) -> StubError {
    let kind = match error.kind() {
        // A contract's request cannot be what the state refuses: its keys were checked.
        ErrorKind::Rejected => ErrorKind::Retry,
        kind => kind,
    };
    StubError::State { kind, message: error.to_string() }
}

fn history_error(error: crate::Error) -> StubError {
    let kind = match error.kind() {
        ErrorKind::Rejected => ErrorKind::Retry,
        kind => kind,
    };
    StubError::State { kind, message: error.to_string() }
}

/// One contract at work.
struct Call<'a> {
    simulation: &'a mut Simulation,
    namespace: Arc<str>,
    args: &'a [Bytes],
    depth: usize,
    event: Option<Event>,
}

#[async_trait::async_trait]
impl Stub for Call<'_> {
    async fn get_state(&mut self, key: &str) -> Result<Option<Bytes>, StubError> {
        // First, because a contract may also go on after one refusal and another.
        self.simulation.count_read().await;
        check_key(key)?;
        self.simulation.check_limits()?;
        let found = self.simulation.context.snapshot.get(&self.namespace, key).await.map_err(state_error)?;
        let version = found.as_ref().map(|found| found.version);
        self.simulation.recorder.read(&self.namespace, key, version);
        Ok(found.map(|found| found.value))
    }

    fn put_state(&mut self, key: &str, value: Bytes) -> Result<(), StubError> {
        check_key(key)?;
        self.simulation.check_limits()?;
        self.simulation.recorder.write(&self.namespace, key, value);
        Ok(())
    }

    fn delete_state(&mut self, key: &str) -> Result<(), StubError> {
        self.put_state(key, Bytes::new())
    }

    async fn open_range(&mut self, range: KeyRange) -> Result<QueryId, StubError> {
        self.simulation.count_read().await;
        check_length(range.start())?;
        check_length(range.end())?;
        let id = self.simulation.new_query()?;
        let query = Query {
            namespace: self.namespace.clone(),
            next: range.start().to_owned(),
            recorder: RangeRecorder::new(range.start(), range.end()),
            over: false,
            range,
        };
        // Closed queries stay for what they recorded, so they count as entries.
        self.simulation.recorder.note_query();
        self.simulation.queries.insert(id, query);
        Ok(id)
    }

    async fn next_page(&mut self, id: QueryId, entries_max: usize) -> Result<Page, StubError> {
        let limit = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        self.simulation.end_turn().await;
        self.simulation.check_limits()?;
        let snapshot = self.simulation.context.snapshot.clone();
        let query = self.simulation.queries.get_mut(&id).ok_or(StubError::UnknownQuery(id.0))?;
        if *query.namespace != *self.namespace {
            return Err(StubError::UnknownQuery(id.0));
        }
        if query.over {
            return Err(StubError::UnknownQuery(id.0));
        }
        let found = if query.range.is_empty() {
            RangePage::default()
        } else {
            let range = snapshot.range(&query.namespace, &query.next, query.range.end(), limit);
            range.await.map_err(state_error)?
        };
        let mut page = Page { entries: Vec::with_capacity(found.entries.len()), has_more: found.more };
        let mut bytes = 0;
        for entry in found.entries {
            bytes += entry.key.len() + entry.versioned.value.len();
            query.recorder.add(&entry.key, entry.versioned.version);
            page.entries.push(Entry { key: String::from(&*entry.key), value: entry.versioned.value });
        }
        self.simulation.scanned += page.entries.len();
        self.simulation.scanned_bytes += bytes;
        if page.has_more {
            let last = page.entries.last().expect("a page that has more has an entry");
            query.next.clear();
            query.next.push_str(&last.key);
            query.next.push('\0');
        } else {
            query.recorder.exhaust();
            query.over = true;
        }
        Ok(page)
    }

    async fn open_history(&mut self, key: &str) -> Result<QueryId, StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        let id = self.simulation.new_query()?;
        // It leaves no trace in the read set; so that it has an end, it counts as an entry.
        self.simulation.scanned += 1;
        let height = self.simulation.context.snapshot.height();
        self.simulation.histories.insert(id, Walk::new(&self.namespace, key, height));
        Ok(id)
    }

    async fn next_modifications(&mut self, id: QueryId, entries_max: usize) -> Result<HistoryPage, StubError> {
        let limit = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        self.simulation.end_turn().await;
        self.simulation.check_limits()?;
        let history = Arc::clone(&self.simulation.context.history);
        let walk = self.simulation.histories.get_mut(&id).filter(|walk| walk.namespace() == &*self.namespace);
        let page = walk.ok_or(StubError::UnknownQuery(id.0))?.page(&history, limit).await.map_err(history_error)?;
        let bytes = page.modifications.iter().filter_map(|change| change.value.as_ref()).map(Bytes::len).sum::<usize>();
        self.simulation.scanned += page.modifications.len();
        self.simulation.scanned_bytes += bytes;
        if !page.has_more {
            self.simulation.histories.remove(&id);
        }
        Ok(page)
    }

    fn close_query(&mut self, id: QueryId) {
        self.simulation.histories.remove(&id);
        if let Some(query) = self.simulation.queries.get_mut(&id) {
            query.over = true;
        }
    }

    async fn invoke_contract(&mut self, name: &str, args: Vec<Bytes>, channel: &str) -> Result<Response, StubError> {
        self.simulation.count_read().await;
        if self.depth + 1 >= CALL_DEPTH_MAX {
            return Err(StubError::LimitExceeded { what: "the call depth", max: CALL_DEPTH_MAX as u64 });
        }
        let context = &self.simulation.context;
        if channel.is_empty() || context.channel.as_str() == channel {
            return Ok(self.simulation.call(name, &args, self.depth + 1).await?.response);
        }
        let Some((snapshot, history)) = context.elsewhere.view(channel, &context.creator).await else {
            return Ok(Response::failure(Response::ERROR, format!("channel {channel} is not known here")));
        };
        // What happens on another channel is read only: its reads and writes are nobody's.
        let mut context = context.clone();
        context.channel = ChannelId::from(channel);
        (context.snapshot, context.history) = (snapshot, history);
        let mut other = Simulation::new(context);
        (other.calls, other.scanned, other.scanned_bytes) =
            (self.simulation.calls, self.simulation.scanned, self.simulation.scanned_bytes);
        let outcome = other.call(name, &args, self.depth + 1).await;
        (self.simulation.calls, self.simulation.scanned, self.simulation.scanned_bytes) =
            (other.calls, other.scanned + other.recorder.entries(), other.scanned_bytes);
        Ok(outcome?.response)
    }

    fn set_event(&mut self, name: &str, payload: Bytes) -> Result<(), StubError> {
        if name.is_empty() {
            return Err(StubError::InvalidEvent("an event must have a name".to_owned()));
        }
        self.event = Some(Event { name: name.to_owned(), payload });
        Ok(())
    }

    fn tx_id(&self) -> &TxId {
        &self.simulation.context.tx_id
    }

    fn channel_id(&self) -> &ChannelId {
        &self.simulation.context.channel
    }

    fn timestamp(&self) -> Timestamp {
        self.simulation.context.timestamp
    }

    fn creator(&self) -> &Bytes {
        &self.simulation.context.creator
    }

    fn transient(&self) -> &BTreeMap<String, Bytes> {
        &self.simulation.context.transient
    }

    fn args(&self) -> &[Bytes] {
        self.args
    }
}
