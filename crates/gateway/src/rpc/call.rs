//! One call at the server.
//!
//! 1. A unary call goes through [`Call::unary`]: the message is read, the work runs, one answer leaves.
//! 2. A stream goes through [`Call::streaming`]: the handler reads messages and sends answers as the client takes them.
//! 3. In both, the work is dropped when the client cancels, when the connection breaks and when the deadline passes.
//!
//! Invariants: a call is answered exactly once; nothing is sent beyond what the client's flow-control window and the
//! connection's send buffer admit; a client that takes nothing for a while has the call reset.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::SendStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use tokio::time::Instant;

use super::caller::Caller;
use super::message::Messages;
use super::status::Status;
use crate::events::SendsStalled;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The client has cancelled, or its connection has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the client has gone")]
pub struct Gone;

/// One call at the server.
pub struct Call {
    pub(crate) messages: Messages,
    pub(crate) responder: Responder,
    pub(crate) deadline: Option<Instant>,
    /// When a call with one answer ends, whatever its client says.
    pub(crate) unary_deadline: Instant,
    pub(crate) caller: Arc<Caller>,
    /// The header `authorization`.
    pub(crate) authorization: Option<HeaderValue>,
}

impl Call {
    /// Who calls.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// What the client sent in the header `authorization`.
    pub fn authorization(&self) -> Option<&[u8]> {
        self.authorization.as_ref().map(HeaderValue::as_bytes)
    }

    /// When the client stops waiting.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Refuses the call.
    pub fn refuse(self, status: &Status) {
        self.responder.finish(status);
    }

    /// Waits for the first message, so that a call without one occupies nothing but its headers.
    ///
    /// # Errors
    /// What the call is to be refused with.
    pub(crate) async fn arrive(&mut self) -> Result<(), Status> {
        let deadline = self.unary_deadline();
        let mut arrived = pin!(self.messages.arrive());
        match arrived.as_mut().now_or_never() {
            Some(arrived) => arrived,
            None => {
                tokio::time::timeout_at(deadline, arrived).await.unwrap_or_else(|_| Err(Status::deadline_exceeded()))
            }
        }
    }

    fn unary_deadline(&self) -> Instant {
        self.deadline.map_or(self.unary_deadline, |deadline| deadline.min(self.unary_deadline))
    }

    /// Reads the one message, runs `work` on it, sends the answer: a message with its prefix, from
    /// [`super::message::frame`]. A client that sets no deadline, or a later one, has the server's.
    pub async fn unary<W, F>(self, work: W)
    where
        W: FnOnce(Bytes) -> F,
        F: Future<Output = Result<Bytes, Status>>,
    {
        let deadline = self.unary_deadline();
        let Call { mut messages, mut responder, .. } = self;
        let work = async {
            let message = messages.only().await?;
            work(message).await
        };
        match until_gone(&mut responder, deadline, work).await {
            // A client that has gone or takes nothing hears nothing more.
            Ok(Ok(framed)) => {
                if responder.send(framed).await.is_ok() {
                    responder.finish(&Status::ok());
                }
            }
            Ok(Err(status)) => responder.finish(&status),
            Err(Gone) => {}
        }
    }

    /// Runs `work`, which reads messages and sends answers; the status that it returns ends the call.
    pub async fn streaming<W>(self, work: W)
    where
        W: AsyncFnOnce(&mut Messages, &mut Responder) -> Status,
    {
        let Call { mut messages, mut responder, deadline, .. } = self;
        let status = match deadline {
            None => work(&mut messages, &mut responder).await,
            Some(deadline) => match tokio::time::timeout_at(deadline, work(&mut messages, &mut responder)).await {
                Ok(status) => status,
                Err(_) => Status::deadline_exceeded(),
            },
        };
        responder.finish(&status);
    }
}

/// Runs `work` to its end, unless the deadline passes (a status) or the client goes.
async fn until_gone<T>(
    responder: &mut Responder,
    deadline: Instant,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<Result<T, Status>, Gone> {
    let mut work = pin!(work);
    // The timer is registered only when the work does not complete at once.
    let mut timer = pin!(tokio::time::sleep_until(deadline));
    poll_fn(|context| {
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(result));
        }
        if responder.poll_gone(context).is_ready() {
            return Poll::Ready(Err(Gone));
        }
        timer.as_mut().poll(context).map(|()| Ok(Err(Status::deadline_exceeded())))
    })
    .await
}

/// The way back to the client.
pub struct Responder {
    state: State,
    pause_max: Duration,
}

enum State {
    Waiting(SendResponse<Bytes>),
    Sending(SendStream<Bytes>),
    Closed,
}

impl Responder {
    pub(crate) fn new(respond: SendResponse<Bytes>, pause_max: Duration) -> Responder {
        Responder { state: State::Waiting(respond), pause_max }
    }

    /// Sends the headers, which tells the client that its call was taken.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn start(&mut self) -> Result<(), Gone> {
        self.stream().map(|_| ())
    }

    /// Sends one message with its prefix, as fast as the client takes it. Dropping the future may leave half a message
    /// sent; end the call then.
    ///
    /// # Errors
    /// [`Gone`], also when the client took nothing for [`send_pause_max`](super::Settings::send_pause_max).
    pub async fn send(&mut self, framed: Bytes) -> Result<(), Gone> {
        let pause_max = self.pause_max;
        let stream = self.stream()?;
        let mut rest = framed;
        while !rest.is_empty() {
            stream.reserve_capacity(rest.len());
            if stream.capacity() == 0 {
                let more = poll_fn(|context| stream.poll_capacity(context));
                match tokio::time::timeout(pause_max, more).await {
                    Ok(Some(Ok(_))) => continue,
                    Ok(Some(Err(_)) | None) => {}
                    Err(_) => {
                        SendsStalled.add(1);
                        stream.send_reset(h2::Reason::CANCEL);
                    }
                }
                self.state = State::Closed;
                return Err(Gone);
            }
            let part = rest.split_to(stream.capacity().min(rest.len()));
            if stream.send_data(part, false).is_err() {
                self.state = State::Closed;
                return Err(Gone);
            }
        }
        Ok(())
    }

    /// Sends one message with its prefix if the client's window takes it whole now. False when it does not, and nothing
    /// was sent.
    pub fn send_now(&mut self, framed: Bytes) -> bool {
        let Ok(stream) = self.stream() else { return false };
        stream.reserve_capacity(framed.len());
        if stream.capacity() < framed.len() {
            stream.reserve_capacity(0);
            return false;
        }
        stream.send_data(framed, false).is_ok()
    }

    /// Completes when the client has cancelled or its connection has gone.
    pub async fn gone(&mut self) {
        poll_fn(|context| self.poll_gone(context)).await;
    }

    fn poll_gone(&mut self, context: &mut std::task::Context<'_>) -> Poll<()> {
        match &mut self.state {
            State::Waiting(respond) => respond.poll_reset(context).map(|_| ()),
            State::Sending(stream) => stream.poll_reset(context).map(|_| ()),
            State::Closed => Poll::Ready(()),
        }
    }

    /// Ends the call. With nothing sent before, the answer is one header block.
    pub fn finish(mut self, status: &Status) {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Waiting(mut respond) => {
                let mut response = Response::new(());
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                status.write(response.headers_mut());
                // Failing means that the client has gone.
                let _ = respond.send_response(response, true);
            }
            State::Sending(mut stream) => {
                let _ = stream.send_trailers(status.to_trailers());
            }
            State::Closed => {}
        }
    }

    fn stream(&mut self) -> Result<&mut SendStream<Bytes>, Gone> {
        if let State::Waiting(respond) = &mut self.state {
            let mut response = Response::new(());
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            self.state = match respond.send_response(response, false) {
                Ok(stream) => State::Sending(stream),
                Err(_) => State::Closed,
            };
        }
        match &mut self.state {
            State::Sending(stream) => Ok(stream),
            _ => Err(Gone),
        }
    }
}
