//! Coordinators: they serve the replicated memory while they hold a majority (Sift, sections 3.3 and 3.4.2).
//!
//! 1. A logged write locks its blocks. The coordinator appends the write as one entry to the log of every live node, by
//!    one verb per node. The entry carries its index, the checksum of the previous entry and its own checksum. It is
//!    committed when a majority has it and all entries before it. Several writes can form one entry: they are committed
//!    together, and no conflicting access comes between them.
//! 2. Committed entries are applied in the background: the coordinator posts their bytes to every live node's memory
//!    and unlocks their blocks. A caller that needs a locked block, or free log space, applies the committed entries at
//!    once. When enough entries are applied, the coordinator writes a header to each node, with the position up to
//!    which the node's memory has all writes. Log space that the headers of a majority cover is free again.
//! 3. A read waits until its blocks are unlocked. It goes to one live node and takes effect there after the applied
//!    writes that were posted before, since verbs of one endpoint take effect in order. The coordinator answers the
//!    read if the lease still stands when the bytes have arrived.
//! 4. Heartbeat: every [`crate::SiftTimeouts::heartbeat`] the coordinator writes its node number and a timestamp into
//!    each node's administrative words, and reads the node's replicated region under the coordinator's own capability
//!    (the probe). The coordinator considers the F+1 live nodes whose last successful probes were posted latest. The
//!    lease stands for [`crate::SiftTimeouts::lease`] from the time at which the earliest of these F+1 probes was
//!    posted. When the lease has run out, the coordinator ends.
//! 5. A node whose verb fails is lost: it has no part in commits any more. In the background the coordinator reconnects
//!    to the node and fences it under the coordinator's term; the fence ends all verbs that were still in flight to the
//!    node. From then on the node is joining, and the coordinator copies the memory to it, region by region, the least
//!    written regions first. The coordinator skips unchanged regions if the node still has its memory, and if the log
//!    of a live node still has all entries after the position that the node's header covers. It then copies only the
//!    regions that these entries write, the regions to which writes were applied since the node joined, and the
//!    unlogged region. While a region is copied, its blocks can be read, but are not written. While the node is
//!    joining, it gets every new entry, and the applied writes of each region that is copied. When everything is
//!    copied, and at least [`crate::SiftTimeouts::attempt_max`] has passed, the coordinator probes F+1 *other* nodes
//!    and reads their terms. Then it writes the node's header, raises the node's term to the greatest of these terms,
//!    gives the node its vote back, and counts the node again.
//!
//! Why at most one coordinator serves. A probe that succeeded took effect before any newer coordinator fenced that
//! node. A newer coordinator has F+1 nodes fenced at its moment *t* ([`crate::takeover`]). The older coordinator's
//! lease is based on probes of F+1 nodes. One of these nodes is also fenced, so its probe was posted before *t*, and
//! hence the earliest of these probes too. The lease ends one lease length after the earliest probe, by the older
//! coordinator's clock, which may be slow by the drift bound. The newer coordinator serves only when a longer time has
//! passed since *t*, even if its own clock is fast by the drift bound.
//!
//! Why a re-admitted node counts. It holds what any live node holds. It has each applied write: from the copy or, if
//! the write was applied after the copy, directly from the coordinator. It has the writes that are not applied yet as
//! entries. A write that was appended before the node joined locks its blocks, so its region is copied only after the
//! write is applied. *Records* are entries that write no memory, so they lock no blocks. Therefore the coordinator
//! first writes to the node all records that the log still needs, many at once.
//!
//! Why a lost node may keep its memory. The memory holds all writes that the node's header covers, and of later writes
//! only committed ones. The entries from the header's position up to the last entry that was applied when the node
//! joined are in the log of a live node, linked by their checksums. Writes that are applied after the node joined are
//! recorded until the regions to copy are chosen. Blocks that no such entry or write changes are the same at the node
//! as at a live node.
//!
//! Ambiguous completions: a node whose verb is ambiguous is lost, as after any other failure, and the verb never counts
//! as acknowledged. After the fence of step 5, or the fence of the next coordinator, the verb can no longer take
//! effect. If the coordinator ends before a majority has a write, its caller gets [`Error::Ambiguous`]: the next
//! takeover may or may not find the write.
//!
//! # Erasure-coded groups
//!
//! With [`crate::GroupLayout::data_shards`] above one, each node holds one shard of every block of the logged memory,
//! and any F+1 shards give the block back (Sift, section 5.1). The log and the unlogged region are stored in full, so
//! elections, fences, commits and records work as above. The differences:
//! 1. Append: an entry has whole blocks. Partial writes are turned into whole blocks first ([`block_images`]).
//! 2. Apply: the coordinator posts to each live node that node's own shard of the block, in one verb.
//! 3. Read: the coordinator chooses the F+1 live nodes that are least behind. If they have all data shards that contain
//!    the range, it reads only these shards. Otherwise it reads the shards of all F+1 nodes and computes the missing
//!    data.
//! 4. Log space: a position of the log is reused once the headers of *all* live nodes cover it, and all of them have
//!    answered a heartbeat that was posted after the last loss of a node.
//! 5. A node that comes back gets its own shard of every block, computed from F+1 others, region by region. It is
//!    re-admitted when every live node's header covers the entries that were appended before it joined.
//!
//! Why F+1 shards are always of one version. *While a coordinator serves*: for an unlocked block, the same writes have
//! been posted to every live node, in the same order. The reads of its shards are posted together after these writes,
//! and verbs of one endpoint take effect in order. A node whose verb fails is not read any more. *When a coordinator
//! has died*, a node's shard may be of any version from the one that the node's header covers onwards. So a takeover
//! does not compare shards at all. The next coordinator brings every node that it adopts from *that node's* header up
//! to the end of the log. The log has every version in between as a whole block, from which any shard can be computed
//! (steps 4 and 5 at the head of [`crate::takeover`]). A block that no such entry writes is of the version that the
//! header covers. Numbers or checksums beside the shards would distinguish versions, but could not restore a version of
//! which too few shards are left; with whole blocks in the log they are not needed.
//!
//! Why F+1 nodes can be brought up to date. At most F nodes are lost, so it is enough that every remaining live node
//! can be brought up to date. By rule 4 and the second sentence of rule 5, every entry after such a node's header
//! position is in the log of each live node. A node whose verb failed counts as one of the F lost nodes until it is
//! re-admitted, even if it still has its memory, because the log entries that it needs may be overwritten. That is the
//! price of erasure coding: a node that was only partitioned is a failure, whereas a group without erasure coding
//! survives the loss of any F memories, whichever nodes were partitioned. When a node is lost, others that still count
//! as live may have failed already, and the lost node's copy may be needed in their place. Therefore rule 4 frees no
//! log space after a loss until all live nodes have answered once more: only then is it certain that the group can do
//! without the lost node.
//!
//! # Persistent memory nodes
//!
//! 1. The coordinator sends all writes that it posts to a persistent node also in messages, in the same order; each
//!    message contains the writes since the previous message. The node answers when the writes are on its disk
//!    ([`crate::disk`]).
//! 2. A persistent node has acknowledged a verb when the verb has completed *and* the write is on its disk. Commits,
//!    headers and free log space follow from acknowledgements, as for any node.
//! 3. When too many bytes wait for a disk ([`UNPERSISTED_BYTES_MAX`]), the coordinator appends nothing more until that
//!    disk has caught up or its node is lost.
//!
//! So a group with F+1 persistent nodes loses no committed entry when all nodes lose power at once. The other F nodes
//! are then blank, and a group survives F blank nodes. The persistent nodes have everything that they acknowledged.
//! Every committed entry is at one persistent node at least, since a majority without a persistent node would need F+1
//! volatile nodes. The next takeover needs copies from F+1 nodes, so it reads all persistent nodes, and that one too.
//! With fewer persistent nodes, the group is lost when all nodes lose power, and reports the loss. In such a group
//! persistence brings no advantage; but no commit has to wait for a persistent node either, since a majority of
//! volatile nodes can commit.
//!
//! Invariants:
//! * Only committed entries are applied.
//! * The coordinator posts the same verbs in the same order to all live nodes.
//! * Only entries that the headers of a majority cover are overwritten.
//! * Bounded: outstanding verbs to one node ([`PENDING_VERBS_MAX`]; a node with more is lost), waiting callers
//!   ([`WAITING_MAX`]), and, by the log, entries.
//!
//! [`Error::Ambiguous`]: crate::Error::Ambiguous

mod background;
mod block_images;
mod coordinator_core;
mod limits;
mod serving;
mod state;
mod status;

pub use limits::{PENDING_VERBS_MAX, UNPERSISTED_BYTES_MAX, WAITING_MAX};
pub use serving::{Coordinator, WriteHandle};
pub(crate) use state::covers_whole_blocks;
pub use status::CoordinatorStatus;
pub(crate) use status::{RecoveredNode, RecoveredState};
