//! Tests of consensus from outside, in one program: what the protocols are made of is compiled for each program again.
//!
//! - Under simulated faults: [`simulation`] of a group, [`kv_simulation`] of the store on it, [`backups`], [`raft_simulation`], and
//!   [`ordered`] of the engines that order. They share [`support`].
//! - On real memory: [`memory`], [`kv`], and [`processes`] that are killed and paused.
//! - [`model`]: every order of a few steps.

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
