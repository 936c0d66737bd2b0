//! The chain: from a client's proposal to a committed transaction, one folder a phase.
//!
//! 1. [`endorse`]: a peer runs the contract that a proposal asks for against one snapshot of its state and signs what it
//!    read and would write.
//! 2. [`order`]: an orderer puts endorsed transactions into blocks, makes each block durable and hands it to the peers.
//! 3. [`validate`]: a peer checks signatures and endorsements of a block's transactions in parallel, and conflicts in the
//!    order of the block.
//! 4. [`commit`]: it stores the block with its verdict, applies what is valid to the world state, and tells who waits.
//!
//! [`rwset`] is what the phases pass on: a transaction's read-write set, in Fabric's bytes. [`history`] is what a key held
//! before. [`peer`] and [`channel`] put the phases of an organisation's peer together, [`succession`] several compute nodes of
//! one; an [`order::Orderer`] stands alone.
//!
//! What is never here: remote memory, verbs and gRPC. State is behind [`state::WorldState`]; wire codes of services are
//! the gateway's.

pub mod access;
pub mod channel;
pub mod commit;
pub mod endorse;
pub mod error;
pub mod events;
mod fault;
pub mod history;
pub mod order;
pub mod peer;
pub mod remote;
pub mod rwset;
pub mod stores;
pub mod succession;
pub mod validate;
pub mod view;

// Tests and examples share their network; inside the crate it finds this crate under its outer name.
#[cfg(test)]
extern crate self as chain;
#[cfg(test)]
#[path = "../tests/chain/support/mod.rs"]
mod support;

pub use channel::Channel;
pub use commit::deliver::BlockSources;
pub use error::Error;
pub use peer::{Peer, PeerOptions};
pub use stores::{BlockRows, ChannelStores, LocalStores, NodeStores, States, Stores};
