//! The answering end of a link: it hands requests to a handler and sends the outcomes.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use super::frame::{self, Malformed, OutgoingFrame, RpcFrameKind, encode_rejection};
use super::outbox::{OutboxTimer, QUEUED_FRAMES_MAX, send_frames};
use super::{BODY_BYTES_MAX, FIRST_MESSAGE_TIMEOUT, IDLE_TIMEOUT, LINK_REQUEST_BYTES_MAX, Rejection, SEND_TIMEOUT};
use crate::ErrorKind;
use crate::rt::channel::{Closed, Sender, bounded};
use crate::rt::net::{GatherList, Link, LinkPermit};
use crate::rt::sync::Semaphore;
use crate::rt::{self, CancellationToken, Sleep, spawn};

/// The future outcome of a request.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<GatherList, Rejection>> + Send>>;

/// Answers the requests of one link.
pub trait RpcHandler: Send + Sync + 'static {
    /// Called once, before the first request, with a notifier that sends notices over this link.
    fn opened(&self, notifier: Notifier) {
        drop(notifier);
    }

    /// Takes a request. Called in the order of sending, and must not block; the answers run concurrently. An answer is dropped
    /// when its link ends: work that must finish regardless belongs in another task.
    fn request(&self, request: GatherList) -> ResponseFuture;
}

/// Why a server stopped serving a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeEnd {
    /// The link ended.
    Link,
    /// The caller stopped it.
    Stopped,
    /// The other end sent bytes that form no valid request.
    Malformed(&'static str),
    /// The handler panicked.
    Panicked,
    /// The other end was silent for too long.
    Idle,
    /// A newer link of the same organisation or identity took its place.
    Displaced,
}

/// Sends notices over one link.
#[derive(Clone)]
pub struct Notifier {
    queue: Sender<OutgoingFrame>,
    ended: CancellationToken,
}

impl Notifier {
    /// Waits for space, then queues a notice. Dropping the future before it completes sends nothing.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended. A queued notice may still be lost.
    pub async fn notify(&self, notification: impl Into<GatherList>) -> Result<(), Closed> {
        let body = notification.into();
        assert!(body.len() <= BODY_BYTES_MAX, "notices are small");
        let frame = OutgoingFrame { kind: RpcFrameKind::Notification, number: 0, body };
        self.ended.run_until_cancelled(self.queue.send(frame)).await.unwrap_or(Err(Closed))
    }

    /// Completes when the link has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// Serves one link until it ends or `stop` is stopped; at most `concurrency_max` requests at a time.
///
/// Dropping the future ends the link.
pub async fn serve(
    link: Link,
    handler: Arc<dyn RpcHandler>,
    concurrency_max: usize,
    stop: CancellationToken,
) -> ServeEnd {
    serve_link(link, None, handler, concurrency_max, stop).await
}

/// As [`serve`], for a link that has a permit: it ends when the permit is displaced, and the bytes of its requests count
/// against the budget of its organisation.
///
/// Dropping the future ends the link and frees the permit.
pub async fn serve_admitted(
    (link, place): (Link, LinkPermit),
    handler: Arc<dyn RpcHandler>,
    concurrency_max: usize,
    stop: CancellationToken,
) -> ServeEnd {
    let displaced = place.displaced().clone();
    let serving = serve_link(link, Some(Arc::new(place)), handler, concurrency_max, stop);
    displaced.run_until_cancelled(serving).await.unwrap_or(ServeEnd::Displaced)
}

async fn serve_link(
    link: Link,
    place_of_link: Option<Arc<LinkPermit>>,
    handler: Arc<dyn RpcHandler>,
    concurrency_max: usize,
    stop: CancellationToken,
) -> ServeEnd {
    assert!(concurrency_max > 0, "a server that may not work is a mistake");
    let (sender, mut receiver) = link.split();
    let (queue, to_send) = bounded(QUEUED_FRAMES_MAX);
    let ending = CancelOnDrop(CancellationToken::new());
    let ended = &ending.0;
    let writing = CancelOnDrop(ended.clone());
    let _writer = spawn(async move {
        let ended = writing.0.clone();
        send_frames(sender, to_send, ended, OutboxTimer::SendTimeout(SEND_TIMEOUT), |_| true).await;
        drop(writing);
    })
    .abort_on_drop();
    let panicked = CancellationToken::new();
    let permits = Semaphore::new(concurrency_max);
    let bytes = Semaphore::new(LINK_REQUEST_BYTES_MAX);
    let mut silence = IdleTimer::new();
    handler.opened(Notifier { queue: queue.clone(), ended: ended.clone() });
    loop {
        let received =
            silence.or_timeout(stop.run_until_cancelled(ended.run_until_cancelled(receiver.receive_parts()))).await;
        let mut message = match received {
            None if permits.available() < concurrency_max => continue,
            None => return ServeEnd::Idle,
            Some(None) => return ServeEnd::Stopped,
            Some(Some(Some(Ok(message)))) => message,
            Some(Some(_)) if panicked.is_cancelled() => return ServeEnd::Panicked,
            Some(Some(_)) => return ServeEnd::Link,
        };
        // One reservation per message: a short body keeps the memory of the whole message it came in.
        let budget = place_of_link.as_ref().map(|place| place.reserve(message.len())).transpose();
        let budget = budget.map(|budget| budget.flatten().map(Arc::new));
        receiver.release();
        loop {
            let frame = match frame::next(&mut message) {
                Ok(None) => break,
                Ok(Some(frame)) if frame.kind == RpcFrameKind::Request => frame,
                Ok(Some(_)) => return ServeEnd::Malformed("an answer from the side that asks"),
                Err(Malformed(what)) => return ServeEnd::Malformed(what),
            };
            // A body longer than the limit takes all of it, so that it is accepted when it is alone.
            let length = frame.body.len();
            let weight = u32::try_from(length.min(LINK_REQUEST_BYTES_MAX)).expect("the limit is below 4 GiB");
            let room = async { (permits.acquire().await, bytes.acquire_many(weight).await) };
            let held = match stop.run_until_cancelled(ended.run_until_cancelled(room)).await {
                None => return ServeEnd::Stopped,
                Some(None) => break,
                Some(Some(held)) => held,
            };
            let budget = match &budget {
                Ok(budget) => budget.clone(),
                Err(over) => {
                    let refusal = Rejection::new(ErrorKind::Retry, over.to_string());
                    let refused = queue.send(response_frame(frame.number, Err(refusal)));
                    match stop.run_until_cancelled(ended.run_until_cancelled(refused)).await {
                        None => return ServeEnd::Stopped,
                        Some(_) => continue,
                    }
                }
            };
            let answer = handler.request(frame.body);
            let unanswered = UnansweredRequest { ended: ended.clone(), panicked: panicked.clone(), answered: false };
            let queue = queue.clone();
            drop(spawn(async move {
                let outcome = unanswered.ended.run_until_cancelled(answer).await;
                drop(budget);
                if let Some(outcome) = outcome {
                    // Closed: the caller is gone.
                    let _ =
                        unanswered.ended.run_until_cancelled(queue.send(response_frame(frame.number, outcome))).await;
                }
                unanswered.done();
                drop(held);
            }));
        }
    }
}

/// How long the other end has been silent. One timer serves many messages: it is checked only when it fires.
struct IdleTimer {
    timer: Pin<Box<Sleep>>,
    is_broken: bool,
}

impl IdleTimer {
    fn new() -> IdleTimer {
        IdleTimer { timer: Box::pin(rt::sleep(FIRST_MESSAGE_TIMEOUT)), is_broken: false }
    }

    /// The output of a future; `None` when the silence has lasted too long.
    async fn or_timeout<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                self.is_broken = true;
                return Poll::Ready(Some(output));
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                self.timer = Box::pin(rt::sleep(IDLE_TIMEOUT));
                if !std::mem::take(&mut self.is_broken) {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn response_frame(number: u64, outcome: Result<GatherList, Rejection>) -> OutgoingFrame {
    let outcome = outcome.and_then(|body| match body.len() {
        0..=BODY_BYTES_MAX => Ok(body),
        bytes => {
            let text = format!("the answer has {bytes} bytes, above the limit of {BODY_BYTES_MAX}");
            Err(Rejection::new(ErrorKind::Rejected, text))
        }
    });
    match outcome {
        Ok(body) => OutgoingFrame { kind: RpcFrameKind::Response, number, body },
        Err(refusal) => OutgoingFrame { kind: RpcFrameKind::Rejection, number, body: encode_rejection(&refusal) },
    }
}

/// Stops a link's tasks when it is dropped.
struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A request whose answer may still panic; its caller must not wait for ever.
struct UnansweredRequest {
    ended: CancellationToken,
    panicked: CancellationToken,
    answered: bool,
}

impl UnansweredRequest {
    fn done(mut self) {
        self.answered = true;
    }
}

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.panicked.cancel();
            self.ended.cancel();
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("ended", &self.ended.is_cancelled()).finish()
    }
}
