//! The `tcp` provider: one-sided verbs over TCP, between any two hosts.
//!
//! 1. A host listens on a port. A client proves that it knows the token of its name ([`handshake`]). Where the link
//!    leaves the trusted network, the handshake runs over mutual TLS ([`TcpTls`]).
//! 2. The client posts verbs; one system call sends many of them ([`client`], [`peer`]).
//! 3. The host has one progress thread for all of its connections. This thread checks the capability of each verb and
//!    executes the verb ([`server`], [`served`], [`memory`]). No code above `rma` runs at the host. Long payloads go
//!    from the socket into the region, and from the region into the socket, without a copy in between.
//! 4. A waiting thread, at either end, polls the socket for a short time ([`TcpConfig::spin`]) before it sleeps.
//!
//! Invariants:
//! * The check of a capability and the access that it allows happen under one lock of the region; a long transfer is
//!   checked again for each piece. So no write lands after a revocation, and a verb that was half done completes as
//!   ambiguous.
//! * Words are written and read whole. The bytes of a verb land from low addresses to high ones. Only the progress
//!   thread executes atomic verbs.
//! * A certificate that [`Denials`] denies gets no connection, and its open connections end.
//! * When a connection is lost, every verb in flight completes as ambiguous, and later verbs fail with
//!   [`Error::Closed`](crate::Error::Closed).
//! * Every byte from the other end is checked ([`wire`]); bytes that form no valid frame end the connection. Without
//!   TLS the bytes, secrets of capabilities included, are only as safe as the network.
//!
//! The format is in `docs/formats/rma.md`. This module has its own thread, sockets and clock, as a production provider
//! may.

mod accepted;
mod arrival;
mod assembly;
mod attention;
mod budget;
mod client;
mod config;
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod host;
mod host_core;
mod inbox;
mod landing;
mod machine;
mod memory;
mod outgoing;
mod peer;
mod pipe;
mod profile;
mod provider;
mod served;
mod server;
mod session;
mod spin;
mod tls;
mod window;
mod wire;

pub use config::TcpConfig;
use machine::{clock, start_thread, tune};
use profile::{CLOSE_TIMEOUT, HANDSHAKE_TIMEOUT, PROFILE};
pub use provider::TcpProvider;
pub use tls::{Denials, TcpTls};
