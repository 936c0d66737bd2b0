//! Copies of a channel's blocks and rows on several storage nodes.
//!
//! A storage node keeps a channel for a peer ([`storage::node`]). Here two nodes keep it, so that the loss of either costs nothing
//! but a pause; a lost copy is built again, and a copy moves to another node while the peer works. All three are changes of the
//! channel's **view**: which nodes have a copy, and which of these copies are complete (**members**) or being built (**learners**).
//! Each node keeps the newest view that it was given, durably beside the epoch. Views are numbered; of two with the same number
//! the one made in the later epoch is newer ([`ViewId`]). A view is **in force** once every copy that it names has it.
//!
//! Writing, under epoch `e` and a view in force:
//! 1. The primary sends each block to every member, and counts it as durable when every member has it on disk
//!    ([`CopiedBlocks`]). So each member alone has every block that was reported durable.
//! 2. Each member makes the rows of its own blocks. The savepoint that the primary reports is the lowest of the members'
//!    ([`CopiedRows`]).
//! 3. Private rows are in no block. The primary writes them to all copies, learners included, one write at a time; the writes are
//!    numbered, and a node keeps the last number with the rows ([`CopiedPrivate`]). Other compute nodes write transient rows to
//!    all copies. They name the view that they know, and a node that has another one refuses.
//! 4. The primary reads from the first member that works. Another compute node asks one member, and at the same time has every
//!    member confirm that the view which it knows is the newest. If one does not, the answer does not count ([`CopiedReads`]).
//!
//! Changing the view, from `v` to `w`: the primary adds or removes copies, or makes a learner a member.
//! 5. It gives `w` to the copies that are new in it, then to the others. From the moment at which it begins, a block also needs every
//!    member of `w` to be durable. Once every copy in `w` has it, `w` is in force.
//! 6. If a copy in `w` does not answer, the primary makes another view, with a higher number, of members of `v` that do. It never goes
//!    back to `v`, and leaves out no member of `v` before the new view is in force.
//!
//! Losing a copy:
//! 7. A member is lost if it does not confirm the epoch within [`LOST_AFTER`], or has not made a block durable for so long, or has
//!    lost blocks. The primary makes a view without it. The last member is never left out: the peer waits for it.
//!
//! Building a copy, of a node that is new, or was left out:
//! 8. The primary makes the node a learner in a view. The node removes its private rows, because some of these may have been purged
//!    elsewhere, or everything if its blocks are not all of the chain, or an epoch has begun there that is not of this chain.
//! 9. The primary copies private rows that are not there yet, and does not prune the learner's. It copies blocks, with their epochs,
//!    and the learner makes the rows of them.
//! 10. When few blocks are missing, the primary holds back appends, sends the learner the rest, and waits until it has on disk what
//!    was reported durable, and the rows below the savepoint. From then on every block goes to the learner, too, and needs it.
//! 11. After a last numbered write of private rows the primary makes a view in which the learner is a member.
//!
//! Becoming the primary ([`begin_epoch`]):
//! 12. A candidate asks all nodes that it knows for their views, and takes the newest, `v`. It must reach every member of `v`: one that
//!    does not answer may have been used alone. It has each of them begin the epoch that follows the newest of theirs, in the
//!    order of the view. A node refuses if it has a view newer than `v`, or a later epoch. The candidate then begins again.
//! 13. A member of `v` that says itself that it is a member is complete. The candidate keeps the copies with the longest chain and
//!    the last private write, and makes a view of them in its epoch. Those left out are built again. No primary is in office
//!    unless its first view is in force.
//! 14. If no node has a view, the channel is new or had one copy so far: the first configured node is its only member. To know that, the
//!    candidate must reach all configured nodes.
//!
//! Invariants:
//! * At any time every member of the view in force has every block and every private row that was reported durable, and the rows of
//!   the blocks below the reported savepoint.
//! * A later view in force has a member of each earlier one that was attempted since, so a candidate that reaches all members of any
//!   view finds the newest one in force, or one that only adds complete copies to it.
//! * At most one primary has its epoch begun at every member of the view in force; the others are fenced there.
//!
//! What waits: if a member of the newest view does not answer and nobody is the primary, no candidate can tell whether that
//! member was used alone, and the peer waits for it. Two copies cannot decide that; a third party must. An operator who knows
//! that the node will never return says so ([`force_view`]), and may lose what only that node had.

mod blocks;
mod build;
mod control;
mod copies_core;
mod election;
mod keeper;
mod limits;
mod member;
mod private;
mod reads;
mod rows;
mod session;
mod set;

pub use blocks::CopiedBlocks;
pub use control::{CopiesControl, CopyReport};
pub use election::{begin_epoch, channels, copy_states, force_view, has_copies, newest_epoch};
pub use limits::{HEARTBEAT_PERIOD, LEARN_PAUSES, LOST_AFTER};
pub use private::CopiedPrivate;
pub use reads::{CopiedPrivateReads, CopiedReads, CopiedRowReads};
pub use rows::CopiedRows;
pub use session::ChannelCopies;
pub use set::{CopyNode, CopySet};
pub use storage::node::{View, ViewId};
