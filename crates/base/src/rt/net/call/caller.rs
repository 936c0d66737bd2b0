//! The side that asks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::frame::{self, Kind, Malformed, Outgoing};
use super::outbox::{Care, WAITING_FRAMES_MAX, send_frames};
use super::{BODY_BYTES_MAX, CallError, PING_PERIOD};
use crate::rt::channel::{OneshotReceiver, OneshotSender, Sender, bounded, oneshot};
use crate::rt::net::{Link, LinkReceiver, Parts};
use crate::rt::sync::{Permit, Semaphore};
use crate::rt::{AbortOnDrop, Stop, spawn};

type Outcome = Result<Bytes, CallError>;

/// Sends requests over one link. Clones share the link, which ends with the last of them.
#[derive(Clone)]
pub struct Caller {
    shared: Arc<Shared>,
    queue: Sender<Outgoing>,
    _tasks: Arc<[AbortOnDrop<()>; 2]>,
}

struct Shared {
    state: Mutex<State>,
    places: Semaphore,
    ended: Stop,
}

#[derive(Default)]
struct State {
    ended: bool,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

struct Waiting {
    /// Sending has begun.
    sent: bool,
    answer: OneshotSender<Outcome>,
    /// Given back with the answer, not with the caller's patience: the server is busy until then.
    _place: Permit,
}

/// The answer to a request that is on its way. Dropping it gives the answer up, not the request.
#[derive(Debug)]
#[must_use = "the answer may be an error"]
pub struct Pending {
    answer: OneshotReceiver<Outcome>,
}

impl Caller {
    /// Takes the calling end of a link, for at most `in_flight_max` requests at a time. `noticed` is told every notice, in
    /// order, and must not wait.
    ///
    /// Panics when `in_flight_max` is 0.
    pub fn new(link: Link, in_flight_max: usize, noticed: impl FnMut(Bytes) + Send + 'static) -> Caller {
        assert!(in_flight_max > 0, "a caller that may not call is a mistake");
        let (sender, receiver) = link.split();
        let (queue, to_send) = bounded(WAITING_FRAMES_MAX);
        let shared =
            Arc::new(Shared { state: Mutex::default(), places: Semaphore::new(in_flight_max), ended: Stop::new() });
        let begin = {
            let shared = Arc::clone(&shared);
            move |frames: &[Outgoing]| shared.begin_sending(frames)
        };
        let writing = Ending(Arc::clone(&shared));
        let writer = spawn(async move {
            let ended = writing.0.ended.clone();
            send_frames(sender, to_send, ended, Care::Ping(PING_PERIOD), begin).await;
            drop(writing);
        });
        let reader = spawn(receive_answers(receiver, Ending(Arc::clone(&shared)), noticed));
        Caller { shared, queue, _tasks: Arc::new([writer.abort_on_drop(), reader.abort_on_drop()]) }
    }

    /// Sends a request and waits for its answer. Dropping the future gives up what it waits for: a request that was not
    /// queued is not sent, the answer to a later one is not looked at.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, request: impl Into<Parts>) -> Outcome {
        self.begin(request).await?.await
    }

    /// Queues a request, and completes once it is queued. Requests are sent in the order in which this completes.
    ///
    /// # Errors
    /// [`CallError::Closed`] and [`CallError::TooLarge`]; nothing was sent.
    pub async fn begin(&self, request: impl Into<Parts>) -> Result<Pending, CallError> {
        let body = request.into();
        let bytes = body.len();
        if bytes > BODY_BYTES_MAX {
            return Err(CallError::TooLarge(bytes));
        }
        // Whoever waits for a place is woken by the end of the link, which gives all of them back.
        let place = self.shared.places.acquire().await;
        let (answer, answered) = oneshot();
        let number = {
            let mut state = self.shared.lock();
            if state.ended {
                return Err(CallError::Closed);
            }
            let number = state.next;
            state.next += 1;
            state.waiting.insert(number, Waiting { sent: false, answer, _place: place });
            number
        };
        let mut unqueued = Unqueued { shared: &self.shared, number, queued: false };
        let frame = Outgoing { kind: Kind::Request, number, body };
        self.queue.send(frame).await.map_err(|_| CallError::Closed)?;
        unqueued.queued = true;
        Ok(Pending { answer: answered })
    }

    /// Whether the link has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.is_stopped()
    }

    /// Completes when the link has ended.
    pub async fn ended(&self) {
        self.shared.ended.stopped().await;
    }

    /// Ends the link.
    pub fn end(&self) {
        self.shared.end();
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        // Answers are dropped unsent only with the runtime itself.
        Pin::new(&mut self.answer).poll(cx).map(|answer| answer.unwrap_or(Err(CallError::Ambiguous)))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that sending begins, unless the link has ended: then these requests were already said to be unsent.
    fn begin_sending(&self, frames: &[Outgoing]) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        for frame in frames {
            if let Some(waiting) = state.waiting.get_mut(&frame.number) {
                waiting.sent = true;
            }
        }
        true
    }

    fn answer(&self, number: u64, outcome: Outcome) -> Result<(), Malformed> {
        let waiting = self.lock().waiting.remove(&number);
        let waiting = waiting.filter(|waiting| waiting.sent).ok_or(Malformed("an answer to nothing"))?;
        // A caller that has gone no longer wants to know.
        let _ = waiting.answer.send(outcome);
        Ok(())
    }

    fn end(&self) {
        let waiting = {
            let mut state = self.lock();
            state.ended = true;
            std::mem::take(&mut state.waiting)
        };
        self.ended.stop();
        for waiting in waiting.into_values() {
            let error = if waiting.sent { CallError::Ambiguous } else { CallError::Closed };
            let _ = waiting.answer.send(Err(error));
        }
    }
}

/// Ends the link when it is dropped, however its task ends.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A request that has a number and is not queued yet.
struct Unqueued<'a> {
    shared: &'a Shared,
    number: u64,
    queued: bool,
}

impl Drop for Unqueued<'_> {
    fn drop(&mut self) {
        if !self.queued {
            // Bound first: giving back its place must not happen under the lock.
            let waiting = self.shared.lock().waiting.remove(&self.number);
            drop(waiting);
        }
    }
}

async fn receive_answers(mut link: LinkReceiver, ending: Ending, mut noticed: impl FnMut(Bytes) + Send) {
    let shared = &ending.0;
    while let Some(Ok(mut message)) = shared.ended.or_stopped(link.receive_parts()).await {
        loop {
            let taken = match frame::next(&mut message) {
                Ok(None) => break,
                Ok(Some(frame)) => match frame.kind {
                    Kind::Reply => shared.answer(frame.number, Ok(frame.body.concat())),
                    Kind::Refusal => frame::decode_refusal(&frame.body.concat())
                        .and_then(|refusal| shared.answer(frame.number, Err(refusal.into()))),
                    Kind::Notice => {
                        noticed(frame.body.concat());
                        Ok(())
                    }
                    Kind::Request => Err(Malformed("a request from the side that answers")),
                },
                Err(malformed) => Err(malformed),
            };
            if taken.is_err() {
                return;
            }
        }
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Caller").field("ended", &state.ended).field("in_flight", &state.waiting.len()).finish()
    }
}
