//! The roles of a network: the inputs, the start and the stop of each.
//!
//! A network in one process ([`crate::network`]) and a network of several processes ([`crate::process`]) consist of the
//! same roles; only the addresses differ:
//!
//! * [`memory`]: gives sections of its memory to peers.
//! * [`log_memory`]: holds the log of an ordering group in passive memory.
//! * [`storage`]: keeps blocks and tables of one organisation.
//! * [`compute`]: endorses and commits for one organisation, on memory and storage.
//! * [`orderer`]: puts transactions into blocks.
//! * [`gateway`]: serves the clients of one organisation.

pub(crate) mod compute;
mod ending;
pub(crate) mod gateway;
pub(crate) mod log_memory;
pub(crate) mod memory;
mod operator_memory;
mod operator_storage;
pub(crate) mod orderer;
pub(crate) mod pooled_memory;
pub(crate) mod storage;

use ending::{end_reason, watermarks};
