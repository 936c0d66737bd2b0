//! The receiving part of a connection: messages in pieces, and notices of writes with immediate data.
//!
//! A receive slot is posted at the adapter until a piece arrives in it. The receiver copies the piece out of the slot,
//! which is then *owed* to the adapter: it is posted again, unless too many messages wait for the application. If a
//! piece finds no posted slot, the sender's adapter retries; this is the back-pressure on messages.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use base::BytesMut;
use rma::{Error, IncomingEvent, MESSAGE_BYTES_MAX};

use crate::wire::MessageHeader;

/// Bytes of complete messages that the application has not received; the message that exceeds the limit is the last for a
/// while.
const READY_BYTES_MAX: usize = 16 << 20;
/// The same limit, in messages and notices.
const READY_MAX: usize = 4096;

#[derive(Default)]
pub struct Receiver {
    assembling: BytesMut,
    ready: VecDeque<IncomingEvent>,
    ready_bytes: usize,
    owed: VecDeque<usize>,
    waker: Option<Waker>,
    ended: bool,
}

impl Receiver {
    /// Takes one piece or notice, in slot `slot`.
    ///
    /// # Errors
    /// When it is neither: the connection is unusable from then on.
    pub fn arrived(&mut self, slot: usize, received: &[u8]) -> Result<(), &'static str> {
        let (header, bytes) = MessageHeader::decode(received).map_err(|malformed| malformed.what)?;
        match header {
            MessageHeader::Piece { last } => {
                if self.assembling.len() + bytes.len() > MESSAGE_BYTES_MAX {
                    return Err("a message longer than the limit");
                }
                self.assembling.extend_from_slice(bytes);
                if last {
                    self.ready_bytes += self.assembling.len();
                    self.ready.push_back(IncomingEvent::Message(self.assembling.split().freeze()));
                }
            }
            // The other end describes its own write here; as in a message, it may send any values.
            MessageHeader::Immediate { immediate, region, offset, length } => {
                self.ready.push_back(IncomingEvent::Immediate { immediate, region, offset, length });
            }
        }
        self.owed.push_back(slot);
        self.wake();
        Ok(())
    }

    /// A slot to post again, unless the application must receive messages first.
    pub fn next_owed(&mut self) -> Option<usize> {
        let room = self.ready_bytes <= READY_BYTES_MAX && self.ready.len() < READY_MAX;
        if room { self.owed.pop_front() } else { None }
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        match self.ready.pop_front() {
            Some(incoming) => {
                if let IncomingEvent::Message(bytes) = &incoming {
                    self.ready_bytes -= bytes.len();
                }
                Poll::Ready(Ok(incoming))
            }
            None if self.ended => Poll::Ready(Err(Error::Closed)),
            None => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Nothing more will arrive.
    pub fn end(&mut self) {
        self.ended = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
