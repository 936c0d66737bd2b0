//! Requests and answers over links, in place of production's gRPC.
//!
//! 1. A caller connects and keeps the link. It sends one request at a time on the link and waits for the answer.
//! 2. Any failure (no connection, a broken link, no answer in time) is a [`CallError`]: the request may or may not have taken
//!    effect. The caller then drops the link.
//! 3. A server serves each link in a separate task. It processes a request even if the link is lost meanwhile.
//!
//! ```text
//! request   kind:u8 | body
//! answer    verdict:u8 | body
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::net::{self, Link};
use base::rt::{self, AbortOnDrop};

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// To endorse the signed proposal in the body; the answer holds a proposal response.
    Endorse = 1,
    /// To wait for the commit of the transaction whose id is in the body; see [`TransactionCommit`].
    Commit = 2,
    /// To order the envelope in the body.
    Order = 3,
    /// To tell whether the transaction of the envelope in the body can never be valid; see [`crate::early_aborts`].
    Judge = 4,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// Success; the body holds the result.
    Done = 0,
    /// Rejected, and would be again; the body has the reason.
    Rejected = 1,
    /// Retry later; the body has the reason.
    Later = 2,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Whether the request succeeded.
    pub verdict: ResponseStatus,
    /// The result, or the reason as text.
    pub body: Bytes,
}

/// The body of an answer to [`RequestKind::Commit`]: a code, then the number of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionCommit {
    /// The validation code.
    pub code: u8,
    /// The number of the transaction's block.
    pub block: u64,
}

/// There was no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no answer from {address}: {what}")]
pub struct CallError {
    /// The address that was called.
    pub address: String,
    /// What went wrong on the way.
    pub what: &'static str,
}

impl Response {
    /// Success, with the result.
    pub fn done(body: impl Into<Bytes>) -> Response {
        Response { verdict: ResponseStatus::Done, body: body.into() }
    }

    /// A rejection, with the reason.
    pub fn rejected(reason: impl std::fmt::Display) -> Response {
        Response { verdict: ResponseStatus::Rejected, body: reason.to_string().into() }
    }

    /// A request to retry later, with the reason.
    pub fn later(reason: impl std::fmt::Display) -> Response {
        Response { verdict: ResponseStatus::Later, body: reason.to_string().into() }
    }

    /// The body as text, for a rejected request.
    pub fn reason(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn encode(&self) -> Bytes {
        [&[self.verdict as u8], &self.body[..]].concat().into()
    }

    fn decode(message: &Bytes) -> Response {
        let verdict = match message[0] {
            0 => ResponseStatus::Done,
            1 => ResponseStatus::Rejected,
            2 => ResponseStatus::Later,
            other => panic!("the simulated network does not change messages, and no server answers {other}"),
        };
        Response { verdict, body: message.slice(1..) }
    }
}

impl TransactionCommit {
    /// One byte of code, then the block's number as eight bytes, little-endian.
    pub fn encode(self) -> Bytes {
        [&[self.code], &self.block.to_le_bytes()[..]].concat().into()
    }

    /// Reads what [`TransactionCommit::encode`] wrote.
    ///
    /// # Panics
    /// If there are fewer than nine bytes: the simulated network changes no message.
    pub fn decode(body: &[u8]) -> TransactionCommit {
        let block = body[1..].try_into().expect("a block's number has 8 bytes");
        TransactionCommit { code: body[0], block: u64::from_le_bytes(block) }
    }
}

/// The links of one caller.
#[derive(Default)]
pub struct ServiceClient {
    links: BTreeMap<String, Link>,
}

impl ServiceClient {
    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// [`CallError`]; then it is unknown whether the request took effect.
    pub async fn call(
        &mut self,
        address: &str,
        kind: RequestKind,
        body: &Bytes,
        timeout: Duration,
    ) -> Result<Response, CallError> {
        let failed = |what| CallError { address: address.to_owned(), what };
        let request: Bytes = [&[kind as u8], &body[..]].concat().into();
        // The link is out of the map until it has answered, so that a late answer is never taken for another's.
        let link = self.links.remove(address);
        let exchange = async {
            let mut link = match link {
                Some(link) => link,
                None => net::connect(address).await.map_err(|_| failed("it cannot be reached"))?,
            };
            link.send(request).await.map_err(|_| failed("the link has ended"))?;
            let answer = link.receive().await.map_err(|_| failed("the link has ended"))?;
            Ok((link, Response::decode(&answer)))
        };
        let (link, answer) = rt::timeout(timeout, exchange).await.map_err(|_| failed("it took too long"))??;
        self.links.insert(address.to_owned(), link);
        Ok(answer)
    }
}

/// Answers requests at an address until it is dropped.
pub async fn serve<H, F>(address: &str, handler: H) -> std::io::Result<AbortOnDrop<()>>
where
    H: Fn(RequestKind, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let mut listener = net::listen(address).await?;
    let handler = Arc::new(handler);
    let accepting = async move {
        let mut links = Vec::new();
        while let Ok(link) = listener.accept().await {
            links.retain(|task: &AbortOnDrop<()>| !task.is_finished());
            links.push(rt::spawn(respond(link, Arc::clone(&handler))).abort_on_drop());
        }
    };
    Ok(rt::spawn(accepting).abort_on_drop())
}

async fn respond<H, F>(mut link: Link, handler: Arc<H>)
where
    H: Fn(RequestKind, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    while let Ok(request) = link.receive().await {
        let kind = match request[0] {
            1 => RequestKind::Endorse,
            2 => RequestKind::Commit,
            3 => RequestKind::Order,
            4 => RequestKind::Judge,
            other => panic!("the simulated network does not change messages, and no caller asks {other}"),
        };
        let answer = handler(kind, request.slice(1..)).await;
        if link.send(answer.encode()).await.is_err() {
            return;
        }
    }
}
