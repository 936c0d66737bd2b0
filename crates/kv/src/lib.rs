//! A replicated key-value store on the replicated memory of [`sift`] (Sift, section 4).
//!
//! ```
//! use base::Bytes;
//! use base::rt::{self, CancellationToken, simulation::Simulation};
//! use kv::{KvConfig, KvStore, Precondition, StoreGeometry, SwapOutcome};
//! use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token, sim::SimProvider};
//! use sift::{
//!     GroupId, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts, Standby,
//! };
//! use std::{sync::Arc, time::Duration};
//!
//! const ADDRESSES: [&str; 3] = ["memory0", "memory1", "memory2"];
//! const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
//! const ID: GroupId = GroupId(1);
//! const SIZES: StoreGeometry = StoreGeometry { log_bytes: 8192, buckets: 8, blocks: 1024, block_bytes: 128 };
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let (provider, layout) = (SimProvider::new(&sim), SIZES.group_layout(64 << 10)?);
//!     for (number, address) in ADDRESSES.into_iter().enumerate() {
//!         let provider = provider.clone();
//!         drop(sim.node(address).spawn(async move {
//!             let options = HostConfig { node: NodeId(number as u32), tokens: Arc::new(|_| Some(TOKEN)) };
//!             let host = provider.host(address, options).await.expect("the address is free");
//!             let groups = vec![GroupMemory { id: ID, layout }];
//!             let config = LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() };
//!             let node = LogMemoryNode::start(config).await.expect("the sizes are valid");
//!             node.failed().await; // It serves until then.
//!         }));
//!     }
//!     rt::sleep(Duration::from_millis(20)).await; // The memory nodes listen by then.
//!
//!     let place = |at: &str| MemoryNodeAddress { address: at.to_owned(), name: "cpu".to_owned(), token: TOKEN };
//!     let nodes = ADDRESSES.map(place).to_vec();
//!     let (provider, timing) = (Arc::new(provider), SiftTimeouts::of_busy_machines());
//!     let group = SiftGroup { id: ID, layout, nodes, provider, timing };
//!     sift::format(&group).await?;
//!
//!     // The coordinator of the group serves the store. A put returns once a majority of memory nodes has it.
//!     let first = Standby::new(group.clone(), 1)?.take_over().await?;
//!     let store = KvStore::take_over(first, SIZES, KvConfig::default()).await?;
//!     let version = store.put(Bytes::from_static(b"key"), Bytes::from_static(b"one")).await?;
//!     let condition = Precondition::Version(version);
//!     let swap =
//!         store.compare_and_set(Bytes::from_static(b"key"), condition, Some(Bytes::from_static(b"two"))).await?;
//!     assert!(matches!(swap, SwapOutcome::Done(newer) if newer > version));
//!
//!     // The coordinator ends; the next one has the store.
//!     store.coordinator().step_down();
//!     let second = Standby::new(group, 2)?.take_over().await?;
//!     let store = KvStore::take_over(second, SIZES, KvConfig::default()).await?;
//!     assert_eq!(&store.get(b"key").await?.expect("it was put").value[..], b"two");
//!     Ok::<(), kv::Error>(())
//! });
//! report.expect("the run succeeds").value.expect("a majority of memory nodes answers");
//! ```
//!
//! # Protocol
//!
//! ```text
//!  unlogged region | log of puts and deletes, circular                            one verb a node and entry
//!  logged memory   | cursor, seal | index | bitmap | blocks, in chains            transactions of the coordinator
//!  coordinator     | cache with all unapplied entries | index | bitmap            soft state
//! ```
//!
//! 1. A put or delete becomes an entry at the end of the log, with its index, term, the checksum of the previous entry
//!    and its own checksum. Entries are posted in the order of their indexes; that is the order in which operations
//!    take effect. Once the entry is posted, the cache has the new value. The caller is acknowledged when a majority
//!    has the entry.
//! 2. A get is answered from the cache, once a majority has the cached entry. If the cache does not have the key, the
//!    get is answered from index and chain in remote memory. A get is answered only while the coordinator's lease
//!    stands.
//! 3. A compare-and-set checks its condition against the newest entry of its key, and no other entry is posted between
//!    the check and its own entry. If the condition does not hold, the operation is answered like a get.
//! 4. Entries are applied in the background ([`apply`]): each transaction applies as many whole entries as fit, with
//!    all their changes of index, chain, bitmap and blocks. The last transaction of a run of entries also moves the
//!    cursor, and then the log before the cursor is free. A put waits for free space in the log; this wait is the
//!    back-pressure.
//! 5. A watcher gets every entry that a majority has, in order, including those that later entries have overwritten
//!    ([`watch`]).
//! 6. A new coordinator ([`recover`]) reads cursor and seal, and the log after the cursor from a majority. It writes
//!    back the entries that some node may lack, and writes its own seal; all this it may do while an earlier lease
//!    still stands. When that lease has ended, it serves: keys of the log from the cache, all others from index and
//!    chains in remote memory. While it serves, it loads the index and applies the log.
//!
//! Why nothing acknowledged is lost. The *seal* says where the log ended when the coordinator of the seal's term took
//! it over. A coordinator posts entries only once its seal is committed. So the valid entries after the seal are of the
//! seal's term, and of one coordinator; a majority had the entries up to the seal before the seal was committed. A new
//! coordinator reads a majority, in which at least one node has every acknowledged entry. Where two entries continue
//! the chain, the entry of the greater term counts. The entry of the smaller term was posted before the seal of the
//! greater term, and the takeover that wrote this seal did not find it. The log space of an entry is reused only when
//! the cursor has passed the entry. The transaction that moves the cursor is the last of those that apply the entries
//! up to the new cursor, so these entries are then in logged memory.
//!
//! Why the next coordinator may apply an entry again. A takeover keeps only the newest entry of each key. Applying an
//! entry changes only the record of its key, and an entry that is already applied is recognised by the version in the
//! chain.
//!
//! Why the blocks suffice. A put is admitted only when the free blocks suffice for all unapplied entries, not counting
//! the blocks that deletes and shorter values would free. If the cache knows the key's value, a put reserves only the
//! blocks by which the new value exceeds it. For each key, add up the blocks by which each entry exceeds the previous
//! entry. Applying the key's entries allocates at most this sum, whichever of them are left out and whichever are
//! already applied.
//!
//! Why a get that walks a chain is right. Buckets are divided into *stripes*, each with a counter. The counter of a
//! chain's stripe becomes odd before a transaction changes the chain, and even again after the transaction. A walk is
//! valid only if the counter was even at its start and is the same at its end, and if the cache still does not have the
//! key. So no entry of the key was posted or applied during the walk.
//!
//! # Guarantees
//!
//! The simulation in `tests/kv/kv_simulation` checks them under faults:
//! * Gets, puts, deletes and compare-and-sets are linearizable, also across coordinators.
//! * An answer shows only entries that a majority has.
//! * Every unapplied entry is in the cache, whatever the cache's budget.
//! * Live nodes hold the same log after the cursor.
//! * A store that fails ends its coordinator with it, so that another coordinator can take the store over.
//! * Bounded: the log, and with it the unapplied entries; the rest of the cache ([`KvConfig::cache_bytes`]); waiting
//!   callers ([`WAITING_MAX`]); entries in flight ([`IN_FLIGHT_MAX`]); watchers, and the changes that wait for them.
//!
//! A store may also be kept in tables of the storage engine ([`persist`]).
//!
//! The store's log is in the unlogged region of the replicated memory, which every node holds in full: it is never
//! erasure-coded.
//!
//! # What it needs around it
//!
//! * [`sift`] elects the coordinator and replicates the memory; `storage` has the tables of a store that persists.
//! * `node` runs a store's memory nodes and CPU nodes, and serves its clients over gRPC.
//! * The module [`raft_baseline`] has a store with the same operations on the crate `raft`. Benchmarks compare this
//!   crate's store with it. It has a separate simulation, and no product runs it.
#![deny(missing_docs)]

mod apply;
mod cache;
mod error;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod kv_core;
mod layout;
mod log;
mod persist;
pub mod raft_baseline;
mod recover;
mod request;
mod store;
mod table;
mod watch;

pub use error::Error;
pub use kv_core::WAITING_MAX;
pub use layout::{KEY_BYTES_MAX, RECORD_BLOCKS_MAX, StoreGeometry};
pub use persist::PersistentTables;
pub use request::{IN_FLIGHT_MAX, KvConfig, KvStatus, Precondition, SwapOutcome, VersionedValue};
pub use store::KvStore;
pub use watch::{ChangeEvent, KeyWatch};

use kv_core::{KvCore, KvState, PendingEntry, STRIPES, UNKNOWN, lock};
