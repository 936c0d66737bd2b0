//! Sends frames; small frames that wait at the same time travel in one message of the link.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::frame::{OutgoingFrame, message};
use crate::rt::channel::Receiver;
use crate::rt::net::{GatherList, LinkSender};
use crate::rt::{self, CancellationToken};

/// Frames that wait to be sent; further senders wait for space.
pub const QUEUED_FRAMES_MAX: usize = 64;
/// A message with this many bytes takes no further frame.
const MESSAGE_BYTES_SOFT_MAX: usize = 64 << 10;

/// What a sender does besides sending.
pub enum OutboxTimer {
    /// Sends a ping when nothing was sent for this time, as a keepalive.
    Ping(Duration),
    /// Gives up when the receiver takes nothing for this time, extended in proportion to the message.
    SendTimeout(Duration),
}

/// The rate at which the slowest receiver must take bytes.
const BYTES_PER_SECOND_MIN: usize = 64 << 10;

/// Sends the frames from `queue` until the queue or the link ends, or `ended` is stopped. Before a message is given to the
/// link, `begin` is called with its frames and may forbid sending them.
pub async fn send_frames(
    link: LinkSender,
    mut queue: Receiver<OutgoingFrame>,
    ended: CancellationToken,
    timer: OutboxTimer,
    mut begin: impl FnMut(&[OutgoingFrame]) -> bool,
) {
    let mut waiting = Vec::with_capacity(QUEUED_FRAMES_MAX);
    let period = if let OutboxTimer::Ping(period) = timer { period } else { Duration::MAX };
    let mut ping = Box::pin(rt::sleep(period));
    let mut has_sent = false;
    loop {
        let received = {
            let mut received = pin!(ended.run_until_cancelled(queue.recv_many(&mut waiting, QUEUED_FRAMES_MAX)));
            std::future::poll_fn(|cx| match received.as_mut().poll(cx) {
                Poll::Ready(received) => Poll::Ready(Some(received)),
                Poll::Pending => ping.as_mut().poll(cx).map(|()| None),
            })
            .await
        };
        match received {
            Some(None | Some(0)) => return,
            Some(Some(_)) => {}
            None => {
                ping = Box::pin(rt::sleep(period));
                if !std::mem::take(&mut has_sent)
                    && !matches!(ended.run_until_cancelled(link.send(GatherList::default())).await, Some(Ok(())))
                {
                    return;
                }
                continue;
            }
        }
        has_sent = true;
        let mut rest = waiting.as_slice();
        while !rest.is_empty() {
            let (frames, after) = rest.split_at(frames_per_message(rest));
            if !begin(frames) {
                return;
            }
            let message = message(frames);
            let send_timeout = match timer {
                OutboxTimer::Ping(_) => None,
                OutboxTimer::SendTimeout(timeout) => {
                    Some(timeout + Duration::from_secs((message.len() / BYTES_PER_SECOND_MIN) as u64))
                }
            };
            match ended.run_until_cancelled(within(send_timeout, link.send(message))).await {
                Some(Some(Ok(()))) => rest = after,
                _ => return,
            }
        }
        waiting.clear();
    }
}

/// The output of a future, if it completes within the limit. The limit costs nothing if the future completes at once.
async fn within<T>(limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let at_once = std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    });
    match (at_once.await, limit) {
        (Some(output), _) => Some(output),
        (None, None) => Some(future.await),
        (None, Some(limit)) => rt::timeout(limit, future).await.ok(),
    }
}

/// The number of these frames that go into one message.
fn frames_per_message(frames: &[OutgoingFrame]) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for frame in frames {
        if count > 0 && bytes + frame.bytes() > MESSAGE_BYTES_SOFT_MAX {
            break;
        }
        count += 1;
        bytes += frame.bytes();
    }
    count
}
