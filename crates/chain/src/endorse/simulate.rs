//! Runs a contract against one snapshot, and records its reads and writes.
//!
//! 1. A [`Simulation`] holds the snapshot of one transaction, the recorder of its reads and writes in every namespace, and
//!    its open queries.
//! 2. A [`ContractCall`] is one running contract in a simulation: the stub that the contract sees. Each contract that it
//!    calls gets a separate call in the same simulation, so that all namespaces end up in one read-write set.
//! 3. If a call fails, its reads and writes stay recorded, as in Fabric; the caller decides how to handle the failure.
//! 4. Private values are read from this peer's own tables, and only if their hash is the one in the snapshot (`private`).
//!
//! Bounds: [`ENTRIES_MAX`] reads, writes and range results, [`BYTES_MAX`] recorded bytes, [`SCANNED_BYTES_MAX`] scanned
//! bytes, [`QUERIES_MAX`] open queries, and [`CALLS_MAX`] calls, nested at most [`contract::CALL_DEPTH_MAX`] deep.
//!
//! A contract yields to other tasks only when it reads, so only there can a time limit or the cancellation of its
//! caller stop it. A contract that computes for a long time without reading does so in [`base::rt::compute`] and yields
//! there, as `kmeans` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Bytes, ChannelId, ErrorKind, MspId, TxId, rt};
use contract::key::{self, KeyRange};
use contract::{ContractRegistry, ContractResponse, PAGE_BYTES_SOFT_MAX, QueryId, StubError, Timestamp};
use identity::Identity;
use ledger::lifecycle::{DefinitionField, LIFECYCLE};
use ledger::rwset::{KEY_BYTES_MAX, PrivateSet, RangeRecorder, ReadWriteSetRecorder, is_key_within_limit, key_bytes};
use state::Snapshot;

use super::approval::{ApprovalQuery, OwnApprovals};
use crate::history::{HistoryWalk, KeyHistory};
use private_data::PrivateValues;
use rules::access::ChannelPolicies;

mod private;
mod stub;

/// Reads, writes and ranges that one transaction may record.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of keys and values that one transaction may record. Orderers reject envelopes far below this.
pub const BYTES_MAX: usize = 64 << 20;
/// Bytes of keys and values that one transaction may scan in ranges.
pub const SCANNED_BYTES_MAX: usize = 256 << 20;
const _: () = assert!(state::RANGE_BYTES_SOFT_MAX <= PAGE_BYTES_SOFT_MAX, "a page of the state is one of a contract");
/// Reads after which a contract yields to other tasks. State in memory answers at once, so a contract that reads
/// continuously would otherwise hold its thread, and no time limit could end it.
const READS_PER_TURN: u32 = 32;
/// The key under which a contract's namespace holds the version that was initialised; no contract can write it.
const INITIALIZED_KEY: &str = "\0\u{10FFFF}initialized";
/// Queries that one transaction may have open.
pub const QUERIES_MAX: usize = 64;
/// Contract calls that one transaction may make in total.
pub const CALLS_MAX: u32 = 1024;

/// The context that is fixed for one transaction.
#[derive(Clone)]
pub struct SimulationContext {
    /// The channel of the proposal.
    pub channel: ChannelId,
    /// The transaction's id.
    pub tx_id: TxId,
    /// The time that the client put into the proposal's header.
    pub timestamp: Timestamp,
    /// The client, whose signature was checked.
    pub client: Arc<Identity>,
    /// The client's encoded `SignedProposal`.
    pub signed_proposal: Bytes,
    /// Private input of the client, by name; it enters no block.
    pub transient: Arc<BTreeMap<String, Bytes>>,
    /// The contracts that this peer can run.
    pub registry: ContractRegistry,
    /// The policies of the channel, which define its contracts.
    pub policies: Arc<ChannelPolicies>,
    /// The state that all reads of the transaction see.
    pub snapshot: Arc<dyn Snapshot>,
    /// The earlier values of keys.
    pub history: Arc<KeyHistory>,
    /// The private values that this peer has.
    pub private: Arc<dyn PrivateValues>,
    /// The peer's organisation.
    pub own: MspId,
    /// The definitions that it has approved.
    pub approvals: Arc<OwnApprovals>,
    /// Other channels' states, for contracts that read there.
    pub cross_channel: Arc<dyn CrossChannelReads>,
}

/// What a call to a contract on another channel reads.
pub struct ChannelRead {
    /// The channel's state.
    pub snapshot: Arc<dyn Snapshot>,
    /// The earlier values of its keys.
    pub history: Arc<KeyHistory>,
    /// Its private values that this peer has.
    pub private: Arc<dyn PrivateValues>,
    /// Its policies, which define its contracts.
    pub policies: Arc<ChannelPolicies>,
}

/// The snapshots that calls to contracts on other channels read.
#[async_trait::async_trait]
pub trait CrossChannelReads: Send + Sync {
    /// What may be read of another channel, if this peer holds it and `client` may use it.
    async fn view(&self, channel: &str, client: &Identity) -> Option<ChannelRead>;
}

/// A transaction that is being simulated.
pub struct Simulation {
    context: SimulationContext,
    recorder: ReadWriteSetRecorder,
    /// The namespace of definitions.
    lifecycle: Arc<str>,
    queries: BTreeMap<QueryId, RangeQuery>,
    /// Open histories, each of one key of a namespace.
    histories: BTreeMap<QueryId, HistoryWalk>,
    queries_opened: u64,
    /// The contracts that are running, each called by the one before it.
    running: Vec<Arc<str>>,
    calls: u32,
    /// Number of results of ranges, and of reads and writes on other channels.
    scanned: usize,
    /// Bytes of results of ranges.
    scanned_bytes: usize,
    reads_this_turn: u32,
    /// The contracts whose collections were used.
    collections_read: BTreeSet<Arc<str>>,
    /// The contracts and collections whose values were read.
    private_reads: BTreeSet<(Arc<str>, String)>,
    /// Whether anything was written, or read by a query after which nothing may be written.
    access: SimulationAccess,
}

/// What a transaction has done: Fabric lets a transaction either write, or use queries that are not checked again at its commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SimulationAccess {
    Undecided,
    Writes,
    PagedQueries,
    PrivateQueries,
}

struct RangeQuery {
    namespace: Arc<str>,
    /// The private collection; `None` for public keys.
    collection: Option<String>,
    range: KeyRange,
    /// Where the next page starts.
    next: String,
    /// Whether the first entry of the next page was read, and recorded, with the last page.
    is_ahead: bool,
    recorder: RangeRecorder,
    /// Ended or closed; kept for its recorded results.
    over: bool,
}

/// The event that a contract set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractEvent {
    /// The event's name, by which clients select events.
    pub name: String,
    /// The event's content, whose meaning only the contract defines.
    pub payload: Bytes,
}

/// The result of one contract call.
#[derive(Debug)]
pub struct CallOutcome {
    /// The contract's answer: status, message and payload.
    pub response: ContractResponse,
    /// The last event that the contract set, if it set one.
    pub event: Option<ContractEvent>,
}

impl CallOutcome {
    /// An error that the contract itself returned.
    pub fn failure(message: String) -> CallOutcome {
        CallOutcome { response: ContractResponse::failure(ContractResponse::ERROR, message), event: None }
    }
}

impl Simulation {
    /// A transaction that has done nothing yet.
    pub fn new(context: SimulationContext) -> Simulation {
        Simulation {
            context,
            recorder: ReadWriteSetRecorder::new(),
            lifecycle: LIFECYCLE.into(),
            queries: BTreeMap::new(),
            histories: BTreeMap::new(),
            queries_opened: 0,
            running: Vec::new(),
            calls: 0,
            scanned: 0,
            scanned_bytes: 0,
            reads_this_turn: 0,
            collections_read: BTreeSet::new(),
            private_reads: BTreeSet::new(),
            access: SimulationAccess::Undecided,
        }
    }

    /// Runs the contract `name`; `is_init` says whether the client means to initialise it.
    ///
    /// # Errors
    /// [`StubError::UnknownContract`], [`StubError::InvalidInvocation`], and the errors of a peer that cannot serve. Every
    /// other failure of a contract comes back as its response.
    pub async fn run(&mut self, name: &str, args: &[Bytes], is_init: bool) -> Result<CallOutcome, StubError> {
        self.call(name, args, 0, is_init).await
    }

    /// The contracts and collections whose private values the transaction has read.
    pub fn private_reads(&mut self) -> BTreeSet<(Arc<str>, String)> {
        std::mem::take(&mut self.private_reads)
    }

    /// The read-write set, as an encoded `TxReadWriteSet`, and the private writes.
    pub fn finish(mut self) -> (Bytes, Vec<PrivateSet>) {
        // In the order of opening, which is the order of the handles.
        for query in std::mem::take(&mut self.queries).into_values() {
            if query.collection.is_none() {
                self.recorder.range(&query.namespace, query.recorder);
            }
        }
        let private = self.recorder.private_sets();
        (self.recorder.encode(), private)
    }

    async fn call(
        &mut self,
        name: &str,
        args: &[Bytes],
        depth: usize,
        is_init: bool,
    ) -> Result<CallOutcome, StubError> {
        self.calls += 1;
        if self.calls > CALLS_MAX {
            return Err(StubError::LimitExceeded { what: "contract calls", max: u64::from(CALLS_MAX) });
        }
        let package = self.check_approved(name).await?;
        let contract = self.context.registry.find(name, &package).ok_or_else(|| match package.is_empty() {
            true => StubError::UnknownContract(name.to_owned()),
            false => StubError::NotInstalled { contract: name.to_owned(), package },
        })?;
        self.read_definition(name).await?;
        self.check_initialization(name, is_init).await?.map_err(StubError::InvalidInvocation)?;
        let namespace: Arc<str> = name.into();
        self.running.push(namespace.clone());
        let mut call = ContractCall { simulation: self, namespace, args, depth, is_init, event: None };
        let result = match contract::split_input(args) {
            Ok((function, rest)) => contract.invoke(&mut call, function, rest).await,
            Err(error) => Err(error),
        };
        let event = call.event;
        self.running.pop();
        let response = match result {
            Ok(response) => response,
            Err(error) => error.into_response()?,
        };
        Ok(CallOutcome { response, event })
    }

    /// The package that runs; empty for a contract without one. Fails if the ledger defines a contract and the peer's
    /// organisation has not approved the definition.
    async fn check_approved(&self, contract: &str) -> Result<String, StubError> {
        let context = &self.context;
        let is_on_ledger = context.policies.on_ledger().contains(contract);
        let Some(definition) = context.policies.definitions().get(contract).filter(|_| is_on_ledger) else {
            return Ok(String::new());
        };
        let (channel, own) = (context.policies.channel(), &context.own);
        let (snapshot, private) = (&*context.snapshot, &*context.private);
        let query = ApprovalQuery { channel, own, contract, definition, snapshot, private };
        let found = context.approvals.find(query).await.map_err(|error| {
            let kind = if error.kind() == ErrorKind::Rejected { ErrorKind::Retry } else { error.kind() };
            StubError::State { kind, message: error.to_string() }
        })?;
        match found {
            Some(approval) => Ok(approval.package),
            None => Err(StubError::NotApproved {
                contract: contract.to_owned(),
                sequence: definition.sequence,
                channel: channel.to_string(),
            }),
        }
    }

    /// Reads the sequence of a contract's definition on the ledger, as Fabric does for each call: a transaction that ran under one
    /// definition conflicts with the next.
    async fn read_definition(&mut self, contract: &str) -> Result<(), StubError> {
        if !self.context.policies.on_ledger().contains(contract) {
            return Ok(());
        }
        let key = DefinitionField::Sequence.key(contract);
        let version = self.context.snapshot.version(LIFECYCLE, &key).await.map_err(state_error)?;
        self.recorder.read(&self.lifecycle, &key, version);
        Ok(())
    }

    /// Fabric's rules for contracts whose definition asks for an initialisation: the first call under a version must be one, and
    /// notes the version; no later call may be one. The inner error says which rule the call breaks.
    async fn check_initialization(&mut self, contract: &str, is_init: bool) -> Result<Result<(), String>, StubError> {
        let definition = self.context.policies.definitions().get(contract);
        let info = definition.map(|definition| &definition.endorsement).filter(|info| info.init_required);
        let Some(info) = info else {
            return Ok(match is_init {
                true => Err(format!("chaincode '{contract}' does not require initialization but called as init")),
                false => Ok(()),
            });
        };
        let version = Bytes::copy_from_slice(info.version.as_bytes());
        let namespace: Arc<str> = contract.into();
        let found = self.context.snapshot.get(contract, INITIALIZED_KEY).await.map_err(state_error)?;
        self.recorder.read(&namespace, INITIALIZED_KEY, found.as_ref().map(|found| found.version));
        let is_initialized = found.is_some_and(|found| found.value == version);
        Ok(match (is_init, is_initialized) {
            (true, true) => Err(format!("chaincode '{contract}' is already initialized but called as init")),
            (false, false) => Err(format!(
                "chaincode '{contract}' has not been initialized for this version, must call as init first"
            )),
            (true, false) => {
                self.recorder.write(&namespace, INITIALIZED_KEY, version);
                Ok(())
            }
            (false, true) => Ok(()),
        })
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

    /// Notes a write.
    fn note_write(&mut self) -> Result<(), StubError> {
        self.check_limits()?;
        let queried = match self.access {
            SimulationAccess::Undecided | SimulationAccess::Writes => {
                self.access = SimulationAccess::Writes;
                return Ok(());
            }
            SimulationAccess::PagedQueries => "a paginated query",
            SimulationAccess::PrivateQueries => "queries on pvt data",
        };
        Err(self.unsupported(&format!("Transaction has already performed {queried}. Writes are not allowed")))
    }

    /// Notes a query by pages, whose result is not checked again at commit.
    fn note_paged_query(&mut self) -> Result<(), StubError> {
        match self.access {
            SimulationAccess::Writes => {
                return Err(self.unsupported("Paginated queries are supported only in a read-only transaction"));
            }
            SimulationAccess::Undecided => self.access = SimulationAccess::PagedQueries,
            SimulationAccess::PagedQueries | SimulationAccess::PrivateQueries => {}
        }
        Ok(())
    }

    /// Notes a query in a private collection, whose result is not checked again at commit.
    fn note_private_query(&mut self) -> Result<(), StubError> {
        if self.access == SimulationAccess::Writes {
            return Err(self.unsupported("Queries on pvt data is supported only in a read-only transaction"));
        }
        self.access = SimulationAccess::PrivateQueries;
        Ok(())
    }

    /// The error of a transaction that both writes and queries in ways that exclude writes, in Fabric's words.
    fn unsupported(&self, reason: &str) -> StubError {
        StubError::ReadOnly(format!("txid [{}]: unsuppored transaction. {reason}", self.context.tx_id))
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
    if is_key_within_limit(key.as_bytes()) {
        return Ok(());
    }
    let given = key_bytes(key.as_bytes());
    Err(StubError::InvalidKey(format!(
        "a key has at most {KEY_BYTES_MAX} bytes, not {given}, a zero byte counted twice"
    )))
}

fn state_error(error: state::Error) -> StubError {
    let kind = match error.kind() {
        // The state cannot have rejected the contract's request as such: its keys were checked.
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

/// One running contract.
struct ContractCall<'a> {
    simulation: &'a mut Simulation,
    namespace: Arc<str>,
    args: &'a [Bytes],
    depth: usize,
    is_init: bool,
    event: Option<ContractEvent>,
}
