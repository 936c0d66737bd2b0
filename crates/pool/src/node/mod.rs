//! Memory nodes: donors that grant sections of their memory, and are passive otherwise.
//!
//! 1. An owner connects under a name that the provider of the [`rma::Host`] has verified; this name identifies the
//!    owner. Its first message is a hello with version and section size. Its second message is a fence with its epoch
//!    and a random nonce; the nonce identifies the process that holds the memory.
//! 2. The node rejects the fence if the owner's current epoch is newer than the fence's, or if the epochs are equal and
//!    the nonces differ. Otherwise epoch, nonce and connection of the fence become the owner's current ones, and the
//!    previous connection ends. The node then revokes every capability granted under an older epoch, and answers the
//!    fence last. If the fence does not ask to keep the sections of older epochs, the node reclaims them before it
//!    answers; otherwise they stay with their content, and count against the budget.
//! 3. On the current connection the owner requests, releases and lists sections. The node rejects these requests on any
//!    other connection. Hence, once the owner has listed its sections on a new connection, no request from an old
//!    connection can change that list.
//! 4. On the current connection the owner may *adopt* a section that an older epoch held: it gets a new capability of the
//!    region, and the number that the older epoch had given to the section. A section that it does not adopt it
//!    releases.
//! 5. The owner may request read grants of a section for followers, its other compute nodes. Each follower gets a
//!    separate capability, for reading only, which is revoked alone or with the section. A follower's connection sends
//!    only a hello.
//! 6. When a connection ends, the owner keeps its sections: the same process may connect again. The node reclaims a
//!    section when that process releases it or when a newer epoch fences it without keeping it. The node also reclaims the sections of an
//!    owner that has had no connection for [`ABANDONED_AFTER`], if another owner needs the memory.
//!
//! Invariants:
//! * Of each section at most one epoch has capabilities; while it has none, only a newer epoch of the same owner may get
//!   one.
//! * A request sees and changes only the state of its connection's owner. One request of an owner runs at a time.
//! * A section is in the table, and counts against the budget, from before its memory is registered until its
//!   deregistration is confirmed.
//! * The epoch of an owner only grows. A node forgets the epoch when it restarts, or when it drops an idle owner to
//!   admit another one. It no longer needs the epoch then, because nobody has a valid capability for that owner's
//!   memory.
//! * The numbers of owners, connections and sections are bounded.

mod config;
mod memory_node;
mod node_core;
mod owner;
mod requests;
mod serve;

pub use config::{
    ABANDONED_AFTER, CONNECTIONS_MAX, CONNECTIONS_PER_OWNER_MAX, MemoryNodeConfig, OWNERS_MAX, READ_GRANTS_MAX,
};
pub use memory_node::{MemoryNode, MemoryNodeUsage};

use config::HANDSHAKE_TIMEOUT;
use node_core::MemoryNodeCore;
