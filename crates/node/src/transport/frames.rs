//! Links over a stream of bytes: what follows the connection's set-up, the same for TCP and TLS.
//!
//! ```text
//! each side first:  "HDLLINK" | version:u8 = 1
//! then frames:      length:u32 le | kind:u8 | 0:3 | length bytes
//! ```
//!
//! 1. The sending half puts messages into a bounded queue; a task of the link takes all that are there and writes them
//!    with as few calls as the medium takes, headers and messages side by side, uncopied.
//! 2. The receiving half reads in the receiver's own task; messages are slices of the read buffer.
//! 3. A dropped sending half ends its direction once the queue is written. A dropped receiving half has the writing task
//!    send a frame of kind "stop"; the other side, when it reads that, refuses to send more. What still arrives is read and
//!    thrown away for a while, so that the medium does not destroy what is under way in the other direction.
//!
//! Invariant: no length that the other side claims makes this side allocate more than [`FIRST_RESERVE_BYTES`] before as
//! many bytes have come, and none above [`FRAME_BYTES_MAX`] is believed.

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
use base::rt::net::{BoxFuture, LINK_MESSAGES_MAX, Link, Parts, ReceiveHalf, SendHalf};
use base::rt::sync::Notify;
use base::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes of one message: the largest block, with room to spare.
pub const FRAME_BYTES_MAX: usize = 128 << 20;
/// Bytes reserved for a message before any of it has come.
const FIRST_RESERVE_BYTES: usize = 1 << 20;
/// Bytes by which the read buffer grows when no long message is under way.
const READ_BYTES: usize = 64 << 10;
/// Buffers in one write.
const SLICES_MAX: usize = 64;
/// How long what arrives for a receiver that was dropped is thrown away, before the connection is cut.
const LINGER: Duration = Duration::from_secs(5);

const PREFACE: [u8; 8] = *b"HDLLINK\x01";
const HEADER_BYTES: usize = 8;
const KIND_MESSAGE: u8 = 0;
const KIND_STOP: u8 = 1;

/// Exchanges the first bytes, then makes a link of both halves.
///
/// # Errors
/// `InvalidData` when the other side speaks something else; whatever the medium says.
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
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side does not speak links"));
    }
    if theirs[7] != PREFACE[7] {
        let message = format!(
            "the other side speaks version {} of links, this one {}; run the same release on both",
            theirs[7], PREFACE[7]
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let (queue, messages) = bounded(LINK_MESSAGES_MAX);
    let state = Arc::new(State::default());
    base::rt::spawn(write_until_closed(writer, messages, Arc::clone(&state)));
    let sender = StreamSender { queue, state: Arc::clone(&state) };
    let receiver = StreamReceiver { reader: Some(reader), buffer: BytesMut::new(), state, ended: false };
    let link = Link::new(Box::new(sender), Box::new(receiver), None);
    Ok(match peer {
        Some(principal) => link.with_principal(principal),
        None => link,
    })
}

/// What both halves and the writing task share.
#[derive(Default)]
struct State {
    /// The other side wants no more messages, or the connection is lost.
    refused: AtomicBool,
    /// Our receiver was dropped and the other side is to be told.
    stopping: AtomicBool,
    /// Wakes the writing task for either.
    changed: Notify,
    /// The writing task has ended and closed its direction.
    written: Notify,
}

impl State {
    fn refuse(&self) {
        self.refused.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }
}

struct StreamSender {
    queue: Sender<Parts>,
    state: Arc<State>,
}

impl SendHalf for StreamSender {
    fn try_send(&self, message: Parts) -> Result<(), TrySendError<Parts>> {
        if self.state.is_refused() || message.len() > FRAME_BYTES_MAX {
            return Err(TrySendError::Closed(message));
        }
        self.queue.try_send(message)
    }

    fn send(&self, message: Parts) -> BoxFuture<'_, Result<(), Closed>> {
        Box::pin(self.queue.send(message))
    }
}

/// Writes what is queued until the queue closes, the other side wants no more, or the connection is lost.
async fn write_until_closed<W>(mut writer: W, mut messages: Receiver<Parts>, state: Arc<State>)
where
    W: AsyncWrite + Send + Unpin + 'static,
{
    let mut batch = Vec::with_capacity(LINK_MESSAGES_MAX);
    let mut told = false;
    let mut open = true;
    while open && !state.is_refused() {
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
            state.refuse();
        }
    }
    // A receiver that is dropped together with its sender says so too: the other side may still be sending.
    if !told && !state.is_refused() && state.stopping.load(Ordering::Acquire) {
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

/// Writes all messages of the batch, and whether to stop, without copying them.
async fn write_batch<W>(writer: &mut W, batch: &mut Vec<Parts>, stop: bool) -> io::Result<()>
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

/// What the first bytes of a read buffer are.
#[derive(PartialEq, Eq, Debug)]
pub enum Decoded {
    /// A whole message, without its header.
    Message(Bytes),
    /// The other side wants no more messages.
    Stop,
    /// More bytes are needed; reserve room for so many.
    Incomplete(usize),
}

/// Takes the next frame off a read buffer.
///
/// # Errors
/// `InvalidData` when the bytes are no frame.
pub fn decode(buffer: &mut BytesMut) -> io::Result<Decoded> {
    let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidData, message));
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(Decoded::Incomplete(READ_BYTES)) };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let kind = header[4];
    if header[5..] != [0; 3] || length > FRAME_BYTES_MAX {
        return invalid("a frame that is too long or has reserved bytes set");
    }
    match kind {
        KIND_STOP if length == 0 => {
            let _ = buffer.split_to(HEADER_BYTES);
            Ok(Decoded::Stop)
        }
        KIND_MESSAGE => {
            let here = buffer.len() - HEADER_BYTES;
            if here < length {
                // Believed step by step: no more is reserved than has come, the first step apart.
                return Ok(Decoded::Incomplete((length - here).min(FIRST_RESERVE_BYTES.max(here)).max(1)));
            }
            let _ = buffer.split_to(HEADER_BYTES);
            Ok(Decoded::Message(buffer.split_to(length).freeze()))
        }
        _ => invalid("a frame of an unknown kind"),
    }
}

struct StreamReceiver<R: AsyncRead + Send + Sync + Unpin + 'static> {
    reader: Option<R>,
    buffer: BytesMut,
    state: Arc<State>,
    ended: bool,
}

impl<R: AsyncRead + Send + Sync + Unpin + 'static> ReceiveHalf for StreamReceiver<R> {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Closed>> {
        let Some(reader) = self.reader.as_mut().filter(|_| !self.ended) else { return Poll::Ready(Err(Closed)) };
        loop {
            match decode(&mut self.buffer) {
                Ok(Decoded::Message(message)) => return Poll::Ready(Ok(message)),
                Ok(Decoded::Stop) => self.state.refuse(),
                Ok(Decoded::Incomplete(room)) => {
                    self.buffer.reserve(room);
                    let read = std::task::ready!(Pin::new(&mut pin!(reader.read_buf(&mut self.buffer))).poll(cx));
                    match read {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(_) => {
                            // The connection is gone in both directions.
                            self.state.refuse();
                            break;
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a link broke");
                    self.state.refuse();
                    break;
                }
            }
        }
        self.ended = true;
        Poll::Ready(Err(Closed))
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
            // As long as our own direction is written, and a while beyond: then the connection is cut.
            let _ = first_of(drain, async {
                state.written.notified().await;
                base::rt::sleep(LINGER).await;
            })
            .await;
        });
    }
}
