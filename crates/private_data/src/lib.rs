//! Private data: values that only the members of a collection have, while the ledger holds their hashes.
//!
//! A contract's definition names its collections and their members. The hashes of keys and values are part of the transaction, of
//! the block and of every peer's state. The values travel beside the blocks, from peer to peer of the member organisations, and
//! never reach an orderer. FlexChain's peers keep a state in pools (section 4 of the paper); its private part lies in tables
//! of the peer's own storage ([`storage::private`]).
//!
//! 1. **Endorse.** The endorser keeps the private writes of the proposal, by collection, as *transient* sets, and sends each set
//!    to peers of other members ([`PrivateChannel::distribute`]). If fewer of them acknowledge than the collection requires, the proposal fails.
//! 2. **Commit.** Before a peer appends a block, it looks for the sets of the block's valid transactions whose collections its
//!    organisation keeps: among its transient sets, then at the peers of the other members, for a bounded time
//!    ([`collect`]). It writes the sets and their values, or notes that a set is missing. Only then is the block appended. So a
//!    crash never loses a set that the peer had: the peer receives the block again, or its data are durable.
//! 3. **Reconcile.** In the background the peer asks for missing sets again, and adds them whenever they arrive ([`upkeep`]).
//! 4. **Remove.** Data of a collection with `block_to_live` b that block n wrote are removed once block n + b + 1 is committed.
//!    A purge removes all earlier values of a key from the committed values and sets, and finally from the disk. Peers of all
//!    organisations note it, since they may become members and ask for earlier sets ([`upkeep`]). Transient sets are removed
//!    once their transaction is committed, or after a number of blocks if it was not ordered ([`settle`]).
//!
//! A value counts only if its hash is the one in the state at the reader's height. This has three consequences:
//! * Values may be added, and removed, at any time and in any order. No step of the commit waits for another organisation longer
//!   than its bound, and a follower needs no invalidation.
//! * A peer that lacks the newest value of a key refuses to read it; it never returns an older one.
//! * Sets from other organisations cannot do harm: a set counts only if its hash is the transaction's, and each of its values
//!   only if the transaction has the hashes of key and value.
//!
//! Invariants:
//! 1. Only peers of member organisations get a set: a peer sends sets to, and answers requests of, the organisation that the link
//!    proves, if the newest definition makes it a member.
//! 2. What is kept, sent or waited for is bounded for each organisation.
//! 3. A block's verdicts, its commit hash and the state never depend on private data.

#![deny(missing_docs)]

mod access;
mod channel;
pub mod collect;
mod distribute;
mod error;
pub mod events;
mod members;
mod policies;
pub mod rows;
mod settle;
pub mod store;
pub mod upkeep;
mod values;

pub use access::CollectionAccess;
pub use channel::{ORGANIZATION_BYTES_MAX, PrivateChannel, SET_BYTES_MAX, SETS_MAX};
pub use collect::{BlockTransaction, PULL_MAX};
pub use distribute::PUSH_MAX;
pub use error::Error;
pub use members::{MemberPeer, MemberPeers, SILENCE, SetDigest};
pub use policies::CollectionPolicies;
pub use store::PrivateStore;
pub use upkeep::Upkeep;
pub use values::{PrivatePage, PrivateValues};
