//! `heddle.kv.KeyValues`: the store's operations over gRPC.
//!
//! A call goes to the store instance that serves now. If that instance ends before it has executed any part of the
//! call, the call goes to the next instance, within [`SERVING_TIMEOUT`]. A change that may have taken effect is never
//! repeated; its caller gets an error. The call `Exchange` carries many operations over one stream.

use std::sync::Arc;
use std::time::Duration;

use base::admission::Principal;
use base::rt::CancellationToken;
use base::{Bytes, BytesMut, ErrorKind, rt};
use futures_util::future::{Either, pending, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use gateway::grpc::connection::GrpcService;
use gateway::grpc::message::{decode, frame, put_prefix};
use gateway::grpc::permits::{CallLimits, PermitKind, PermitPool};
use gateway::grpc::{GrpcCode, GrpcStatus, IncomingCall};
use kv::{Error, KvStore, Precondition, StoreGeometry, SwapOutcome, VersionedValue};
use prost::Message as _;
use proto::heddle::kv as wire;
use proto::heddle::kv::compare_and_set_request as swap;
use proto::heddle::kv::request::Operation;
use proto::heddle::kv::response::Answer;
use sift::backups::GroupState;

use super::stores::StoreSet;
use super::{KvToken, Persistence};

/// Maximum of operations in flight on one exchange.
pub(super) const EXCHANGE_MAX: usize = 256;
/// Maximum of watches at a port; one connection may have half of them.
const WATCHES_MAX: usize = 1024;
/// Maximum of exchanges at a port; one address may have 256 of them.
const EXCHANGES_MAX: usize = 1024;
/// Maximum size of a request without a value: little more than a key.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Admission control's name for all clients that present the token, or that reach a port without one.
const CLIENTS: &str = "clients";
/// How long a call waits for a store that serves.
const SERVING_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const GET: &str = "/heddle.kv.KeyValues/Get";
pub(super) const PUT: &str = "/heddle.kv.KeyValues/Put";
pub(super) const DELETE: &str = "/heddle.kv.KeyValues/Delete";
pub(super) const COMPARE_AND_SET: &str = "/heddle.kv.KeyValues/CompareAndSet";
pub(super) const WATCH: &str = "/heddle.kv.KeyValues/Watch";
pub(super) const STATUS: &str = "/heddle.kv.KeyValues/Status";
pub(super) const EXCHANGE: &str = "/heddle.kv.KeyValues/Exchange";

/// A port of a store. Clones share it.
#[derive(Clone)]
pub(super) struct KvService {
    pub stores: Arc<StoreSet>,
    /// The store's index.
    pub store: usize,
    pub sizes: StoreGeometry,
    pub memory_nodes: u32,
    pub persistence: Persistence,
    pub permits: Arc<PermitPool>,
    /// The token that clients must present, if there is one.
    pub token: Option<Arc<KvToken>>,
    pub stop: CancellationToken,
}

/// The admission permits of a port.
pub(super) fn permit_pool() -> PermitPool {
    // No other organisation shares the port, so clients may use all permits except those reserved for unauthenticated
    // callers.
    PermitPool::new(&CallLimits { streams_max: 2 * EXCHANGES_MAX, watches_max: WATCHES_MAX, ..CallLimits::default() })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KvMethod {
    Get,
    Put,
    Delete,
    CompareAndSet,
    Watch,
    Status,
    Exchange,
}

impl GrpcService for KvService {
    type Method = KvMethod;

    fn method(&self, path: &str) -> Option<KvMethod> {
        Some(match path {
            GET => KvMethod::Get,
            PUT => KvMethod::Put,
            DELETE => KvMethod::Delete,
            COMPARE_AND_SET => KvMethod::CompareAndSet,
            WATCH => KvMethod::Watch,
            STATUS => KvMethod::Status,
            EXCHANGE => KvMethod::Exchange,
            _ => return None,
        })
    }

    fn message_bytes_max(&self, method: KvMethod) -> usize {
        match method {
            KvMethod::Put | KvMethod::CompareAndSet | KvMethod::Exchange => usize::MAX,
            KvMethod::Get | KvMethod::Delete | KvMethod::Watch | KvMethod::Status => REQUEST_BYTES_MAX,
        }
    }

    async fn call(&self, method: KvMethod, call: IncomingCall) {
        if let Some(token) = &self.token
            && !token.matches(call.authorization())
        {
            let message = "the store's token is required: authorization: Bearer TOKEN, or --token-file FILE";
            return call.reject(&GrpcStatus::new(GrpcCode::Unauthenticated, message));
        }
        let principal = || Principal::new(CLIENTS, &call.caller().peer().ip().to_string());
        call.caller().authenticate(principal);
        if method == KvMethod::Exchange {
            return match self.permits.acquire_stream(&principal()) {
                Ok(_place) => self.exchange(call).await,
                Err(status) => call.reject(&status),
            };
        }
        let kind = if method == KvMethod::Watch { PermitKind::Watch } else { PermitKind::Call };
        let _place = match self.permits.acquire(kind, call.caller()) {
            Ok(place) => place,
            Err(status) => return call.reject(&status),
        };
        match method {
            KvMethod::Get => call.unary(|message| async { Ok(frame(&self.get(decode(message)?).await?)) }).await,
            KvMethod::Put => call.unary(|message| async { Ok(frame(&self.put(decode(message)?).await?)) }).await,
            KvMethod::Delete => call.unary(|message| async { Ok(frame(&self.delete(decode(message)?).await?)) }).await,
            KvMethod::CompareAndSet => {
                call.unary(|message| async { Ok(frame(&self.compare_and_set(decode(message)?).await?)) }).await;
            }
            KvMethod::Status => call.unary(|message| self.status(message)).await,
            KvMethod::Watch => self.watch(call).await,
            KvMethod::Exchange => unreachable!("exchanges are served above"),
        }
    }
}

/// How long a call waits for a store that serves: [`SERVING_TIMEOUT`], counted from the moment its first attempt has failed.
#[derive(Default)]
struct ServingDeadline {
    has_asked: bool,
    until: Option<rt::Instant>,
}

impl KvService {
    async fn store(&self, deadline: &mut ServingDeadline) -> Result<KvStore, GrpcStatus> {
        let current = self.stores.current(self.store);
        // The usual case: this answers at once, without a timer.
        if !std::mem::replace(&mut deadline.has_asked, true)
            && let Some(store) = current.now()
        {
            return Ok(store);
        }
        let until = *deadline.until.get_or_insert_with(|| rt::now() + SERVING_TIMEOUT);
        let left = Duration::from_nanos(until.nanos().saturating_sub(rt::now().nanos()));
        let nobody = || GrpcStatus::new(GrpcCode::Unavailable, self.stores.why_not(self.store));
        current.serving(left).boxed().await.ok_or_else(nobody)
    }

    async fn get(&self, request: wire::GetRequest) -> Result<wire::GetResponse, GrpcStatus> {
        let mut patience = ServingDeadline::default();
        let found = loop {
            if let Some(found) = resolve_outcome(self.store(&mut patience).await?.get(&request.key).await)? {
                break found;
            }
        };
        Ok(wire::GetResponse { found: found.map(versioned) })
    }

    async fn put(&self, request: wire::PutRequest) -> Result<wire::PutResponse, GrpcStatus> {
        // Keys and values are kept for long; the connection's buffer is not.
        let (key, value) = (copied(&request.key), copied(&request.value));
        let mut patience = ServingDeadline::default();
        let version = loop {
            if let Some(version) =
                resolve_outcome(self.store(&mut patience).await?.put(key.clone(), value.clone()).await)?
            {
                break version;
            }
        };
        Ok(wire::PutResponse { version })
    }

    async fn delete(&self, request: wire::DeleteRequest) -> Result<wire::DeleteResponse, GrpcStatus> {
        let key = copied(&request.key);
        let mut patience = ServingDeadline::default();
        let version = loop {
            if let Some(version) = resolve_outcome(self.store(&mut patience).await?.delete(key.clone()).await)? {
                break version;
            }
        };
        Ok(wire::DeleteResponse { version: version.unwrap_or_default() })
    }

    async fn compare_and_set(
        &self,
        request: wire::CompareAndSetRequest,
    ) -> Result<wire::CompareAndSetResponse, GrpcStatus> {
        let key = copied(&request.key);
        let expected = match request.expected {
            Some(swap::Expected::Absent(true)) => Precondition::Absent,
            Some(swap::Expected::Present(true)) => Precondition::Present,
            Some(swap::Expected::Version(version)) => Precondition::Version(version),
            Some(swap::Expected::Value(value)) => Precondition::Value(value),
            _ => {
                return Err(GrpcStatus::invalid_argument(
                    "say what is expected: absent, present, a version or a value",
                ));
            }
        };
        let new = match &request.new {
            Some(swap::New::Set(value)) => Some(copied(value)),
            Some(swap::New::Delete(true)) => None,
            _ => return Err(GrpcStatus::invalid_argument("say what the new state is: a value, or a delete")),
        };
        let mut patience = ServingDeadline::default();
        let swapped = loop {
            let store = self.store(&mut patience).await?;
            if let Some(swapped) =
                resolve_outcome(store.compare_and_set(key.clone(), expected.clone(), new.clone()).await)?
            {
                break swapped;
            }
        };
        Ok(match swapped {
            SwapOutcome::Done(version) => wire::CompareAndSetResponse { version, found: None },
            SwapOutcome::Mismatch(found) => wire::CompareAndSetResponse { version: 0, found: found.map(versioned) },
        })
    }

    async fn status(&self, message: Bytes) -> Result<Bytes, GrpcStatus> {
        let wire::StatusRequest {} = decode(message)?;
        let store = self.store(&mut ServingDeadline::default()).await?;
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

    /// Runs one operation of an exchange.
    async fn one(&self, request: wire::Request) -> wire::Response {
        let number = request.number;
        let answer = match request.operation {
            Some(Operation::Get(request)) => self.get(request).await.map(Answer::Get),
            Some(Operation::Put(request)) => self.put(request).await.map(Answer::Put),
            Some(Operation::Delete(request)) => self.delete(request).await.map(Answer::Delete),
            Some(Operation::CompareAndSet(request)) => self.compare_and_set(request).await.map(Answer::CompareAndSet),
            None => Err(GrpcStatus::invalid_argument("a request without an operation")),
        };
        let failure = |status: GrpcStatus| wire::Failure { code: status.code as u32, message: status.message };
        wire::Response { number, answer: Some(answer.unwrap_or_else(|status| Answer::Failure(failure(status)))) }
    }

    /// Runs operations as they come, and sends all answers that are ready in one batch.
    async fn exchange(&self, call: IncomingCall) {
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
                put_response(&first, &mut answers);
                while let Some(Some(answer)) = under_way.next().now_or_never() {
                    put_response(&answer, &mut answers);
                }
                if responder.send(answers.split().freeze()).await.is_err() {
                    return GrpcStatus::ok();
                }
            }
            GrpcStatus::ok()
        })
        .await;
    }

    async fn watch(&self, call: IncomingCall) {
        call.streaming(async |messages, responder| {
            let request: wire::WatchRequest = match messages.only().await.and_then(decode) {
                Ok(request) => request,
                Err(status) => return status,
            };
            let from = Some(request.from).filter(|from| *from > 0);
            let prefix = copied(&request.prefix);
            drop(request);
            messages.release();
            let mut patience = ServingDeadline::default();
            let mut watch = loop {
                let begun = match self.store(&mut patience).await {
                    Ok(store) => resolve_outcome(store.watch(prefix.clone(), from)),
                    Err(status) => return status,
                };
                match begun {
                    Ok(Some(watch)) => break watch,
                    Ok(None) => {}
                    Err(status) => return status,
                }
            };
            // Lets the client know that the watch has begun before anything changes.
            if responder.start().is_err() {
                return GrpcStatus::ok();
            }
            loop {
                let told = {
                    let (next, gone) = (std::pin::pin!(watch.next()), std::pin::pin!(responder.gone()));
                    match self.stop.run_until_cancelled(select(next, gone)).await {
                        Some(Either::Left((told, _))) => told,
                        Some(Either::Right(_)) => return GrpcStatus::ok(),
                        None => None,
                    }
                };
                let Some(event) = told else {
                    let next = watch.next_version();
                    let ended = format!("the watch has ended; start it again from version {next}");
                    return GrpcStatus::new(GrpcCode::Unavailable, ended);
                };
                let change = wire::Change { key: event.key, version: event.version, value: event.value };
                if responder.send(frame(&change)).await.is_err() {
                    return GrpcStatus::ok();
                }
            }
        })
        .await;
    }
}

/// The outcome of an operation: `None` if the store instance ended without doing anything, so that the next one is to
/// be tried.
fn resolve_outcome<T>(outcome: Result<T, Error>) -> Result<Option<T>, GrpcStatus> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Closed) => Ok(None),
        Err(error) => Err(status_of(&error)),
    }
}

fn put_response(answer: &wire::Response, into: &mut BytesMut) {
    put_prefix(into, answer.encoded_len());
    answer.encode(into).expect("a buffer that grows has room");
}

fn copied(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn versioned(found: VersionedValue) -> wire::Versioned {
    wire::Versioned { value: found.value, version: found.version }
}

fn status_of(error: &Error) -> GrpcStatus {
    let code = match (error, error.kind()) {
        (Error::StoreFull | Error::Busy, _) => GrpcCode::ResourceExhausted,
        (Error::Compacted { .. }, _) => GrpcCode::OutOfRange,
        (_, ErrorKind::Rejected) => GrpcCode::InvalidArgument,
        (_, ErrorKind::Ambiguous) => GrpcCode::Unknown,
        (_, ErrorKind::Corrupt) => GrpcCode::DataLoss,
        (_, ErrorKind::Retry | ErrorKind::Fenced | ErrorKind::Closed) => GrpcCode::Unavailable,
    };
    GrpcStatus::new(code, error.to_string())
}
