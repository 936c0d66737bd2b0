//! The side that answers.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use super::frame::{self, Kind, Malformed, Outgoing, encode_refusal};
use super::outbox::{Care, WAITING_FRAMES_MAX, send_frames};
use super::{BODY_BYTES_MAX, FIRST_MESSAGE_MAX, IDLE_MAX, LINK_BYTES_MAX, Refusal, SEND_TIME_MAX};
use crate::ErrorKind;
use crate::rt::channel::{Closed, Sender, bounded};
use crate::rt::net::{Link, Parts, Place};
use crate::rt::sync::Semaphore;
use crate::rt::{self, Sleep, Stop, spawn};

/// What becomes of a request, some time.
pub type Answer = Pin<Box<dyn Future<Output = Result<Parts, Refusal>> + Send>>;

/// Answers the requests of one link.
pub trait Handler: Send + Sync + 'static {
    /// Told once, before the first request, how to send notices over this link.
    fn opened(&self, notifier: Notifier) {
        drop(notifier);
    }

    /// Takes a request. Called in the order of sending and must not wait; the answers run side by side. An answer is
    /// dropped when its link ends: what must be finished all the same is handed to somebody else.
    fn request(&self, request: Parts) -> Answer;
}

/// Why a server stopped serving a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The link ended.
    Link,
    /// It was asked to stop.
    Stopped,
    /// The other side sent bytes that are no request.
    Malformed(&'static str),
    /// The handler panicked.
    Panicked,
    /// The other side said nothing for too long.
    Idle,
    /// A newer link of the same holder took its place.
    Displaced,
}

/// Sends notices over one link.
#[derive(Clone)]
pub struct Notifier {
    queue: Sender<Outgoing>,
    ended: Stop,
}

impl Notifier {
    /// Waits for room, then queues a notice. Dropping the future before it completes sends nothing.
    ///
    /// # Errors
    /// [`Closed`] when the link has ended. A notice that was queued may be lost all the same.
    pub async fn notify(&self, notice: impl Into<Parts>) -> Result<(), Closed> {
        let body = notice.into();
        assert!(body.len() <= BODY_BYTES_MAX, "notices are small");
        let frame = Outgoing { kind: Kind::Notice, number: 0, body };
        self.ended.or_stopped(self.queue.send(frame)).await.unwrap_or(Err(Closed))
    }

    /// Completes when the link has ended.
    pub async fn ended(&self) {
        self.ended.stopped().await;
    }
}

/// Serves one link until it ends or `stop` is stopped; at most `concurrency_max` requests at a time.
///
/// Dropping the future ends the link.
pub async fn serve(link: Link, handler: Arc<dyn Handler>, concurrency_max: usize, stop: Stop) -> Ended {
    serve_at(link, None, handler, concurrency_max, stop).await
}

/// As [`serve`], for a link that has a place: it ends when the place is displaced, and the bytes of its requests count
/// against the budget of its organisation.
///
/// Dropping the future ends the link and frees the place.
pub async fn serve_in(
    (link, place): (Link, Place),
    handler: Arc<dyn Handler>,
    concurrency_max: usize,
    stop: Stop,
) -> Ended {
    let displaced = place.displaced().clone();
    let serving = serve_at(link, Some(Arc::new(place)), handler, concurrency_max, stop);
    displaced.or_stopped(serving).await.unwrap_or(Ended::Displaced)
}

async fn serve_at(
    link: Link,
    place_of_link: Option<Arc<Place>>,
    handler: Arc<dyn Handler>,
    concurrency_max: usize,
    stop: Stop,
) -> Ended {
    assert!(concurrency_max > 0, "a server that may not work is a mistake");
    let (sender, mut receiver) = link.split();
    let (queue, to_send) = bounded(WAITING_FRAMES_MAX);
    let ending = Ending(Stop::new());
    let ended = &ending.0;
    let writing = Ending(ended.clone());
    let _writer = spawn(async move {
        let ended = writing.0.clone();
        send_frames(sender, to_send, ended, Care::Patience(SEND_TIME_MAX), |_| true).await;
        drop(writing);
    })
    .abort_on_drop();
    let panicked = Stop::new();
    let places = Semaphore::new(concurrency_max);
    let bytes = Semaphore::new(LINK_BYTES_MAX);
    let mut silence = Silence::new();
    handler.opened(Notifier { queue: queue.clone(), ended: ended.clone() });
    loop {
        let received = silence.or_too_long(stop.or_stopped(ended.or_stopped(receiver.receive_parts()))).await;
        let mut message = match received {
            None if places.available() < concurrency_max => continue,
            None => return Ended::Idle,
            Some(None) => return Ended::Stopped,
            Some(Some(Some(Ok(message)))) => message,
            Some(Some(_)) if panicked.is_stopped() => return Ended::Panicked,
            Some(Some(_)) => return Ended::Link,
        };
        // One reservation a message: a short body keeps the memory of the whole message it came in.
        let budget = place_of_link.as_ref().map(|place| place.reserve(message.len())).transpose();
        let budget = budget.map(|budget| budget.flatten().map(Arc::new));
        receiver.release();
        loop {
            let frame = match frame::next(&mut message) {
                Ok(None) => break,
                Ok(Some(frame)) if frame.kind == Kind::Request => frame,
                Ok(Some(_)) => return Ended::Malformed("an answer from the side that asks"),
                Err(Malformed(what)) => return Ended::Malformed(what),
            };
            // All of a longer body, so that it is taken when it is alone.
            let length = frame.body.len();
            let weight = u32::try_from(length.min(LINK_BYTES_MAX)).expect("the limit is below 4 GiB");
            let room = async { (places.acquire().await, bytes.acquire_many(weight).await) };
            let held = match stop.or_stopped(ended.or_stopped(room)).await {
                None => return Ended::Stopped,
                Some(None) => break,
                Some(Some(held)) => held,
            };
            let budget = match &budget {
                Ok(budget) => budget.clone(),
                Err(over) => {
                    let refusal = Refusal::new(ErrorKind::Retry, over.to_string());
                    let refused = queue.send(reply(frame.number, Err(refusal)));
                    match stop.or_stopped(ended.or_stopped(refused)).await {
                        None => return Ended::Stopped,
                        Some(_) => continue,
                    }
                }
            };
            let answer = handler.request(frame.body);
            let unanswered = Unanswered { ended: ended.clone(), panicked: panicked.clone(), answered: false };
            let queue = queue.clone();
            drop(spawn(async move {
                let outcome = unanswered.ended.or_stopped(answer).await;
                drop(budget);
                if let Some(outcome) = outcome {
                    // Closed: nobody is left to answer.
                    let _ = unanswered.ended.or_stopped(queue.send(reply(frame.number, outcome))).await;
                }
                unanswered.done();
                drop(held);
            }));
        }
    }
}

/// How long the other side has said nothing. One timer runs for many messages: it is looked at when it fires.
struct Silence {
    timer: Pin<Box<Sleep>>,
    is_broken: bool,
}

impl Silence {
    fn new() -> Silence {
        Silence { timer: Box::pin(rt::sleep(FIRST_MESSAGE_MAX)), is_broken: false }
    }

    /// What comes of a future; nothing when the silence has lasted too long.
    async fn or_too_long<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                self.is_broken = true;
                return Poll::Ready(Some(output));
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                self.timer = Box::pin(rt::sleep(IDLE_MAX));
                if !std::mem::take(&mut self.is_broken) {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn reply(number: u64, outcome: Result<Parts, Refusal>) -> Outgoing {
    let outcome = outcome.and_then(|body| match body.len() {
        0..=BODY_BYTES_MAX => Ok(body),
        bytes => {
            let text = format!("the answer has {bytes} bytes, above the limit of {BODY_BYTES_MAX}");
            Err(Refusal::new(ErrorKind::Rejected, text))
        }
    });
    match outcome {
        Ok(body) => Outgoing { kind: Kind::Reply, number, body },
        Err(refusal) => Outgoing { kind: Kind::Refusal, number, body: encode_refusal(&refusal) },
    }
}

/// Stops a link's tasks when it is dropped.
struct Ending(Stop);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A request whose answer may yet panic; the caller must not wait for it for ever.
struct Unanswered {
    ended: Stop,
    panicked: Stop,
    answered: bool,
}

impl Unanswered {
    fn done(mut self) {
        self.answered = true;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if !self.answered {
            self.panicked.stop();
            self.ended.stop();
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("ended", &self.ended.is_stopped()).finish()
    }
}
