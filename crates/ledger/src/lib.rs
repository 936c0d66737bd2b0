//! Blocks, transactions and channel configuration: everything about a ledger that is bytes and hashes.
//!
//! * [`block`]: building, reading, hashing, signing and checking blocks.
//! * [`transaction`]: reading an endorser transaction in place, and the checks that need no state.
//! * [`config`]: what a channel's configuration says, and the making of genesis blocks.
//! * [`mod@verify`]: a check of a whole stored ledger.
//!
//! Blocks, headers, metadata and hashes are Hyperledger Fabric's, byte for byte; `docs/formats/fabric-blocks.md` draws
//! them.
//!
//! Invariants: what is hashed or verified are bytes as they were received, never a message encoded again. Bytes from
//! outside decode into an error that names what is wrong; nothing here panics on them. World state is not known here.

pub mod block;
pub mod config;
pub mod error;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
pub mod hash;
pub mod transaction;
pub mod verify;
pub mod wire;

pub use block::{Block, CommitHasher, EncodedBlock};
pub use config::ChannelConfig;
pub use error::Error;
pub use hash::{Hash, sha256};
pub use transaction::Transaction;
