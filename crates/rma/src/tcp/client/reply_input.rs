//! Bytes that were received and not yet decoded, and the frame that has arrived in part.

use base::BytesMut;

use crate::Completer;
use crate::tcp::assembly::MessageAssembly;
use crate::tcp::pipe::ReadBuffer;

/// Bytes that were received and not yet decoded.
pub(super) struct ReplyInput {
    pub(super) buffer: ReadBuffer,
    pub(super) state: ReplyState,
}

pub(super) enum ReplyState {
    Header,
    /// Reads the payload of a read into the caller's buffer.
    Payload {
        sequence: u64,
        into: BytesMut,
        missing: usize,
        trailer: bool,
        completer: Completer<BytesMut>,
    },
    Message(MessageAssembly),
}

impl ReplyInput {
    pub(super) fn new() -> ReplyInput {
        ReplyInput { buffer: ReadBuffer::new(), state: ReplyState::Header }
    }

    /// Drops a partly received reply or message.
    pub(super) fn abandon(&mut self) {
        self.state = ReplyState::Header;
    }

    /// The value of [`TcpClient::partial`](super::TcpClient::partial).
    pub(super) fn partial(&self) -> u64 {
        match &self.state {
            ReplyState::Payload { sequence, .. } => sequence + 1,
            _ => 0,
        }
    }
}
