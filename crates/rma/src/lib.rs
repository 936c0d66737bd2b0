//! Remote memory access: the memory interconnect that all components inside one organisation's pools use.
//!
//! ```
//! use base::rt::simulation::Simulation;
//! use base::{Bytes, BytesMut};
//! use rma::sim::SimProvider;
//! use rma::{Credential, Error, HostConfig, NodeId, Provider as _, Rights, Token};
//! use std::sync::Arc;
//!
//! const TOKEN: Token = Token::new([7; 32]);
//!
//! let run = Simulation::new(1).run(|sim| async move {
//!     let provider = SimProvider::new(&sim);
//!     let at_donor = provider.clone();
//!     let hosted = sim.node("donor").spawn(async move {
//!         let tokens = Arc::new(|name: &str| (name == "peer").then_some(TOKEN));
//!         let host = at_donor.host("donor", HostConfig { node: NodeId(1), tokens }).await?;
//!         let region = host.register("cache", 4096).await?;
//!         let capability = host.grant(region, Rights::ALL, "peer")?;
//!         Ok::<_, Error>((host, capability))
//!     });
//!     let (host, capability) = hosted.await.expect("the donor does not crash")?;
//!
//!     let credential = Credential { name: "peer".to_owned(), token: TOKEN };
//!     let endpoint = provider.connect("donor", &credential).await?;
//!     endpoint.write(&capability, 64, &[Bytes::from_static(b"value")]).await?;
//!     let read = endpoint.read(&capability, 64, 5, BytesMut::new()).await?;
//!     assert_eq!(read[..], *b"value");
//!     assert_eq!(endpoint.fetch_add(&capability, 0, 3).await, Ok(0));
//!
//!     host.revoke(&capability).await?; // From here on, no verb under the capability takes effect.
//!     assert_eq!(endpoint.fetch_add(&capability, 0, 3).await, Err(Error::Revoked));
//!     Ok::<_, Error>(())
//! });
//! run.expect("the run ends").value.expect("no step fails");
//! ```
//!
//! A [`Host`] owns regions of memory and grants [`Capability`]s for them, each to one name. The holder of a capability
//! connects to the host under that name, and uses the [`Endpoint`] to read and write the region with one-sided verbs.
//! Once the host has confirmed the capability, it runs no code of this crate for such a verb; only in the `tcp`
//! provider, a progress thread of the host executes the verb. Small messages travel over the same endpoints, for
//! control.
//!
//! 1. A host [registers](Host::register) a region and [grants](Host::grant) capabilities for it. The host's owner sends
//!    the capabilities to their holders.
//! 2. A holder posts verbs. Posting never blocks: it returns a [`Completion`], a future. Many verbs may be in flight;
//!    the provider's [`VerbOrdering`] states in which order the verbs of one endpoint, and the words of one verb, take
//!    effect.
//! 3. The host [revokes](Host::revoke) a capability. Once the revocation has completed, no verb under the capability
//!    takes effect any more: no verb that is posted later, no verb that was in flight, and no verb whose holder was
//!    paused in the middle of it. Every protocol with a leader is built on this fence.
//!
//! # Guarantees
//! * A verb touches only the bytes of its region that its capability's rights allow, or fails without effect.
//! * A capability is valid only on connections of its holder's name: an eavesdropped capability is useless on a
//!   connection of another name.
//! * A failed completion whose kind is [`base::ErrorKind::Ambiguous`] leaves open whether the verb took effect or will
//!   take effect later; only a revocation ends that doubt. Every other failure means that the verb had no effect.
//! * Words (8 bytes, aligned, little-endian) are read and written whole. Longer transfers may be torn between words,
//!   and their words may land in any order, unless the profile guarantees more. [`Endpoint::compare_swap`] and
//!   [`Endpoint::fetch_add`] are atomic with respect to one another and to verbs that read or write the same word.
//!   [`Atomicity`] says whether the host's adapter or the processors execute them; one region never mixes the two.
//! * Bytes read from a region or received in a message come from the other end and are hostile until checked.
//!
//! # What it needs around it
//! * `pool`, `state` and `sift` build on this crate. They decide who owns which region, when to retry, and where memory
//!   comes from; they carry capabilities to their holders.
//! * This crate calls `base` for tasks, time and links, and the operating system for shared memory ([`shm`]) and
//!   sockets ([`tcp`]). [`sim`] runs within a simulation of `base`; it delays, loses and tears verbs as far as the
//!   guarantees allow. The provider over RDMA adapters is a crate of its own, `rma_verbs`.
//! * The caller gives each host the [`TokenLookup`] of its clients and keeps the tokens secret. It also decides when to
//!   revoke a capability.
//! * A new provider passes the suite in `conformance`, which the feature of that name adds.

#![deny(missing_docs)]

mod accept;
mod capability;
mod completion;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod deadline;
mod endpoint;
mod error;
#[doc(hidden)]
pub mod failure;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod limits;
pub mod links;
mod profile;
pub mod shaped;
pub mod shm;
#[cfg(debug_assertions)]
pub mod sim;
pub mod tcp;

pub use accept::accept_connections;
pub use capability::{CAPABILITY_BYTES, Capability, CapabilitySecret, GrantId, NodeId, RegionId, Rights};
pub use completion::{Completer, Completion, CompletionDriver};
pub use endpoint::{Connection, Endpoint, IncomingEvent};
pub use error::Error;
pub use host::{Credential, Host, HostConfig, Provider, TOKEN_BYTES, Token, TokenLookup};
pub use limits::{IN_FLIGHT_MAX, MESSAGE_BYTES_MAX, PARTS_MAX, TRANSFER_BYTES_MAX, WORD_BYTES};
pub use profile::{Atomicity, ProviderProfile, VerbOrdering};
