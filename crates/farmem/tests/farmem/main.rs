//! Simulates the page table under faults, checks it, and checks the checkers with planted mistakes; then runs regions on
//! the kernel's page faults.

#![allow(unsafe_code, reason = "tests touch far memory by address")]
#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod memory_store;
mod mutants;
mod regions;
mod table_world;
mod tables;
