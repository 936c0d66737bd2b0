//! The roles of a network: what each is made of, how it starts, and how it stops.
//!
//! A network in one process ([`crate::network`]) and processes of their own ([`crate::process`]) are composed of the same
//! roles; only the addresses differ:
//!
//! * [`memory`]: gives sections of its memory to peers, and is passive otherwise.
//! * [`log_memory`]: keeps the log of a group of orderers in its memory, and is passive otherwise.
//! * [`storage`]: blocks and tables of one organisation.
//! * [`compute`]: endorses and commits for one organisation, on memory and storage.
//! * [`orderer`]: puts transactions into blocks.
//! * [`gateway`]: what clients of one organisation talk to.

pub(crate) mod compute;
pub(crate) mod gateway;
pub(crate) mod log_memory;
pub(crate) mod memory;
pub(crate) mod orderer;
pub(crate) mod storage;

use std::sync::Arc;

/// Why a part of a network has stopped.
fn said(name: &str, failure: Option<Arc<chain::Error>>) -> String {
    let cause = failure.map_or_else(|| "no cause given".to_owned(), |error| error.to_string());
    format!("{name} has stopped: {cause}")
}
