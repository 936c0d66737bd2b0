//! The storage node of one organisation: blocks and tables of its channels, for compute nodes elsewhere.
//!
//! FlexChain, section 4.1.2: the block store and the savepoint lie in remote storage, and blocks are materialised there, off
//! the path of a commit. One logical peer at a time writes a channel; which one is decided elsewhere and known here by
//! its **epoch**.
//!
//! 0. Who is to be primary asks for a new epoch: the newest plus one, which step 2 begins at once and which nobody else is
//!    ever given. Who would succeed a primary that it misses names that one's epoch, and is refused when another has begun.
//! 1. A client opens a link, and says on it which version of the messages it speaks, its token, its channel, its
//!    [`Role`] and, if it writes, its epoch. The node answers with the end of the chain and the savepoint, or refuses.
//! 2. Before it answers an epoch newer than any before, the node lets writes that have begun end, makes the epoch durable in
//!    a [file](epoch) of its own, and syncs what was appended. From then on it refuses each append, materialisation and
//!    pruning of an older epoch with `Fenced`. A primary that comes back under its own epoch goes on; what its earlier
//!    link had sent and the node had not begun is dropped.
//! 3. The primary sends blocks, each in one message, many in flight. The node appends them in the order of sending, only at
//!    (height, previous hash), syncs as many as wait with one fsync, and answers each with the durable height.
//! 4. By itself, when [`MATERIALIZE_BLOCKS`] or [`MATERIALIZE_BYTES`] wait, the node makes durable blocks into rows and
//!    persists them. It never falls more than [`BEHIND_BLOCKS_MAX`] blocks behind: appends wait before that, and are refused
//!    when rows cannot be made.
//! 5. Whenever the durable height or the savepoint moves, every client of the channel is sent a notice.
//! 6. A client that loses its link connects again and opens under the same epoch. A block whose append was left ambiguous
//!    is found in the node's answer, by height and hash, or sent again.
//!
//! Invariants:
//! * Once the answer to an opening under epoch `e` is on its way, no block of an older epoch is appended, and no rows are
//!   pruned for one; this survives crashes.
//! * What is answered as durable is found again after a crash. The savepoint never covers a block that is not.
//! * Rows are those of the valid transactions of the node's own blocks. Nobody sends rows to a node.
//! * At opening a channel its savepoint must name one of its blocks, by hash; else the channel is refused as damaged.
//! * A channel that failed is opened again for the next client, and the links of the one before end: nobody reads a store that
//!   another has replaced.
//! * An engine that takes no more writes ends the node ([`StorageNode::failed`]): only with the node is it opened again.
//! * All bytes from a link may be hostile: they end their link, or are refused.
//!
//! The bytes are described in `docs/formats/storage-messages.md`. Who may be primary, and which epoch it has, is left to
//! the manager; secrecy and identity of links to their provider, the token here only keeps the tenants of a pool apart.

mod absence;
mod channel;
mod client;
pub mod epoch;
#[doc(hidden)]
pub mod fuzz;
mod message;
mod remote_blocks;
mod remote_reads;
mod remote_state;
mod server;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use client::{RemoteOptions, begin_epoch, begin_epoch_after, channels, newest_epoch};
pub use message::{Role, VERSION};
pub use remote_blocks::RemoteBlocks;
pub use remote_reads::RemoteReads;
pub use remote_state::RemoteStateStore;
pub use server::{NodeOptions, StorageNode};

/// Links that a node serves at a time; further ones are ended at once.
pub const LINKS_MAX: usize = 256;
/// Requests of one link that are worked on at a time.
pub const REQUESTS_MAX: usize = 64;
/// Channels that a node keeps.
pub const CHANNELS_MAX: usize = 1024;
/// Appends of a channel that wait to be begun; further ones are refused with `Retry`.
pub const APPENDS_WAITING_MAX: usize = 128;
/// Blocks that one fsync follows.
pub const APPENDS_TOGETHER_MAX: usize = 32;
/// Durable blocks that wait before they are made into rows: many share the price of a savepoint, and a primary that has lost
/// its memory replays few. Fewer than after which a primary asks by itself.
pub const MATERIALIZE_BLOCKS: u64 = 24;
/// Bytes of durable blocks that wait before they are made into rows.
pub const MATERIALIZE_BYTES: u64 = 32 << 20;
/// Blocks that the savepoint may be behind the newest block.
pub const BEHIND_BLOCKS_MAX: u64 = 64;
/// Bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a channel's name.
pub const CHANNEL_BYTES_MAX: usize = 249;
/// An answer with rows or blocks ends once it has so many bytes; the client asks for the rest.
pub const ANSWER_BYTES_SOFT_MAX: usize = 8 << 20;

/// Blocks that a primary has sent or wants to send and that are not durable; further appends wait.
pub const PENDING_BLOCKS_MAX: usize = 64;
/// Bytes of those blocks; further appends wait.
pub const PENDING_BYTES_MAX: usize = 256 << 20;
/// Appends that are on their way at a time.
pub const APPENDS_IN_FLIGHT_MAX: usize = 32;
/// How long a client waits for an answer before it tries another link.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a client waits for blocks to be made into rows, or for pruning.
pub const WORK_TIME_MAX: Duration = Duration::from_secs(60);
/// How often a client asks again after a lost link before it gives the question up.
pub const ASK_ATTEMPTS_MAX: usize = 8;
/// The wait before the first new attempt to connect; it doubles.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest wait between two attempts to connect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How long a step that a simulation holds up waits.
const HELD_UP: Duration = Duration::from_millis(100);

/// A named fault point: in a simulation a step may wait here, so that crashes, cuts and newer primaries fall between two.
async fn hold_up(name: &'static str) {
    if base::rt::fault_point(name) {
        base::rt::sleep(HELD_UP).await;
    }
}

/// Waits between attempts, longer each time and by chance, so that clients that lost the same node come back one by one.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Backoff {
        Backoff(BACKOFF_MIN)
    }

    async fn wait(&mut self) {
        let half = self.0 / 2;
        let spread = Duration::from_nanos(base::rt::random_below(half.as_nanos() as u64 + 1));
        base::rt::sleep(half + spread).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}
