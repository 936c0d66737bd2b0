//! Sending frames: those that wait together travel together.

use super::frame::{Outgoing, message};
use crate::rt::Stop;
use crate::rt::channel::Receiver;
use crate::rt::net::LinkSender;

/// Frames that wait to be sent; further ones wait for room.
pub const WAITING_FRAMES_MAX: usize = 64;
/// A message that has so many bytes takes no further frame.
const MESSAGE_BYTES_SOFT_MAX: usize = 64 << 10;

/// Sends what comes through `queue` until it ends, the link does, or `ended` is stopped. Before a message is given to the
/// link, `begin` is told the frames in it and may forbid them.
pub async fn send_frames(
    link: LinkSender,
    mut queue: Receiver<Outgoing>,
    ended: Stop,
    mut begin: impl FnMut(&[Outgoing]) -> bool,
) {
    let mut waiting = Vec::with_capacity(WAITING_FRAMES_MAX);
    loop {
        match ended.or_stopped(queue.recv_many(&mut waiting, WAITING_FRAMES_MAX)).await {
            None | Some(0) => return,
            Some(_) => {}
        }
        let mut rest = waiting.as_slice();
        while !rest.is_empty() {
            let (frames, after) = rest.split_at(together(rest));
            if !begin(frames) {
                return;
            }
            match ended.or_stopped(link.send(message(frames))).await {
                Some(Ok(())) => rest = after,
                _ => return,
            }
        }
        waiting.clear();
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
