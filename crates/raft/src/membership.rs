//! The members of a Raft group, changes of them, and their status.

use base::Term;
use base::rt::Instant;

/// A node of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaftMember {
    /// Its number, never 0, and never the number of an earlier node.
    pub id: u64,
    /// Where it listens: an address of [`base::rt::net`].
    pub address: String,
    /// It gets entries and has no vote.
    pub is_learner: bool,
}

/// A member, and its state as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberHealth {
    /// The member.
    pub member: RaftMember,
    /// Entries of the leader's log that the member is not known to have. Only the leader knows.
    pub behind: Option<u64>,
    /// When the leader last heard from it, in this term; for the leader itself, now.
    pub heard: Option<Instant>,
}

/// What a node knows of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipReport {
    /// The node's own role.
    pub status: RaftStatus,
    /// The members, by number, after the changes that the node has applied.
    pub members: Vec<MemberHealth>,
}

/// A change of the members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MembershipChange {
    Learn(RaftMember),
    Vote(RaftMember),
    Remove(u64),
}

/// The current role of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RaftStatus {
    /// The newest term that it knows.
    pub term: Term,
    /// The leader of that term, as far as it knows.
    pub leader: Option<u64>,
    /// Whether this node is the leader.
    pub is_leading: bool,
}
