//! `heddle.kv.KeyValues`: the store's operations over gRPC.
//!
//! A call goes to whichever store serves now. When that one ends before it has done anything for the call, the call goes to the
//! next, within [`PATIENCE`]; a change that may have been made already is never made again. An exchange is many operations over
//! one stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::admission::Principal;
use base::rt::sync::Notify;
use base::rt::{self, Stop};
use base::{Bytes, BytesMut, ErrorKind};
use consensus::Error;
use consensus::backups::GroupState;
use consensus::kv::{Expected, Sizes, Store, Swap, Versioned};
use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use futures_util::future::{Either, pending, select};
use futures_util::stream::FuturesUnordered;
use gateway::rpc::connection::Service;
use gateway::rpc::message::{decode, frame, put_prefix};
use gateway::rpc::places::{Kind, Limits, Places};
use gateway::rpc::{Call, Code, Status};
use prost::Message as _;
use proto::heddle::kv as wire;
use proto::heddle::kv::compare_and_set_request as swap;
use proto::heddle::kv::request::Operation;
use proto::heddle::kv::response::Answer;

use super::stores::Stores;
use super::{KvToken, Persistence};

/// Operations of one exchange that are under way.
pub(super) const EXCHANGE_MAX: usize = 256;
/// Watches at a port; one connection may have half of them.
const WATCHES_MAX: usize = 1024;
/// Exchanges at a port; one address may have 256 of them.
const EXCHANGES_MAX: usize = 1024;
/// Requests without a value are no longer than a key and little more.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// All who bear the token, or reach a port that asks for none, as admission control calls them.
const CLIENTS: &str = "clients";
/// How long a call waits for a store that serves.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const GET: &str = "/heddle.kv.KeyValues/Get";
pub(super) const PUT: &str = "/heddle.kv.KeyValues/Put";
pub(super) const DELETE: &str = "/heddle.kv.KeyValues/Delete";
pub(super) const COMPARE_AND_SET: &str = "/heddle.kv.KeyValues/CompareAndSet";
pub(super) const WATCH: &str = "/heddle.kv.KeyValues/Watch";
pub(super) const STATUS: &str = "/heddle.kv.KeyValues/Status";
pub(super) const EXCHANGE: &str = "/heddle.kv.KeyValues/Exchange";

/// The store that serves now, if any does.
#[derive(Default)]
pub(super) struct Current {
    store: Mutex<Option<Store>>,
    changed: Notify,
}

impl Current {
    fn lock(&self) -> MutexGuard<'_, Option<Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, store: Option<Store>) {
        *self.lock() = store;
        self.changed.notify_waiters();
    }

    /// The one that serves at this moment.
    fn now(&self) -> Option<Store> {
        let store = self.lock().clone();
        store.filter(|store| store.coordinator().is_serving())
    }

    /// Waits for one that serves.
    pub(super) async fn serving(&self, patience: Duration) -> Option<Store> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                match self.now() {
                    Some(store) => return store,
                    // One that has ended is taken away soon, or comes too late for its notice.
                    None => drop(rt::timeout(Duration::from_millis(5), changed).await),
                }
            }
        };
        rt::timeout(patience, waiting).await.ok()
    }
}

/// A port of the store. Clones share it.
#[derive(Clone)]
pub(super) struct Port {
    pub stores: Arc<Stores>,
    /// Which of them.
    pub store: usize,
    pub sizes: Sizes,
    pub memory_nodes: u32,
    pub persistence: Persistence,
    pub places: Arc<Places>,
    /// What clients bear, if they have to.
    pub token: Option<Arc<KvToken>>,
    pub stop: Stop,
}

/// The places of a port.
pub(super) fn places() -> Places {
    // No other organisation shares the port, so clients may have all places but those that strangers need to show a token.
    Places::new(&Limits { streams_max: 2 * EXCHANGES_MAX, watches_max: WATCHES_MAX, ..Limits::default() })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    Put,
    Delete,
    CompareAndSet,
    Watch,
    Status,
    Exchange,
}

impl Service for Port {
    type Method = Method;

    fn method(&self, path: &str) -> Option<Method> {
        Some(match path {
            GET => Method::Get,
            PUT => Method::Put,
            DELETE => Method::Delete,
            COMPARE_AND_SET => Method::CompareAndSet,
            WATCH => Method::Watch,
            STATUS => Method::Status,
            EXCHANGE => Method::Exchange,
            _ => return None,
        })
    }

    fn message_bytes_max(&self, method: Method) -> usize {
        match method {
            Method::Put | Method::CompareAndSet | Method::Exchange => usize::MAX,
            Method::Get | Method::Delete | Method::Watch | Method::Status => REQUEST_BYTES_MAX,
        }
    }

    async fn call(&self, method: Method, call: Call) {
        if let Some(token) = &self.token
            && !token.is_borne_by(call.authorization())
        {
            let message = "the store's token is required: authorization: Bearer TOKEN, or --token-file FILE";
            return call.refuse(&Status::new(Code::Unauthenticated, message));
        }
        let principal = || Principal::new(CLIENTS, &call.caller().peer().ip().to_string());
        call.caller().authenticate(principal);
        if method == Method::Exchange {
            return match self.places.enter_stream(&principal()) {
                Ok(_place) => self.exchange(call).await,
                Err(status) => call.refuse(&status),
            };
        }
        let kind = if method == Method::Watch { Kind::Watch } else { Kind::Call };
        let _place = match self.places.enter(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.refuse(&status),
        };
        match method {
            Method::Get => call.unary(|message| async { Ok(frame(&self.get(decode(message)?).await?)) }).await,
            Method::Put => call.unary(|message| async { Ok(frame(&self.put(decode(message)?).await?)) }).await,
            Method::Delete => call.unary(|message| async { Ok(frame(&self.delete(decode(message)?).await?)) }).await,
            Method::CompareAndSet => {
                call.unary(|message| async { Ok(frame(&self.compare_and_set(decode(message)?).await?)) }).await;
            }
            Method::Status => call.unary(|message| self.status(message)).await,
            Method::Watch => self.watch(call).await,
            Method::Exchange => unreachable!("exchanges are served above"),
        }
    }
}

/// Until when a call waits for a store that serves: for [`PATIENCE`] once the first that it asked has not served it.
#[derive(Default)]
struct Patience {
    has_asked: bool,
    until: Option<rt::Instant>,
}

impl Port {
    async fn store(&self, patience: &mut Patience) -> Result<Store, Status> {
        let current = self.stores.current(self.store);
        // As a rule that is all, and there is no timer.
        if !std::mem::replace(&mut patience.has_asked, true)
            && let Some(store) = current.now()
        {
            return Ok(store);
        }
        let until = *patience.until.get_or_insert_with(|| rt::now() + PATIENCE);
        let left = Duration::from_nanos(until.nanos().saturating_sub(rt::now().nanos()));
        let nobody = || Status::new(Code::Unavailable, self.stores.why_not(self.store));
        current.serving(left).boxed().await.ok_or_else(nobody)
    }

    async fn get(&self, request: wire::GetRequest) -> Result<wire::GetResponse, Status> {
        let mut patience = Patience::default();
        let found = loop {
            if let Some(found) = settled(self.store(&mut patience).await?.get(&request.key).await)? {
                break found;
            }
        };
        Ok(wire::GetResponse { found: found.map(versioned) })
    }

    async fn put(&self, request: wire::PutRequest) -> Result<wire::PutResponse, Status> {
        // Keys and values are kept for long; the buffer of a connection is not.
        let (key, value) = (copied(&request.key), copied(&request.value));
        let mut patience = Patience::default();
        let version = loop {
            if let Some(version) = settled(self.store(&mut patience).await?.put(key.clone(), value.clone()).await)? {
                break version;
            }
        };
        Ok(wire::PutResponse { version })
    }

    async fn delete(&self, request: wire::DeleteRequest) -> Result<wire::DeleteResponse, Status> {
        let key = copied(&request.key);
        let mut patience = Patience::default();
        let version = loop {
            if let Some(version) = settled(self.store(&mut patience).await?.delete(key.clone()).await)? {
                break version;
            }
        };
        Ok(wire::DeleteResponse { version: version.unwrap_or_default() })
    }

    async fn compare_and_set(
        &self,
        request: wire::CompareAndSetRequest,
    ) -> Result<wire::CompareAndSetResponse, Status> {
        let key = copied(&request.key);
        let expected = match request.expected {
            Some(swap::Expected::Absent(true)) => Expected::Absent,
            Some(swap::Expected::Present(true)) => Expected::Present,
            Some(swap::Expected::Version(version)) => Expected::Version(version),
            Some(swap::Expected::Value(value)) => Expected::Value(value),
            _ => return Err(Status::invalid_argument("say what is expected: absent, present, a version or a value")),
        };
        let new = match &request.new {
            Some(swap::New::Set(value)) => Some(copied(value)),
            Some(swap::New::Delete(true)) => None,
            _ => return Err(Status::invalid_argument("say what is to be: a value, or a delete")),
        };
        let mut patience = Patience::default();
        let swapped = loop {
            let store = self.store(&mut patience).await?;
            if let Some(swapped) = settled(store.compare_and_set(key.clone(), expected.clone(), new.clone()).await)? {
                break swapped;
            }
        };
        Ok(match swapped {
            Swap::Done(version) => wire::CompareAndSetResponse { version, found: None },
            Swap::Found(found) => wire::CompareAndSetResponse { version: 0, found: found.map(versioned) },
        })
    }

    async fn status(&self, message: Bytes) -> Result<Bytes, Status> {
        let wire::StatusRequest {} = decode(message)?;
        let store = self.store(&mut Patience::default()).await?;
        let (status, coordinator) = (store.status(), store.coordinator().status());
        let backups = self.stores.backups();
        let state = backups.as_ref().and_then(|backups| Some(&backups.groups.get(self.store)?.1));
        Ok(frame(&wire::StatusResponse {
            term: coordinator.term.0,
            version: status.last,
            applied: status.applied,
            log_used_bytes: status.log_used_bytes,
            blocks_free: status.blocks_free,
            blocks: self.sizes.blocks,
            cache_bytes: status.cache_bytes as u64,
            key_bytes_max: self.sizes.key_bytes_max() as u64,
            value_bytes_max: self.sizes.value_bytes_max() as u64,
            memory_nodes_live: coordinator.live as u32,
            memory_nodes: self.memory_nodes,
            stores: self.stores.count() as u32,
            backups: backups.as_ref().map_or(0, |backups| backups.processors as u32),
            backups_free: backups.as_ref().map_or(0, |backups| backups.free as u32),
            stores_waiting: backups.as_ref().map_or(0, |backups| backups.waiting() as u32),
            by_backup: matches!(state, Some(GroupState::Coordinated { .. })),
            persistent: self.persistence != Persistence::None,
            persisted: status.persisted.unwrap_or_default(),
        }))
    }

    /// One operation of an exchange.
    async fn one(&self, request: wire::Request) -> wire::Response {
        let number = request.number;
        let answer = match request.operation {
            Some(Operation::Get(request)) => self.get(request).await.map(Answer::Get),
            Some(Operation::Put(request)) => self.put(request).await.map(Answer::Put),
            Some(Operation::Delete(request)) => self.delete(request).await.map(Answer::Delete),
            Some(Operation::CompareAndSet(request)) => self.compare_and_set(request).await.map(Answer::CompareAndSet),
            None => Err(Status::invalid_argument("a request without an operation")),
        };
        let failure = |status: Status| wire::Failure { code: status.code as u32, message: status.message };
        wire::Response { number, answer: Some(answer.unwrap_or_else(|status| Answer::Failure(failure(status)))) }
    }

    /// Takes operations as they come, and sends all answers at once that are there at a time.
    async fn exchange(&self, call: Call) {
        call.streaming(async |messages, responder| {
            let mut under_way = FuturesUnordered::new();
            let (mut ended, mut answers) = (false, BytesMut::new());
            while !ended || !under_way.is_empty() {
                let takes = !ended && under_way.len() < EXCHANGE_MAX;
                let step = {
                    let message = async { if takes { messages.next().await } else { pending().await } };
                    let answer = async {
                        match under_way.next().await {
                            Some(answer) => answer,
                            None => pending().await,
                        }
                    };
                    match select(std::pin::pin!(message), std::pin::pin!(answer)).await {
                        Either::Left((message, _)) => Either::Left(message),
                        Either::Right((answer, _)) => Either::Right(answer),
                    }
                };
                let first = match step {
                    Either::Left(Ok(Some(message))) => {
                        match decode::<wire::Request>(message) {
                            Ok(request) => under_way.push(self.one(request)),
                            Err(status) => return status,
                        }
                        continue;
                    }
                    Either::Left(Ok(None)) => {
                        ended = true;
                        continue;
                    }
                    Either::Left(Err(status)) => return status,
                    Either::Right(answer) => answer,
                };
                put_answer(&first, &mut answers);
                while let Some(Some(answer)) = under_way.next().now_or_never() {
                    put_answer(&answer, &mut answers);
                }
                if responder.send(answers.split().freeze()).await.is_err() {
                    return Status::ok();
                }
            }
            Status::ok()
        })
        .await;
    }

    async fn watch(&self, call: Call) {
        call.streaming(async |messages, responder| {
            let request: wire::WatchRequest = match messages.only().await.and_then(decode) {
                Ok(request) => request,
                Err(status) => return status,
            };
            let from = Some(request.from).filter(|from| *from > 0);
            let prefix = copied(&request.prefix);
            drop(request);
            messages.release();
            let mut patience = Patience::default();
            let mut watch = loop {
                let begun = match self.store(&mut patience).await {
                    Ok(store) => settled(store.watch(prefix.clone(), from)),
                    Err(status) => return status,
                };
                match begun {
                    Ok(Some(watch)) => break watch,
                    Ok(None) => {}
                    Err(status) => return status,
                }
            };
            // That the watch has begun is worth knowing before anything changes.
            if responder.start().is_err() {
                return Status::ok();
            }
            loop {
                let told = {
                    let (next, gone) = (std::pin::pin!(watch.next()), std::pin::pin!(responder.gone()));
                    match self.stop.or_stopped(select(next, gone)).await {
                        Some(Either::Left((told, _))) => told,
                        Some(Either::Right(_)) => return Status::ok(),
                        None => None,
                    }
                };
                let Some(event) = told else {
                    let next = watch.next_version();
                    let ended = format!("the watch has ended; watch again, from version {next} on");
                    return Status::new(Code::Unavailable, ended);
                };
                let change = wire::Change { key: event.key, version: event.version, value: event.value };
                if responder.send(frame(&change)).await.is_err() {
                    return Status::ok();
                }
            }
        })
        .await;
    }
}

/// What came of asking a store: nothing where it ended and has done nothing, so that the next one is to be asked.
fn settled<T>(outcome: Result<T, Error>) -> Result<Option<T>, Status> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) => Ok(None),
        Err(error) => Err(status_of(&error)),
    }
}

fn put_answer(answer: &wire::Response, into: &mut BytesMut) {
    put_prefix(into, answer.encoded_len());
    answer.encode(into).expect("a buffer that grows has room");
}

fn copied(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn versioned(found: Versioned) -> wire::Versioned {
    wire::Versioned { value: found.value, version: found.version }
}

fn status_of(error: &Error) -> Status {
    let code = match (error, error.kind()) {
        (Error::NoRoom | Error::Busy, _) => Code::ResourceExhausted,
        (Error::Forgotten { .. }, _) => Code::OutOfRange,
        (_, ErrorKind::Rejected) => Code::InvalidArgument,
        (_, ErrorKind::Ambiguous) => Code::Unknown,
        (_, ErrorKind::Corrupt) => Code::DataLoss,
        (_, ErrorKind::Retry | ErrorKind::Fenced | ErrorKind::Closed) => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}
