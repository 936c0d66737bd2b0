//! The ground every other crate stands on.
//!
//! * [`admission`]: what a listener spends on strangers, and on each organisation.
//! * [`id`]: names and numbers of the ledger (channels, members, transactions, blocks, versions, epochs).
//! * [`error`]: the few kinds of error, each of which tells the caller what to do.
//! * [`collections`]: hash maps whose hashing is keyed in production and fixed in simulation.
//! * [`durable`]: files that a loss of power leaves whole.
//! * [`event`]: what is worth counting, declared once.
//! * [`untrusted`]: numbers that the other side chose, which have no arithmetic.
//! * [`rt`]: the ambient runtime: tasks, time, chance, channels, disk files and links, backed by tokio in production
//!   and by a seeded single-threaded executor in simulation.
//!
//! Invariants: no type of tokio appears in this crate's public interface, and nothing here knows of blocks'
//! contents, of wire formats or of remote memory.

pub mod admission;
pub mod collections;
pub mod durable;
pub mod error;
pub mod event;
#[doc(hidden)]
pub mod fuzz;
pub mod id;
pub mod rt;
pub mod untrusted;

pub use bytes::{self, Bytes, BytesMut};
pub use collections::{Map, Set};
pub use error::ErrorKind;
pub use id::{BlockNumber, ChannelId, Epoch, MspId, TxId, TxIndex, Version};
