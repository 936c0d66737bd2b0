//! What simulations do to the state: hold a step up, so that crashes and reads fall between two steps, and plant mistakes
//! that the checkers must catch.

use std::cell::Cell;
use std::time::Duration;

use base::rt;

/// How long a step that a simulation holds up waits at most: longer than a lease.
const HELD_UP_MAX: Duration = Duration::from_millis(80);

/// A named fault point: in a simulation a step may wait here. In production nothing happens.
pub(super) async fn hold_up(name: &'static str) {
    if rt::fault_point(name) {
        pause().await;
    }
}

/// What a step does that is held up.
pub(super) async fn pause() {
    rt::sleep(Duration::from_nanos(rt::random_below(HELD_UP_MAX.as_nanos() as u64))).await;
}

/// A planted mistake. None is ever planted but by a test of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mutant {
    /// None.
    None,
    /// Links and slots point to a record before it was written.
    LinkEarly,
    /// Bytes are trusted whichever life of the buffer they are of, and buffers are used again at once.
    NoIncarnation,
    /// A fill goes on although the key was invalidated meanwhile.
    FillSurvives,
    /// A buffer is used again before the leases that may hold its address have ended.
    ReuseEarly,
    /// The height is raised before the caches know of the block.
    PublishEarly,
    /// The height is raised without waiting until the block is durable.
    PublishUndurable,
    /// What was written of a block that turns out not to be durable yet is left where it is.
    KeepUndone,
    /// Records are evicted without a mark that says so.
    NoMark,
    /// Versions are evicted that no savepoint covers.
    EvictUncovered,
    /// What a reader has learnt of a record that is evicted meanwhile is remembered.
    LearntOutlivesEviction,
    /// The buffer of an evicted record is used again at once.
    EvictedReusedEarly,
    /// A reader acknowledges a block before it has put it in force.
    AckEarly,
    /// The primary raises its height without waiting for its readers.
    CountUnacknowledged,
    /// A reader answers although its lease has ended.
    ServePastLease,
    /// Readers are not told which records were evicted, and their buffers are put aside at once.
    EvictUntold,
    /// A primary grants leases without asking storage whether there is a newer one.
    GrantUnproven,
    /// A new primary raises heights while readers may hold leases of the old one.
    ReignEarly,
    /// What a reader has done for its primary counts although its lease has ended.
    CountLapsed,
    /// What is copied of a part of the index that moves was read before the writer's lock was taken.
    MovedStale,
}

thread_local! {
    static PLANTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
}

/// Plants a mistake in every state of this thread, on which a simulation runs whole.
pub fn plant(mutant: Mutant) {
    PLANTED.set(mutant);
}

/// Whether this mistake is to be made.
#[inline]
pub(super) fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == mutant
}
