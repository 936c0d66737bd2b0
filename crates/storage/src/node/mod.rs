//! The storage node of one peer: keeps the blocks and tables of its channels for compute nodes on other
//! machines.
//!
//! As in FlexChain, section 4.1.2, the block store and the savepoint lie in remote storage, and blocks are materialised
//! there, off the path of a commit. One primary at a time writes a channel. The storage node does not decide which
//! compute node is the primary; it knows the primary by its **epoch**.
//!
//! 0. A compute node that is to become primary asks for a new epoch, which is the newest plus one. The node waits for
//!    writes that have begun, makes this epoch durable in a separate [file](epoch), and begins it. It never gives the
//!    same epoch to another compute node. A follower that suspects the primary names the epoch that it followed; if a
//!    newer epoch has begun, the node rejects the request.
//! 1. A client opens a link. The client's first request names the message versions that it speaks, its token, its
//!    channel, its [`LinkPurpose`] and, if it writes, its epoch. The node answers with the end of the chain and the
//!    savepoint, or refuses.
//! 2. If the client writes, the node does three things before it answers: it waits for writes that have begun, begins
//!    the client's epoch as in step 0 if that epoch is newer than any before, and syncs the appended blocks. From the
//!    beginning of an epoch on, the node refuses each append, materialisation and pruning of an older epoch with
//!    `Fenced`. A primary that reconnects under its own epoch may continue; the node refuses appends that arrived on
//!    the primary's earlier link and had not begun.
//! 3. The primary sends blocks, one message each, many in flight. The node appends them in the order of sending, and
//!    each only if it continues the chain. It makes up to [`APPENDS_TOGETHER_MAX`] waiting appends durable with one
//!    fsync, and answers each with the durable height.
//! 4. When [`MATERIALIZE_BLOCKS`] or [`MATERIALIZE_BYTES`] of durable blocks wait, the node materialises them without
//!    being asked and persists the rows. The savepoint is never more than [`SAVEPOINT_LAG_BLOCKS_MAX`] blocks behind:
//!    appends wait at that limit, and are refused if the node cannot materialise.
//! 5. Whenever the durable height or the savepoint moves, the node sends a notification to every client of the channel.
//! 6. Private data, which no block has, are rows of separate tables ([`crate::private`]). The primary writes those of committed
//!    transactions under its epoch. Any client of the channel may add those of transactions that are not ordered yet.
//! 7. A client that loses its link connects again and opens under the same epoch. If an append was ambiguous, the
//!    height and the hash in the node's answer show whether its block arrived. If the block did not arrive, the client
//!    sends it again.
//!
//! Other storage nodes may have copies of a channel. A node then keeps the newest [`View`] of the copies beside the epoch, and the
//! steps differ as follows; the crate `storage_copies` says why.
//!
//! 8. A candidate chooses the epoch itself, newer than any of the copies has, and has each complete copy begin it
//!    ([`begin_epoch_in`]). A node that has a newer view than the candidate knows refuses. It refuses step 0, and opening a link
//!    begins no epoch.
//! 9. The primary gives each copy a new view under its epoch ([`install_view`]). A node takes only newer views. A node that becomes
//!    a learner removes its private rows first, or everything if its blocks are not all of the chain; a crash does not interrupt
//!    that for good. A learner takes blocks of earlier epochs, too, since these are copied to it.
//! 10. A client that adds transient rows names the view that it knows, and the node refuses if it has another one.
//!
//! Invariants:
//! * Once the node has answered an opening under epoch `e`, it appends no block and prunes no rows for an older epoch;
//!   this survives crashes.
//! * Every block that the node has reported durable is found again after a crash. The savepoint covers only durable
//!   blocks.
//! * The rows are those of the valid transactions of the node's own blocks. Clients never send rows to a node.
//! * When the node opens a channel, the savepoint must name one of the channel's blocks, by hash; otherwise the node
//!   refuses the channel as damaged.
//! * When a channel fails, the node ends the channel's links, and opens the channel again for the next client. So no
//!   client goes on reading a store that the node has replaced.
//! * When the tables' engine accepts no more writes, the node reports that it has failed ([`StorageNode::failed`]),
//!   because only a restart of the node opens the engine again.
//! * All bytes from a link may be hostile. The node answers invalid ones by refusing the request or ending the link.
//!
//! `docs/formats/storage-messages.md` describes the bytes. The compute nodes decide which of them is primary. The
//! network provider encrypts and authenticates links; the token only keeps the tenants of a pool apart.

mod append_driver;
mod backoff;
mod channel;
mod channel_copy;
mod client;
mod config;
mod delay;
mod engine_failure;
pub mod epoch;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod message;
mod pending_blocks;
mod private_message;
mod remote_blocks;
mod remote_private;
mod remote_reads;
mod remote_state;
mod reset;
mod server;
mod tx_id_filter;
mod view;

use backoff::retry_backoff;
pub use backoff::{BACKOFF_MAX, BACKOFF_MIN};
pub use client::{
    RemoteStoreConfig, begin_epoch, begin_epoch_after, begin_epoch_in, channels, copy_status, install_view,
    newest_epoch,
};
pub use config::StorageNodeConfig;
use delay::hold_up;
pub use limits::{
    APPENDS_IN_FLIGHT_MAX, APPENDS_TOGETHER_MAX, APPENDS_WAITING_MAX, ASK_ATTEMPTS_MAX, CHANNEL_BYTES_MAX,
    CHANNELS_MAX, LINKS_MAX, MATERIALIZE_BLOCKS, MATERIALIZE_BYTES, PENDING_BLOCKS_MAX, PENDING_BYTES_MAX,
    REQUESTS_MAX, RESPONSE_BYTES_SOFT_MAX, RESPONSE_TIMEOUT, SAVEPOINT_LAG_BLOCKS_MAX, TOKEN_BYTES_MAX, WORK_TIMEOUT,
};
pub use message::{LinkPurpose, PROTOCOL_VERSIONS};
pub use remote_blocks::RemoteBlocks;
pub use remote_private::RemotePrivateRows;
pub use remote_reads::RemoteReads;
pub use remote_state::RemoteStateStore;
pub use server::StorageNode;
pub use view::{
    COPIES_MAX, COPY_NAME_BYTES_MAX, ChannelCopy, CopyReset, CopyStatus, Installation, RegisteredView, View, ViewId,
};

#[cfg(test)]
mod tests;
