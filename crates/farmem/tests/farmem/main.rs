//! Simulates the page table and the store under faults, checks them, and checks the checkers with planted mistakes; then
//! runs regions on the kernel's page faults.

#![allow(unsafe_code, reason = "tests touch far memory by address")]
#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod allocators;
mod draws;
mod faulty_storage;
mod many_stores;
mod memory_store;
mod mutants;
mod pinned;
mod processes;
mod programs;
mod providers;
mod pushdown;
mod regions;
mod storages;
mod stores;
mod table_world;
mod tables;
mod time_limit;
