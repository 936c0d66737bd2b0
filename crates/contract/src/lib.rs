//! Contracts: the application code that a peer runs to endorse a transaction.
//!
//! ```
//! use contract::model::ModelLedger;
//! use contract::{Bytes, Contract, ContractError, ContractRegistry, ContractResponse, ContractStub, async_trait};
//! use std::sync::Arc;
//!
//! /// Names; each belongs to the first owner who claims it.
//! struct Names;
//!
//! #[async_trait]
//! impl Contract for Names {
//!     fn name(&self) -> &str {
//!         "names"
//!     }
//!
//!     async fn invoke(
//!         &self,
//!         tx: &mut dyn ContractStub,
//!         function: &str,
//!         args: &[Bytes],
//!     ) -> Result<ContractResponse, ContractError> {
//!         let ("claim", [name, owner]) = (function, args) else {
//!             return Err(ContractError::application("call claim with a name and its owner"));
//!         };
//!         let name = std::str::from_utf8(name).map_err(|_| ContractError::application("a name is text"))?;
//!         if tx.get_state(name).await?.is_some() {
//!             return Err(ContractError::application(format!("{name} is taken")));
//!         }
//!         tx.put_state(name, owner.clone())?;
//!         Ok(ContractResponse::empty())
//!     }
//! }
//!
//! let mut registry = ContractRegistry::empty();
//! registry.register("names", Arc::new(Names)).expect("the name is free");
//! let mut ledger = ModelLedger::new(registry);
//! ledger.call("names", "claim", &["heddle", "Ada"]).expect("nobody has claimed it");
//! assert_eq!(ledger.call("names", "claim", &["heddle", "Bob"]), Err("heddle is taken".to_owned()));
//! assert_eq!(ledger.get("names", "heddle").expect("it is claimed"), "Ada");
//! ```
//!
//! # Guarantees
//!
//! * A contract cannot reach a clock, randomness, a disk or a network, so every endorser computes the same read-write
//!   set from the same state.
//! * All reads of a transaction see the state at one block boundary. They do not see the transaction's own writes.
//! * A caller can always tell an application error from a failure of the world state
//!   ([`ContractError::into_response`]).
//! * Pages of queries are bounded ([`PAGE_ENTRIES_MAX`], [`PAGE_BYTES_SOFT_MAX`]), and so are nested calls
//!   ([`CALL_DEPTH_MAX`]).
//!
//! # What it needs around it
//!
//! * `chain` calls contracts when it endorses: it implements [`ContractStub`] over a snapshot of the state, and records
//!   the read-write set. `node` chooses the [`ContractRegistry`]; `bench` drives the workloads; `simulator` compares
//!   peers with [`model`].
//! * Left to others: `chain` signs endorsements, checks policies and limits the time of an invocation; `state` keeps
//!   the world state.
//!
//! # What is here
//!
//! - [`Contract`], which every runtime implements, and [`ContractStub`], which is everything that a contract can reach.
//! - [`key`]: the rules of state keys, composite keys and key ranges, as Hyperledger Fabric's clients and contracts
//!   know them.
//! - [`ContractRegistry`]: the contracts that a peer can run, by chaincode name.
//! - [`shim`]: contracts that run outside of this process, with Fabric's libraries.
//! - [`packages`]: what organisations install and approve, read within bounds.
//! - [`contracts`]: the contracts that are compiled in. [`model`] runs any contract on an in-memory ledger; it is the
//!   oracle with which peers are compared.
//!
//! # How one invocation goes
//!
//! 1. The caller splits the proposal's arguments into a function name and its arguments ([`split_input`]), looks up the
//!    contract, and makes a [`ContractStub`] at one block boundary of the world state.
//! 2. [`Contract::invoke`] reads and writes through the stub, which records both.
//! 3. A returned [`ContractResponse`] with a status below 400 may be endorsed. A [`ContractError`] is either an answer
//!    to the application (a status of at least 400 and a message) or a failure of the world state;
//!    [`ContractError::into_response`] separates the two.
#![deny(missing_docs)]

pub mod contracts;
mod dispatch;
mod error;
pub mod events;
mod history;
pub mod key;
#[cfg(debug_assertions)]
pub mod model;
pub mod packages;
mod query;
mod registry;
mod response;
mod services;
pub mod shim;
mod stub;

pub use dispatch::{Contract, split_input};
pub use error::{ContractError, StubError};
pub use history::HistoryCursor;
pub use query::{HistoryPage, KeyModification, PAGE_ENTRIES_MAX, QueryId, Timestamp};
pub use registry::{ContractRegistry, RegistryError};
pub use response::ContractResponse;
pub use services::{ContractServices, InstalledPackage, PackageError};
pub use stub::{
    BookmarkedPage, CALL_DEPTH_MAX, ContractStub, KEY_POLICY, KeyValue, Metadata, PAGE_BYTES_SOFT_MAX, RangeCursor,
    StatePage,
};

pub use async_trait::async_trait;
pub use base::Bytes;
