//! A session's traffic, in both directions (steps 5 to 7).

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use base::rt;
use base::rt::channel::Closed;
use base::rt::net::{LinkReceiver, LinkSender};
use futures_util::future::{Either, select};
use pushdown::{Frame, RingError};

use crate::events;
use crate::fault::{Mutant, mutant};
use crate::message::RelayMessage;

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
        Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
    };
    let Err(end) = ended;
    end
}

async fn carry_out<E: RingEnd>(end: &E, sender: &LinkSender) -> Result<Infallible, SessionEnd> {
    loop {
        let frames = end.take()?;
        if frames.is_empty() {
            end.arrival().await?;
            continue;
        }
        events::RelayMessages.add(1);
        events::RelayBytes.add(frames.iter().map(|frame| frame.bytes.len() as u64).sum());
        if let Some(aside) = end.aside() {
            sender.send(aside.encode()).await?;
        }
        let message = RelayMessage::Frames(frames);
        if mutant(Mutant::Repeat) {
            sender.send(message.encode()).await?;
        }
        sender.send(message.encode()).await?;
    }
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
