//! Simulated faults of the protocol: delays of single steps, so that crashes and reads fall between two steps, and
//! planted mistakes that the checkers must catch. The product has neither ([`base::rt::fault`]).

use std::time::Duration;

use base::rt::fault;

/// How long a delayed step waits at most: longer than a lease.
const HELD_UP_MAX: Duration = Duration::from_millis(80);

/// A named fault point: in a simulation a step may wait here.
#[inline(always)]
pub(crate) fn hold_up(name: &'static str) -> impl Future<Output = ()> + Send {
    fault::hold_up_at_most(name, HELD_UP_MAX)
}

base::mutants! {
    "replica" {
        /// A follower acknowledges a block before it has applied it.
        AckEarly,
        /// The primary raises its height without waiting for its followers.
        CountUnacknowledged,
        /// A follower answers although its lease has ended.
        ServePastLease,
        /// A primary grants leases without asking storage whether there is a newer primary.
        GrantUnproven,
        /// A new primary raises heights while followers may hold leases of the old one.
        ServeEarly,
        /// A follower's answer to a work item counts although its lease has ended.
        CountLapsed,
        /// A follower that has told its primary that it leaves goes on answering under its lease.
        LeaveServing,
        /// The primary keeps followers that answer no heartbeat.
        KeepSilent,
        /// A follower that has just joined counts a whole lease, and the primary waits for a shorter one.
        WholeFirstLease,
    }
}
