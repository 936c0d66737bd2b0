//! One connection at the server.
//!
//! 1. The connection's task takes every request that has arrived, then polls the handlers that are ready, then lets the
//!    frames of all their answers leave together.
//! 2. A ping at the start must be answered soon: until then the client may have said no more than HTTP/2's preface.
//!    Later pings find connections whose other side has gone, or reads nothing, without a word.
//! 3. Windows are narrow until a call has proved who makes it, then wide if the organisation's budget has room.
//! 4. Told to stop, or idle for long, it announces so (GOAWAY), lets calls finish for a while, and closes. A stranger's
//!    connection is told after some minutes whatever it does.
//!
//! Invariants: no task is started for a call; calls in progress are bounded by the streams that the client may open;
//! the service sees a call once its first message is there; when the connection ends, its handlers are dropped.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::Reservation;
use base::rt::Stop;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, Stream as _};
use h2::server::SendResponse;
use h2::{Ping, PingPong, RecvStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::call::{Call, Responder};
use super::caller::Caller;
use super::message::{Beginning, Messages, Pace};
use super::status::{Code, Status};
use super::timeout;
use crate::events::ConnectionsIdle;

/// Methods, and what they do.
pub trait Service: Clone + Send + Sync + 'static {
    /// A method that exists.
    type Method: Copy + Send;

    /// The method that has this path, such as `/gateway.Gateway/Endorse`.
    fn method(&self, path: &str) -> Option<Self::Method>;

    /// A request message of the method above this size is refused, besides the port's own bound.
    fn message_bytes_max(&self, _method: Self::Method) -> usize {
        usize::MAX
    }

    /// Answers one call. Polled in the connection's task: keep each poll short, start a task for heavy work.
    fn call(&self, method: Self::Method, call: Call) -> impl Future<Output = ()> + Send;
}

/// How connections are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that a stranger may send on one stream, and on all streams of a connection, before the server takes them.
    pub stranger_window_bytes: u32,
    /// Bytes that a member may send on one stream before the server takes them.
    pub stream_window_bytes: u32,
    /// Bytes that a member may send on all streams of a connection before the server takes them.
    pub connection_window_bytes: u32,
    /// Calls that a client may have open on one connection.
    pub concurrent_streams_max: u32,
    /// Bytes of answers that one stream may leave waiting in the connection.
    pub send_buffer_bytes_max: usize,
    /// A request message above this size is refused.
    pub message_bytes_max: usize,
    /// How often a client is pinged; a ping that is not answered until the next one closes the connection.
    pub keep_alive_interval: Duration,
    /// When the first ping must be answered, and with it HTTP/2's preface be there.
    pub preface_timeout: Duration,
    /// While a message that has begun, or the first one of a call, is waited for, its connection may pause for this long.
    pub message_pause_max: Duration,
    /// A client that takes nothing of an answer for this long has the call reset.
    pub send_pause_max: Duration,
    /// A client that has not ended its side of an answered call after this long has the call reset.
    pub linger_time_max: Duration,
    /// A stranger without a call for this long is told to go.
    pub stranger_idle_max: Duration,
    /// A member without a call for this long is told to go.
    pub member_idle_max: Duration,
    /// A connection that is still a stranger's after this long is told to go, whatever it does.
    pub stranger_time_max: Duration,
    /// A call with one answer is ended after this, whatever deadline its client set.
    pub unary_time_max: Duration,
    /// How long calls may go on after a stop.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            stranger_window_bytes: 64 << 10,
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
            stranger_idle_max: Duration::from_secs(60),
            member_idle_max: Duration::from_secs(300),
            stranger_time_max: Duration::from_secs(600),
            unary_time_max: Duration::from_secs(600),
            grace: Duration::from_secs(5),
        }
    }
}

/// Header lists above this size are refused.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Larger frames mean fewer of them for a large message.
const FRAME_BYTES_MAX: u32 = 64 << 10;

/// Streams that were reset here and of which more frames may be on their way; those of others are errors of the client,
/// of which `h2` tolerates a thousand on a connection.
const RESET_STREAMS_MAX: usize = 256;
/// How long such frames may be on their way.
const RESET_TIME_MAX: Duration = Duration::from_secs(5);

/// What `h2` lets small DATA frames cost until they are read, up to 256 bytes each: two of them for each stream.
const SMALL_FRAMES_BYTES_MAX: usize = 1 << 20;

/// Serves one connection to its end.
///
/// # Errors
/// What broke the connection; nothing that needs more than counting.
pub(crate) async fn serve<I, S>(
    io: I,
    service: S,
    settings: &Settings,
    caller: Arc<Caller>,
    stop: Stop,
) -> Result<(), h2::Error>
where
    I: AsyncRead + AsyncWrite + Unpin,
    S: Service,
{
    let handshake = h2::server::Builder::new()
        .initial_window_size(settings.stranger_window_bytes)
        .initial_connection_window_size(settings.stranger_window_bytes)
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
    let mut windows = Windows::Narrow;
    let mut calls = FuturesUnordered::new();
    let mut stopped = pin!(stop.stopped());
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
                keep_alive.called();
                let admitted = admit(&service, request, respond, &caller, settings);
                let (service, caller, linger_time_max) =
                    (service.clone(), Arc::clone(&caller), settings.linger_time_max);
                calls.push(async move {
                    if let Some((method, mut call)) = admitted {
                        match call.arrive().await {
                            Ok(()) => service.call(method, call).await,
                            Err(status) => call.refuse(&status),
                        }
                    }
                    caller.linger(linger_time_max).await;
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
            Tick::Quiet => Poll::Pending,
            Tick::Dead => Poll::Ready(Err(h2::Reason::NO_ERROR.into())),
            // What the time is good for is looked at above.
            Tick::Idle => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// How much a client may send before the server takes it.
enum Windows {
    Narrow,
    Wide { _cost: Option<Reservation> },
}

impl Windows {
    /// Widens them once the connection is a member's. True when there are frames to be sent.
    fn widen<I>(
        &mut self,
        connection: &mut h2::server::Connection<I, Bytes>,
        caller: &Caller,
        settings: &Settings,
    ) -> bool
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        if !matches!(self, Windows::Narrow) || !caller.is_member() {
            return false;
        }
        let cost = caller.spare(settings.connection_window_bytes as usize);
        // It fails while the client has not acknowledged the settings before; the next call comes soon.
        if cost.is_some() && connection.set_initial_window_size(settings.stream_window_bytes).is_err() {
            return false;
        }
        if cost.is_some() {
            connection.set_target_window_size(settings.connection_window_bytes);
        }
        *self = Windows::Wide { _cost: cost };
        true
    }
}

/// Checks the form of a request; what is not a call of a method that exists is answered here.
fn admit<S: Service>(
    service: &S,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    caller: &Arc<Caller>,
    settings: &Settings,
) -> Option<(S::Method, Call)> {
    let now = Instant::now();
    let formed = match check(service, &request, now) {
        Ok(formed) => formed,
        Err(refusal) => {
            match refusal {
                Refusal::Status(status) => Responder::new(respond, settings.send_pause_max).finish(&status),
                Refusal::Http(code) => {
                    let mut response = Response::new(());
                    *response.status_mut() = code;
                    // Failing means that the client has gone.
                    let _ = respond.send_response(response, true);
                }
            }
            let body = request.into_body();
            if !body.is_end_stream() {
                caller.leave(body);
            }
            return None;
        }
    };
    let (method, deadline) = formed;
    let authorization = request.headers().get(AUTHORIZATION).cloned();
    let message_bytes_max = settings.message_bytes_max.min(service.message_bytes_max(method));
    let begun = Beginning { at: now, arrived: caller.arrived_bytes() };
    let pace = Pace { pause_max: settings.message_pause_max, begun: Some(begun) };
    let messages = Messages::requests(request.into_body(), message_bytes_max, Arc::clone(caller), pace);
    let call = Call {
        messages,
        responder: Responder::new(respond, settings.send_pause_max),
        deadline,
        unary_deadline: now + settings.unary_time_max,
        caller: Arc::clone(caller),
        authorization,
    };
    Some((method, call))
}

/// Why a request is no call.
enum Refusal {
    Http(StatusCode),
    Status(Status),
}

/// The method, and when the client stops waiting.
fn check<S: Service>(
    service: &S,
    request: &Request<RecvStream>,
    now: Instant,
) -> Result<(S::Method, Option<Instant>), Refusal> {
    let headers = request.headers();
    if request.method() != Method::POST || !headers.get(CONTENT_TYPE).is_some_and(|value| is_grpc(value.as_bytes())) {
        return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let refusal = |code, message: String| Refusal::Status(Status::new(code, message));
    if headers.get("grpc-encoding").is_some_and(|value| value != "identity") {
        return Err(refusal(Code::Unimplemented, "compressed messages are not understood".to_owned()));
    }
    let deadline = match headers.get("grpc-timeout").map(|value| timeout::parse(value.as_bytes())) {
        None => None,
        // A deadline beyond the clock's range is none.
        Some(Some(timeout)) => now.checked_add(timeout),
        Some(None) => return Err(refusal(Code::Internal, "grpc-timeout is malformed".to_owned())),
    };
    let path = request.uri().path();
    let method = service.method(path);
    let method = method.ok_or_else(|| refusal(Code::Unimplemented, format!("there is no method {path}")))?;
    Ok((method, deadline))
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Pings the client, and keeps the times of its connection.
struct KeepAlive {
    pings: Option<PingPong>,
    interval: Duration,
    timer: Pin<Box<Sleep>>,
    is_unanswered: bool,
    begun: Instant,
    /// When there was a call, as exactly as the interval is.
    last_call: Instant,
    has_called: bool,
    is_due: bool,
    stranger_idle_max: Duration,
    member_idle_max: Duration,
    stranger_time_max: Duration,
}

/// What the time says of a connection.
enum Tick {
    Quiet,
    /// A ping was not answered.
    Dead,
    /// An interval has passed: [`KeepAlive::is_idle`] is to be asked.
    Idle,
}

impl KeepAlive {
    fn new(pings: Option<PingPong>, settings: &Settings) -> KeepAlive {
        let now = Instant::now();
        let interval = settings.keep_alive_interval;
        let mut keep_alive = KeepAlive {
            pings,
            interval,
            timer: Box::pin(tokio::time::sleep(settings.preface_timeout.min(interval))),
            is_unanswered: false,
            begun: now,
            last_call: now,
            has_called: false,
            is_due: false,
            stranger_idle_max: settings.stranger_idle_max,
            member_idle_max: settings.member_idle_max,
            stranger_time_max: settings.stranger_time_max,
        };
        keep_alive.ping();
        keep_alive
    }

    fn called(&mut self) {
        self.has_called = true;
    }

    fn ping(&mut self) {
        self.is_unanswered = self.pings.as_mut().is_some_and(|pings| pings.send_ping(Ping::opaque()).is_ok());
    }

    /// Whether the connection is to be told to go. True once.
    fn is_idle(&mut self, has_no_calls: bool, is_member: bool) -> bool {
        if !std::mem::take(&mut self.is_due) {
            return false;
        }
        let now = Instant::now();
        if std::mem::take(&mut self.has_called) || !has_no_calls {
            self.last_call = now;
        }
        let idle_max = if is_member { self.member_idle_max } else { self.stranger_idle_max };
        let is_idle = now >= self.last_call + idle_max || (!is_member && now >= self.begun + self.stranger_time_max);
        ConnectionsIdle.add(u64::from(is_idle));
        is_idle
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Tick {
        if self.is_unanswered
            && let Some(pings) = &mut self.pings
            && pings.poll_pong(context).is_ready()
        {
            self.is_unanswered = false;
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return Tick::Quiet;
        }
        if self.is_unanswered {
            return Tick::Dead;
        }
        self.ping();
        self.is_due = true;
        self.timer.as_mut().reset(Instant::now() + self.interval);
        Tick::Idle
    }
}
