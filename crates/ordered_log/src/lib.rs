//! The interface of a replicated ordered log at one of its CPU nodes, the guarantees of every engine behind it, and
//! three engines: [`solo`] for a single node, [`sift`] on passive memory nodes, and [`raft`] for networks without a
//! memory pool.
//!
//! ```
//! use async_trait::async_trait;
//! use base::Bytes;
//! use base::rt::simulation::Simulation;
//! use ordered_log::solo::SoloLog;
//! use ordered_log::{Error, Leadership, LogStore, OrderedLog};
//! use std::sync::{Arc, Mutex};
//!
//! /// A log store that forgets everything with its process.
//! struct InMemory(Mutex<Vec<Bytes>>);
//!
//! impl InMemory {
//!     fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Bytes>> {
//!         self.0.lock().expect("no holder panics")
//!     }
//! }
//!
//! #[async_trait]
//! impl LogStore for InMemory {
//!     fn height(&self) -> u64 {
//!         self.entries().len() as u64
//!     }
//!
//!     fn durable(&self) -> u64 {
//!         self.height()
//!     }
//!
//!     fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
//!         Ok(self.entries().get(position as usize).cloned())
//!     }
//!
//!     async fn append(&self, _position: u64, entry: Bytes) -> Result<(), Error> {
//!         self.entries().push(entry);
//!         Ok(())
//!     }
//!
//!     async fn sync(&self) -> Result<u64, Error> {
//!         Ok(self.height())
//!     }
//!
//!     async fn truncate(&self, height: u64) -> Result<(), Error> {
//!         self.entries().truncate(height as usize);
//!         Ok(())
//!     }
//!
//!     fn hard_state(&self) -> Result<Bytes, Error> {
//!         Ok(Bytes::new())
//!     }
//!
//!     async fn set_hard_state(&self, _note: Bytes) -> Result<(), Error> {
//!         Ok(())
//!     }
//! }
//!
//! let report = Simulation::new(7).run(|_| async {
//!     let store = Arc::new(InMemory(Mutex::new(vec![Bytes::from_static(b"first")])));
//!     let log = SoloLog::open(store.clone(), 1024).await?;
//!     let Leadership::Leading { term, next } = *log.leadership().borrow() else { unreachable!("it has no rival") };
//!
//!     log.append(term, next, Bytes::from_static(b"second")).await?;
//!     let mut deliverable = log.deliverable();
//!     deliverable.wait_for(|deliverable| *deliverable > next).await.map_err(|_| Error::Closed)?;
//!     assert_eq!(store.read(next)?, Some(Bytes::from_static(b"second")));
//!
//!     log.stop().await;
//!     Ok::<(), Error>(())
//! });
//! report.expect("the run succeeds").value.expect("the log store is sound");
//! ```
//!
//! # Protocol
//!
//! ```text
//!  caller           ── append(term, position, entry) ─▶  OrderedLog  ── entries, in order ─▶  log store (own disk)
//!                   ◀─ leadership, deliverable ─────────     │
//!                                                         other CPU nodes, memory nodes, logs (internal to the engine)
//! ```
//!
//! Entries are opaque bytes. They have *positions*, counted from 0 without a gap. The entries that a log store holds
//! before its engine starts are the beginning of the log; the first entry is the same at every CPU node. Positions
//! count only the caller's entries: an engine hides the entries that it adds itself.
//!
//! 1. Every CPU node opens its engine with its log store ([`LogStore`]). From then on only the engine appends to it.
//! 2. [`OrderedLog::leadership`] says which node is the leader. An engine reports its own node as leader of a term,
//!    together with the next position, once every entry that was committed before is in the node's own log store.
//! 3. The leader appends an entry at the next position, under its term. Appends are pipelined: an append completes when
//!    the entry has its position in the log, before the entry is committed. Entries under one term are placed in the
//!    order of their positions.
//! 4. The engine appends committed entries to the log store of *every* CPU node, in order, and then advances
//!    [`OrderedLog::deliverable`]: the number of *deliverable* entries, which may be shown to clients.
//! 5. A leader learns from `leadership` that it has lost its leadership. An entry that it has appended and that is not
//!    yet deliverable then may or may not become deliverable. To find out, the caller waits until the entry's position
//!    is deliverable, and reads the entry there.
//!
//! # Guarantees
//!
//! Every engine gives the following guarantees. The suite `conformance` (a feature of this crate) checks them under
//! faults; `tests/ordered_log` runs the suite on the engines of this crate.
//! 1. **One entry per position.** At a position below `deliverable`, all CPU nodes read the same bytes, and each of
//!    them reads the same bytes before and after a crash.
//! 2. **Deliverable entries survive.** Once an entry is below `deliverable` at any CPU node, it survives every failure
//!    that the engine is built for. It survives if F CPU nodes are lost, or if they lose the bytes that their disks had
//!    not synced. Unless the engine was opened as volatile, it also survives a simultaneous crash of all CPU nodes.
//! 3. **Readable.** Every entry below `deliverable` can be read from this CPU node's log store. After a crash,
//!    `deliverable` may start below its former value; it grows again.
//! 4. **One leader per term.** Terms only grow, and an append under a term is rejected once the leader of a greater
//!    term has started to lead. For a while two CPU nodes may both believe that they lead; during that time only one
//!    node's entries become deliverable.
//! 5. **No invented entries.** Every entry that becomes deliverable was appended by a leader, at that position.
//! 6. **Progress.** While enough CPU nodes, and any memory nodes that the engine needs, are up and reach one another,
//!    some CPU node leads, and the entries that it appends become deliverable at every CPU node that can be reached.
//! 7. **Bounds.** The number of entries that are appended and not yet deliverable is bounded; [`OrderedLog::append`]
//!    waits for space.
//!
//! Callers guarantee: one task appends at a time; an entry has at most [`OrderedLog::entry_bytes_max`] bytes; only the
//! engine changes the log store until [`OrderedLog::stop`] has returned.
//!
//! # What it needs around it
//!
//! * Two of the engines are built on the crates `sift` and `raft`; [`base::rt::net`] connects CPU nodes, and its
//!   transport authenticates them.
//! * `chain` gives each orderer a log store of blocks, and orders a channel's blocks through an engine; `node` chooses
//!   the engine. Only the caller knows what an entry means.
#![deny(missing_docs)]

#[cfg(all(feature = "conformance", debug_assertions))]
pub mod conformance;
mod error;
pub mod fault;
mod ordered_log;
pub mod raft;
pub mod sift;
pub mod solo;

pub use base::Term;
pub use error::Error;
pub use ordered_log::{CpuNodeId, Leadership, LogStore, OrderedLog};

use ordered_log::{LAST_TERM, check};
