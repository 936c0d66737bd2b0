//! Contracts: the application code that a peer runs to endorse a transaction.
//!
//! What is here:
//! - [`Contract`], what every runtime implements, and [`Stub`], all that a contract can reach. A contract has no clock,
//!   chance, disk or network, so that every endorser computes the same read-write set from the same state.
//! - [`key`]: the rules of state keys, composite keys and key ranges, as Hyperledger Fabric's clients and contracts know
//!   them.
//! - [`Registry`]: which contracts a peer can run, by chaincode name.
//! - [`contracts`]: the contracts that are compiled in. [`model`] runs any contract on an in-memory ledger; it is the
//!   oracle that peers are checked against.
//!
//! How one invocation goes:
//! 1. The caller splits the proposal's arguments into a function name and the rest ([`split_input`]), looks the contract
//!    up and makes a `Stub` over one block boundary of the world state.
//! 2. [`Contract::invoke`] reads through the stub and records writes in it. Reads never see the transaction's own writes.
//! 3. A returned [`Response`] with a status below 400 may be endorsed. A [`ContractError`] either is an answer to the
//!    application (status 500 and a message) or says that the state below could not serve: see
//!    [`ContractError::into_response`].
//!
//! Left to others: recording read-write sets, signatures, policies and time limits (`chain`), the state itself (`state`).

pub mod contracts;
mod dispatch;
mod error;
mod history;
pub mod key;
pub mod model;
mod registry;
mod stub;

pub use dispatch::{Contract, Response, split_input};
pub use error::{ContractError, StubError};
pub use history::{HistoryCursor, HistoryPage, Modification};
pub use registry::{Registry, RegistryError};
pub use stub::{CALL_DEPTH_MAX, Cursor, Entry, PAGE_BYTES_SOFT_MAX, PAGE_ENTRIES_MAX, Page, QueryId, Stub, Timestamp};

pub use async_trait::async_trait;
pub use base::Bytes;
