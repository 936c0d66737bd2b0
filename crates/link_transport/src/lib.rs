//! Transports for [`base::rt::net`] links between processes: TCP on a trusted network, mutual TLS on any network.
//!
//! 1. [`register`] registers the transports for the schemes "tcp" and "tls". An address is, for example,
//!    `tls:orderer.example.com:7050`.
//! 2. A listener accepts each connection immediately and runs its handshake in a separate task. A connection is
//!    unauthenticated until its handshake is complete: it must begin the handshake within [`HELLO_TIME_MAX`] and finish
//!    it within `HANDSHAKE_TIME_MAX`. If an address has more than `UNAUTHENTICATED_PER_ADDRESS_MAX` such connections,
//!    its oldest one is displaced. If the listener has more than `UNAUTHENTICATED_MAX`, the oldest of all is displaced.
//!    So a slow connection cannot keep a new one out.
//! 3. Established links go into a bounded backlog. If the backlog is full, the link is closed.
//! 4. Over TLS each side proves with its certificate that it is a node of a configured organisation. The link's
//!    [`principal`](base::rt::net::Link::principal) is the organisation's name and the certificate's digest. Users have
//!    certificates of the same authorities, but get no link. An unauthenticated connection costs at most one handshake.
//! 5. Silent hosts are detected: their links end within `UNANSWERED_MAX` plus one `KEEP_ALIVE`, whether or not
//!    messages are in flight.
//!
//! [`frames`] has the frames and the two halves of a link.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]
#![deny(missing_docs)]

mod accept;
pub mod frames;
mod schemes;
mod socket;
mod tcp;
mod tls;

use accept::AcceptLoop;
pub use schemes::{TCP_SCHEME, TLS_SCHEME, register};
use socket::{CONNECT_TIME_MAX, HELLO_TIME_MAX, dial, within};
pub use tcp::TcpTransport;
pub use tls::{LinkTlsError, LinkTlsIdentity, OrganizationRoots, TlsTransport};

#[cfg(test)]
mod tests;
