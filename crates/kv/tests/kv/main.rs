//! Integration tests of the crate, in one program, since each further program would compile the protocols' generic code
//! again.
//!
//! - Under simulated faults: [`kv_simulation`] of the store, and [`raft_simulation`] of the Raft engine with the store on it
//!   that is the baseline. They share [`history`].
//! - On real shared memory: [`kv`] within one process, and [`processes`], in which real processes are killed and paused.

mod history;
mod kv;
mod kv_simulation;
mod processes;
mod raft_simulation;
