//! The provider of [`rma`] over RDMA adapters: InfiniBand and RoCE through rdma-core's verbs.
//!
#![cfg_attr(feature = "verbs", doc = "```no_run")]
#![cfg_attr(not(feature = "verbs"), doc = "```ignore")]
//! use base::{Bytes, BytesMut};
//! use rma::{Credential, Error, HostConfig, NodeId, Provider as _, Rights, Token};
//! use rma_verbs::{DeviceConfig, VerbsProvider};
//! use std::sync::Arc;
//!
//! const TOKEN: Token = Token::new([7; 32]);
//!
//! base::rt::production::run(async {
//!     let provider = VerbsProvider::new(&DeviceConfig::default())?;
//!     let tokens = Arc::new(|name: &str| (name == "peer").then_some(TOKEN));
//!     let host = provider.host("127.0.0.1:0", HostConfig { node: NodeId(1), tokens }).await?;
//!     let region = host.register("cache", 4096).await?;
//!     let capability = host.grant(region, Rights::ALL, "peer")?;
//!
//!     let credential = Credential { name: "peer".to_owned(), token: TOKEN };
//!     let endpoint = provider.connect(&host.address(), &credential).await?;
//!     endpoint.write(&capability, 64, &[Bytes::from_static(b"value")]).await?;
//!     let read = endpoint.read(&capability, 64, 5, BytesMut::new()).await?;
//!     assert_eq!(read[..], *b"value");
//!     Ok::<_, Error>(())
//! })
//! .expect("there is an adapter");
//! ```
//!
//! 1. A host listens on a TCP address. A client proves its name there, both ends exchange the addresses of a reliable
//!    queue pair, and the TCP connection stays open for control (`wire`).
//! 2. A holder that uses a capability for the first time presents it over that connection; the host registers the
//!    region for this connection and answers with the adapter's key (`connection`). From then on the host's processor
//!    takes no part in the holder's verbs.
//! 3. A verb becomes one work request at the adapter, or several if it is long. Messages are sends on the same queue
//!    pair, and a write with immediate data is a write followed by a small message (`sender`, `receiver`). One progress
//!    thread per connection polls for completions for a short time, and then sleeps.
//! 4. Revoking a capability deregisters the region, after the holder has released the key or lost its queue pair
//!    (`host`).
//!
//! # Guarantees
//! * Those of [`rma`], whose conformance suite the provider passes.
//! * The processor never touches a region's bytes, so the adapter alone executes atomic verbs on them. An owner that
//!   wants to use its own region connects to itself.
//! * Any failed work request ends the connection, and every verb in flight on it completes as ambiguous.
//! * Memory that the adapter may reach is not freed before the adapter has released it (`device`).
//!
//! # What it needs around it
//! * [`rma`] defines the interface. No program of this workspace opens the provider yet.
//! * Debian's `libibverbs1` and `ibverbs-providers` at run time, on x86-64 or ARM, both little-endian. Without an
//!   adapter `cargo xtask rdma-guest` runs the tests over soft-RoCE.
//! * The crate is empty without its feature `verbs`, which needs a C compiler, cmake and libclang.

#![cfg(feature = "verbs")]
#![deny(missing_docs)]

// The compiler cannot see what the adapter does to memory.
#[allow(unsafe_code)]
mod connection;
#[allow(unsafe_code)]
mod device;
mod host;
#[allow(unsafe_code)]
mod memory;
mod profile;
mod provider;
mod receiver;
#[allow(unsafe_code)]
mod registered_memory;
mod sender;
mod transfer;
// Public for tests, which check the decoding of bytes from the other end.
#[doc(hidden)]
pub mod wire;

pub use device::DeviceConfig;
pub use host::VerbsHost;
pub use provider::VerbsProvider;
