//! What simulations do to a group: crash the processor that runs its coordinator at named places, and plant mistakes that the
//! checkers must catch.

use std::cell::Cell;

use base::rt;
use base::rt::simulation::Node;

/// In a simulation that injects this fault, the node crashes here. In production nothing happens.
pub(crate) async fn crash_point(name: &'static str) {
    if rt::fault_point(name)
        && let Some(node) = Node::current()
    {
        node.crash();
        std::future::pending::<()>().await;
    }
}

/// A planted mistake. None is ever planted but by a test of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// None.
    None,
    /// A pool takes groups over without having a processor left.
    TakeOverUnprovisioned,
    /// A processor whose coordinator has ended does not come back to its pool.
    KeepProcessor,
    /// A persistent node answers before its disk has what it was told.
    AnswerUnsynced,
    /// A node that begins believes in a record that is torn.
    ReplayTorn,
    /// Checksums of a journal's records are made without a key.
    Unkeyed,
    /// A journal is followed by another though the image lacks what it had.
    FollowUnsynced,
    /// A journal becomes the spare before the one that follows it has its name.
    ReuseEarly,
    /// A memory node whose disk has failed does not say so.
    StayFailed,
    /// A persistent node's memory stays beyond its disk behind a fence.
    KeepUnsynced,
    /// Who takes over counts copies from before the group was made anew.
    CountOldCopies,
    /// A coordinator counts a persistent node's verbs as soon as they have completed.
    CountUnsynced,
}

thread_local! {
    static PLANTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

/// Plants a mistake in everything of this thread, on which a simulation runs whole.
pub fn plant(mutant: Mutant) {
    PLANTED.set(mutant);
}

pub(crate) fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == mutant
}
