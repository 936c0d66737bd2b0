//! The calling end of a link: it sends requests and receives replies and notices.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::frame::{self, Malformed, OutgoingFrame, RpcFrameKind};
use super::outbox::{OutboxTimer, QUEUED_FRAMES_MAX, send_frames};
use super::{BODY_BYTES_MAX, PING_PERIOD, RpcError};
use crate::rt::channel::{OneshotReceiver, OneshotSender, Sender, bounded, oneshot};
use crate::rt::net::{GatherList, Link, LinkReceiver};
use crate::rt::sync::{Semaphore, SemaphorePermit};
use crate::rt::{AbortOnDrop, CancellationToken, spawn};

type CallResult = Result<Bytes, RpcError>;

/// Sends requests over one link. Clones share the link, which ends when the last of them is dropped.
#[derive(Clone)]
pub struct RpcClient {
    shared: Arc<RpcClientCore>,
    queue: Sender<OutgoingFrame>,
    _tasks: Arc<[AbortOnDrop<()>; 2]>,
}

struct RpcClientCore {
    state: Mutex<RpcClientState>,
    permits: Semaphore,
    ended: CancellationToken,
}

#[derive(Default)]
struct RpcClientState {
    ended: bool,
    next: u64,
    waiting: BTreeMap<u64, WaitingCall>,
}

struct WaitingCall {
    /// Sending has started.
    sent: bool,
    response: OneshotSender<CallResult>,
    /// Returned with the answer, not when the caller stops waiting: the server is busy until then.
    _permit: SemaphorePermit,
}

/// The answer to a request in flight. Dropping it abandons the answer, not the request.
#[derive(Debug)]
#[must_use = "the answer may be an error"]
pub struct PendingResponse {
    response: OneshotReceiver<CallResult>,
}

impl RpcClient {
    /// Takes the calling end of a link, for at most `in_flight_max` requests at a time. `noticed` is called with every notice,
    /// in order, and must not block.
    ///
    /// Panics when `in_flight_max` is 0.
    pub fn new(link: Link, in_flight_max: usize, on_notification: impl FnMut(Bytes) + Send + 'static) -> RpcClient {
        assert!(in_flight_max > 0, "a caller that may not call is a mistake");
        let (sender, receiver) = link.split();
        let (queue, to_send) = bounded(QUEUED_FRAMES_MAX);
        let shared = Arc::new(RpcClientCore {
            state: Mutex::default(),
            permits: Semaphore::new(in_flight_max),
            ended: CancellationToken::new(),
        });
        let begin = {
            let shared = Arc::clone(&shared);
            move |frames: &[OutgoingFrame]| shared.start_sending(frames)
        };
        let writing = CloseOnDrop(Arc::clone(&shared));
        let writer = spawn(async move {
            let ended = writing.0.ended.clone();
            send_frames(sender, to_send, ended, OutboxTimer::Ping(PING_PERIOD), begin).await;
            drop(writing);
        });
        let reader = spawn(receive_responses(receiver, CloseOnDrop(Arc::clone(&shared)), on_notification));
        RpcClient { shared, queue, _tasks: Arc::new([writer.abort_on_drop(), reader.abort_on_drop()]) }
    }

    /// Sends a request and waits for its answer. If the future is dropped, a request that was not queued is not sent; the
    /// answer to a queued one is ignored.
    ///
    /// # Errors
    /// [`RpcError`].
    pub async fn call(&self, request: impl Into<GatherList>) -> CallResult {
        self.start(request).await?.await
    }

    /// Queues a request, and completes once it is queued. Requests are sent in the order in which these calls complete.
    ///
    /// # Errors
    /// [`RpcError::Closed`] and [`RpcError::TooLarge`]; nothing was sent.
    pub async fn start(&self, request: impl Into<GatherList>) -> Result<PendingResponse, RpcError> {
        let body = request.into();
        let bytes = body.len();
        if bytes > BODY_BYTES_MAX {
            return Err(RpcError::TooLarge(bytes));
        }
        // The end of the link returns all permits and so wakes a caller that waits for one.
        let place = self.shared.permits.acquire().await;
        let (answer, answered) = oneshot();
        let number = {
            let mut state = self.shared.lock();
            if state.ended {
                return Err(RpcError::Closed);
            }
            let number = state.next;
            state.next += 1;
            state.waiting.insert(number, WaitingCall { sent: false, response: answer, _permit: place });
            number
        };
        let mut unqueued = UnqueuedRequest { shared: &self.shared, number, queued: false };
        let frame = OutgoingFrame { kind: RpcFrameKind::Request, number, body };
        self.queue.send(frame).await.map_err(|_| RpcError::Closed)?;
        unqueued.queued = true;
        Ok(PendingResponse { response: answered })
    }

    /// Whether the link has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// Completes when the link has ended.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Ends the link.
    pub fn end(&self) {
        self.shared.end();
    }
}

impl Future for PendingResponse {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        // Answers are dropped unsent only with the runtime itself.
        Pin::new(&mut self.response).poll(cx).map(|answer| answer.unwrap_or(Err(RpcError::Ambiguous)))
    }
}

impl RpcClientCore {
    fn lock(&self) -> MutexGuard<'_, RpcClientState> {
        // The state is consistent between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that sending starts. Returns false if the link has ended: then these requests were already reported as unsent.
    fn start_sending(&self, frames: &[OutgoingFrame]) -> bool {
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

    fn complete(&self, number: u64, outcome: CallResult) -> Result<(), Malformed> {
        let waiting = self.lock().waiting.remove(&number);
        let waiting = waiting.filter(|waiting| waiting.sent).ok_or(Malformed("an answer without a request"))?;
        // The caller may have stopped waiting.
        let _ = waiting.response.send(outcome);
        Ok(())
    }

    fn end(&self) {
        let waiting = {
            let mut state = self.lock();
            state.ended = true;
            std::mem::take(&mut state.waiting)
        };
        self.ended.cancel();
        for waiting in waiting.into_values() {
            let error = if waiting.sent { RpcError::Ambiguous } else { RpcError::Closed };
            let _ = waiting.response.send(Err(error));
        }
    }
}

/// Ends the link when it is dropped, however its task ends.
struct CloseOnDrop(Arc<RpcClientCore>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A request that has a number and is not queued yet.
struct UnqueuedRequest<'a> {
    shared: &'a RpcClientCore,
    number: u64,
    queued: bool,
}

impl Drop for UnqueuedRequest<'_> {
    fn drop(&mut self) {
        if !self.queued {
            // Bound first: its permit must not be returned under the lock.
            let waiting = self.shared.lock().waiting.remove(&self.number);
            drop(waiting);
        }
    }
}

async fn receive_responses(mut link: LinkReceiver, ending: CloseOnDrop, mut noticed: impl FnMut(Bytes) + Send) {
    let shared = &ending.0;
    while let Some(Ok(mut message)) = shared.ended.run_until_cancelled(link.receive_parts()).await {
        loop {
            let taken = match frame::next(&mut message) {
                Ok(None) => break,
                Ok(Some(frame)) => match frame.kind {
                    RpcFrameKind::Response => shared.complete(frame.number, Ok(frame.body.concat())),
                    RpcFrameKind::Rejection => frame::decode_rejection(&frame.body.concat())
                        .and_then(|refusal| shared.complete(frame.number, Err(refusal.into()))),
                    RpcFrameKind::Notification => {
                        noticed(frame.body.concat());
                        Ok(())
                    }
                    RpcFrameKind::Request => Err(Malformed("a request from the side that answers")),
                },
                Err(malformed) => Err(malformed),
            };
            if taken.is_err() {
                return;
            }
        }
    }
}

impl fmt::Debug for RpcClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Caller").field("ended", &state.ended).field("in_flight", &state.waiting.len()).finish()
    }
}
