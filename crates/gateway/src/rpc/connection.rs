//! One connection at the server.
//!
//! 1. The connection's task takes every request that has arrived, then polls the handlers that are ready, then lets the
//!    frames of all their answers leave together.
//! 2. Pings find connections whose other side has gone without a word.
//! 3. Told to stop, it announces so (GOAWAY), lets calls finish for a while, and closes.
//!
//! Invariants: no task is started for a call; calls in progress are bounded by the streams that the client may open;
//! the service sees a call once its first message is there; when the connection ends, its handlers are dropped.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::Stop;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, Stream as _};
use h2::server::SendResponse;
use h2::{Ping, PingPong, RecvStream};
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::call::{Call, Held, Responder};
use super::message::{Budget, Messages};
use super::status::{Code, Status};
use super::timeout;

/// Methods, and what they do.
pub trait Service: Clone + Send + Sync + 'static {
    /// A method that exists.
    type Method: Copy + Send;

    /// The method that has this path, such as `/gateway.Gateway/Endorse`.
    fn method(&self, path: &str) -> Option<Self::Method>;

    /// Answers one call. Polled in the connection's task: keep each poll short, start a task for heavy work.
    fn call(&self, method: Self::Method, call: Call) -> impl Future<Output = ()> + Send;
}

/// How connections are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that a client may send on one stream before the server takes them.
    pub stream_window_bytes: u32,
    /// Bytes that a client may send on all streams of a connection before the server takes them.
    pub connection_window_bytes: u32,
    /// Calls that a client may have open on one connection.
    pub concurrent_streams_max: u32,
    /// Bytes of answers that one stream may leave waiting in the connection.
    pub send_buffer_bytes_max: usize,
    /// A request message above this size is refused.
    pub message_bytes_max: usize,
    /// How often a silent client is pinged; a ping that is not answered until the next one closes the connection.
    pub keep_alive_interval: Duration,
    /// A call whose first message has not begun to arrive by then is ended. A long message has longer.
    pub first_message_timeout: Duration,
    /// A call with one answer is ended after this, whatever deadline its client set.
    pub unary_time_max: Duration,
    /// How long calls may go on after a stop.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 8 << 20,
            concurrent_streams_max: 2048,
            send_buffer_bytes_max: 1 << 20,
            message_bytes_max: 100 << 20,
            keep_alive_interval: Duration::from_secs(30),
            first_message_timeout: Duration::from_secs(10),
            unary_time_max: Duration::from_secs(600),
            grace: Duration::from_secs(5),
        }
    }
}

/// Header lists above this size are refused.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Larger frames mean fewer of them for a large message.
const FRAME_BYTES_MAX: u32 = 64 << 10;

/// Serves one connection to its end.
///
/// # Errors
/// What broke the connection; nothing that needs more than counting.
pub async fn serve<I, S>(
    io: I,
    peer: SocketAddr,
    service: S,
    settings: &Settings,
    budget: Arc<Budget>,
    stop: Stop,
) -> Result<(), h2::Error>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    let handshake = h2::server::Builder::new()
        .initial_window_size(settings.stream_window_bytes)
        .initial_connection_window_size(settings.connection_window_bytes)
        .max_concurrent_streams(settings.concurrent_streams_max)
        .max_send_buffer_size(settings.send_buffer_bytes_max)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .handshake::<I, Bytes>(io);
    let mut connection = tokio::time::timeout(settings.keep_alive_interval, handshake)
        .await
        .unwrap_or_else(|_| Err(h2::Reason::SETTINGS_TIMEOUT.into()))?;
    let mut keep_alive = KeepAlive::new(connection.ping_pong(), settings.keep_alive_interval);
    let mut calls = FuturesUnordered::new();
    let held = Arc::new(Held::default());
    let mut stopped = pin!(stop.stopped());
    let mut grace: Option<Pin<Box<Sleep>>> = None;

    poll_fn(|context| {
        if grace.is_none() && stopped.as_mut().poll(context).is_ready() {
            connection.graceful_shutdown();
            grace = Some(Box::pin(tokio::time::sleep(settings.grace)));
        }
        if let Some(grace) = &mut grace
            && grace.as_mut().poll(context).is_ready()
        {
            connection.abrupt_shutdown(h2::Reason::NO_ERROR);
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut progress = false;
            while let Poll::Ready(accepted) = connection.poll_accept(context) {
                let Some(accepted) = accepted else { return Poll::Ready(Ok(())) };
                let (request, respond) = accepted?;
                keep_alive.heard();
                let from = Origin { peer, held: &held, budget: &budget };
                if let Some((method, mut call)) = admit(&service, request, respond, from, settings) {
                    let (service, budget) = (service.clone(), Arc::clone(&budget));
                    calls.push(async move {
                        match call.arrive(&budget).await {
                            Ok(()) => service.call(method, call).await,
                            Err(status) => call.refuse(&status),
                        }
                    });
                }
                progress = true;
            }
            while let Poll::Ready(Some(())) = Pin::new(&mut calls).poll_next(context) {
                progress = true;
            }
            if !progress {
                break;
            }
        }
        if keep_alive.poll_dead(context).is_ready() {
            return Poll::Ready(Err(h2::Reason::NO_ERROR.into()));
        }
        Poll::Pending
    })
    .await
}

/// The connection of a call.
struct Origin<'a> {
    peer: SocketAddr,
    held: &'a Arc<Held>,
    budget: &'a Arc<Budget>,
}

/// Checks the form of a request; what is not a call of a method that exists is answered here.
fn admit<S: Service>(
    service: &S,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    from: Origin<'_>,
    settings: &Settings,
) -> Option<(S::Method, Call)> {
    let headers = request.headers();
    if request.method() != Method::POST || !headers.get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        // Failing means that the client has gone; so below.
        let _ = respond.send_response(response, true);
        return None;
    }
    let responder = Responder::new(respond);
    if headers.get("grpc-encoding").is_some_and(|value| value != "identity") {
        responder.finish(&Status::new(Code::Unimplemented, "compressed messages are not understood"));
        return None;
    }
    let now = Instant::now();
    let deadline = match headers.get("grpc-timeout") {
        None => None,
        Some(value) => match timeout::parse(value.as_bytes()) {
            // A deadline beyond the clock's range is none.
            Some(timeout) => now.checked_add(timeout),
            None => {
                responder.finish(&Status::new(Code::Internal, "grpc-timeout is malformed"));
                return None;
            }
        },
    };
    let Some(method) = service.method(request.uri().path()) else {
        let message = format!("there is no method {}", request.uri().path());
        responder.finish(&Status::new(Code::Unimplemented, message));
        return None;
    };
    let messages = Messages::new(request.into_body(), settings.message_bytes_max, Some(Arc::clone(from.budget)));
    let call = Call {
        messages,
        responder,
        deadline,
        unary_deadline: now + settings.unary_time_max,
        message_deadline: now + settings.first_message_timeout,
        peer: from.peer,
        held: Arc::clone(from.held),
    };
    Some((method, call))
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Pings a client that has been silent for one interval, and gives up after another.
struct KeepAlive {
    pings: Option<PingPong>,
    interval: Duration,
    timer: Pin<Box<Sleep>>,
    heard: bool,
    unanswered: bool,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, interval: Duration) -> KeepAlive {
        KeepAlive { pings, interval, timer: Box::pin(tokio::time::sleep(interval)), heard: false, unanswered: false }
    }

    fn heard(&mut self) {
        self.heard = true;
    }

    fn poll_dead(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        if self.unanswered && pings.poll_pong(context).is_ready() {
            self.unanswered = false;
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if self.unanswered && !self.heard {
                return Poll::Ready(());
            }
            if !self.heard && pings.send_ping(Ping::opaque()).is_ok() {
                self.unanswered = true;
                // Registers for the answer.
                if pings.poll_pong(context).is_ready() {
                    self.unanswered = false;
                }
            }
            self.heard = false;
            self.timer.as_mut().reset(Instant::now() + self.interval);
        }
        Poll::Pending
    }
}
