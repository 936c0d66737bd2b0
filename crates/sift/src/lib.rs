//! Consensus on passive memory nodes: a replicated memory with a log, whose coordinator is elected through the memory
//! itself.
//!
//! ```
//! use base::rt::{self, CancellationToken, simulation::Simulation};
//! use sift::{
//!     GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup,
//!     SiftTimeouts, Standby,
//! };
//! use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token, sim::SimProvider};
//! use std::{sync::Arc, time::Duration};
//!
//! const ADDRESSES: [&str; 3] = ["memory0", "memory1", "memory2"];
//! const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
//! const ID: GroupId = GroupId(1);
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let provider = SimProvider::new(&sim);
//!     let layout = GroupLayout { memory_bytes: 64 << 10, ..GroupLayout::of_log(8192) };
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
//!     // A standby is elected and becomes the coordinator. A write is committed once it returns.
//!     let first = Standby::new(group.clone(), 1)?.take_over().await?;
//!     first.write(128, base::Bytes::from_static(b"hello")).await?;
//!
//!     // The coordinator ends and a memory node loses its memory; the next coordinator has the write.
//!     first.step_down();
//!     sim.node("memory0").crash();
//!     let second = Standby::new(group, 2)?.take_over().await?;
//!     assert!(second.term() > first.term());
//!     assert_eq!(&second.read(128, 5).await?[..], b"hello");
//!     Ok::<(), sift::Error>(())
//! });
//! report.expect("the run succeeds").value.expect("a majority of memory nodes answers");
//! ```
//!
//! # Guarantees
//!
//! The simulation in `tests/sift/simulation` checks these invariants under faults:
//! * A term has at most one coordinator. At most one coordinator serves at a time.
//! * A committed entry is never lost or changed, as long as at most F memory nodes lose their memory.
//! * Once a memory node has answered a fence, no verb of an earlier coordinator takes effect in its replicated region.
//! * The logged memory of a node holds committed writes only.
//! * In an erasure-coded group, the shards of a block on any F+1 live nodes belong to one version of the block.
//! * If fewer than a majority of complete copies are left, the group rejects all requests; it never guesses lost data.
//!
//! The arguments for safety are at the heads of the modules that implement the steps: [`standby`], [`takeover`] and
//! [`coordinator`].
//!
//! # What it needs around it
//!
//! * An [`rma::Provider`] reaches the memory nodes. `storage` locks the directories of persistent nodes. Clocks drift by
//!   at most [`base::lease::CLOCK_DRIFT_PPM_MAX`].
//! * `ordered_log` orders entries with the log of a group, and `kv` keeps a key-value store in its memory; `node` runs
//!   memory nodes and standbys; an operator numbers and formats the groups.
//! * The layers above decide what the bytes mean.
//!
//! # Protocol
//!
//! The protocol follows Sift (Kazhamiaka et al., CoNEXT 2019, sections 3 and 5.1), and adds a fence.
//!
//! ```text
//!   CPU nodes                        memory nodes, 2F+1 of them, passive
//!   Standby ── heartbeats, term ───▶ administrative region   every CPU node may read, write and compare-and-swap
//!      │ elected
//!   Coordinator ── log, memory ────▶ replicated region       only the newest coordinator has a capability
//! ```
//!
//! 1. A [`LogMemoryNode`] keeps the regions of its groups on an [`rma::Host`]. It answers two kinds of request, a hello
//!    and a fence (a persistent node also writes to its disk on request), and takes no other part in the protocol.
//! 2. [`format()`] formats a new group, once.
//! 3. A [`Standby`] watches heartbeats; when they stop, it stands for election ([`standby`]).
//! 4. The winner of the election fences the memory nodes, reads and repairs their logs, and brings their memory up to
//!    date ([`takeover`]).
//! 5. The [`Coordinator`] then serves reads, logged writes, transactions and unlogged writes, sends heartbeats, and
//!    re-admits memory nodes that were lost ([`coordinator`]).
//! 6. Groups may share their backups: a [`BackupPool`] with few CPU nodes watches many groups ([`backups`]).
#![deny(missing_docs)]

pub mod backups;
pub mod coordinator;
mod directory_lock;
mod disk;
pub mod entry;
mod erasure_code;
mod error;
pub mod fault;
pub mod format;
#[doc(hidden)]
pub mod fuzz;
pub mod group;
mod group_id;
pub mod layout;
mod link;
pub mod memory_node;
mod message;
pub mod quorum;
mod scan;
mod shards;
pub mod standby;
pub mod takeover;
#[cfg(feature = "testing")]
pub mod testing;

pub use base::Term;

pub use backups::{BackupPool, BackupPoolConfig, BackupPoolStatus, WatchedGroup};
pub use coordinator::{Coordinator, CoordinatorStatus, WriteHandle};
pub use entry::{EntryKind, LogEntry, MemoryWrite, WRITES_MAX};
pub use error::Error;
pub use format::{format, is_used};
pub use group::{MemoryNodeAddress, SiftGroup, SiftTimeouts};
pub use group_id::GroupId;
pub use layout::{FORMAT_VERSION, GroupLayout, LOG_BYTES_MAX, LOG_UNIT_BYTES};
pub use memory_node::{GroupMemory, LogMemoryNode, LogMemoryNodeConfig};
pub use message::PROTOCOL_VERSIONS;
pub use standby::Standby;
pub use takeover::{ElectedStandby, RecoveredCoordinator};
