//! What simulations do to the engine: crash it between two steps, and plant mistakes that the checkers must catch.

use std::cell::Cell;

pub(super) use crate::fault::crash_point;

/// A planted mistake. None is ever planted but by a test of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// None.
    None,
    /// Entries are confirmed to the leader before they are durable.
    ConfirmUnsynced,
    /// Term and vote are stored with the next entries, and not before the vote is sent.
    ForgetVote,
    /// A proposal is answered when the leader has its entry, before a majority has.
    AnswerUncommitted,
    /// A read is answered without a look at the lease.
    ReadWithoutLease,
    /// A record that is torn counts as whole.
    KeepTorn,
    /// A snapshot gets its name before it is durable.
    SnapshotUnsynced,
    /// A snapshot's entries go, and what it holds is not put into the machine.
    SkipRestore,
    /// A snapshot that came from another node is on disk before it is read.
    InstallUnread,
    /// Checksums of records are made without a key.
    Unkeyed,
    /// A node that stops leaves the task that makes its snapshot behind.
    LeaveSnapshot,
    /// A message goes to the crate, whatever it says.
    TakeAnything,
    /// A node whose log was lost is taken for the one that it was.
    BlankVotes,
    /// A change of members is answered when the leader has its entry, before a majority has.
    AnswerChange,
}

thread_local! {
    static PLANTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

/// Plants a mistake in every engine of this thread, on which a simulation runs whole.
pub fn plant(mutant: Mutant) {
    PLANTED.set(mutant);
}

pub(super) fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == mutant
}
