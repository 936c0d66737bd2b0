//! The bodies of requests, answers and notifications; see `docs/formats/storage-messages.md`.
//!
//! Messages travel as frames of [`base::rt::net::rpc`]. Integers are little-endian. Bytes may be hostile: decoders
//! return [`Malformed`], and check counts against the bytes present before they allocate memory. The node reads a
//! request's list of keys or ids in place ([`KeyList`], [`TxIdList`]). The client decodes the answers into a list in
//! which it has reserved space for each key or id of its request.
//!
//! | module | messages |
//! |---|---|
//! | [`link`] | the hello of a link, its answer, and notifications |
//! | [`request`] | requests |
//! | [`response`] | answers to requests |

mod fields;
mod link;
mod lists;
mod request;
pub mod response;

pub use link::{Hello, LinkPurpose, Notification, PROTOCOL_VERSIONS, Welcome};
pub use lists::{IDS_MAX, KeyList, TxIdList, read_key, read_keys};
pub use request::{AppendRequest, Request, append, find_transactions, history, range, rows};
