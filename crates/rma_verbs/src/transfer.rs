//! Verbs and messages that are posted to a connection, until they complete.

use std::collections::VecDeque;

use base::{Bytes, BytesMut};
use rma::{Capability, Completer, Error, Rights, WORD_BYTES};

use crate::memory::{Staging, StagingSlot};

/// The parts of a write or message, taken from the front.
pub struct WriteData {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl WriteData {
    pub fn new(parts: &[Bytes]) -> WriteData {
        WriteData { parts: parts.iter().cloned().collect(), bytes: parts.iter().map(Bytes::len).sum() }
    }

    /// Moves the next `bytes` bytes into a slot, from `at` on.
    pub fn put(&mut self, staging: &mut Staging, slot: &StagingSlot, mut at: usize, mut bytes: usize) {
        while bytes > 0 {
            let part = self.parts.front_mut().expect("the parts have as many bytes as their sum");
            let piece = part.split_to(part.len().min(bytes));
            staging.put(slot, at, &piece);
            at += piece.len();
            bytes -= piece.len();
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

pub enum PostedVerb {
    Read { into: BytesMut, length: usize, completer: Completer<BytesMut> },
    Write { data: WriteData, immediate: Option<u32>, completer: Completer<()> },
    CompareSwap { expected: u64, new: u64, completer: Completer<u64> },
    FetchAdd { add: u64, completer: Completer<u64> },
    Send { data: WriteData, completer: Completer<()> },
}

impl PostedVerb {
    /// Bytes of the region that the verb touches, or of the message.
    fn bytes(&self) -> usize {
        match self {
            PostedVerb::Read { length, .. } => *length,
            PostedVerb::Write { data, .. } | PostedVerb::Send { data, .. } => data.bytes,
            PostedVerb::CompareSwap { .. } | PostedVerb::FetchAdd { .. } => WORD_BYTES,
        }
    }

    pub fn rights(&self) -> Rights {
        match self {
            PostedVerb::Read { .. } => Rights::READ,
            PostedVerb::Write { .. } => Rights::WRITE,
            PostedVerb::CompareSwap { .. } | PostedVerb::FetchAdd { .. } => Rights::ATOMIC,
            PostedVerb::Send { .. } => Rights::NONE,
        }
    }

    fn complete(self, outcome: Result<u64, Error>) {
        match self {
            PostedVerb::Read { into, completer, .. } => completer.complete(outcome.map(|_| into)),
            PostedVerb::Write { completer, .. } | PostedVerb::Send { completer, .. } => {
                completer.complete(outcome.map(drop))
            }
            PostedVerb::CompareSwap { completer, .. } | PostedVerb::FetchAdd { completer, .. } => {
                completer.complete(outcome)
            }
        }
    }
}

/// A region, as a capability, and an offset in it.
#[derive(Clone, Copy)]
pub struct VerbTarget {
    pub capability: Capability,
    pub offset: u64,
}

/// A verb and its progress.
pub struct Transfer {
    pub verb: PostedVerb,
    /// `None` for a message.
    pub target: Option<VerbTarget>,
    /// The verb's length; the data shrinks as it is issued.
    pub bytes: usize,
    /// The key, once the verb has been checked against it.
    pub key: Option<usize>,
    pub issued: usize,
    pub pieces: u32,
    pub outstanding: u32,
    /// The last piece has been issued, or no further one will be.
    pub whole: bool,
    pub failed: Option<Error>,
    /// The previous value of the word.
    pub word: u64,
}

impl Transfer {
    pub fn new(verb: PostedVerb, target: Option<VerbTarget>) -> Transfer {
        let bytes = verb.bytes();
        Transfer {
            verb,
            target,
            bytes,
            key: None,
            issued: 0,
            pieces: 0,
            outstanding: 0,
            whole: false,
            failed: None,
            word: 0,
        }
    }

    pub fn complete(self, outcome: Result<(), Error>) {
        let word = self.word;
        self.verb.complete(outcome.map(|()| word));
    }
}
