//! A client of `heddle.kv.KeyValues`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotSender, Receiver, Sender, bounded, oneshot};
use base::{Bytes, BytesMut, Map};
use gateway::grpc::client::{GrpcConnection, RequestStream, ResponseStream};
use gateway::grpc::message::put_prefix;
use gateway::grpc::{GrpcCode, GrpcStatus};
use prost::Message as _;
use proto::heddle::kv as wire;
use proto::heddle::kv::compare_and_set_request as swap;
use proto::heddle::kv::request::Operation;
use proto::heddle::kv::response::Answer;

use super::{KvToken, service};

/// Time limit of an operation.
const DEADLINE: Duration = Duration::from_secs(20);

/// A connection to a store. Clones share the connection.
#[derive(Clone, Debug)]
pub struct KvClient {
    connection: GrpcConnection,
}

/// Maximum of operations that wait to be sent over one exchange.
const QUEUED_MAX: usize = 1024;
/// Maximum of operations sent in one write.
const BATCH_MAX: usize = 64;

/// A stream that carries many operations at a time. Clones share the stream.
#[derive(Clone)]
pub struct KvExchange {
    queue: Sender<QueuedOperation>,
}

struct QueuedOperation {
    operation: Operation,
    answered: OneshotSender<Result<Answer, GrpcStatus>>,
}

/// The callers waiting for an answer, by request number; an error once the stream has ended.
type PendingResponses = Arc<Mutex<Result<Map<u64, OneshotSender<Result<Answer, GrpcStatus>>>, GrpcStatus>>>;

/// A stream of changes.
pub struct KvWatch {
    responses: ResponseStream,
}

impl KvClient {
    /// A client over a connection.
    pub fn new(connection: GrpcConnection) -> KvClient {
        KvClient { connection }
    }

    /// As [`KvClient::new`], for a store whose clients present a token.
    pub fn with_token(connection: GrpcConnection, token: Option<&KvToken>) -> KvClient {
        KvClient::new(match token {
            Some(token) => connection.with_token(token.secret()),
            None => connection,
        })
    }

    /// The value and version of a key.
    ///
    /// # Errors
    /// The status that the store returned.
    pub async fn get(&self, key: Bytes) -> Result<Option<wire::Versioned>, GrpcStatus> {
        let request = wire::GetRequest { key };
        let response: wire::GetResponse = self.connection.unary(service::GET, &request, Some(DEADLINE)).await?;
        Ok(response.found)
    }

    /// Sets the value of a key; returns the new version.
    ///
    /// # Errors
    /// As [`KvClient::get`]; `UNKNOWN` when the put may or may not have taken effect.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, GrpcStatus> {
        let request = wire::PutRequest { key, value };
        let response: wire::PutResponse = self.connection.unary(service::PUT, &request, Some(DEADLINE)).await?;
        Ok(response.version)
    }

    /// Deletes a key's value; returns `None` if the key had none.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn delete(&self, key: Bytes) -> Result<Option<u64>, GrpcStatus> {
        let request = wire::DeleteRequest { key };
        let response: wire::DeleteResponse = self.connection.unary(service::DELETE, &request, Some(DEADLINE)).await?;
        Ok(Some(response.version).filter(|version| *version > 0))
    }

    /// Sets or deletes the value of a key if its current state is the expected one.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn compare_and_set(
        &self,
        key: Bytes,
        expected: swap::Expected,
        new: Option<Bytes>,
    ) -> Result<wire::CompareAndSetResponse, GrpcStatus> {
        let new = Some(new.map_or(swap::New::Delete(true), swap::New::Set));
        let request = wire::CompareAndSetRequest { key, expected: Some(expected), new };
        self.connection.unary(service::COMPARE_AND_SET, &request, Some(DEADLINE)).await
    }

    /// The store's status.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn status(&self) -> Result<wire::StatusResponse, GrpcStatus> {
        self.connection.unary(service::STATUS, &wire::StatusRequest {}, Some(DEADLINE)).await
    }

    /// Opens a stream for many operations.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the connection has gone.
    pub async fn exchange(&self) -> Result<KvExchange, GrpcStatus> {
        let (requests, responses) = self.connection.open(service::EXCHANGE, None).await?;
        let (asked, asks) = bounded(QUEUED_MAX);
        let waiting: PendingResponses = Arc::new(Mutex::new(Ok(Map::default())));
        tokio::spawn(send(asks, requests, Arc::clone(&waiting)));
        tokio::spawn(receive(responses, waiting));
        Ok(KvExchange { queue: asked })
    }

    /// Watches the keys that begin with a prefix, from a version on; without a version, from now on. The watch has
    /// begun on return.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn watch(&self, prefix: Bytes, from: Option<u64>) -> Result<KvWatch, GrpcStatus> {
        let (mut requests, mut responses) = self.connection.open(service::WATCH, None).await?;
        requests.send(&wire::WatchRequest { prefix, from: from.unwrap_or_default() }).await?;
        requests.close();
        responses.started().await?;
        Ok(KvWatch { responses })
    }
}

impl KvExchange {
    /// As [`KvClient::get`].
    ///
    /// # Errors
    /// As there; `UNAVAILABLE` when the stream has ended.
    pub async fn get(&self, key: Bytes) -> Result<Option<wire::Versioned>, GrpcStatus> {
        match self.ask(Operation::Get(wire::GetRequest { key })).await? {
            Answer::Get(answer) => Ok(answer.found),
            _ => Err(other_answer()),
        }
    }

    /// As [`KvClient::put`].
    ///
    /// # Errors
    /// As there; `UNKNOWN` when the stream has ended, and the put may or may not have taken effect.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, GrpcStatus> {
        match self.ask(Operation::Put(wire::PutRequest { key, value })).await? {
            Answer::Put(answer) => Ok(answer.version),
            _ => Err(other_answer()),
        }
    }

    async fn ask(&self, operation: Operation) -> Result<Answer, GrpcStatus> {
        let ended = || {
            GrpcStatus::new(GrpcCode::Unknown, "the stream has ended; the operation may or may not have taken effect")
        };
        let (answered, answer) = oneshot();
        self.queue.send(QueuedOperation { operation, answered }).await.map_err(|_| ended())?;
        match answer.await.map_err(|_| ended())?? {
            Answer::Failure(failure) => Err(GrpcStatus::new(GrpcCode::from_number(failure.code), failure.message)),
            answer => Ok(answer),
        }
    }
}

fn other_answer() -> GrpcStatus {
    GrpcStatus::new(GrpcCode::Internal, "the answer belongs to another operation")
}

/// Sends queued operations, up to [`BATCH_MAX`] at once.
async fn send(mut asked: Receiver<QueuedOperation>, mut requests: RequestStream, waiting: PendingResponses) {
    let (mut number, mut buffer) = (0, BytesMut::new());
    while let Some(first) = asked.recv().await {
        // Let other callers queue their operations first: callers that were answered together usually ask together.
        tokio::task::yield_now().await;
        let (mut next, mut count) = (Some(first), 0);
        while let Some(QueuedOperation { operation, answered }) = next {
            number += 1;
            match &mut *waiting.lock().unwrap_or_else(PoisonError::into_inner) {
                Ok(waiting) => drop(waiting.insert(number, answered)),
                // An error means that the caller no longer waits.
                Err(status) => drop(answered.send(Err(status.clone()))),
            }
            let request = wire::Request { number, operation: Some(operation) };
            put_prefix(&mut buffer, request.encoded_len());
            request.encode(&mut buffer).expect("a buffer that grows has room");
            count += 1;
            next = if count < BATCH_MAX { asked.try_recv().ok() } else { None };
        }
        if requests.send_framed(buffer.split().freeze()).await.is_err() {
            // The receiving task reports why.
            return;
        }
    }
    requests.close();
}

/// Delivers answers to the waiting callers.
async fn receive(mut responses: ResponseStream, waiting: PendingResponses) {
    let ended = loop {
        match responses.next::<wire::Response>().await {
            Ok(Some(response)) => {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let waits = waiting.as_mut().ok().and_then(|waiting| waiting.remove(&response.number));
                if let (Some(waits), Some(answer)) = (waits, response.answer) {
                    // An error means that the caller no longer waits.
                    let _ = waits.send(Ok(answer));
                }
            }
            Ok(None) => break GrpcStatus::new(GrpcCode::Unavailable, "the stream has ended"),
            Err(status) => break status,
        }
    };
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Err(ended);
}

impl KvWatch {
    /// The next change.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the watch has ended and must be started again.
    pub async fn next(&mut self) -> Result<Option<wire::Change>, GrpcStatus> {
        self.responses.next().await
    }
}
