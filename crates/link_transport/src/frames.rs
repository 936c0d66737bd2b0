//! Links over a byte stream: the protocol that follows the connection's set-up, the same for TCP and TLS.
//!
//! ```text
//! each side first:  "HDLLINK" | version:u8 = 1
//! then frames:      length:u32 le | kind:u8 | 0:3 | length bytes
//! ```
//!
//! 1. The sending half puts messages into a bounded queue. A task of the link takes all queued messages and writes
//!    headers and messages together, without copying, in as few calls as the medium allows.
//! 2. The receiving half reads in the receiver's task. Messages are slices of the read buffer.
//! 3. After a sending half is dropped, its direction ends once the queue is written. When a receiving half is dropped,
//!    the writing task sends a frame of kind "stop"; once the other side has read it, sends fail there. For a while
//!    this side still reads and discards the data that arrives. If it did not, the medium could destroy data in flight
//!    in the other direction.
//! 4. A message may need a larger read buffer than usual. That buffer is charged to the other side's organisation
//!    ([`ReceiveAccount`]) until the receiver asks for the next message. A link ends if a message exceeds the
//!    organisation's budget, or if the rest of a message arrives more slowly than [`ARRIVAL_BYTES_PER_SECOND_MIN`].
//!
//! Invariant: for a message of any claimed length this side reserves at most [`FIRST_RESERVE_BYTES`] or as many bytes
//! as have arrived, whichever is more. It rejects lengths above [`FRAME_BYTES_MAX`].
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;
use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::Principal;
use base::rt::channel::{Closed, Receiver, Sender, TrySendError, bounded};
use base::rt::net::{
    BoxFuture, GatherList, LINK_MESSAGES_MAX, Link, LinksOverdrawn, LinksStalled, ReceiveAccount, ReceiveHalf,
    SendHalf, UNFINISHED_BYTES_MAX,
};
use base::rt::sync::Notify;
use base::rt::{Instant, Sleep};
use base::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum bytes of one message: the largest block, with room to spare.
pub const FRAME_BYTES_MAX: usize = 128 << 20;
/// Bytes reserved for a message before any of it has arrived.
const FIRST_RESERVE_BYTES: usize = 1 << 20;
/// Bytes by which the read buffer grows when no long message is arriving.
const READ_BYTES: usize = 64 << 10;
/// Maximum of buffers in one write.
const SLICES_MAX: usize = 64;
/// How long data for a dropped receiver is discarded before the connection is cut.
const LINGER: Duration = Duration::from_secs(5);
/// A message that has begun may pause for this long, and gets this much time before its rate counts.
const ARRIVAL_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The least rate of an arriving message; a slower link ends. The time counts from when the receiver waits for the
/// rest.
const ARRIVAL_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

const _: () = assert!((FRAME_BYTES_MAX + READ_BYTES) as u64 <= UNFINISHED_BYTES_MAX, "the longest message must fit");

const PREFACE: [u8; 8] = *b"HDLLINK\x01";
const HEADER_BYTES: usize = 8;
const KIND_MESSAGE: u8 = 0;
const KIND_STOP: u8 = 1;

/// Exchanges the prefaces, then makes a link of both halves.
///
/// # Errors
/// `InvalidData` when the other side speaks another protocol; any error of the medium.
pub async fn establish<R, W>(mut reader: R, mut writer: W, peer: Option<Principal>) -> io::Result<Link>
where
    R: AsyncRead + Send + Sync + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    writer.write_all(&PREFACE).await?;
    writer.flush().await?;
    let mut theirs = [0; PREFACE.len()];
    reader.read_exact(&mut theirs).await?;
    if theirs[..7] != PREFACE[..7] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side does not speak the link protocol"));
    }
    if theirs[7] != PREFACE[7] {
        let message = format!(
            "the other side speaks version {} of links, this one {}; run the same release on both",
            theirs[7], PREFACE[7]
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let (queue, messages) = bounded(LINK_MESSAGES_MAX);
    let state = Arc::new(FrameLinkCore::default());
    base::rt::spawn(write_until_closed(writer, messages, Arc::clone(&state)));
    let sender = StreamSender { queue, state: Arc::clone(&state) };
    let receiver = StreamReceiver {
        reader: Some(reader),
        buffer: BytesMut::new(),
        state,
        ended: false,
        arriving: None,
        waiting: ArrivalDeadline::at_most(ARRIVAL_PAUSE_MAX),
    };
    let link = Link::new(Box::new(sender), Box::new(receiver), None);
    Ok(match peer {
        Some(principal) => link.with_principal(principal),
        None => link,
    })
}

/// What both halves and the writing task share.
#[derive(Default)]
struct FrameLinkCore {
    /// The other side wants no more messages, or the connection is lost.
    rejected: AtomicBool,
    /// Our receiver was dropped, and the other side must be told to stop.
    stopping: AtomicBool,
    /// Wakes the writing task for either.
    changed: Notify,
    /// The writing task has ended and closed its direction.
    written: Notify,
}

impl FrameLinkCore {
    fn reject(&self) {
        self.rejected.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn is_rejected(&self) -> bool {
        self.rejected.load(Ordering::Acquire)
    }
}

struct StreamSender {
    queue: Sender<GatherList>,
    state: Arc<FrameLinkCore>,
}

impl SendHalf for StreamSender {
    fn try_send(&self, message: GatherList) -> Result<(), TrySendError<GatherList>> {
        if self.state.is_rejected() || message.len() > FRAME_BYTES_MAX {
            return Err(TrySendError::Closed(message));
        }
        self.queue.try_send(message)
    }

    fn send(&self, message: GatherList) -> BoxFuture<'_, Result<(), Closed>> {
        Box::pin(self.queue.send(message))
    }
}

/// Writes queued messages until the queue closes, the other side refuses more, or the connection is lost.
async fn write_until_closed<W>(mut writer: W, mut messages: Receiver<GatherList>, state: Arc<FrameLinkCore>)
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut batch = Vec::with_capacity(LINK_MESSAGES_MAX);
    let mut told = false;
    let mut open = true;
    while open && !state.is_rejected() {
        let tell = !told && state.stopping.load(Ordering::Acquire);
        if !tell {
            let changed = state.changed.notified();
            let received = messages.recv_many(&mut batch, LINK_MESSAGES_MAX);
            open = match first_of(received, changed).await {
                Some(0) => false,
                Some(_) => true,
                None => continue,
            };
        }
        told |= tell;
        if write_batch(&mut writer, &mut batch, tell).await.is_err() {
            state.reject();
        }
    }
    // A receiver dropped together with its sender also sends the stop: the other side may still be sending.
    if !told && !state.is_rejected() && state.stopping.load(Ordering::Acquire) {
        let _ = write_batch(&mut writer, &mut batch, true).await;
    }
    messages.close();
    let _ = writer.shutdown().await;
    state.written.notify_one();
}

/// `Some` of the first future's output, or `None` when the second completes before it. The first wins a tie.
async fn first_of<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => second.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Writes all messages of the batch, and a stop frame if `stop`, without copying them.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
async fn write_batch<W>(writer: &mut W, batch: &mut Vec<GatherList>, stop: bool) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut parts: VecDeque<Bytes> = VecDeque::with_capacity(2 * batch.len() + 1);
    // One allocation holds the headers of the whole batch.
    let mut headers = BytesMut::with_capacity((batch.len() + 1) * HEADER_BYTES);
    for message in batch.drain(..) {
        headers.extend_from_slice(&header(message.len(), KIND_MESSAGE));
        parts.push_back(headers.split().freeze());
        parts.extend(message.as_slice().iter().filter(|part| !part.is_empty()).cloned());
    }
    if stop {
        headers.extend_from_slice(&header(0, KIND_STOP));
        parts.push_back(headers.split().freeze());
    }
    while !parts.is_empty() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = parts.len().min(SLICES_MAX);
        for (slice, part) in slices.iter_mut().zip(&parts) {
            *slice = IoSlice::new(part);
        }
        let mut written = writer.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(front) = parts.front_mut() {
            if written < front.len() {
                let _ = front.split_to(written);
                break;
            }
            written -= front.len();
            parts.pop_front();
        }
    }
    writer.flush().await
}

fn header(length: usize, kind: u8) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(length).expect("messages are bounded by FRAME_BYTES_MAX").to_le_bytes();
    [length[0], length[1], length[2], length[3], kind, 0, 0, 0]
}

/// The frame at the start of a read buffer.
#[derive(PartialEq, Eq, Debug)]
pub enum DecodedFrame {
    /// A whole message, without its header.
    Message(Bytes),
    /// The other side wants no more messages.
    Stop,
    /// More bytes are needed; reserve room for this many.
    Incomplete(usize),
}

/// Takes the next frame off a read buffer.
///
/// # Errors
/// `InvalidData` when the bytes are not a frame.
pub fn decode(buffer: &mut BytesMut) -> io::Result<DecodedFrame> {
    let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidData, message));
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(DecodedFrame::Incomplete(READ_BYTES)) };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let kind = header[4];
    if header[5..] != [0; 3] || length > FRAME_BYTES_MAX {
        return invalid("a frame that is too long or has reserved bytes set");
    }
    match kind {
        KIND_STOP if length == 0 => {
            let _ = buffer.split_to(HEADER_BYTES);
            Ok(DecodedFrame::Stop)
        }
        KIND_MESSAGE => {
            let here = buffer.len().saturating_sub(HEADER_BYTES);
            if here < length {
                // Believe the length step by step: reserve no more than has arrived, except for the first step.
                return Ok(DecodedFrame::Incomplete(
                    length.saturating_sub(here).min(FIRST_RESERVE_BYTES.max(here)).max(1),
                ));
            }
            let _ = buffer.split_to(HEADER_BYTES);
            Ok(DecodedFrame::Message(buffer.split_to(length).freeze()))
        }
        _ => invalid("a frame of an unknown kind"),
    }
}

struct StreamReceiver<R: AsyncRead + Send + Sync + Unpin + 'static> {
    reader: Option<R>,
    buffer: BytesMut,
    state: Arc<FrameLinkCore>,
    ended: bool,
    arriving: Option<ReceiveAccount>,
    waiting: ArrivalDeadline,
}

/// How long the receiver has waited for the rest of a message. One timer serves many messages: its deadline is checked
/// when it fires.
struct ArrivalDeadline {
    pause_max: Duration,
    begun: Option<MessageArrival>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// An incomplete message, since its receiver began to wait for it.
#[derive(Clone, Copy)]
struct MessageArrival {
    at: Instant,
    last: Instant,
    bytes: u64,
}

impl MessageArrival {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn deadline(&self, pause_max: Duration) -> Instant {
        let by_rate = Duration::from_secs(self.bytes / ARRIVAL_BYTES_PER_SECOND_MIN);
        (self.at + pause_max + by_rate).min(self.last + pause_max)
    }
}

impl ArrivalDeadline {
    fn at_most(pause_max: Duration) -> ArrivalDeadline {
        ArrivalDeadline { pause_max, begun: None, timer: None }
    }

    fn arrived(&mut self, bytes: usize) {
        if let Some(begun) = &mut self.begun {
            begun.bytes = begun.bytes.saturating_add(bytes as u64);
            begun.last = base::rt::now();
        }
    }

    /// Ready when the rest of the message has not arrived in time.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn poll_too_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let begun = self.begun.get_or_insert_with(|| {
            let now = base::rt::now();
            MessageArrival { at: now, last: now, bytes: 0 }
        });
        let by = begun.deadline(self.pause_max);
        loop {
            let timer = self.timer.get_or_insert_with(|| Box::pin(base::rt::sleep(self.pause_max)));
            std::task::ready!(timer.as_mut().poll(cx));
            let now = base::rt::now();
            if now >= by {
                return Poll::Ready(());
            }
            self.timer = Some(Box::pin(base::rt::sleep(by - now)));
        }
    }
}

impl<R: AsyncRead + Send + Sync + Unpin + 'static> ReceiveHalf for StreamReceiver<R> {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>> {
        if self.ended {
            return Poll::Ready(Err(Closed));
        }
        loop {
            let decoded = decode(&mut self.buffer);
            if !matches!(decoded, Ok(DecodedFrame::Incomplete(_))) {
                self.waiting.begun = None;
            }
            match decoded {
                Ok(DecodedFrame::Message(message)) => return Poll::Ready(Ok(message)),
                Ok(DecodedFrame::Stop) => self.state.reject(),
                Ok(DecodedFrame::Incomplete(room)) => {
                    // A short message needs only the read buffer that every link has.
                    let needed = self.buffer.len().saturating_add(room);
                    let held = if needed < 2 * READ_BYTES { 0 } else { needed };
                    if let Some(arriving) = &mut self.arriving
                        && let Err(over) = arriving.resize(held)
                    {
                        let organization = arriving.organization();
                        LinksOverdrawn.add(1);
                        tracing::warn!(organization, %over, "ended a link: its message cannot be covered");
                        self.state.reject();
                        break;
                    }
                    self.buffer.reserve(room);
                    let reader = self.reader.as_mut().expect("taken when this is dropped");
                    let Poll::Ready(read) = Pin::new(&mut pin!(reader.read_buf(&mut self.buffer))).poll(cx) else {
                        if !self.buffer.is_empty() && self.waiting.poll_too_long(cx).is_ready() {
                            let organization = self.arriving.as_ref().map(ReceiveAccount::organization);
                            LinksStalled.add(1);
                            tracing::warn!(organization, "ended a link: its message did not arrive in time");
                            self.state.reject();
                            break;
                        }
                        return Poll::Pending;
                    };
                    match read {
                        Ok(0) => break,
                        Ok(bytes) => self.waiting.arrived(bytes),
                        Err(error) => {
                            if error.kind() == io::ErrorKind::PermissionDenied {
                                tracing::warn!(%error, "ended a link");
                            }
                            // The connection is gone in both directions.
                            self.state.reject();
                            break;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a link broke");
                    self.state.reject();
                    break;
                }
            }
        }
        self.ended = true;
        self.buffer = BytesMut::new();
        self.release();
        Poll::Ready(Err(Closed))
    }

    fn charge(&mut self, arriving: ReceiveAccount) {
        self.arriving = Some(arriving);
    }

    fn release(&mut self) {
        if let Some(arriving) = &mut self.arriving {
            arriving.resize(0).expect("giving back needs no budget");
        }
    }
}

impl<R: AsyncRead + Send + Sync + Unpin + 'static> Drop for StreamReceiver<R> {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::Release);
        self.state.changed.notify_one();
        let Some(mut reader) = self.reader.take() else { return };
        if self.ended || !base::rt::is_running() {
            return;
        }
        let state = Arc::clone(&self.state);
        base::rt::spawn(async move {
            let mut waste = vec![0; READ_BYTES];
            let drain = async { while matches!(reader.read(&mut waste).await, Ok(1..)) {} };
            // Until our own direction is written, and for a while after that; then the connection is cut.
            let _ = first_of(drain, async {
                state.written.notified().await;
                base::rt::sleep(LINGER).await;
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_waited_for_while_it_keeps_arriving_at_the_least_rate() {
        let at = base::rt::Instant::default();
        let after = |begun: MessageArrival| begun.deadline(ARRIVAL_PAUSE_MAX) - at;
        assert_eq!(after(MessageArrival { at, last: at, bytes: 0 }), Duration::from_secs(30));
        let minute = at + Duration::from_secs(60);
        let fast = 100 * 60 * ARRIVAL_BYTES_PER_SECOND_MIN;
        assert_eq!(
            after(MessageArrival { at, last: minute, bytes: fast }),
            Duration::from_secs(90),
            "a pause is as long"
        );
        let slow = 10 * ARRIVAL_BYTES_PER_SECOND_MIN;
        assert_eq!(after(MessageArrival { at, last: minute, bytes: slow }), Duration::from_secs(40), "it trickles");
    }

    #[test]
    fn a_message_that_pauses_for_too_long_ends_the_link_and_keeps_no_memory() {
        base::rt::production::run(async {
            let (mut near, far) = tokio::io::duplex(1 << 20);
            near.write_all(&header(1 << 20, KIND_MESSAGE)).await.expect("there is room");
            near.write_all(&[7; 1 << 19]).await.expect("there is room");
            let mut receiver = StreamReceiver {
                reader: Some(far),
                buffer: BytesMut::new(),
                state: Arc::default(),
                ended: false,
                arriving: None,
                waiting: ArrivalDeadline::at_most(Duration::ZERO),
            };
            assert_eq!(std::future::poll_fn(|cx| receiver.poll_receive(cx)).await, Err(Closed));
            assert!(receiver.state.is_rejected(), "the writing task ends too");
            assert_eq!(receiver.buffer.capacity(), 0);
        });
    }
}
