//! The simulated world: a seeded executor on one thread, with its own clock, random generator, disks and network.
//!
//! ```
//! use base::rt::{self, simulation::Simulation};
//! use std::time::Duration;
//!
//! let report = Simulation::new(7).run(|sim| async move {
//!     let peer = sim.node("peer");
//!     let answer = peer.spawn(async {
//!         rt::sleep(Duration::from_secs(3600)).await; // Takes no time.
//!         42
//!     });
//!     answer.await.expect("the peer does not crash")
//! });
//! assert_eq!(report.expect("the run succeeds").value, 42);
//! ```
//!
//! 1. [`Simulation::run`] creates a world from a seed and runs a future in it, on a node called `driver`. When that
//!    future completes, the run ends and all other tasks are dropped.
//! 2. [`Sim::node`] names further nodes. Tasks spawned from a node's task live on that node, and so do the directories that
//!    they open and the links that they make.
//! 3. Faults come from three sources: the [`Sim`] and [`SimNode`] handles; a [`FaultPlan`], written as text or random; and
//!    [fault points](crate::rt::fault_point) in the code.
//! 4. The [`SimulationReport`] has a digest of all events. [`Simulation::check`] runs a seed twice and compares the digests.
//!
//! The modules `disk` and `net` in this folder describe the faults of simulated disks and links.
//!
//! Each node has its own clock, which shows the true time unless [`SimNode::set_clock_drift_ppm`] or a plan lets it drift.
//! `rt::now`, `rt::sleep` and time-outs of the node's tasks follow its clock; links and disks follow the true time.
//!
//! Invariants: The seed and the code determine everything that happens in a world. Worlds on different threads are
//! independent.
//!
//! The caller must ensure that nodes share only links; a Rust channel or an `Arc` shared by two nodes would survive a crash
//! that should end it.

mod clock;
mod disk;
mod executor;
mod failure;
mod ids;
mod net;
mod node;
mod plan;
mod report;
mod rng;
mod run;
mod sim;
mod task;
mod timer;
mod trace;
mod world;

#[cfg(test)]
mod tests;

pub use clock::CLOCK_DRIFT_PPM_MAX;
pub use disk::{DiskCopy, DiskOperation, SECTOR_BYTES, SimDisk};
pub use failure::{FailureReason, SimulationFailure};
pub use node::SimNode;
pub use plan::{Fault, FaultKind, FaultPlan, FaultPlanLimits, FaultStep, ParsePlanError};
pub use report::{FaultPoint, SimulationReport, WALL_START_NANOS};
pub use rng::Prng;
pub use run::Simulation;
pub use sim::Sim;
pub use trace::TraceDigest;

pub(in crate::rt) use disk::{Directory, File};
pub(in crate::rt) use executor::yield_once;
pub(in crate::rt) use ids::Incarnation;
pub(in crate::rt) use net::{LinkReceiver, LinkSender, Listener, connect, listen};
pub(in crate::rt) use report::BLOCKING_DELAY_MAX;
pub(in crate::rt) use task::{Task, spawn};
pub(in crate::rt) use timer::Sleep;
pub(in crate::rt) use world::World;
