//! Requests and replies over a [`Link`](super::Link), many at a time, with notices in between.
//!
//! 1. A client numbers its requests, and sends them in the order in which its calls of [`RpcClient::start`] complete.
//! 2. The server hands the requests to its [`RpcHandler`] in the order of sending. The outcome of a request is bytes,
//!    or a [`Rejection`] with the kind and the text of an error. The server sends each outcome when it is ready, in any
//!    order, with the number of its request.
//! 3. At any time the server may send notices, which have no reply; see [`Notifier`].
//! 4. Small frames that wait at the same time travel in one message of the link. Long bodies are sent without being
//!    copied.
//! 5. A client that has no requests sends a ping, a message without frames, every [`PING_PERIOD`]. A server ends a link
//!    because of a time-out in three cases: the first message does not arrive within [`FIRST_MESSAGE_TIMEOUT`]; the
//!    link is silent for [`IDLE_TIMEOUT`] while no request is open; or the client receives nothing for
//!    [`SEND_TIMEOUT`].
//! 6. When the link ends, a request whose sending had started fails with [`RpcError::Ambiguous`]. Any other request
//!    fails with [`RpcError::Closed`]: it was never sent and never will be.
//!
//! Invariants:
//! * A client has at most `in_flight_max` requests in flight. A request stays in flight until its answer arrives or its
//!   link ends, even if no caller waits for the answer any more.
//! * A server runs at most `concurrency_max` requests of one link. It holds at most [`LINK_REQUEST_BYTES_MAX`] of their
//!   bodies, or one longer body, and reads no further until there is space.
//! * If a link has a [`LinkPermit`](super::LinkPermit), each message with requests counts against the budget of the
//!   link's organisation until the last of its requests has an outcome. Requests beyond the budget are rejected.
//! * Every request that was started ends: with its answer, or when its link ends.
//! * All bytes may be hostile. Bytes that form no valid frame, or an answer without a request, end the link and have no
//!   other effect. A panic of the handler ends its link only.
//!
//! ```text
//! message  := frame*, without frames a ping
//! offset  bytes  frame (little-endian)
//!  0       1     kind: 1 request, 2 reply, 3 rejection, 4 notice
//!  1       3     0
//!  4       4     length of the body
//!  8       8     number of the request; 0 for a notice
//! 16       …     body; of a rejection: kind of error (1 byte), text
//! ```
//!
//! Left to the protocols that use this module: who may call, deadlines, and retries.

mod client;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod outbox;
mod server;

#[cfg(test)]
mod tests;

pub use client::{PendingResponse, RpcClient};
pub use error::{Rejection, RpcError};
pub use limits::{
    BODY_BYTES_MAX, FIRST_MESSAGE_TIMEOUT, IDLE_TIMEOUT, LINK_REQUEST_BYTES_MAX, PING_PERIOD, REJECTION_BYTES_MAX,
    SEND_TIMEOUT,
};
pub use server::{Notifier, ResponseFuture, RpcHandler, ServeEnd, serve, serve_admitted};
