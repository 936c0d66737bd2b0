//! A client of `heddle.kv.KeyValues`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotSender, Receiver, Sender, bounded, oneshot};
use base::{Bytes, BytesMut, Map};
use gateway::rpc::client::{Connection, Requests, Responses};
use gateway::rpc::message::put_prefix;
use gateway::rpc::{Code, Status};
use prost::Message as _;
use proto::heddle::kv as wire;
use proto::heddle::kv::compare_and_set_request as swap;
use proto::heddle::kv::request::Operation;
use proto::heddle::kv::response::Answer;

use super::{KvToken, service};

/// How long an operation may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// A connection to a store. Clones share it.
#[derive(Clone, Debug)]
pub struct KvClient {
    connection: Connection,
}

/// Operations that wait to be sent over one exchange.
const ASKED_MAX: usize = 1024;
/// Operations that are sent at once.
const BATCH_MAX: usize = 64;

/// Many operations at a time over one stream. Clones share it.
#[derive(Clone)]
pub struct KvExchange {
    asked: Sender<Asked>,
}

struct Asked {
    operation: Operation,
    answered: OneshotSender<Result<Answer, Status>>,
}

/// Who waits for the answer of which number; none once the stream has ended.
type Waiting = Arc<Mutex<Result<Map<u64, OneshotSender<Result<Answer, Status>>>, Status>>>;

/// Changes, as they come.
pub struct KvWatch {
    responses: Responses,
}

impl KvClient {
    /// Over a connection.
    pub fn new(connection: Connection) -> KvClient {
        KvClient { connection }
    }

    /// As [`KvClient::new`], to a store whose clients bear a token.
    pub fn bearing(connection: Connection, token: Option<&KvToken>) -> KvClient {
        KvClient::new(match token {
            Some(token) => connection.with_token(token.secret()),
            None => connection,
        })
    }

    /// What a key has.
    ///
    /// # Errors
    /// The status that the store answered.
    pub async fn get(&self, key: Bytes) -> Result<Option<wire::Versioned>, Status> {
        let request = wire::GetRequest { key };
        let response: wire::GetResponse = self.connection.unary(service::GET, &request, Some(DEADLINE)).await?;
        Ok(response.found)
    }

    /// Gives a key a value; gives its version.
    ///
    /// # Errors
    /// As [`KvClient::get`]; `UNKNOWN` when it may have been done or not.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, Status> {
        let request = wire::PutRequest { key, value };
        let response: wire::PutResponse = self.connection.unary(service::PUT, &request, Some(DEADLINE)).await?;
        Ok(response.version)
    }

    /// Takes a key's value away; nothing where it had none.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn delete(&self, key: Bytes) -> Result<Option<u64>, Status> {
        let request = wire::DeleteRequest { key };
        let response: wire::DeleteResponse = self.connection.unary(service::DELETE, &request, Some(DEADLINE)).await?;
        Ok(Some(response.version).filter(|version| *version > 0))
    }

    /// Gives a key a value, or takes it away, if it has what is expected.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn compare_and_set(
        &self,
        key: Bytes,
        expected: swap::Expected,
        new: Option<Bytes>,
    ) -> Result<wire::CompareAndSetResponse, Status> {
        let new = Some(new.map_or(swap::New::Delete(true), swap::New::Set));
        let request = wire::CompareAndSetRequest { key, expected: Some(expected), new };
        self.connection.unary(service::COMPARE_AND_SET, &request, Some(DEADLINE)).await
    }

    /// How the store is.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn status(&self) -> Result<wire::StatusResponse, Status> {
        self.connection.unary(service::STATUS, &wire::StatusRequest {}, Some(DEADLINE)).await
    }

    /// Opens a stream for many operations.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the connection has gone.
    pub async fn exchange(&self) -> Result<KvExchange, Status> {
        let (requests, responses) = self.connection.open(service::EXCHANGE, None).await?;
        let (asked, asks) = bounded(ASKED_MAX);
        let waiting: Waiting = Arc::new(Mutex::new(Ok(Map::default())));
        tokio::spawn(send(asks, requests, Arc::clone(&waiting)));
        tokio::spawn(receive(responses, waiting));
        Ok(KvExchange { asked })
    }

    /// Changes of the keys that begin with a prefix, from a version on; without one, from now on. The watch has begun on
    /// return.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn watch(&self, prefix: Bytes, from: Option<u64>) -> Result<KvWatch, Status> {
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
    pub async fn get(&self, key: Bytes) -> Result<Option<wire::Versioned>, Status> {
        match self.ask(Operation::Get(wire::GetRequest { key })).await? {
            Answer::Get(answer) => Ok(answer.found),
            _ => Err(other_answer()),
        }
    }

    /// As [`KvClient::put`].
    ///
    /// # Errors
    /// As there; `UNKNOWN` when the stream has ended, and the put may have been done.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, Status> {
        match self.ask(Operation::Put(wire::PutRequest { key, value })).await? {
            Answer::Put(answer) => Ok(answer.version),
            _ => Err(other_answer()),
        }
    }

    async fn ask(&self, operation: Operation) -> Result<Answer, Status> {
        let ended = || Status::new(Code::Unknown, "the stream has ended; what was asked may have been done");
        let (answered, answer) = oneshot();
        self.asked.send(Asked { operation, answered }).await.map_err(|_| ended())?;
        match answer.await.map_err(|_| ended())?? {
            Answer::Failure(failure) => Err(Status::new(Code::from_number(failure.code), failure.message)),
            answer => Ok(answer),
        }
    }
}

fn other_answer() -> Status {
    Status::new(Code::Internal, "the answer is that of another operation")
}

/// Sends what is asked, as much at once as there is.
async fn send(mut asked: Receiver<Asked>, mut requests: Requests, waiting: Waiting) {
    let (mut number, mut buffer) = (0, BytesMut::new());
    while let Some(first) = asked.recv().await {
        // Whoever is about to ask does so first: those who were answered together, as a rule.
        tokio::task::yield_now().await;
        let (mut next, mut count) = (Some(first), 0);
        while let Some(Asked { operation, answered }) = next {
            number += 1;
            match &mut *waiting.lock().unwrap_or_else(PoisonError::into_inner) {
                Ok(waiting) => drop(waiting.insert(number, answered)),
                // Failing means that nobody waits.
                Err(status) => drop(answered.send(Err(status.clone()))),
            }
            let request = wire::Request { number, operation: Some(operation) };
            put_prefix(&mut buffer, request.encoded_len());
            request.encode(&mut buffer).expect("a buffer that grows has room");
            count += 1;
            next = if count < BATCH_MAX { asked.try_recv().ok() } else { None };
        }
        if requests.send_framed(buffer.split().freeze()).await.is_err() {
            // Whoever receives says why.
            return;
        }
    }
    requests.close();
}

/// Gives answers to those who wait for them.
async fn receive(mut responses: Responses, waiting: Waiting) {
    let ended = loop {
        match responses.next::<wire::Response>().await {
            Ok(Some(response)) => {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let waits = waiting.as_mut().ok().and_then(|waiting| waiting.remove(&response.number));
                if let (Some(waits), Some(answer)) = (waits, response.answer) {
                    // Failing means that nobody waits any more.
                    let _ = waits.send(Ok(answer));
                }
            }
            Ok(None) => break Status::new(Code::Unavailable, "the stream has ended"),
            Err(status) => break status,
        }
    };
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Err(ended);
}

impl KvWatch {
    /// The next change.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the watch has ended, and is to be begun again.
    pub async fn next(&mut self) -> Result<Option<wire::Change>, Status> {
        self.responses.next().await
    }
}
