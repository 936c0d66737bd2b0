//! One call at the server.
//!
//! 1. A unary call goes through [`IncomingCall::unary`]: the message is read, the work runs, one answer is sent.
//! 2. A stream goes through [`IncomingCall::streaming`]: the handler reads messages and sends answers as the client
//!    takes them.
//! 3. In both, the work is dropped when the client cancels, when the connection breaks and when the deadline passes.
//!
//! Invariants:
//! * A call is answered exactly once.
//! * The server sends no more than the client's flow-control window and the connection's send buffer allow.
//! * If a client takes no bytes for [`send_pause_max`](super::ConnectionConfig::send_pause_max), the server resets the
//!   call.

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
use super::message::MessageStream;
use super::status::GrpcStatus;
use crate::events::SendsStalled;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The client has cancelled, or its connection has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the client has gone")]
pub struct ClientGone;

/// One call at the server.
pub struct IncomingCall {
    pub(crate) messages: MessageStream,
    pub(crate) responder: Responder,
    pub(crate) deadline: Option<Instant>,
    /// When a call with one answer ends, whatever deadline its client set.
    pub(crate) unary_deadline: Instant,
    pub(crate) caller: Arc<Caller>,
    /// The header `authorization`.
    pub(crate) authorization: Option<HeaderValue>,
}

impl IncomingCall {
    /// The client's side of the connection.
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
    pub fn reject(self, status: &GrpcStatus) {
        self.responder.finish(status);
    }

    /// Waits for the first message, so that a call without one occupies nothing but its headers.
    ///
    /// # Errors
    /// The status with which to refuse the call.
    pub(crate) async fn wait_first_message(&mut self) -> Result<(), GrpcStatus> {
        let deadline = self.unary_deadline();
        let mut arrived = pin!(self.messages.wait_first());
        match arrived.as_mut().now_or_never() {
            Some(arrived) => arrived,
            None => tokio::time::timeout_at(deadline, arrived)
                .await
                .unwrap_or_else(|_| Err(GrpcStatus::deadline_exceeded())),
        }
    }

    fn unary_deadline(&self) -> Instant {
        self.deadline.map_or(self.unary_deadline, |deadline| deadline.min(self.unary_deadline))
    }

    /// Reads the one message, runs `work` on it, and sends the answer: a message with its prefix, from
    /// [`super::message::frame`]. The server's own deadline applies if the client sets none, or a later one.
    pub async fn unary<W, F>(self, work: W)
    where
        W: FnOnce(Bytes) -> F,
        F: Future<Output = Result<Bytes, GrpcStatus>>,
    {
        let deadline = self.unary_deadline();
        let IncomingCall { mut messages, mut responder, .. } = self;
        let work = async {
            let message = messages.only().await?;
            work(message).await
        };
        match until_client_gone(&mut responder, deadline, work).await {
            // A client that has gone, or takes nothing, gets no further answer.
            Ok(Ok(framed)) => {
                if responder.send(framed).await.is_ok() {
                    responder.finish(&GrpcStatus::ok());
                }
            }
            Ok(Err(status)) => responder.finish(&status),
            Err(ClientGone) => {}
        }
    }

    /// Runs `work`, which reads messages and sends answers; the status that it returns ends the call.
    pub async fn streaming<W>(self, work: W)
    where
        W: AsyncFnOnce(&mut MessageStream, &mut Responder) -> GrpcStatus,
    {
        let IncomingCall { mut messages, mut responder, deadline, .. } = self;
        let status = match deadline {
            None => work(&mut messages, &mut responder).await,
            Some(deadline) => match tokio::time::timeout_at(deadline, work(&mut messages, &mut responder)).await {
                Ok(status) => status,
                Err(_) => GrpcStatus::deadline_exceeded(),
            },
        };
        responder.finish(&status);
    }
}

/// Runs `work` to its end, unless the deadline passes (a status) or the client goes.
async fn until_client_gone<T>(
    responder: &mut Responder,
    deadline: Instant,
    work: impl Future<Output = Result<T, GrpcStatus>>,
) -> Result<Result<T, GrpcStatus>, ClientGone> {
    let mut work = pin!(work);
    // The timer is registered only when the work does not complete at once.
    let mut timer = pin!(tokio::time::sleep_until(deadline));
    poll_fn(|context| {
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(result));
        }
        if responder.poll_gone(context).is_ready() {
            return Poll::Ready(Err(ClientGone));
        }
        timer.as_mut().poll(context).map(|()| Ok(Err(GrpcStatus::deadline_exceeded())))
    })
    .await
}

/// Sends answers to the client.
pub struct Responder {
    state: SendState,
    pause_max: Duration,
}

enum SendState {
    Waiting(SendResponse<Bytes>),
    Sending(SendStream<Bytes>),
    Closed,
}

impl Responder {
    pub(crate) fn new(respond: SendResponse<Bytes>, pause_max: Duration) -> Responder {
        Responder { state: SendState::Waiting(respond), pause_max }
    }

    /// Sends the headers, which tell the client that the call was accepted.
    ///
    /// # Errors
    /// [`ClientGone`].
    pub fn start(&mut self) -> Result<(), ClientGone> {
        self.stream().map(|_| ())
    }

    /// Sends one message with its prefix, as fast as the client takes it. If the future is dropped, half a message may have
    /// been sent; end the call then.
    ///
    /// # Errors
    /// [`ClientGone`], also if the client took nothing for [`send_pause_max`](super::ConnectionConfig::send_pause_max).
    pub async fn send(&mut self, framed: Bytes) -> Result<(), ClientGone> {
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
                self.state = SendState::Closed;
                return Err(ClientGone);
            }
            let part = rest.split_to(stream.capacity().min(rest.len()));
            if stream.send_data(part, false).is_err() {
                self.state = SendState::Closed;
                return Err(ClientGone);
            }
        }
        Ok(())
    }

    /// Sends one message with its prefix if it fits the client's window as a whole; otherwise returns false and sends
    /// nothing.
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
            SendState::Waiting(respond) => respond.poll_reset(context).map(|_| ()),
            SendState::Sending(stream) => stream.poll_reset(context).map(|_| ()),
            SendState::Closed => Poll::Ready(()),
        }
    }

    /// Ends the call. If nothing was sent before, the answer is one header block.
    pub fn finish(mut self, status: &GrpcStatus) {
        match std::mem::replace(&mut self.state, SendState::Closed) {
            SendState::Waiting(mut respond) => {
                let mut response = Response::new(());
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                status.write(response.headers_mut());
                // If sending fails, the client has gone.
                let _ = respond.send_response(response, true);
            }
            SendState::Sending(mut stream) => {
                let _ = stream.send_trailers(status.to_trailers());
            }
            SendState::Closed => {}
        }
    }

    fn stream(&mut self) -> Result<&mut SendStream<Bytes>, ClientGone> {
        if let SendState::Waiting(respond) = &mut self.state {
            let mut response = Response::new(());
            response.headers_mut().insert(CONTENT_TYPE, GRPC);
            self.state = match respond.send_response(response, false) {
                Ok(stream) => SendState::Sending(stream),
                Err(_) => SendState::Closed,
            };
        }
        match &mut self.state {
            SendState::Sending(stream) => Ok(stream),
            _ => Err(ClientGone),
        }
    }
}
