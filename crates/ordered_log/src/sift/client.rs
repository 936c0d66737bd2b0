//! A client of an acceptor: of this node's own, called within the process, or of another node's, called over a link.
//!
//! An invalid answer or a rejection from another node's acceptor counts as no answer ([`Error::NoAnswer`]). One rejection is
//! reported: if the other acceptor rejects the request as fenced, the result is [`Error::Fenced`]. Only errors of this node's
//! own acceptor can end its engine.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::channel::OneshotReceiver;
use base::rt::net;
use base::rt::net::rpc::{PendingResponse, RpcClient, RpcError};
use base::{ErrorKind, FenceToken, rt};

use super::acceptor::AcceptorQueue;
use super::message::{AcceptorRequest, AcceptorResponse};
use super::{CpuNode, REQUESTS_MAX};
use crate::Error;

/// See [the module](self).
#[derive(Clone)]
pub(super) enum AcceptorClient {
    Local(AcceptorQueue),
    Remote { caller: RpcClient, address: String },
}

/// A command in flight.
pub(super) enum PendingRequest {
    Local(OneshotReceiver<Result<AcceptorResponse, Error>>),
    Remote { pending: PendingResponse, address: String, token: FenceToken },
}

fn no_answer(address: &str, reason: impl ToString) -> Error {
    Error::NoAnswer { address: address.to_owned(), reason: reason.to_string() }
}

impl AcceptorClient {
    /// Connects to another CPU node.
    pub async fn connect(to: &CpuNode, timeout: Duration) -> Result<AcceptorClient, Error> {
        let address = to.address.clone();
        match rt::timeout(timeout, net::connect(&address)).await {
            Ok(Ok(link)) => Ok(AcceptorClient::Remote { caller: RpcClient::new(link, REQUESTS_MAX, |_| {}), address }),
            Ok(Err(error)) => Err(no_answer(&address, error)),
            Err(rt::Elapsed) => Err(no_answer(&address, "timeout")),
        }
    }

    /// Sends a command; the acceptor handles the commands of one path in the order of sending.
    pub async fn start_request(&self, token: FenceToken, command: AcceptorRequest) -> Result<PendingRequest, Error> {
        match self {
            AcceptorClient::Local(queue) => Ok(PendingRequest::Local(queue.send(token, command).await?)),
            AcceptorClient::Remote { caller, address } => match caller.start(command.encode(token)).await {
                Ok(pending) => Ok(PendingRequest::Remote { pending, address: address.clone(), token }),
                Err(error) => Err(no_answer(address, error)),
            },
        }
    }

    /// Sends a command and waits for the answer.
    pub async fn request(
        &self,
        token: FenceToken,
        command: AcceptorRequest,
        timeout: Duration,
    ) -> Result<AcceptorResponse, Error> {
        let answered = async { self.start_request(token, command).await?.await };
        match rt::timeout(timeout, answered).await {
            Ok(outcome) => outcome,
            Err(rt::Elapsed) => Err(no_answer(self.address(), "timeout")),
        }
    }

    /// The error for an answer that belongs to another request.
    pub fn unexpected_response(&self) -> Error {
        let reason = "the answer belongs to another request";
        match self {
            AcceptorClient::Local(_) => Error::Corrupt(reason),
            AcceptorClient::Remote { address, .. } => no_answer(address, reason),
        }
    }

    fn address(&self) -> &str {
        match self {
            AcceptorClient::Local(_) => "here",
            AcceptorClient::Remote { address, .. } => address,
        }
    }

    /// Completes when the path has broken.
    pub async fn ended(&self) {
        match self {
            AcceptorClient::Local(queue) => queue.closed().await,
            AcceptorClient::Remote { caller, .. } => caller.ended().await,
        }
    }
}

impl Future for PendingRequest {
    type Output = Result<AcceptorResponse, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            PendingRequest::Local(answer) => Pin::new(answer).poll(cx).map(|said| said.unwrap_or(Err(Error::Closed))),
            PendingRequest::Remote { pending, address, token } => {
                Pin::new(pending).poll(cx).map(|outcome| match outcome {
                    Ok(bytes) => AcceptorResponse::decode(bytes).map_err(|error| no_answer(address, error)),
                    Err(RpcError::Rejected(refusal)) if refusal.kind == ErrorKind::Fenced => {
                        Err(Error::Fenced(token.term))
                    }
                    Err(error) => Err(no_answer(address, error)),
                })
            }
        }
    }
}
