//! What simulations do to engines: crash a processor between two steps, and plant mistakes that the checkers must catch.

use std::cell::Cell;

pub(super) use crate::fault::crash_point;

/// A planted mistake. None is ever planted but by a test of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// None.
    None,
    /// An entry is shown as soon as one disk has it.
    OneDisk,
    /// A disk's keeper answers before its disk has what it was given.
    AnswerUnsynced,
    /// A new leader goes on from its own disk, whatever others have.
    OwnDisk,
    /// A new leader forgets what the group's log has beyond the disks.
    ForgetLog,
    /// The last record of the group's log is trimmed like the others.
    TrimLast,
    /// A new leader goes on from the longest journal, whoever adopted it.
    LongestJournal,
    /// A keeper does not note which reign has adopted its journal.
    ForgetAdoption,
    /// The solo engine shows what its disk does not have.
    ShowUnsynced,
    /// The log on Raft says that entries are safe before they are in the journal.
    SafeUnwritten,
    /// The log on Raft lets the engine's log go before its journal has that on disk.
    SnapshotAhead,
    /// The log on Raft goes on at its journal's end when it begins to lead, whatever has been agreed on.
    LeadAtOnce,
    /// A processor gets a vote in the log on Raft whatever it lacks.
    VoteBlank,
}

thread_local! {
    static PLANTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

/// Plants a mistake in every engine of this thread, on which a simulation runs whole.
pub fn plant(mutant: Mutant) {
    PLANTED.set(mutant);
}

pub(crate) fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == mutant
}
