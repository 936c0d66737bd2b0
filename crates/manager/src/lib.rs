//! Scales peers by their load: the quotas of their compute nodes, the number of these nodes, remote memory, and the processes
//! that keep copies of their storage.
//!
//! ```
//! use std::time::Duration;
//!
//! use manager::{Action, Manager, ManagerRecord, ManagerSettings, NodeOrigin, NodeView, Outcome, PeerView, PoolView};
//!
//! let mut manager = Manager::start(ManagerRecord::default(), ManagerSettings::default());
//! let busy = NodeView {
//!     name: "compute-org1".to_owned(),
//!     origin: NodeOrigin::Planned,
//!     heard: Some(Duration::ZERO),
//!     role: "primary".to_owned(),
//!     busy_percent: 98,
//!     queued: 20,
//!     quota_percent: Some(50),
//! };
//! let peer = PeerView { nodes: vec![busy], has_quotas: true, ..PeerView::default() };
//! let pool = PoolView::from([("org1".to_owned(), peer)]);
//!
//! // A peer that stays hot for a while gets a larger quota first.
//! for ms in [0, 500, 1000] {
//!     manager.observe(&pool, Duration::from_millis(ms), 0);
//! }
//! // The caller stores `manager.record()`, and then executes what is due.
//! let due = manager.due(Duration::from_secs(1));
//! assert_eq!(due[0].intent.action, Action::SetQuota { node: "compute-org1".to_owned(), percent: 100 });
//! manager.complete("org1", due[0].intent.number, Outcome::Done, Duration::from_secs(1), 0);
//! let event = &manager.record().events[0];
//! assert_eq!(event.why, "it is at 98 %, and 75 % is hot");
//! ```
//!
//! * [`Manager`] is the state machine; `machine.rs` has the protocol and its invariants.
//! * [`ManagerDriver`] runs it between a [`RecordStore`] and a [`Pool`]. [`RecordFile`] is the store in production; the
//!   pool is in `heddle`, which starts and ends processes.
//! * [`ManagerSettings`] says when and how far it scales. [`PoolEvent`] says what it did, and why.
//!
//! # Guarantees
//! The simulation in `tests/manager` checks these under lost, late and repeated actions, crashes, frozen and lying nodes,
//! and managers that come back:
//! * A peer stays within its limits, and a pause separates changes of opposite directions.
//! * No launched node and no quota is left behind: a manager that starts continues the actions of its predecessor.
//! * No storage process is stopped that has a copy, and after a loss one is started.
//! * Nothing depends on a manager: while none runs, or after its record is lost, peers serve as they are.
//! * Only a process that holds the record acts.
//!
//! # What it needs around it
//! * Above: `heddle` observes nodes and executes actions.
//! * Below: `base` for durable files. It elects no primary and reads no ledger.
#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]

mod action;
mod compute;
mod driver;
mod event;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod machine;
mod memory;
mod record;
mod settings;
mod storage;
mod store;
mod view;

pub use action::{Action, DueIntent, Intent, Outcome};
pub use compute::PeerLoad;
pub use driver::{ManagerDriver, ManagerError, Pool, RecordStore};
pub use event::{EVENTS_MAX, PoolEvent};
pub use machine::Manager;
pub use record::{ManagerRecord, NodeRecord, PeerRecord, RECORD_BYTES_MAX};
pub use settings::{ComputePolicy, ManagerSettings, MemoryPolicy, NODES_MAX, PEERS_MAX, PeerLimits, StoragePolicy};
pub use store::{LOCK_FILE, RECORD_FILE, RecordFile, is_held, read_record};
pub use view::{MemoryView, NodeOrigin, NodeView, PeerView, PoolView, StorageCopy, StorageNodeView, StorageView};
