//! The memory pool: donors grant sections of memory to owners; an owner sees its sections as one flat address space.
//!
//! ```text
//!  owner (a logical peer)                        donors
//!  AddressSpace ── address ─▶ section table ─┬─▶ MemoryNode a   region, capability
//!     grow, release, lost                    └─▶ MemoryNode b   region, capability
//! ```
//!
//! ```
//! use base::rt::{CancellationToken, simulation::Simulation};
//! use base::{Bytes, BytesMut, Epoch};
//! use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
//! use rma::{HostConfig, NodeId, Provider as _, Token, sim::SimProvider};
//! use std::sync::Arc;
//!
//! const TOKEN: Token = Token::new([7; 32]);
//!
//! async fn give_memory(provider: SimProvider) -> Arc<MemoryNode> {
//!     let tokens = Arc::new(|name: &str| (name == "peer").then_some(TOKEN));
//!     let config = HostConfig { node: NodeId(1), tokens };
//!     let host = provider.host("donor", config).await.expect("the address is free");
//!     let (budget_bytes, section_bytes, stop) = (1 << 20, 4096, CancellationToken::new());
//!     let config = MemoryNodeConfig { host, budget_bytes, section_bytes, stop };
//!     MemoryNode::start(config).await.expect("the configuration is valid")
//! }
//!
//! let run = Simulation::new(1).run(|sim| async move {
//!     let provider = SimProvider::new(&sim);
//!     let node = sim.node("donor").spawn(give_memory(provider.clone())).await.expect("the donor does not crash");
//!     let (owner, epoch, provider) = ("peer".to_owned(), Epoch(1), Arc::new(provider));
//!     let donors = vec![Donor { address: "donor".to_owned(), token: TOKEN }];
//!     let config = AddressSpaceConfig { owner, epoch, provider, donors, section_bytes: 4096, budget_bytes: 1 << 20 };
//!     let space = AddressSpace::open(config.clone()).await.expect("no newer epoch has begun");
//!     let section = space.grow().await.expect("the donor has free memory");
//!     space.write(section.address, &[Bytes::from_static(b"value")]).await.expect("the section is live");
//!     let read = space.read(section.address, 5, BytesMut::new()).await.expect("the section is live");
//!     assert_eq!((&read[..], node.usage().sections), (&b"value"[..], 1));
//!
//!     // The owner's next process fences this one: the donor revokes its capabilities and reclaims its memory.
//!     let _next = AddressSpace::open(AddressSpaceConfig { epoch: Epoch(2), ..config }).await.expect("it is newer");
//!     assert!(space.read(section.address, 5, BytesMut::new()).await.is_err());
//!     assert_eq!(node.usage().sections, 0);
//! });
//! run.expect("the run succeeds");
//! ```
//!
//! 1. A [`MemoryNode`] serves control messages on an [`rma::Host`]: it grants sections out of a byte budget, takes
//!    sections back, and lists them. It takes no part in reads and writes.
//! 2. An [`AddressSpace`] connects to donors, fences every process that held this owner's memory under an older epoch,
//!    and grows section by section. Its section table maps the high bits of an address to a donor's region.
//! 3. When a donor is lost, its sections are lost with it, and the space reports the loss to the owner once. Pooled
//!    memory is a cache of the data in storage, so the owner does not wait for the donor: it refills its memory on
//!    other donors. When the donor comes back, the owner may get sections from it again.
//!
//! # Guarantees
//! The simulation in `tests/pool/simulation` checks these under faults:
//! * A byte of a donor belongs to at most one granted section. A section belongs to one owner, identified by the name
//!   that the owner proved.
//! * The sections of a donor never exceed its budget; this includes sections whose return is not confirmed.
//! * Once a donor has answered a fence, no verb under an older epoch takes effect there.
//! * Memory is zero when it is granted. A region is never granted twice; a later epoch of its owner may adopt it as it
//!   is.
//! * A section of which only the donor knows, because an answer was lost or an owner was killed, is reclaimed: see
//!   [`node`] and [`space`].
//!
//! # What it needs around it
//! * The pool calls `rma`: its caller gives a memory node its [`rma::Host`], and an address space its [`rma::Provider`]
//!   and tokens.
//! * `state` keeps the disaggregated world state in an address space; the crate `node` starts memory nodes. The layers
//!   above decide what the bytes of a section mean, and what to do after a loss.
//! * The caller chooses the epochs: each process that opens an owner's space needs a greater epoch than any process
//!   before it. A compute node gets its epoch from the storage node.
//! * Routes, bonding and a control plane of the pool do not exist yet.
//!
//! `docs/formats/section-table.md` has the messages' bytes.

#![deny(missing_docs)]

mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod lock;
mod message;
pub mod node;
pub mod space;

pub use error::Error;
use limits::check_section_bytes;
pub use limits::{ADDRESS_BITS, OWNER_BYTES_MAX, SECTION_BYTES_DEFAULT, SECTION_BYTES_MAX, SECTION_BYTES_MIN};
pub use message::PROTOCOL_VERSIONS;
pub use node::{MemoryNode, MemoryNodeConfig, MemoryNodeUsage};
pub use space::{
    AddressSpace, AddressSpaceConfig, Donor, DonorStatus, FindDonor, LossReason, OldLocation, ReadGrant, ReadOnlySpace,
    ReadOnlySpaceConfig, Section, SectionId, SectionLoss, SectionMigration, VerbCounts,
};
