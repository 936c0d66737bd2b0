//! What simulations do to the store: crash it between two steps, and plant mistakes that the checkers must catch.

use std::cell::Cell;

pub(super) use crate::fault::crash_point;

/// A planted mistake. None is ever planted but by a test of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// None.
    None,
    /// A get is answered from the cache before a majority has what it tells.
    AnswerUncommitted,
    /// A new coordinator serves without having written the log back.
    ServeUnwritten,
    /// A new coordinator applies no more than what its cursor says, and forgets the log.
    ForgetLog,
    /// The cache evicts what is not applied.
    EvictPending,
    /// A get believes in a chain that changed while it was walked.
    WalkUnguarded,
    /// A change takes no room for its blocks, as if its key had some already.
    AdmitUnreserved,
    /// The cursor passes entries before they are applied.
    CursorFirst,
    /// A chain is remembered as it was before it was changed.
    StaleChain,
    /// A coordinator posts entries without a seal of its own.
    NoSeal,
    /// A change counts as in the tables before these are synced.
    TellUnpersisted,
    /// Entries are applied, and their places used again, before the tables have them.
    ApplyUnpersisted,
    /// A coordinator whose tables were changed while it wrote its epoch into them gives up.
    FenceOnce,
    /// A new coordinator serves while the lease of an earlier one may stand.
    OpenAtOnce,
    /// The tables' epoch is the coordinator's term, whatever they have seen.
    EpochOfTerm,
}

thread_local! {
    static PLANTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

/// Plants a mistake in every store of this thread, on which a simulation runs whole.
pub fn plant(mutant: Mutant) {
    PLANTED.set(mutant);
}

pub(super) fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == mutant
}
