//! The control socket of a compute node or an orderer: an operator queries and changes the memory of a running peer, or
//! the membership of an ordering group.
//!
//! 1. A compute node listens at `control.socket` in its folder, `DIR/nodes/compute-ORG`, also when the whole network
//!    runs in one process. An orderer on Raft listens too, if it is a separate process ([`orderers`]). The folder has
//!    mode 0700 and the socket 0600, and the caller must be the same user or root: a program that can open the socket
//!    may operate the peer or the orderer.
//! 2. A caller writes one [`ControlRequest`] as a line of JSON and reads one [`ControlResponse`] as a line of JSON.
//!    Then the connection ends.
//! 3. A new budget is first written durably to [`budget::BUDGET_FILE`] in the same folder, and then takes effect. If
//!    it is lower than before, the peer returns excess sections in the background. A caller can poll the report until
//!    that is done. So it is with the memory nodes that a peer is to vacate.
//!
//! Bounds: a request has at most [`REQUEST_BYTES_MAX`] bytes and takes at most `REQUEST_TIMEOUT`; a reply has at most
//! `RESPONSE_BYTES_MAX` bytes; at most `CONNECTIONS_MAX` connections are open at a time.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub(crate) mod budget;
mod client;
mod orderers;
mod orderers_report;
mod protocol;
mod report;
mod server;
mod storage_report;

pub use client::{ControlError, request_memory, request_node, request_orderer, request_storage};
pub(crate) use orderers::OrdererControl;
pub use orderers_report::{OrdererReport, OrderersReport, orderer_of};
pub use protocol::{ControlRequest, ControlResponse, REQUEST_BYTES_MAX, SOCKET};
pub use report::{ComputeReport, DonorMemoryReport, FailoverSampleReport, HitRate, MemoryReport, NodeLoadReport};
use server::rejected;
pub(crate) use server::{ControlHandler, start};
pub use storage_report::{StorageCopyReport, StorageReport};

#[cfg(test)]
mod tests;
