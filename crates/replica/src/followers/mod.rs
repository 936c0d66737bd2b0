//! The compute nodes of one logical peer: its primary, and followers.
//!
//! A *follower* serves snapshots of the primary's state from the same remote memory. It learns of changes over one link
//! to the primary ([`message`], docs/formats/followers.md). FlexChain (section 4.2) invalidates the caches of other
//! compute nodes record by record; here the primary sends one message per follower and block (docs/adr, several compute
//! nodes). This crate does not interpret a change: the primary's state ([`PrimaryState`]) logs its changes in the
//! [`FollowerTable`], and a follower's state ([`Replica`]) applies them.
//!
//! Joining:
//! 1. The follower connects, and sends the versions of the protocol that it speaks. The primary waits until it has
//!    applied every durable block and no follower of an earlier primary holds a lease
//!    ([`EarlierLeases::admit_followers`]). Then the primary has storage materialise these blocks, so that the follower
//!    has little to catch up on.
//! 2. For each section the primary obtains a read grant: a capability to read, for this follower alone. Then it takes
//!    the writer's lock, obtains read grants for the sections leased meanwhile, and records the subtables of the index,
//!    the contents of the delta, and the height. From here on it logs every change for this follower. If a donor is
//!    silent, the follower joins without that donor's sections: it reads their records from storage.
//! 3. The follower enters these sections, subtables and writes into its own state, and starts to follow.
//!
//! Following:
//! 4. The primary logs every change after it has made the change in remote memory: sections, subtables, evicted or
//!    removed records, the savepoint, and the writes of blocks. An *update* carries everything logged since the
//!    previous update. The primary sends one update for each block, before it raises the height, and one every
//!    [`HEARTBEAT`].
//! 5. The follower applies updates in order, each as a whole. It enters a block into its delta, then into its caches;
//!    there it invalidates the token of every read of the block's keys that is in progress. Then it shows the new
//!    height, and acknowledges the update. The acknowledgement also requests a lease, which starts at the moment of the
//!    request.
//! 6. The primary raises its height once each follower has acknowledged the block's update, or no longer has a live
//!    lease ([`FollowerTable::wait_acknowledged`]). Leases are granted with heartbeats. The primary first receives the
//!    follower's request, then asks storage to confirm that no newer primary has started, and grants the lease only
//!    after this confirmation. Only an acknowledgement requests a lease, so a follower that has not caught up with the
//!    update gets none. In the first [`FIRST_LEASES_FOR`](crate::lease::FIRST_LEASES_FOR) after its first one its leases are
//!    short ([`FIRST_LEASE`](crate::lease::FIRST_LEASE)): while it takes on its first work it acknowledges late, and blocks
//!    would wait for it.
//! 7. A follower gives a snapshot only under a live lease, and an answer counts only if the lease is still live once
//!    the answer is complete ([`JoinedState::is_live`]). A read of remote memory starts only under a live lease.
//! 8. The state retires a buffer only when every lease holder has acknowledged the update after which nothing leads to
//!    the buffer ([`FollowerTable::acknowledged_below`]). It reclaims a superseded version only when no view on any
//!    node is old enough to need it ([`FollowerTable::floor`]). Before it evicts records, it asks the followers which
//!    of them they have in use.
//! 9. If a follower finds a record only in storage, it asks the primary to bring the record back to memory. If it
//!    finds a version nowhere in memory, it asks the primary to have storage materialise the version's block. The
//!    primary may drop such requests.
//!
//! Followers may also do work for the primary: see [`work`].
//!
//! Ends:
//! 10. The primary fences a follower in any of these cases: its link is lost; more than [`UPDATES_MAX`] updates wait
//!     for it; the changes of one update exceed [`CHANGES_BYTES_MAX`]; its late acknowledgements keep delaying blocks;
//!     it leaves [`SILENT_HEARTBEATS_MAX`] heartbeats in a row without an acknowledgement, as a suspended process does.
//!     The primary then revokes the follower's capabilities, and raises no height until the follower's lease has ended.
//!     The follower joins again, with empty caches. A follower that receives nothing for [`SILENCE_TIMEOUT`], or gets
//!     no lease for [`LEASELESS_TIMEOUT`], ends the session itself.
//! 11. A new primary has fenced the old one at storage and memory. Until every lease that the old primary can have
//!     granted has ended, the new primary raises no height, and does not show the height that it finds. The old
//!     primary's followers join the new one; the new primary's own process may have been one of them.
//!
//! Coming and going while the primary runs:
//! 12. The primary needs no list of its followers: it admits any node that its port admits, up to [`FOLLOWERS_MAX`].
//!     After its welcome, a follower announces where it answers ([`message::Announcement`]), and reports its load with
//!     each acknowledgement ([`crate::load`]). The primary passes both on to callers that ask ([`FollowerTable::reported`]).
//! 13. A follower that is to leave announces that it drains ([`Follower::drain`]): the primary gives it no more work,
//!     and passes this on. It answers what it has, under its lease as before.
//! 14. Then it ends its session, so that nothing is answered from it any more, and only then says that it leaves
//!     ([`Follower::leave`]). The primary removes it without waiting for its lease: no block is delayed. If this message
//!     is lost, the link ends, and the primary waits for the lease as in step 10.
//!
//! Invariants:
//! * Once the primary has raised a height, every answer of a follower from a snapshot taken afterwards is at this
//!   height or above.
//! * A snapshot at height `h` sees exactly the blocks below `h`, at any node.
//! * Only the primary writes to remote memory.
//! * A lease is waived by its holder alone, after the holder has ceased to answer.
//! * A follower may show a height a little before the primary raises it; the block is durable, so the height is never
//!   taken back.

mod follower;
mod follower_table;
mod joined;
mod limits;
pub mod message;
mod pending_changes;
mod permits;
mod serve;
pub mod work;

pub use follower::{FailoverTimeouts, FindPrimary, Follower, Replica, ReplicaError, ReplicaFactory};
pub use follower_table::{CHANGES_BYTES_MAX, FollowerTable, LeaseRequest, UPDATES_MAX};
pub use joined::JoinedState;
pub use limits::{FOLLOWERS_MAX, HEARTBEAT, JOIN_TIMEOUT, LEASELESS_TIMEOUT, SILENCE_TIMEOUT, SILENT_HEARTBEATS_MAX};
pub use permits::WorkPermit;
pub use serve::{Admission, ChangeBatches, EarlierLeases, MissedState, PrimaryState, send_heartbeats, serve_follower};
pub use work::WorkHandler;
