//! gRPC over HTTP/2, straight on the `h2` crate: as little work a call as the protocol allows.
//!
//! 1. [`connection`] serves one connection: one task drives its frames and polls the handlers of all its calls, so that
//!    the answers of many calls leave in one write. A handler moves heavy work into a task of its own.
//! 2. [`call`] is one call at the server: its messages, its deadline, its answer.
//! 3. [`client`] is the client's side of a connection.
//! 4. [`message`] and [`status`] are the formats.
//!
//! Left to others: what a method means (`service`), sockets and TLS (`server`).

pub mod call;
pub mod client;
pub mod connection;
pub mod message;
pub mod status;
mod timeout;

pub use call::{Call, Responder};
pub use connection::{Service, Settings};
pub use message::{Budget, Messages};
pub use status::{Code, Status};
