//! Tests of whole networks in this process. They are one test program, because linking it takes longer than running the
//! tests.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod answers;
mod common;
mod configuration;
mod contention;
mod envelopes;
mod lifecycle;
mod pooled;
mod power;
mod proposals;
mod streams;
