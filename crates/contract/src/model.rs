//! A ledger in memory that runs contracts one at a time. It defines the effects that a contract must have on a correct
//! peer.
//!
//! It has three uses: as the reference for the meaning of [`ContractStub`], as the ledger in tests of contracts, and as
//! the sequential oracle with which simulations compare a peer's state. One invocation:
//! 1. [`ModelLedger::execute`] runs the contract against the current state and collects its [`ModelEffects`].
//! 2. [`ModelLedger::apply`] puts the writes into the state. [`ModelLedger::submit`] does both.
//!
//! Nothing here waits, so [`run`] can drive its futures without a runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use base::{Bytes, ChannelId, TxId};

use crate::key::{self, KeyRange};
use crate::{
    CALL_DEPTH_MAX, ContractError, ContractRegistry, ContractResponse, ContractStub, HistoryPage, KeyModification,
    KeyValue, PAGE_BYTES_SOFT_MAX, PAGE_ENTRIES_MAX, QueryId, StatePage, StubError, Timestamp, split_input,
};

mod probe;
#[cfg(test)]
mod tests;

pub use probe::ProbeContract;

/// The most queries that one transaction may have open.
pub const OPEN_QUERIES_MAX: usize = 64;

/// A chaincode's name and a key in it.
pub type StateKey = (String, String);

/// One call of one contract, as a verified proposal would carry it.
#[derive(Debug, Clone, Default)]
pub struct ModelInvocation {
    /// The name in the registry.
    pub contract: String,
    /// The function name first.
    pub args: Vec<Bytes>,
    /// Any text; only equal to itself.
    pub tx_id: String,
    /// The client's time.
    pub timestamp: Timestamp,
    /// `SerializedIdentity` bytes.
    pub creator: Bytes,
    /// Off-ledger data.
    pub transient: BTreeMap<String, Bytes>,
}

impl ModelInvocation {
    /// A call with nothing but its arguments.
    pub fn new<A: AsRef<[u8]>>(contract: &str, function: &str, args: &[A]) -> Self {
        let mut input = vec![Bytes::copy_from_slice(function.as_bytes())];
        input.extend(args.iter().map(|arg| Bytes::copy_from_slice(arg.as_ref())));
        Self { contract: contract.to_owned(), args: input, ..Self::default() }
    }
}

/// What one execution read, wrote and answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelEffects {
    /// The invocation's.
    pub tx_id: String,
    /// The invocation's.
    pub timestamp: Timestamp,
    /// What the contract answered; its status may be an error's.
    pub response: ContractResponse,
    /// Keys read one by one.
    pub reads: BTreeSet<StateKey>,
    /// Ranges read, each with its chaincode and the keys that were handed out.
    pub ranges: Vec<(String, KeyRange, Vec<String>)>,
    /// Last write of each key; `None` is a delete.
    pub writes: BTreeMap<StateKey, Option<Bytes>>,
    /// Name and payload.
    pub event: Option<(String, Bytes)>,
}

/// A channel's contracts and state.
#[derive(Debug, Clone)]
pub struct ModelLedger {
    registry: ContractRegistry,
    channel: ChannelId,
    state: BTreeMap<String, BTreeMap<String, Bytes>>,
    /// Changes by transactions, oldest first.
    history: BTreeMap<StateKey, Vec<KeyModification>>,
    failing_read: Option<(u64, StubError)>,
}

impl ModelLedger {
    /// An empty channel with these contracts.
    pub fn new(registry: ContractRegistry) -> Self {
        Self {
            registry,
            channel: ChannelId::new("model"),
            state: BTreeMap::new(),
            history: BTreeMap::new(),
            failing_read: None,
        }
    }

    /// The value of a key.
    pub fn get(&self, contract: &str, key: &str) -> Option<&Bytes> {
        self.state.get(contract)?.get(key)
    }

    /// Every key and value of a contract, in order.
    pub fn rows(&self, contract: &str) -> impl Iterator<Item = (&str, &Bytes)> {
        self.state.get(contract).into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets a key outside of any transaction; an empty value removes it.
    pub fn set(&mut self, contract: &str, key: &str, value: impl Into<Bytes>) {
        let value = value.into();
        let rows = self.state.entry(contract.to_owned()).or_default();
        if value.is_empty() {
            rows.remove(key)
        } else {
            rows.insert(key.to_owned(), value)
        };
    }

    /// Makes every later execution fail with `error` at its read number `reads` (from 0); a page is one read.
    pub fn fail_reads_from(&mut self, reads: u64, error: StubError) {
        self.failing_read = Some((reads, error));
    }

    /// Makes reads succeed again.
    pub fn heal(&mut self) {
        self.failing_read = None;
    }

    /// Runs a contract without changing the state. Errors that are an answer come back as the response.
    ///
    /// # Errors
    /// `UnknownContract`, and what [`ModelLedger::fail_reads_from`] was given.
    pub async fn execute(&self, invocation: &ModelInvocation) -> Result<ModelEffects, StubError> {
        let contract = self.registry.get(&invocation.contract);
        let contract = contract.ok_or_else(|| StubError::UnknownContract(invocation.contract.clone()))?;
        let mut stub = ModelStub::new(self, invocation);
        let answer = match split_input(&invocation.args) {
            Ok((function, args)) => contract.invoke(&mut stub, function, args).await,
            Err(error) => Err(error),
        };
        let mut effects = stub.effects;
        effects.response = answer.or_else(ContractError::into_response)?;
        Ok(effects)
    }

    /// Puts an execution's writes into the state. Those of a failed execution are refused.
    ///
    /// # Panics
    /// When the response may not be endorsed: such a transaction never reaches a ledger.
    pub fn apply(&mut self, effects: &ModelEffects) {
        assert!(effects.response.is_endorsable(), "a transaction that failed has no effects");
        for ((contract, key), value) in &effects.writes {
            self.set(contract, key, value.clone().unwrap_or_default());
            let (tx_id, timestamp, value) = (TxId::new(effects.tx_id.as_str()), effects.timestamp, value.clone());
            let history = self.history.entry((contract.clone(), key.clone())).or_default();
            history.push(KeyModification { tx_id, timestamp, value });
        }
    }

    /// Runs a contract and applies its writes when it succeeded.
    ///
    /// # Errors
    /// Those of [`ModelLedger::execute`].
    pub async fn submit(&mut self, invocation: &ModelInvocation) -> Result<ModelEffects, StubError> {
        let effects = self.execute(invocation).await?;
        if effects.response.is_endorsable() {
            self.apply(&effects);
        }
        Ok(effects)
    }

    /// Submits a call; its payload, or the message of its error.
    ///
    /// # Errors
    /// The message that a client would see.
    pub fn call<A: AsRef<[u8]>>(&mut self, contract: &str, function: &str, args: &[A]) -> Result<Bytes, String> {
        let effects =
            run(self.submit(&ModelInvocation::new(contract, function, args))).map_err(|error| error.to_string())?;
        if effects.response.is_endorsable() { Ok(effects.response.payload) } else { Err(effects.response.message) }
    }
}

/// The stub of one execution on a [`ModelLedger`].
#[derive(Debug)]
pub struct ModelStub<'ledger> {
    ledger: &'ledger ModelLedger,
    invocation: &'ledger ModelInvocation,
    tx_id: TxId,
    contract: String,
    args: Vec<Bytes>,
    depth: usize,
    reads: u64,
    queries: BTreeMap<QueryId, OpenRange>,
    /// Open histories: of which key, and how many changes were handed out.
    histories: BTreeMap<QueryId, (StateKey, usize)>,
    queries_opened: u64,
    effects: ModelEffects,
}

#[derive(Debug)]
struct OpenRange {
    recorded: usize,
    from: Bound<String>,
}

impl<'ledger> ModelStub<'ledger> {
    /// A stub for one execution of `invocation`; for calling a contract directly.
    pub fn new(ledger: &'ledger ModelLedger, invocation: &'ledger ModelInvocation) -> Self {
        Self {
            ledger,
            invocation,
            tx_id: TxId::new(invocation.tx_id.as_str()),
            contract: invocation.contract.clone(),
            args: invocation.args.clone(),
            depth: 1,
            reads: 0,
            queries: BTreeMap::new(),
            histories: BTreeMap::new(),
            queries_opened: 0,
            effects: ModelEffects {
                tx_id: invocation.tx_id.clone(),
                timestamp: invocation.timestamp,
                ..ModelEffects::default()
            },
        }
    }

    /// What was recorded so far. The response is filled in by [`ModelLedger::execute`].
    pub fn effects(&self) -> &ModelEffects {
        &self.effects
    }

    fn count_read(&mut self) -> Result<(), StubError> {
        let read = self.reads;
        self.reads += 1;
        match &self.ledger.failing_read {
            Some((first, error)) if read >= *first => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn new_query(&mut self) -> Result<QueryId, StubError> {
        if self.queries.len() + self.histories.len() >= OPEN_QUERIES_MAX {
            return Err(StubError::LimitExceeded { what: "the open queries", max: OPEN_QUERIES_MAX as u64 });
        }
        self.queries_opened += 1;
        Ok(QueryId(self.queries_opened - 1))
    }

    fn write(&mut self, key: &str, value: Option<Bytes>) -> Result<(), StubError> {
        key::check(key)?;
        self.effects.writes.insert((self.contract.clone(), key.to_owned()), value);
        Ok(())
    }
}

#[async_trait]
impl ContractStub for ModelStub<'_> {
    async fn get_state(&mut self, key: &str) -> Result<Option<Bytes>, StubError> {
        key::check(key)?;
        self.count_read()?;
        self.effects.reads.insert((self.contract.clone(), key.to_owned()));
        Ok(self.ledger.get(&self.contract, key).cloned())
    }

    fn put_state(&mut self, key: &str, value: Bytes) -> Result<(), StubError> {
        self.write(key, (!value.is_empty()).then_some(value))
    }

    fn delete_state(&mut self, key: &str) -> Result<(), StubError> {
        self.write(key, None)
    }

    async fn open_range(&mut self, range: KeyRange) -> Result<QueryId, StubError> {
        let query = self.new_query()?;
        let open = OpenRange { recorded: self.effects.ranges.len(), from: Bound::Included(range.start().to_owned()) };
        self.effects.ranges.push((self.contract.clone(), range, Vec::new()));
        self.queries.insert(query, open);
        Ok(query)
    }

    async fn next_page(&mut self, query: QueryId, entries_max: usize) -> Result<StatePage, StubError> {
        self.count_read()?;
        let open = self.queries.get_mut(&query).ok_or(StubError::UnknownQuery(query.0))?;
        let (contract, range, handed_out) = &mut self.effects.ranges[open.recorded];
        let entries_max = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        let mut page = StatePage::default();
        let mut page_bytes = 0;
        if let (false, Some(rows)) = (range.is_empty(), self.ledger.state.get(contract)) {
            let rows = rows.range((open.from.clone(), Bound::Unbounded)).take_while(|(key, _)| range.contains(key));
            for (key, value) in rows {
                if page.entries.len() == entries_max || page_bytes >= PAGE_BYTES_SOFT_MAX {
                    page.has_more = true;
                    break;
                }
                page_bytes += key.len() + value.len();
                open.from = Bound::Excluded(key.clone());
                handed_out.push(key.clone());
                page.entries.push(KeyValue { key: key.clone(), value: value.clone() });
            }
        }
        if !page.has_more {
            self.queries.remove(&query);
        }
        Ok(page)
    }

    fn close_query(&mut self, query: QueryId) {
        self.queries.remove(&query);
        self.histories.remove(&query);
    }

    async fn open_history(&mut self, key: &str) -> Result<QueryId, StubError> {
        key::check(key)?;
        let query = self.new_query()?;
        self.histories.insert(query, ((self.contract.clone(), key.to_owned()), 0));
        Ok(query)
    }

    async fn next_modifications(&mut self, query: QueryId, entries_max: usize) -> Result<HistoryPage, StubError> {
        self.count_read()?;
        let (location, taken) = self.histories.get_mut(&query).ok_or(StubError::UnknownQuery(query.0))?;
        let changes = self.ledger.history.get(location).map(Vec::as_slice).unwrap_or_default();
        let wanted = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        let modifications: Vec<KeyModification> = changes.iter().rev().skip(*taken).take(wanted).cloned().collect();
        *taken += modifications.len();
        let has_more = *taken < changes.len();
        if !has_more {
            self.histories.remove(&query);
        }
        Ok(HistoryPage { modifications, has_more })
    }

    async fn invoke_contract(
        &mut self,
        name: &str,
        args: Vec<Bytes>,
        channel: &str,
    ) -> Result<ContractResponse, StubError> {
        if !channel.is_empty() && channel != self.ledger.channel.as_str() {
            return Err(StubError::Unsupported("a call to another channel"));
        }
        if self.depth == CALL_DEPTH_MAX {
            return Err(StubError::LimitExceeded { what: "nested calls", max: CALL_DEPTH_MAX as u64 });
        }
        let contract = self.ledger.registry.get(name).ok_or_else(|| StubError::UnknownContract(name.to_owned()))?;
        // The callee runs on this stub in the caller's place: its reads and writes join the transaction's.
        let caller = std::mem::replace(&mut self.contract, name.to_owned());
        let caller_args = std::mem::replace(&mut self.args, args.clone());
        let caller_event = self.effects.event.take();
        self.depth += 1;
        let answer = match split_input(&args) {
            Ok((function, args)) => contract.invoke(self, function, args).await,
            Err(error) => Err(error),
        };
        self.depth -= 1;
        self.effects.event = caller_event;
        self.args = caller_args;
        self.contract = caller;
        answer.or_else(ContractError::into_response)
    }

    fn set_event(&mut self, name: &str, payload: Bytes) -> Result<(), StubError> {
        if name.is_empty() {
            return Err(StubError::InvalidEvent("an event's name must not be empty".to_owned()));
        }
        self.effects.event = Some((name.to_owned(), payload));
        Ok(())
    }

    fn tx_id(&self) -> &TxId {
        &self.tx_id
    }

    fn channel_id(&self) -> &ChannelId {
        &self.ledger.channel
    }

    fn timestamp(&self) -> Timestamp {
        self.invocation.timestamp
    }

    fn creator(&self) -> &Bytes {
        &self.invocation.creator
    }

    fn transient(&self) -> &BTreeMap<String, Bytes> {
        &self.invocation.transient
    }

    fn args(&self) -> &[Bytes] {
        &self.args
    }
}

/// Drives a future that waits for nothing but its turn, on the calling thread.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        // A contract that computes long gives way now and then; here it has the thread to itself.
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
