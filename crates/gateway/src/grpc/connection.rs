//! One gRPC connection at the server, and the task that serves it.
//!
//! 1. The connection's task accepts every request that has arrived, then polls the handlers that are ready, then sends
//!    the frames of all their answers together.
//! 2. The server sends a ping at the start, which the client must answer within [`ConnectionConfig::preface_timeout`].
//!    The answer shows that the client speaks HTTP/2. Later pings detect clients that have vanished or no longer read.
//! 3. Flow-control windows are small until the client is authenticated. Then they become large, if the budget of the
//!    client's organisation has space.
//! 4. When the port stops, or when the connection was idle for a long time, the server sends GOAWAY, lets calls finish
//!    for a grace period, and closes the connection. An unauthenticated connection gets GOAWAY after some minutes even
//!    if it is active.
//!
//! Invariants:
//! * No task is spawned for a call.
//! * The calls in progress are bounded by the number of streams that the client may open.
//! * The service does not see a call before its first message has arrived, unless the method says that it speaks first.
//! * When the connection ends, its handlers are dropped.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::Reservation;
use base::rt::CancellationToken;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, Stream as _};
use h2::server::SendResponse;
use h2::{Ping, PingPong, RecvStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::call::{IncomingCall, Responder};
use super::caller::Caller;
use super::message::{ArrivalPace, MessageStart, MessageStream};
use super::status::{GrpcCode, GrpcStatus};
use super::timeout;
use crate::events::ConnectionsIdle;

/// The methods of a port, and their handlers.
pub trait GrpcService: Clone + Send + Sync + 'static {
    /// A method that exists.
    type Method: Copy + Send;

    /// The method that has this path, such as `/gateway.Gateway/Endorse`.
    fn method(&self, path: &str) -> Option<Self::Method>;

    /// Request messages of the method above this size are refused, in addition to the port's own bound.
    fn message_bytes_max(&self, _method: Self::Method) -> usize {
        usize::MAX
    }

    /// Whether the handler of the method sends first, and therefore runs before a message has arrived. Such a call may be
    /// silent for any time.
    fn speaks_first(&self, _method: Self::Method) -> bool {
        false
    }

    /// Answers one call. Polled in the connection's task: keep each poll short, and spawn a task for heavy work.
    fn call(&self, method: Self::Method, call: IncomingCall) -> impl Future<Output = ()> + Send;
}

/// Settings of connections.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Bytes that a stranger may send on one stream, and on all streams of a connection, before the server reads them.
    pub unauthenticated_window_bytes: u32,
    /// Bytes that a member may send on one stream before the server reads them.
    pub stream_window_bytes: u32,
    /// Bytes that a member may send on all streams of a connection before the server reads them.
    pub connection_window_bytes: u32,
    /// Calls that a client may have open on one connection.
    pub concurrent_streams_max: u32,
    /// Bytes of answers that one stream may queue in the connection.
    pub send_buffer_bytes_max: usize,
    /// A request message above this size is refused.
    pub message_bytes_max: usize,
    /// Interval of pings; a ping that is not answered before the next one closes the connection.
    pub keep_alive_interval: Duration,
    /// How soon the first ping must be answered, which shows that HTTP/2's preface has arrived.
    pub preface_timeout: Duration,
    /// How long a connection may pause while the server waits for the rest of a message, or for the first message of a
    /// call.
    pub message_pause_max: Duration,
    /// If a client takes nothing of an answer for this long, the call is reset.
    pub send_pause_max: Duration,
    /// If a client has not ended its side of an answered call after this long, the call is reset.
    pub linger_time_max: Duration,
    /// After this long without a call, a stranger is sent GOAWAY.
    pub unauthenticated_idle_max: Duration,
    /// After this long without a call, a member is sent GOAWAY.
    pub member_idle_max: Duration,
    /// A connection that is still a stranger's after this long is sent GOAWAY, even if it is active.
    pub unauthenticated_time_max: Duration,
    /// A call with one answer is ended after this long, whatever deadline its client set.
    pub unary_time_max: Duration,
    /// How long calls may continue after a stop.
    pub grace: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> ConnectionConfig {
        ConnectionConfig {
            unauthenticated_window_bytes: 64 << 10,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 2 << 20,
            concurrent_streams_max: 2048,
            send_buffer_bytes_max: 128 << 10,
            message_bytes_max: 100 << 20,
            keep_alive_interval: Duration::from_secs(30),
            preface_timeout: Duration::from_secs(5),
            message_pause_max: Duration::from_secs(10),
            send_pause_max: Duration::from_secs(30),
            linger_time_max: Duration::from_secs(5),
            unauthenticated_idle_max: Duration::from_secs(60),
            member_idle_max: Duration::from_secs(300),
            unauthenticated_time_max: Duration::from_secs(600),
            unary_time_max: Duration::from_secs(600),
            grace: Duration::from_secs(5),
        }
    }
}

/// Header lists above this size are refused.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Larger frames mean fewer of them for a large message.
const FRAME_BYTES_MAX: u32 = 64 << 10;

/// Streams that were reset here and for which further frames may still arrive. Frames on other reset streams count as
/// errors of the client, of which `h2` tolerates a thousand per connection.
const RESET_STREAMS_MAX: usize = 256;
/// How long such frames may still arrive.
const RESET_TIME_MAX: Duration = Duration::from_secs(5);

/// The bytes that `h2` charges for small DATA frames until they are read, up to 256 bytes each: two of them for each
/// stream.
const SMALL_FRAMES_BYTES_MAX: usize = 1 << 20;

/// Serves one connection to its end.
///
/// # Errors
/// The error that broke the connection; it only needs counting.
pub(crate) async fn serve<I, S>(
    io: I,
    service: S,
    settings: &ConnectionConfig,
    caller: Arc<Caller>,
    stop: CancellationToken,
) -> Result<(), h2::Error>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: GrpcService,
{
    let handshake = h2::server::Builder::new()
        .initial_window_size(settings.unauthenticated_window_bytes)
        .initial_connection_window_size(settings.unauthenticated_window_bytes)
        .max_concurrent_streams(settings.concurrent_streams_max)
        .data_frame_budget(SMALL_FRAMES_BYTES_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .reset_stream_duration(RESET_TIME_MAX)
        .max_send_buffer_size(settings.send_buffer_bytes_max)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .handshake::<I, Bytes>(io);
    let mut connection = tokio::time::timeout(settings.preface_timeout, handshake)
        .await
        .unwrap_or_else(|_| Err(h2::Reason::SETTINGS_TIMEOUT.into()))?;
    let mut keep_alive = KeepAlive::new(connection.ping_pong(), settings);
    let mut windows = ReceiveWindows::Narrow;
    let mut calls = FuturesUnordered::new();
    let mut stopped = pin!(stop.cancelled());
    let mut grace: Option<Pin<Box<Sleep>>> = None;

    poll_fn(|context| {
        let ends = grace.is_none()
            && (stopped.as_mut().poll(context).is_ready() || keep_alive.is_idle(calls.is_empty(), caller.is_member()));
        if ends {
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
            let mut progress = windows.widen(&mut connection, &caller, settings);
            while let Poll::Ready(accepted) = connection.poll_accept(context) {
                let Some(accepted) = accepted else { return Poll::Ready(Ok(())) };
                let (request, respond) = accepted?;
                keep_alive.record_call();
                let admitted = accept_call(&service, request, respond, &caller, settings);
                let (service, caller, linger_time_max) =
                    (service.clone(), Arc::clone(&caller), settings.linger_time_max);
                calls.push(async move {
                    if let Some((method, mut call)) = admitted {
                        let waited = match service.speaks_first(method) {
                            true => Ok(()),
                            false => call.wait_first_message().await,
                        };
                        match waited {
                            Ok(()) => service.call(method, call).await,
                            Err(status) => call.reject(&status),
                        }
                    }
                    caller.drain_unended(linger_time_max).await;
                });
                progress = true;
            }
            while let Poll::Ready(Some(())) = Pin::new(&mut calls).poll_next(context) {
                progress = true;
            }
            if !progress {
                break;
            }
        }
        match keep_alive.poll(context) {
            KeepAliveTick::Quiet => Poll::Pending,
            KeepAliveTick::Dead => Poll::Ready(Err(h2::Reason::NO_ERROR.into())),
            // The idle times are checked above.
            KeepAliveTick::Idle => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// How much a client may send before the server reads it.
enum ReceiveWindows {
    Narrow,
    Wide { _cost: Option<Reservation> },
}

impl ReceiveWindows {
    /// Widens the windows once the connection is a member's. True if there are frames to send.
    fn widen<I>(
        &mut self,
        connection: &mut h2::server::Connection<I, Bytes>,
        caller: &Caller,
        settings: &ConnectionConfig,
    ) -> bool
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        if !matches!(self, ReceiveWindows::Narrow) || !caller.is_member() {
            return false;
        }
        let cost = caller.reserve_spare(settings.connection_window_bytes as usize);
        // This fails while the client has not acknowledged the earlier settings; the next call tries again.
        if cost.is_some() && connection.set_initial_window_size(settings.stream_window_bytes).is_err() {
            return false;
        }
        if cost.is_some() {
            connection.set_target_window_size(settings.connection_window_bytes);
        }
        *self = ReceiveWindows::Wide { _cost: cost };
        true
    }
}

/// Checks the form of a request; a request that is not a call of an existing method is answered here.
fn accept_call<S: GrpcService>(
    service: &S,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    caller: &Arc<Caller>,
    settings: &ConnectionConfig,
) -> Option<(S::Method, IncomingCall)> {
    let now = Instant::now();
    let formed = match check(service, &request, now) {
        Ok(formed) => formed,
        Err(refusal) => {
            match refusal {
                RequestRejection::Status(status) => Responder::new(respond, settings.send_pause_max).finish(&status),
                RequestRejection::Http(code) => {
                    let mut response = Response::new(());
                    *response.status_mut() = code;
                    // If sending fails, the client has gone.
                    let _ = respond.send_response(response, true);
                }
            }
            let body = request.into_body();
            if !body.is_end_stream() {
                caller.defer_drain(body);
            }
            return None;
        }
    };
    let (method, deadline) = formed;
    let authorization = request.headers().get(AUTHORIZATION).cloned();
    let message_bytes_max = settings.message_bytes_max.min(service.message_bytes_max(method));
    let begun = MessageStart { at: now, arrived: caller.arrived_bytes() };
    let started = (!service.speaks_first(method)).then_some(begun);
    let pace = ArrivalPace { pause_max: settings.message_pause_max, started };
    let messages = MessageStream::requests(request.into_body(), message_bytes_max, Arc::clone(caller), pace);
    let call = IncomingCall {
        messages,
        responder: Responder::new(respond, settings.send_pause_max),
        deadline,
        unary_deadline: now + settings.unary_time_max,
        caller: Arc::clone(caller),
        authorization,
    };
    Some((method, call))
}

/// Why a request is not a call.
enum RequestRejection {
    Http(StatusCode),
    Status(GrpcStatus),
}

/// The method, and the time at which the client stops waiting.
fn check<S: GrpcService>(
    service: &S,
    request: &Request<RecvStream>,
    now: Instant,
) -> Result<(S::Method, Option<Instant>), RequestRejection> {
    let headers = request.headers();
    if request.method() != Method::POST || !headers.get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
        return Err(RequestRejection::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let refusal = |code, message: String| RequestRejection::Status(GrpcStatus::new(code, message));
    if headers.get("grpc-encoding").is_some_and(|value| value != "identity") {
        return Err(refusal(GrpcCode::Unimplemented, "compressed messages are not understood".to_owned()));
    }
    let deadline = match headers.get("grpc-timeout").map(|value| timeout::parse(value.as_bytes())) {
        None => None,
        // A deadline beyond the clock's range counts as none.
        Some(Some(timeout)) => now.checked_add(timeout),
        Some(None) => return Err(refusal(GrpcCode::Internal, "grpc-timeout is malformed".to_owned())),
    };
    let path = request.uri().path();
    let method = service.method(path);
    let method = method.ok_or_else(|| refusal(GrpcCode::Unimplemented, format!("there is no method {path}")))?;
    Ok((method, deadline))
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Pings the client, and enforces the time limits of its connection.
struct KeepAlive {
    pings: Option<PingPong>,
    interval: Duration,
    timer: Pin<Box<Sleep>>,
    is_unanswered: bool,
    started: Instant,
    /// The time of the last call, with the precision of the interval.
    last_call: Instant,
    has_called: bool,
    is_due: bool,
    unauthenticated_idle_max: Duration,
    member_idle_max: Duration,
    unauthenticated_time_max: Duration,
}

/// What an elapsed interval means for a connection.
enum KeepAliveTick {
    Quiet,
    /// A ping was not answered.
    Dead,
    /// An interval has passed: check [`KeepAlive::is_idle`].
    Idle,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, settings: &ConnectionConfig) -> KeepAlive {
        let now = Instant::now();
        let interval = settings.keep_alive_interval;
        let mut keep_alive = KeepAlive {
            pings,
            interval,
            timer: Box::pin(tokio::time::sleep(settings.preface_timeout.min(interval))),
            is_unanswered: false,
            started: now,
            last_call: now,
            has_called: false,
            is_due: false,
            unauthenticated_idle_max: settings.unauthenticated_idle_max,
            member_idle_max: settings.member_idle_max,
            unauthenticated_time_max: settings.unauthenticated_time_max,
        };
        keep_alive.ping();
        keep_alive
    }

    fn record_call(&mut self) {
        self.has_called = true;
    }

    fn ping(&mut self) {
        self.is_unanswered = self.pings.as_mut().is_some_and(|pings| pings.send_ping(Ping::opaque()).is_ok());
    }

    /// Whether to send GOAWAY on the connection. True only once.
    fn is_idle(&mut self, has_no_calls: bool, is_member: bool) -> bool {
        if !std::mem::take(&mut self.is_due) {
            return false;
        }
        let now = Instant::now();
        if std::mem::take(&mut self.has_called) || !has_no_calls {
            self.last_call = now;
        }
        let idle_max = if is_member { self.member_idle_max } else { self.unauthenticated_idle_max };
        let is_idle =
            now >= self.last_call + idle_max || (!is_member && now >= self.started + self.unauthenticated_time_max);
        ConnectionsIdle.add(u64::from(is_idle));
        is_idle
    }

    fn poll(&mut self, context: &mut Context<'_>) -> KeepAliveTick {
        if self.is_unanswered
            && let Some(pings) = &mut self.pings
            && pings.poll_pong(context).is_ready()
        {
            self.is_unanswered = false;
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return KeepAliveTick::Quiet;
        }
        if self.is_unanswered {
            return KeepAliveTick::Dead;
        }
        self.ping();
        self.is_due = true;
        self.timer.as_mut().reset(Instant::now() + self.interval);
        KeepAliveTick::Idle
    }
}
