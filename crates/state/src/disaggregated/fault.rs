//! Simulated faults of the state: delays of single steps, so that crashes and reads fall between two steps, and
//! planted mistakes that the checkers must catch. The product has neither ([`base::rt::fault`]).

use std::time::Duration;

use base::rt::{self, fault};

/// How long a delayed step waits at most: longer than a lease.
const HELD_UP_MAX: Duration = Duration::from_millis(80);

/// A named fault point: in a simulation a step may wait here.
#[inline(always)]
pub(super) fn hold_up(name: &'static str) -> impl Future<Output = ()> + Send {
    fault::hold_up_at_most(name, HELD_UP_MAX)
}

/// The delay of a step, if a fault point or a mutant asks for it.
pub(super) async fn pause() {
    rt::sleep(Duration::from_nanos(rt::random_below(HELD_UP_MAX.as_nanos() as u64))).await;
}

base::mutants! {
    "state" {
        /// Links and slots point to a record before it was written.
        LinkEarly,
        /// Bytes are trusted under any incarnation of the buffer, and buffers are reused at once.
        NoIncarnation,
        /// A fill continues although the key was invalidated meanwhile.
        FillSurvives,
        /// A buffer is reused before the leases that may hold its address have ended.
        ReuseEarly,
        /// The height is raised before the caches know of the block.
        PublishEarly,
        /// The height is raised without waiting until the block is durable.
        PublishUndurable,
        /// The buffers of a block that turns out not to be durable yet are not freed.
        KeepUndone,
        /// The caches are not replaced for the keys of a task that met a slot of unknown content.
        PartUncached,
        /// Records are evicted without being marked invalid.
        NoMark,
        /// Versions are evicted that no savepoint covers.
        EvictUncovered,
        /// A reader's finding about a record that is evicted meanwhile stays in the caches.
        LearntOutlivesEviction,
        /// The buffer of an evicted record is reused at once.
        EvictedReusedEarly,
        /// Followers get no update about evicted records, and their buffers are retired at once.
        EvictUnacknowledged,
        /// The copy of a subtable that moves was read before the writer's lock was taken.
        MovedStale,
        /// The mark of a height lands before the slots of its blocks were swapped.
        MarkEarly,
        /// A state that adopts memory leaves the marks where they are, although it applies blocks again.
        MarksStay,
        /// A state opens at the savepoint, although the memory that it adopts lacks blocks below it.
        OpenAtSavepoint,
        /// The membership stays when a section is given up, and all memory is adopted, at its newest mark.
        MembershipKept,
        /// A subtable that was moved stays listed.
        MovedStays,
        /// A section is used before the marks cover its number.
        NumberUncovered,
        /// The copy of a section that migrates has its header from the start.
        CopyHeaded,
        /// The old location of a section that migrated keeps its header, and the membership stays.
        OldHeaded,
        /// Followers are not told that a section has migrated.
        SwitchUntold,
        /// Records are written to a section that has migrated before each follower knows of it.
        AllocatedEarly,
        /// A follower that joins uses the grants of sections that have migrated meanwhile.
        JoinStale,
        /// The survey of adopted memory ends before it has read every subtable.
        SurveyBlind,
        /// The survey counts a buffer as used that was retired after it had read the slot.
        RetiredUnnoted,
    }
}
