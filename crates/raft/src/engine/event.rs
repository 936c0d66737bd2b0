//! The events that the engine's task processes.

use base::Bytes;
use base::rt::channel::OneshotSender;
use base::rt::net::LinkSender;
use base::rt::sync::SemaphorePermit;
use raft_rs::eraftpb::{Message, Snapshot};

use crate::{Error, MembershipChange, MembershipReport, ProposalOutcome, Term};

/// Events for the task.
pub(crate) enum EngineEvent<O> {
    Propose {
        data: Bytes,
        term: Option<Term>,
        answer: OneshotSender<Result<ProposalOutcome<O>, Error>>,
        permit: SemaphorePermit,
    },
    Change(MembershipChange, RequestWaiter),
    Report(OneshotSender<MembershipReport>, SemaphorePermit),
    /// A read waits for proof that this node still leads.
    Barrier(RequestWaiter),
    Received(Vec<Message>),
    /// A node has opened a link to this one, and listens at this address.
    AddressLearned(u64, String),
    /// Another member knows this node with another log.
    Disowned(u64),
    Linked(u64, LinkSender),
    Unlinked(u64),
    Synced(Result<u64, Error>, u64),
    SnapshotMade(Result<Snapshot, Error>),
    SnapshotSent(u64, bool),
}

/// A caller that waits for a read or a change of members.
pub(crate) struct RequestWaiter {
    pub answer: OneshotSender<Result<(), Error>>,
    /// One permit of [`super::super::REQUESTS_MAX`], held until the caller is answered.
    #[allow(dead_code, reason = "held until it is answered")]
    pub permit: SemaphorePermit,
}

impl RequestWaiter {
    pub(super) fn answer(self, outcome: Result<(), Error>) {
        // The caller may have gone.
        let _ = self.answer.send(outcome);
    }
}
