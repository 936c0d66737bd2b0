//! gRPC over HTTP/2, directly on the `h2` crate, to spend as little processor time per call as possible.
//!
//! 1. [`connection`] serves one connection: one task drives its frames and polls the handlers of all its calls, so that
//!    the answers of many calls leave in one write. A handler moves heavy work into a separate task.
//! 2. [`call`] is one call at the server: its messages, its deadline, its answer.
//! 3. [`client`] is the client's side of a connection.
//! 4. [`message`] and [`status`] are the formats. [`caller`] is the server's view of a client,
//!    and `client_certificate` of the certificate that it presents. [`permits`] bounds the
//!    calls that a server works on.
//!
//! Left to others: what a method means (`service`), sockets and TLS (`server`).

pub mod call;
pub mod caller;
pub mod client;
pub(crate) mod client_certificate;
pub mod connection;
#[doc(hidden)]
pub mod fuzz;
pub mod message;
pub mod permits;
pub mod status;
mod timeout;

pub use call::{IncomingCall, Responder};
pub use caller::Caller;
pub use client_certificate::PresentedCertificate;
pub use connection::{ConnectionConfig, GrpcService};
pub use message::MessageStream;
pub use status::{GrpcCode, GrpcStatus};
