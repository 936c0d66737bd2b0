//! Integration tests of the crate, in one program, since each further program would compile the protocols' generic code
//! again.
//!
//! - Under simulated faults: [`simulation`] of a group, [`kv_simulation`] of the store on it, [`backups`],
//!   [`raft_simulation`], and [`ordered`] for the ordering engines. They share [`support`].
//! - On real shared memory: [`memory`] and [`kv`] within one process, and [`processes`], in which real processes are
//!   killed and paused.
//! - By exhaustive search: [`model`] checks every order of the protocols' steps at small size.

mod backups;
mod kv;
mod kv_simulation;
mod memory;
mod model;
mod ordered;
mod processes;
mod raft_simulation;
mod simulation;
mod support;
