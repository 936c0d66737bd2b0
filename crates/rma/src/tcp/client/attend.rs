//! The background task of a client's connection. A waiting caller polls the socket itself for a short time. After that,
//! the task waits on the socket in the caller's place, through the runtime's reactor, and wakes the caller.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::TcpClient;
use crate::tcp::pipe::SocketPipe;
use crate::tcp::{CLOSE_TIMEOUT, clock};

/// How often the task serves a connection on which no waiter waits.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// Serves the waiters that no longer poll, until the connection ends.
pub(super) async fn attend(attending: AttendGuard) {
    let client = &attending.0;
    loop {
        if base::rt::timeout(POLL_PERIOD, client.wanted.notified()).await.is_err() {
            // Messages that no receiver waits for must not fill the socket buffers for long: the host would count us as dead.
            let _ = client.pump();
        } else if client.attend_once().await.is_break() {
            break;
        }
    }
}

/// Ends the connection when the task that serves it ends, or its runtime does.
pub(super) struct AttendGuard(pub(super) Arc<TcpClient>);

impl Drop for AttendGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl TcpClient {
    fn wants_write(&self) -> bool {
        !self.peer.outgoing().is_empty() || self.peer.pipe.wants_write()
    }

    /// Whether the task must wait for something to arrive.
    fn wants_read(&self) -> bool {
        let (asked, next_reply) = {
            let posted = self.posted();
            (posted.asked, posted.in_flight.front().map(|pending| pending.sequence))
        };
        // A partly received reply is no longer in flight. While a connection ends, nothing but this task reads.
        let verbs =
            next_reply.is_some_and(|next| next < asked) || (1..=asked).contains(&self.partial.load(Ordering::Acquire));
        let message = self.receiver_asked.load(Ordering::Acquire) && self.peer.is_awaited();
        // Credit for queued messages arrives this way too.
        verbs || message || !self.peer.outgoing().is_done()
    }

    /// Waits on the socket as long as there is something to wait for.
    async fn attend_once(&self) -> std::ops::ControlFlow<()> {
        use std::ops::ControlFlow::{Break, Continue};
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: the descriptor belongs to `self.peer`, which is borrowed for longer than this value lives, and nothing
        // else closes it; `Descriptor` always gives the same.
        #[allow(unsafe_code)]
        let registered = unsafe { AsyncFd::register_with_interest(Descriptor(&self.peer.pipe), interest) };
        let Ok(descriptor) = registered else {
            self.fail();
            return Break(());
        };
        let mut until = None;
        loop {
            if self.posted().lost {
                return Break(());
            }
            if self.closing.load(Ordering::Acquire) {
                if until.is_none() && self.peer.outgoing().is_done() && !self.peer.pipe.wants_write() {
                    self.peer.pipe.finish();
                    until = Some(clock() + CLOSE_TIMEOUT);
                }
            } else if !self.wants_write() && !self.wants_read() {
                return Continue(());
            }
            let interest = if self.wants_write() { interest } else { Interest::READABLE };
            let progress = descriptor.async_io(interest, |_| self.pump());
            let wanted = self.wanted.notified();
            let either = first_of(progress, wanted);
            let outcome = match until {
                None => either.await,
                Some(until) => {
                    let left = until.saturating_duration_since(clock());
                    let Ok(outcome) = base::rt::timeout(left, either).await else { return Break(()) };
                    outcome
                }
            };
            if matches!(outcome, Some(Err(_))) {
                return Break(());
            }
        }
    }

    /// Writes and reads as much as possible; `WouldBlock` when neither changed what the task waits for.
    fn pump(&self) -> io::Result<()> {
        let before = (self.wants_write(), self.wants_read());
        let read = self.take_in(&mut self.input(), &|| false)?;
        self.write_out()?;
        let wants = (self.wants_write(), self.wants_read());
        let rests = wants == (false, false) && !self.closing.load(Ordering::Acquire);
        if read || before != wants || rests || self.peer.outgoing().is_closed() {
            return Ok(());
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// The socket in the form that the reactor needs.
struct Descriptor<'a>(&'a SocketPipe);

impl std::os::fd::AsRawFd for Descriptor<'_> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.socket().as_raw_fd()
    }
}

/// `Some` of the first future's output, or `None` when the second completes before it.
async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    std::future::poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => second.as_mut().poll(cx).map(|()| None),
    })
    .await
}
