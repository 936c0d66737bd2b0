//! What the other side of a connection sends: messages in pieces, and notices of writes with immediate data.
//!
//! Every receive slot is posted at the adapter, has arrived, or is owed to the adapter because this side's reader is
//! behind. A sender whose piece finds no slot is told to ask again, which is the back-pressure of messages.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use base::BytesMut;

use super::wire::Header;
use crate::{Error, Incoming, MESSAGE_BYTES_MAX};

/// Bytes that have arrived whole and that nobody has received; a message that goes over it is the last for a while.
const READY_BYTES_MAX: usize = 16 << 20;
/// The same, in messages and notices.
const READY_MAX: usize = 4096;

#[derive(Default)]
pub struct Receiver {
    assembling: BytesMut,
    ready: VecDeque<Incoming>,
    ready_bytes: usize,
    owed: VecDeque<usize>,
    waker: Option<Waker>,
    ended: bool,
}

impl Receiver {
    /// One piece or notice, in slot `slot`.
    ///
    /// # Errors
    /// When it is none: the connection is of no use any more.
    pub fn arrived(&mut self, slot: usize, received: &[u8]) -> Result<(), &'static str> {
        let (header, bytes) = Header::decode(received).map_err(|malformed| malformed.0)?;
        match header {
            Header::Piece { last } => {
                if self.assembling.len() + bytes.len() > MESSAGE_BYTES_MAX {
                    return Err("a message of more bytes than one may have");
                }
                self.assembling.extend_from_slice(bytes);
                if last {
                    self.ready_bytes += self.assembling.len();
                    self.ready.push_back(Incoming::Message(self.assembling.split().freeze()));
                }
            }
            // What the other side says of its own write; as with a message, it may say what it likes.
            Header::Immediate { immediate, region, offset, length } => {
                self.ready.push_back(Incoming::Immediate { immediate, region, offset, length });
            }
        }
        self.owed.push_back(slot);
        self.wake();
        Ok(())
    }

    /// A slot to post again, unless what has arrived must be received first.
    pub fn next_owed(&mut self) -> Option<usize> {
        let room = self.ready_bytes <= READY_BYTES_MAX && self.ready.len() < READY_MAX;
        if room { self.owed.pop_front() } else { None }
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        match self.ready.pop_front() {
            Some(incoming) => {
                if let Incoming::Message(bytes) = &incoming {
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
