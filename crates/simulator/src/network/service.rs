//! Asking a node for something over a link, and answering: what gRPC does in production.
//!
//! 1. A caller connects, sends a request and waits for the answer, one request at a time on each link. It keeps the link.
//! 2. Whatever goes wrong on the way (no connection, a broken link, no answer in time) is a [`CallError`]: the request
//!    may have had its effect or not. The link is then given up.
//! 3. A server answers each link in a task of its own. A request that a lost link brought is worked on all the same.
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

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To endorse the signed proposal in the body; the answer holds a proposal response.
    Endorse = 1,
    /// To wait for the commit of the transaction whose id is in the body; see [`Commit`].
    Commit = 2,
    /// To order the envelope in the body.
    Order = 3,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Well; the body holds what was asked for.
    Done = 0,
    /// It was refused, and will be again; the body says why.
    Refused = 1,
    /// Not now; the body says why.
    Later = 2,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub verdict: Verdict,
    pub body: Bytes,
}

/// The body of an answer to [`Kind::Commit`]: a code, then the number of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    pub code: u8,
    pub block: u64,
}

/// There was no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no answer from {address}: {what}")]
pub struct CallError {
    pub address: String,
    pub what: &'static str,
}

impl Answer {
    pub fn done(body: impl Into<Bytes>) -> Answer {
        Answer { verdict: Verdict::Done, body: body.into() }
    }

    pub fn refused(reason: impl std::fmt::Display) -> Answer {
        Answer { verdict: Verdict::Refused, body: reason.to_string().into() }
    }

    pub fn later(reason: impl std::fmt::Display) -> Answer {
        Answer { verdict: Verdict::Later, body: reason.to_string().into() }
    }

    /// The body as text, for those who were refused.
    pub fn reason(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn encode(&self) -> Bytes {
        [&[self.verdict as u8], &self.body[..]].concat().into()
    }

    fn decode(message: &Bytes) -> Answer {
        let verdict = match message[0] {
            0 => Verdict::Done,
            1 => Verdict::Refused,
            2 => Verdict::Later,
            other => panic!("the simulated network does not change messages, and no server answers {other}"),
        };
        Answer { verdict, body: message.slice(1..) }
    }
}

impl Commit {
    pub fn encode(self) -> Bytes {
        [&[self.code], &self.block.to_le_bytes()[..]].concat().into()
    }

    pub fn decode(body: &[u8]) -> Commit {
        let block = body[1..].try_into().expect("a block's number has 8 bytes");
        Commit { code: body[0], block: u64::from_le_bytes(block) }
    }
}

/// The links of one caller.
#[derive(Default)]
pub struct Caller {
    links: BTreeMap<String, Link>,
}

impl Caller {
    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// [`CallError`]; then it is unknown whether the request had its effect.
    pub async fn call(
        &mut self,
        address: &str,
        kind: Kind,
        body: &Bytes,
        patience: Duration,
    ) -> Result<Answer, CallError> {
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
            Ok((link, Answer::decode(&answer)))
        };
        let (link, answer) = rt::timeout(patience, exchange).await.map_err(|_| failed("it took too long"))??;
        self.links.insert(address.to_owned(), link);
        Ok(answer)
    }
}

/// Answers requests at an address until it is dropped.
pub async fn serve<H, F>(address: &str, handler: H) -> std::io::Result<AbortOnDrop<()>>
where
    H: Fn(Kind, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut listener = net::listen(address).await?;
    let handler = Arc::new(handler);
    let accepting = async move {
        let mut links = Vec::new();
        while let Ok(link) = listener.accept().await {
            links.retain(|task: &AbortOnDrop<()>| !task.is_finished());
            links.push(rt::spawn(answer(link, Arc::clone(&handler))).abort_on_drop());
        }
    };
    Ok(rt::spawn(accepting).abort_on_drop())
}

async fn answer<H, F>(mut link: Link, handler: Arc<H>)
where
    H: Fn(Kind, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    while let Ok(request) = link.receive().await {
        let kind = match request[0] {
            1 => Kind::Endorse,
            2 => Kind::Commit,
            3 => Kind::Order,
            other => panic!("the simulated network does not change messages, and no caller asks {other}"),
        };
        let answer = handler(kind, request.slice(1..)).await;
        if link.send(answer.encode()).await.is_err() {
            return;
        }
    }
}
