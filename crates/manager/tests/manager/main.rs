//! Simulates managers and pools under faults, checks them, and checks the checkers with planted mistakes.

#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

mod loops;
mod mutants;
mod run;
mod stored;
mod world;
