//! How busy the processors of this process are: the measure by which compute nodes report their load, and the quota below which
//! they keep their computations.
//!
//! ```
//! base::rt::production::run(async {
//!     let load = utilisation::of_process();
//!     let node = load.of_another_node();
//!     assert!(node.shares_with(load.processors()) || load.processors().is_empty(), "both run on this machine");
//! });
//! ```
//!
//! # Guarantees
//! * A process under a quota of processor time is measured by its quota, any other by the whole machine.
//! * Asking costs nothing: files are read at most fifty times a second.
//!
//! # What it needs around it
//! Linux's `/proc` and cgroups of version 1 or 2, for reading. Without them a node counts as half busy. It is asked from
//! within [`base::rt`].
#![deny(missing_docs)]

mod processors;

pub use processors::{of_process, pace_computations};
