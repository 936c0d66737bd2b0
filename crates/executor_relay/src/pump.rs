//! A session's traffic, in both directions (steps 5 to 7).

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use base::Bytes;
use base::rt;
use base::rt::channel::Closed;
use base::rt::net::{GatherList, LinkReceiver, LinkSender};
use base::rt::sync::{Semaphore, SemaphorePermit};
use futures_util::future::{Either, select};
use pushdown::{Frame, RingError};

use crate::events;
use crate::fault::{Mutant, mutant};
use crate::message::RelayMessage;

/// Bytes of frames that a session may have in its link's queue.
const QUEUED_BYTES_MAX: usize = 4 << 20;
/// For how long what the other end has sent before the link ended is still taken.
const LAST_TIME_MAX: Duration = Duration::from_secs(1);
/// How often an end looks whether there is room in its area.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// One end of an area.
pub(crate) trait RingEnd: Sync {
    /// Takes what has come for the other host: nothing, if nothing has.
    ///
    /// # Errors
    /// The area's other user broke its rules.
    fn take(&self) -> Result<Vec<Frame>, RingError>;

    /// Puts frames that have come from the other host, all of them or none. Returns whether there was room.
    fn put(&self, frames: &[Frame]) -> bool;

    /// Completes when something may have come, or has since the last call of `take`.
    ///
    /// # Errors
    /// The area's other user is gone.
    fn arrival(&self) -> impl Future<Output = Result<(), RingError>> + Send;

    /// What goes to the other end before the next frames, if anything does.
    fn aside(&self) -> Option<RelayMessage>;

    /// Takes a message that has no frames.
    ///
    /// # Errors
    /// It is none for this end.
    fn notice(&self, message: RelayMessage) -> Result<(), SessionEnd>;
}

/// Why a session ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SessionEnd {
    /// The link has ended.
    LinkLost,
    /// This end's user of the area is gone, or has broken its rules.
    AreaLost,
    /// The other end has sent what it must not send.
    Broken(&'static str),
    /// The executor has ended, for this reason.
    Ended(String),
    /// The program has ended.
    ProgramEnded,
}

impl From<RingError> for SessionEnd {
    fn from(_: RingError) -> SessionEnd {
        SessionEnd::AreaLost
    }
}

impl From<Closed> for SessionEnd {
    fn from(_: Closed) -> SessionEnd {
        SessionEnd::LinkLost
    }
}

/// Carries frames both ways until the session ends.
pub(crate) async fn pump<E: RingEnd>(end: &E, sender: &LinkSender, receiver: &mut LinkReceiver) -> SessionEnd {
    let outward = pin!(carry_out(end, sender));
    let inward = pin!(carry_in(end, receiver));
    let ended = match select(outward, inward).await {
        Either::Left((_, inward)) if mutant(Mutant::GoOnInOneDirection) => inward.await,
        // The other end may have said why before it closed the link.
        Either::Left((Err(SessionEnd::LinkLost), inward)) => {
            rt::timeout(LAST_TIME_MAX, inward).await.unwrap_or(Err(SessionEnd::LinkLost))
        }
        Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
    };
    let Err(end) = ended;
    end
}

async fn carry_out<E: RingEnd>(end: &E, sender: &LinkSender) -> Result<Infallible, SessionEnd> {
    let queue = Semaphore::new(QUEUED_BYTES_MAX);
    loop {
        if !send_frames(end, sender, &queue).await? {
            end.arrival().await?;
        }
    }
}

/// Sends the frames that have come. Returns whether there were any.
async fn send_frames<E: RingEnd>(end: &E, sender: &LinkSender, queue: &Semaphore) -> Result<bool, SessionEnd> {
    let frames = end.take()?;
    if frames.is_empty() {
        return Ok(false);
    }
    let bytes = frames.iter().map(|frame| frame.bytes.len()).sum::<usize>();
    events::RelayMessages.add(1);
    events::RelayBytes.add(bytes as u64);
    if let Some(aside) = end.aside() {
        sender.send(aside.encode()).await?;
    }
    let permit = queue.acquire_many(u32::try_from(bytes.min(QUEUED_BYTES_MAX)).unwrap_or(u32::MAX)).await;
    let message = RelayMessage::Frames(frames);
    if mutant(Mutant::Repeat) {
        sender.send(message.encode()).await?;
    }
    sender.send(counted(message.encode(), permit)).await?;
    Ok(true)
}

/// The same parts, the last of which has the permit until the link has sent it.
fn counted(parts: GatherList, permit: SemaphorePermit) -> GatherList {
    let mut parts = parts.as_slice().to_vec();
    if let Some(last) = parts.pop() {
        parts.push(Bytes::from_owner(CountedBytes { bytes: last, _permit: permit }));
    }
    parts.into()
}

/// Bytes that count for a queue.
struct CountedBytes {
    bytes: Bytes,
    _permit: SemaphorePermit,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sends what is left in an area whose user has ended: that counts.
pub(crate) async fn send_rest<E: RingEnd>(end: &E, sender: &LinkSender) -> Result<(), SessionEnd> {
    let queue = Semaphore::new(QUEUED_BYTES_MAX);
    while send_frames(end, sender, &queue).await? {}
    Ok(())
}

async fn carry_in<E: RingEnd>(end: &E, receiver: &mut LinkReceiver) -> Result<Infallible, SessionEnd> {
    loop {
        let message = RelayMessage::decode(receiver.receive().await?);
        match message.map_err(|_| SessionEnd::Broken("a malformed message"))? {
            RelayMessage::Frames(frames) if mutant(Mutant::PutOneByOne) => {
                for frame in frames {
                    put(end, &[frame]).await;
                }
            }
            RelayMessage::Frames(frames) => put(end, &frames).await,
            other => end.notice(other)?,
        }
    }
}

/// Puts frames as soon as there is room. If the area's other user is gone, the other direction, or the end that watches its process, ends the session.
async fn put<E: RingEnd>(end: &E, frames: &[Frame]) {
    while !end.put(frames) && !mutant(Mutant::DropWithoutRoom) {
        rt::sleep(ROOM_PAUSE).await;
    }
}
