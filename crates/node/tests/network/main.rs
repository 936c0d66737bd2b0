//! Whole networks in this process: one program, since what it links takes longer to build than its tests to run.

mod common;
mod envelopes;
mod lifecycle;
mod pooled;
mod proposals;
mod streams;
