//! Sending frames: those that wait together travel together.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::frame::{Outgoing, message};
use crate::rt::channel::Receiver;
use crate::rt::net::{LinkSender, Parts};
use crate::rt::{self, Stop};

/// Frames that wait to be sent; further ones wait for room.
pub const WAITING_FRAMES_MAX: usize = 64;
/// A message that has so many bytes takes no further frame.
const MESSAGE_BYTES_SOFT_MAX: usize = 64 << 10;

/// What a sender does besides sending.
pub enum Care {
    /// Shows that it is there: sends a ping when it had nothing else to send for so long.
    Ping(Duration),
    /// Gives a receiver up that takes nothing for so long, and longer in proportion to what it is to take.
    Patience(Duration),
}

/// Bytes that the slowest receiver must take in a second.
const BYTES_A_SECOND_MIN: usize = 64 << 10;

/// Sends what comes through `queue` until it ends, the link does, or `ended` is stopped. Before a message is given to the
/// link, `begin` is told the frames in it and may forbid them.
pub async fn send_frames(
    link: LinkSender,
    mut queue: Receiver<Outgoing>,
    ended: Stop,
    care: Care,
    mut begin: impl FnMut(&[Outgoing]) -> bool,
) {
    let mut waiting = Vec::with_capacity(WAITING_FRAMES_MAX);
    let period = if let Care::Ping(period) = care { period } else { Duration::MAX };
    let mut ping = Box::pin(rt::sleep(period));
    let mut has_sent = false;
    loop {
        let received = {
            let mut received = pin!(ended.or_stopped(queue.recv_many(&mut waiting, WAITING_FRAMES_MAX)));
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
                    && !matches!(ended.or_stopped(link.send(Parts::default())).await, Some(Ok(())))
                {
                    return;
                }
                continue;
            }
        }
        has_sent = true;
        let mut rest = waiting.as_slice();
        while !rest.is_empty() {
            let (frames, after) = rest.split_at(together(rest));
            if !begin(frames) {
                return;
            }
            let message = message(frames);
            let patience = match care {
                Care::Ping(_) => None,
                Care::Patience(patience) => {
                    Some(patience + Duration::from_secs((message.len() / BYTES_A_SECOND_MIN) as u64))
                }
            };
            match ended.or_stopped(within(patience, link.send(message))).await {
                Some(Some(Ok(()))) => rest = after,
                _ => return,
            }
        }
        waiting.clear();
    }
}

/// What comes of a future, if it takes no longer than that. The limit costs nothing where the future need not wait.
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

/// How many of these frames go into one message.
fn together(frames: &[Outgoing]) -> usize {
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
