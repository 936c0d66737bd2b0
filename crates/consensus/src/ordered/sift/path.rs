//! The way to a keeper: within this processor, or over a link.
//!
//! Whatever another processor's keeper says that it must not, and whatever it refuses, is no answer ([`Error::NoAnswer`]), but for a
//! fence: only this processor's own keeper tells of errors that end anything here.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::channel::OneshotReceiver;
use base::rt::net;
use base::rt::net::call::{CallError, Caller, Pending};
use base::{ErrorKind, rt};

use super::keeper::Queue;
use super::message::{Answer, Command, Reign};
use super::{Neighbour, REQUESTS_MAX};
use crate::Error;

/// See [the module](self).
#[derive(Clone)]
pub(super) enum Path {
    Here(Queue),
    There { caller: Caller, address: String },
}

/// A command that is on its way.
pub(super) enum Underway {
    Here(OneshotReceiver<Result<Answer, Error>>),
    There { pending: Pending, address: String, reign: Reign },
}

fn no_answer(address: &str, reason: impl ToString) -> Error {
    Error::NoAnswer { address: address.to_owned(), reason: reason.to_string() }
}

impl Path {
    /// Connects to another processor.
    pub async fn connect(to: &Neighbour, patience: Duration) -> Result<Path, Error> {
        let address = to.address.clone();
        match rt::timeout(patience, net::connect(&address)).await {
            Ok(Ok(link)) => Ok(Path::There { caller: Caller::new(link, REQUESTS_MAX, |_| {}), address }),
            Ok(Err(error)) => Err(no_answer(&address, error)),
            Err(rt::Elapsed) => Err(no_answer(&address, "timeout")),
        }
    }

    /// Sends a command; those of one path are taken in the order of sending.
    pub async fn begin(&self, reign: Reign, command: Command) -> Result<Underway, Error> {
        match self {
            Path::Here(queue) => Ok(Underway::Here(queue.put(reign, command).await?)),
            Path::There { caller, address } => match caller.begin(command.encode(reign)).await {
                Ok(pending) => Ok(Underway::There { pending, address: address.clone(), reign }),
                Err(error) => Err(no_answer(address, error)),
            },
        }
    }

    /// Sends a command and waits for the answer.
    pub async fn ask(&self, reign: Reign, command: Command, patience: Duration) -> Result<Answer, Error> {
        let answered = async { self.begin(reign, command).await?.await };
        match rt::timeout(patience, answered).await {
            Ok(outcome) => outcome,
            Err(rt::Elapsed) => Err(no_answer(self.address(), "timeout")),
        }
    }

    /// What an answer to another question comes to.
    pub fn strange(&self) -> Error {
        let reason = "an answer to another question";
        match self {
            Path::Here(_) => Error::Corrupt(reason),
            Path::There { address, .. } => no_answer(address, reason),
        }
    }

    fn address(&self) -> &str {
        match self {
            Path::Here(_) => "here",
            Path::There { address, .. } => address,
        }
    }

    /// Completes when it leads nowhere any more.
    pub async fn ended(&self) {
        match self {
            Path::Here(queue) => queue.closed().await,
            Path::There { caller, .. } => caller.ended().await,
        }
    }
}

impl Future for Underway {
    type Output = Result<Answer, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Underway::Here(answer) => Pin::new(answer).poll(cx).map(|said| said.unwrap_or(Err(Error::Closed))),
            Underway::There { pending, address, reign } => Pin::new(pending).poll(cx).map(|outcome| match outcome {
                Ok(bytes) => Answer::decode(bytes).map_err(|error| no_answer(address, error)),
                Err(CallError::Refused(refusal)) if refusal.kind == ErrorKind::Fenced => Err(Error::Fenced(reign.term)),
                Err(error) => Err(no_answer(address, error)),
            }),
        }
    }
}
