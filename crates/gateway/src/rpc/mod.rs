//! gRPC over HTTP/2, straight on the `h2` crate: as little work a call as the protocol allows.
//!
//! 1. [`connection`] serves one connection: one task drives its frames and polls the handlers of all its calls, so that
//!    the answers of many calls leave in one write. A handler moves heavy work into a task of its own.
//! 2. [`call`] is one call at the server: its messages, its deadline, its answer.
//! 3. [`client`] is the client's side of a connection.
//! 4. [`message`] and [`status`] are the formats; [`caller`] is what a server knows of the other side, and [`places`]
//!    bounds the calls that it works on.
//!
//! Left to others: what a method means (`service`), sockets and TLS (`server`).

pub mod call;
pub mod caller;
pub mod client;
pub mod connection;
#[doc(hidden)]
pub mod fuzz;
pub mod message;
pub mod places;
pub mod status;
mod timeout;

pub use call::{Call, Responder};
pub use caller::Caller;
pub use connection::{Service, Settings};
pub use message::Messages;
pub use status::{Code, Status};
