//! Simulates the page table under faults, checks it, and checks the checkers with planted mistakes.

mod mutants;
mod table_world;
mod tables;
