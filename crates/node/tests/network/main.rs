//! Whole networks in this process: one program, since what it links takes longer to build than its tests to run.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod common;
mod envelopes;
mod lifecycle;
mod pooled;
mod power;
mod proposals;
mod streams;
