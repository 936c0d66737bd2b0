//! Copies of a channel's blocks and rows on several storage nodes.
//!
//! A storage node keeps a channel for a peer ([`storage::node`]). Here two nodes keep it, so the loss of either costs only a
//! pause. A lost copy is built again, and a copy can move to another node while the peer works. Each of these changes the
//! channel's **view**: which nodes have a copy, and which of these copies are complete (**members**) or being built (**learners**).
//! Each node keeps the newest view that it was given, durably beside the epoch. Views are numbered; of two with the same number,
//! the view of the later epoch is newer ([`ViewId`]). A view is **in force** once every copy that it names has it.
//!
//! Writing, under epoch `e` and a view in force:
//! 1. The primary sends each block to every member, and counts it as durable when every member has it on disk
//!    ([`CopiedBlocks`]). So each member alone has every block that was reported durable.
//! 2. Each member makes rows from its blocks. The primary reports the lowest savepoint of the members ([`CopiedRows`]).
//! 3. Private rows are in no block. The primary writes them to all copies, learners included, one write at a time; the writes are
//!    numbered, and a node keeps the last number with the rows ([`CopiedPrivate`]). Other compute nodes write transient rows to
//!    all copies. Such a write names the view that its sender knows, and a node with another view refuses it.
//! 4. The primary reads from the first member that answers. Another compute node asks one member, and at the same time asks every
//!    member whether the view that it knows is the newest. Unless all confirm this, it discards the answer ([`CopiedReads`]).
//!
//! Changing the view, from `v` to `w`: the primary adds or removes copies, or makes a learner a member.
//! 5. It gives `w` to the copies that are new in it, then to the others. From the start of this, a block is durable only once every
//!    member of `w` has it as well. Once every copy in `w` has `w`, `w` is in force.
//! 6. If a copy in `w` does not answer, the primary makes another view, with a higher number, of those members of `v` that answer. It
//!    never returns to `v`, and leaves out no member of `v` before the new view is in force.
//!
//! Losing a copy:
//! 7. A member is lost if it does not confirm the epoch within [`LOST_AFTER`], if a block is not durable there within that time, or
//!    if it has lost blocks. The primary makes a view without it. The last member is never left out: the peer waits for it.
//!
//! Building a copy, of a node that is new, or was left out. All such nodes are asked what they have, each at its own pace
//! (`attempts`); the first that answers gets the copy:
//! 8. The primary makes the node a learner in a view. The node removes its private rows, because the members may have purged some of
//!    them. It removes everything if some of its blocks, or the epoch that has begun there, are not of this chain.
//! 9. The primary copies the private rows that the learner lacks, and prunes none there. It copies blocks with their epochs, from
//!    which the learner makes rows.
//! 10. When few blocks are missing, the primary holds back appends and sends the learner the rest. It waits until the learner has on
//!    disk the blocks that were reported durable and the rows below the savepoint. From then on every block goes to the learner,
//!    too, and is durable only once the learner has it.
//! 11. After a last numbered write of private rows, the primary makes the learner a member in another view.
//!
//! Becoming the primary ([`begin_epoch`]):
//! 12. A candidate asks all nodes that it knows for their views, and takes the newest, `v`. It must reach every member of `v`, because
//!    one that does not answer may have been used alone. In the order of `v`, each member begins the epoch that follows the newest
//!    of all members. A node refuses if it has a view newer than `v`, or a later epoch. The candidate then starts again.
//! 13. A member of `v` is complete if its node's own view names it a member, too. The candidate keeps the copies with the longest
//!    chain and the last private write, and makes a view of them in its epoch. The other copies are built again. A candidate is
//!    the primary only once this first view is in force.
//! 14. If no node has a view, the channel is new or had one copy so far: the first configured node is its only member. To know this,
//!    the candidate must reach all configured nodes.
//!
//! Invariants:
//! * At any time every member of the view in force has every block and every private row that was reported durable, and the rows of
//!   the blocks below the reported savepoint.
//! * A later view in force has a member of each earlier one that was attempted since, so a candidate that reaches all members of any
//!   view finds the newest one in force, or one that only adds complete copies to it.
//! * At most one primary has its epoch begun at every member of the view in force; the others are fenced there.
//!
//! What waits: if there is no primary and a member of the newest view does not answer, no candidate can tell whether that
//! member was used alone, and the peer waits for it. Two copies cannot decide this; a third party must. An operator who knows
//! that the node will never return says so ([`force_view`]), and may lose what only that node had.

mod attempts;
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
pub use limits::{HEARTBEAT_PERIOD, LOST_AFTER};
pub use private::CopiedPrivate;
pub use reads::{CopiedPrivateReads, CopiedReads, CopiedRowReads};
pub use rows::CopiedRows;
pub use session::ChannelCopies;
pub use set::{CopyNode, CopySet};
pub use storage::node::{View, ViewId};
