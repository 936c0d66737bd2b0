//! The conformance suite: what an engine's tests need to check the guarantees of [`OrderedLog`](crate::OrderedLog).
//!
//! 1. Each simulated CPU node opens a [`FileLogStore`] and the engine under test, and runs [`drive`] beside the engine until the
//!    engine ends; then it opens both again. `drive` appends while the node leads, and reports each entry that may be shown.
//! 2. The nodes share one [`LogChecker`], which fails the run when a report contradicts a guarantee.
//! 3. The test injects the faults that the engine must survive: crashes, pauses, cuts, lost power. Afterwards it heals all faults,
//!    waits until every node has shown more entries than before ([`LogChecker::heights`]), and calls
//!    [`LogChecker::check_complete`].
//!
//! The reasons of a failure start with the guarantee: `one entry`, `lost`, `readable`, `never falls`,
//! `one leader`, `made up`, `report`.
//!
//! `tests/ordered_log` runs the suite on the engines of this crate, with their fault points, and on each with planted mistakes,
//! to test that the suite finds them.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use base::rt::simulation::Simulation;
//! use base::{Bytes, rt};
//! use ordered_log::LogStore;
//! use ordered_log::conformance::{ENTRY_BYTES_MAX, FileLogStore, LogChecker, drive};
//! use ordered_log::solo::SoloLog;
//!
//! let run = Simulation::new(1).run(|sim| async move {
//!     let checker = Arc::new(LogChecker::new(&sim));
//!     let shared = Arc::clone(&checker);
//!     sim.node("orderer").start(move || {
//!         let checker = Arc::clone(&shared);
//!         async move {
//!             checker.starts("orderer");
//!             let first = Bytes::from_static(b"first");
//!             let store: Arc<dyn LogStore> = Arc::new(FileLogStore::open(&first).await.expect("a disk"));
//!             let engine = SoloLog::open(Arc::clone(&store), ENTRY_BYTES_MAX as usize).await.expect("a sound log store");
//!             drive(&checker, "orderer", &engine, &*store).await
//!         }
//!     });
//!     rt::sleep(Duration::from_millis(500)).await;
//!     sim.node("orderer").crash();
//!     sim.node("orderer").restart();
//!     let shown = checker.height();
//!     while checker.heights().get("orderer").is_none_or(|height| *height < shown + 10) {
//!         rt::sleep(Duration::from_millis(10)).await;
//!     }
//!     checker.check_complete();
//! });
//! run.expect("the guarantees hold");
//! ```

mod checker;
mod drive;
mod log_store;

pub use checker::LogChecker;
pub use drive::{ENTRY_BYTES_MAX, drive};
pub use log_store::FileLogStore;
