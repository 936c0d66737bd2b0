//! Integration tests of the crate, in one program, since each further program would compile the protocols' generic code
//! again.
//!
//! - Under simulated faults: [`simulation`] of a group, and [`backups`]. Code that they share with the simulations of
//!   higher crates is in [`sift::testing`].
//! - On real shared memory: [`memory`], within one process.
//! - By exhaustive search: [`model`] checks every order of the protocols' steps at small size.

mod backups;
mod memory;
mod model;
mod simulation;
