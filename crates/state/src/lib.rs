//! The world state of one logical peer in one channel, which contracts read and blocks change.
//!
//! ```
//! use base::rt::{disk::Directory, simulation::Simulation};
//! use base::{Bytes, Version};
//! use state::{Error, Monolithic, MonolithicConfig, UpdateBatch, Versioned, WorldState};
//! use storage::tables::{ModelEngine, TablesEngine};
//!
//! let report = Simulation::new(7).run(|_sim| async {
//!     let directory = Directory::open("tables").await.expect("the simulated disk works");
//!     let engine = ModelEngine::open(directory).await?;
//!     let state = Monolithic::open(engine.tables("trade").await?, MonolithicConfig::default());
//!
//!     // Block 0, which the caller has stored durably, writes one key.
//!     let before = state.snapshot();
//!     let (version, red) = (Version::new(0, 0), Bytes::from_static(b"red"));
//!     let mut batch = UpdateBatch::default();
//!     batch.put(&"basic".into(), "car1".into(), Some(red.clone()), version);
//!     state.apply(0, batch).await?;
//!
//!     // A snapshot sees one block boundary for as long as it lives.
//!     let after = state.snapshot();
//!     assert_eq!(before.get("basic", "car1").await?, None);
//!     assert_eq!(after.get("basic", "car1").await?, Some(Versioned { value: red, version }));
//!
//!     // From the savepoint on, the state needs block 0 no longer.
//!     assert_eq!(state.savepoint(), 0);
//!     assert_eq!(state.persist().await?, 1);
//!     assert_eq!(state.savepoint(), 1);
//!     Ok::<(), Error>(())
//! });
//! report.expect("the run succeeds").value.expect("the state answers");
//! ```
//!
//! [`WorldState`] is the contract between the chain and any implementation of the state. [`Monolithic`] keeps it in the
//! storage engine of its own process; the disaggregated form ([`Disaggregated`]) keeps it on pooled memory behind the
//! same trait (FlexChain, section 4). A reader takes a [`Snapshot`], which sees one block boundary for as long as it
//! lives: never half a block.
//!
//! # Guarantees
//!
//! 1. Blocks are applied in order, each as a whole: a snapshot sees all of block `n` or none of it. Once block `n` is
//!    visible, every snapshot taken later sees it.
//! 2. A snapshot at height `h` returns for each key the newest version written by a block below `h`.
//! 3. A block that [`WorldState::persist`] covered when it returned survives a crash. After a crash the caller
//!    re-applies the later blocks from the ledger, starting at [`WorldState::savepoint`]; for this it stores each
//!    block durably before it applies it.
//!
//! # What it needs around it
//!
//! * `chain` takes snapshots to endorse and to check conflicts, applies the blocks that it has stored, and decides
//!   when to persist. It is responsible for the ledger of blocks, conflict checks and read-write sets.
//! * `replica` decides which compute node of a peer is its primary, keeps the followers, and grants them leases; the
//!   disaggregated form implements its traits ([`disaggregated::followers`]).
//! * `storage` provides the tables of [`Monolithic`], and the storage node that materialises rows for
//!   [`Disaggregated`].
//! * `pool` provides the address space of [`Disaggregated`] on the donors' memory, and fences an older primary there.
//! * `node` chooses the peer form, and provides links, memory and storage.
#![deny(missing_docs)]

mod cache;
mod delta;
mod digest;
pub mod disaggregated;
mod empty_namespaces;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
mod monolithic;
mod update;
mod world_state;

pub use disaggregated::{ApplyWorkers, Disaggregated, DisaggregatedConfig, Follower, StateUsage};
pub use error::Error;
pub use monolithic::{Monolithic, MonolithicConfig};
pub use update::{Update, UpdateBatch};
pub use world_state::{
    Durable, RANGE_BYTES_SOFT_MAX, RangePage, Snapshot, StateEntry, VersionPage, Versioned, WorldState,
};
