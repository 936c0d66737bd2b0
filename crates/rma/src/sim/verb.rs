//! Verbs on their way, their progress and their outcomes.

use base::rt::simulation::Prng;
use base::{Bytes, BytesMut};

use super::memory::{HostMemory, Tear, VerbAccess, words_of};
use crate::{Completer, Error, ProviderProfile};

/// The outcome of a verb, with its completer.
pub(super) enum VerbOutcome {
    Read(Completer<BytesMut>, Result<BytesMut, Error>),
    Done(Completer<()>, Result<(), Error>),
    Word(Completer<u64>, Result<u64, Error>),
}

impl VerbOutcome {
    pub(super) fn complete(self) {
        match self {
            VerbOutcome::Read(completer, outcome) => completer.complete(outcome),
            VerbOutcome::Done(completer, outcome) => completer.complete(outcome),
            VerbOutcome::Word(completer, outcome) => completer.complete(outcome),
        }
    }

    pub(super) fn ambiguous(mut self) -> VerbOutcome {
        const LOST: Error = Error::Ambiguous("the connection was lost while the verb was in flight");
        match &mut self {
            VerbOutcome::Read(_, outcome) => *outcome = Err(LOST),
            VerbOutcome::Done(_, outcome) => *outcome = Err(LOST),
            VerbOutcome::Word(_, outcome) => *outcome = Err(LOST),
        }
        self
    }
}

/// A verb.
pub(super) enum SimVerb {
    Read { into: BytesMut },
    Write { bytes: Bytes, immediate: Option<u32> },
    CompareSwap { expected: u64, new: u64 },
    FetchAdd { add: u64 },
    Message(Bytes),
}

/// A posted verb that has not taken effect.
pub(super) struct PostedVerb {
    pub work: SimVerb,
    /// `None` for a message.
    pub access: Option<VerbAccess>,
    /// `None` when the outcome has been reported already.
    pub completer: Option<VerbCompleter>,
    /// If the node crashes before this time, the verb is lost with it.
    pub(super) issued_at: u64,
    pub(super) due: u64,
    pub(super) progress: Option<VerbProgress>,
}

/// The completer of a verb.
pub(super) enum VerbCompleter {
    Read(Completer<BytesMut>),
    Done(Completer<()>),
    Word(Completer<u64>),
}

/// The progress of a verb that has started to take effect.
pub(super) struct VerbProgress {
    tear: Tear,
    burst: u32,
    /// The bytes read so far.
    read: Vec<u8>,
}

/// The result of a verb.
pub(super) enum VerbEffect {
    Bytes(Vec<u8>),
    Done,
    Word(u64),
}

impl VerbCompleter {
    pub(super) fn complete(self, outcome: Result<(), Error>) -> VerbOutcome {
        let failed = outcome.err();
        match self {
            VerbCompleter::Read(completer) => {
                VerbOutcome::Read(completer, failed.map_or_else(|| Ok(BytesMut::new()), Err))
            }
            VerbCompleter::Done(completer) => VerbOutcome::Done(completer, failed.map_or(Ok(()), Err)),
            VerbCompleter::Word(completer) => VerbOutcome::Word(completer, failed.map_or(Ok(0), Err)),
        }
    }
}

impl PostedVerb {
    /// The outcome with its completer, unless it has been reported already.
    pub(super) fn finish(&mut self, outcome: Result<VerbEffect, Error>) -> Option<VerbOutcome> {
        let outcome = match (self.completer.take()?, outcome) {
            (VerbCompleter::Read(completer), Ok(VerbEffect::Bytes(bytes))) => {
                let SimVerb::Read { into } = &mut self.work else { unreachable!("only a read has bytes") };
                let mut into = std::mem::take(into);
                into.extend_from_slice(&bytes);
                VerbOutcome::Read(completer, Ok(into))
            }
            (VerbCompleter::Word(completer), Ok(VerbEffect::Word(word))) => VerbOutcome::Word(completer, Ok(word)),
            (teller, Ok(_)) => teller.complete(Ok(())),
            (teller, Err(error)) => teller.complete(Err(error)),
        };
        Some(outcome)
    }
}

/// Executes one burst of a verb; returns its outcome when that was the last burst, or when the verb failed.
pub(super) fn step(
    posted: &mut PostedVerb,
    access: &VerbAccess,
    holder: &str,
    memory: &mut HostMemory,
    rng: &mut Prng,
    profile: ProviderProfile,
) -> Option<Result<VerbEffect, Error>> {
    let length = usize::try_from(access.length).unwrap_or(usize::MAX);
    if posted.progress.is_none()
        && let Err(error) = memory.admit(access, holder)
    {
        return Some(Err(error));
    }
    let progress = posted.progress.get_or_insert_with(|| {
        let tear = Tear::draw(rng, words_of(access.offset, length), profile.ordering);
        let read = if matches!(posted.work, SimVerb::Read { .. }) { vec![0; length] } else { Vec::new() };
        VerbProgress { tear, burst: 0, read }
    });
    let Some(bytes) = memory.reach(access) else {
        // Words of a write that landed before the fence stay.
        let partial = matches!(posted.work, SimVerb::Write { .. }) && progress.burst > 0;
        let torn = Error::Ambiguous("the capability was revoked while the verb took effect");
        return Some(Err(if partial { torn } else { Error::Revoked }));
    };
    let burst = progress.burst;
    progress.burst += 1;
    let last = progress.burst >= progress.tear.bursts();
    match &posted.work {
        SimVerb::Read { .. } => {
            let read = &mut progress.read;
            progress.tear.each(burst, access.offset, length, |range| {
                read[range.clone()].copy_from_slice(&bytes[range]);
            });
            last.then(|| Ok(VerbEffect::Bytes(std::mem::take(&mut progress.read))))
        }
        SimVerb::Write { bytes: source, .. } => {
            progress.tear.each(burst, access.offset, length, |range| {
                bytes[range.clone()].copy_from_slice(&source[range]);
            });
            last.then_some(Ok(VerbEffect::Done))
        }
        SimVerb::CompareSwap { expected, new } => {
            let before = wire::u64_at(bytes, 0);
            if before == *expected {
                bytes.copy_from_slice(&new.to_le_bytes());
            }
            Some(Ok(VerbEffect::Word(before)))
        }
        SimVerb::FetchAdd { add } => {
            let before = wire::u64_at(bytes, 0);
            bytes.copy_from_slice(&before.wrapping_add(*add).to_le_bytes());
            Some(Ok(VerbEffect::Word(before)))
        }
        SimVerb::Message(_) => unreachable!("a message has no access"),
    }
}
