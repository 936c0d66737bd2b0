//! The endpoint's handle of its connection: posts verbs, sends and receives messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::untrusted::Untrusted;
use base::{Bytes, BytesMut};

use super::{TcpClient, VerbOutcome};
use crate::tcp::PROFILE;
use crate::tcp::wire::{FrameHeader, FrameKind, VerbFrame};
use crate::{
    Capability, Completion, CompletionDriver, Connection, Error, IncomingEvent, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX,
    TRANSFER_BYTES_MAX, WORD_BYTES,
};

/// Closes the connection when it is dropped.
pub(super) struct TcpConnection(pub(super) Arc<TcpClient>);

/// The bytes of all parts.
pub fn total(parts: &[Bytes], most: usize) -> Result<usize, Error> {
    if parts.len() > PARTS_MAX {
        return Err(Error::TooLarge(parts.len()));
    }
    let length = parts.iter().map(Bytes::len).sum();
    if length > most { Err(Error::TooLarge(length)) } else { Ok(length) }
}

impl TcpClient {
    fn driver(self: &Arc<Self>) -> Arc<dyn CompletionDriver> {
        Arc::clone(self) as Arc<dyn CompletionDriver>
    }

    fn word(
        self: &Arc<Self>,
        kind: FrameKind,
        capability: &Capability,
        offset: u64,
        first: u64,
        second: u64,
    ) -> Completion<u64> {
        if !offset.is_multiple_of(WORD_BYTES as u64) {
            return Completion::ready(Err(Error::Misaligned(offset)));
        }
        let (completer, completion) = Completion::driven(self.driver());
        let verb = VerbFrame { capability: *capability, offset: Untrusted::new(offset), first, second };
        let header = FrameHeader::new(kind, 0, WORD_BYTES as u64);
        match self.post(&verb, header, &[], None, || VerbOutcome::Word { offset, completer }) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }
}

impl Connection for TcpConnection {
    fn node(&self) -> NodeId {
        self.0.node
    }

    fn name(&self) -> &str {
        &self.0.name
    }

    fn profile(&self) -> crate::ProviderProfile {
        PROFILE
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        if length > TRANSFER_BYTES_MAX {
            return Completion::ready(Err(Error::TooLarge(length)));
        }
        let (completer, completion) = Completion::driven(self.0.driver());
        let verb = VerbFrame { capability: *capability, offset: Untrusted::new(offset), first: 0, second: 0 };
        let header = FrameHeader::new(FrameKind::Read, 0, length as u64);
        match self.0.post(&verb, header, &[], None, || VerbOutcome::Read { into, offset, length, completer }) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        let length = match total(parts, TRANSFER_BYTES_MAX) {
            Ok(length) => length as u64,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (completer, completion) = Completion::driven(self.0.driver());
        let verb = VerbFrame {
            capability: *capability,
            offset: Untrusted::new(offset),
            first: immediate.unwrap_or(0).into(),
            second: 0,
        };
        let kind = if immediate.is_some() { FrameKind::WriteWithImmediate } else { FrameKind::Write };
        let outcome = || VerbOutcome::Write { offset, length, completer };
        match self.0.post(&verb, FrameHeader::new(kind, 0, length), parts, immediate.map(|_| 0), outcome) {
            Ok(()) => completion,
            Err(error) => Completion::ready(Err(error)),
        }
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.0.word(FrameKind::CompareSwap, capability, offset, expected, new)
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.0.word(FrameKind::FetchAdd, capability, offset, add, 0)
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let length = match total(parts, MESSAGE_BYTES_MAX) {
            Ok(length) => length,
            Err(error) => return Completion::ready(Err(error)),
        };
        let completion = self.0.peer.outgoing().post_message(parts, length);
        self.0.write_out_or_ask();
        if !self.0.peer.outgoing().is_done() {
            self.0.wanted.notify_one();
        }
        completion
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        let mut polled = self.0.peer.poll_receive(cx);
        if polled.is_pending() {
            self.0.receiver_asked.store(false, Ordering::Release);
            if !self.0.work(&|| !self.0.peer.is_awaited()) {
                self.0.receiver_asked.store(true, Ordering::Release);
                self.0.wanted.notify_one();
            }
            polled = self.0.peer.poll_receive(cx);
        }
        match std::task::ready!(polled) {
            Ok((incoming, credit)) => {
                if credit {
                    self.0.write_out_or_ask();
                }
                Poll::Ready(Ok(incoming))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn flush(&self) {
        self.0.write_out_or_ask();
    }

    fn close(&self) {
        self.0.abandon();
        self.0.peer.outgoing().end();
        self.0.peer.end_inbox();
        let _ = self.0.write_out();
        self.0.closing.store(true, Ordering::Release);
        self.0.wanted.notify_one();
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        // Verbs in flight complete normally, or when the connection ends.
        let _ = self.0.write_out();
        self.0.closing.store(true, Ordering::Release);
        self.0.wanted.notify_one();
    }
}
