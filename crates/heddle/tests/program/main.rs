//! The program as its users have it: one test program, since what it links takes longer to build than most tests to run.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod attack;
mod bench;
mod disk;
mod hosts;
mod isolate;
mod kill;
mod kv;
mod memory;
mod network;
mod nodes;
mod ordering;
mod soak;
mod support;
