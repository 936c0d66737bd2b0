//! Links carried by the messages of RMA endpoints, so that control traffic inside an organisation uses the same network
//! as its data.
//!
//! 1. [`RmaTransport`] is registered with [`base::rt::net`] as the transport for one address scheme. Listening starts a
//!    host without regions; connecting opens a new endpoint for each link. The provider's handshake authenticates both
//!    ends.
//! 2. Each message of a link is one message of the endpoint, preceded by one byte for its kind:
//!
//!    ```text
//!    kind:u8 (0 message, 1 sender dropped, 2 receiver dropped, 3 confirms kind 1) | the message
//!    ```
//! 3. A link has a sending and a receiving half at each end. An end that drops a half sends a notice of kind 1 or 2,
//!    after all messages that it has sent. An end that has dropped both halves closes the endpoint when the other end
//!    has confirmed kind 1, or after `LINGER`.
//!
//! Invariants: each link has its own endpoint, which nothing else uses. After an end has dropped the link, the messages
//! that it had sent still arrive, unless the connection is lost or the other end takes longer than `LINGER` to receive
//! them.

mod link;
mod transport;

pub use link::{LINK_MESSAGE_BYTES_MAX, link};
pub use transport::RmaTransport;
