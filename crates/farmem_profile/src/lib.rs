//! Which functions of a program make remote accesses, from a [profile](farmem::AccessProfile) of its far heap.
//!
//! ```no_run
//! # fn example(server: &farmem::ProgramServer, time: std::time::Duration) -> Option<()> {
//! let report = farmem_profile::FunctionReport::new(&server.profile()?, time);
//! eprint!("{}", report.table(20));
//! std::fs::write("profile.svg", report.picture(20)).ok()?;
//! # Some(())
//! # }
//! ```
//!
//! 1. [`symbols`] turns the addresses of a profile into functions. [`elf`] reads their names from the symbol tables of the
//!    files, and of their separate debug files; a function without a name has its bounds from the table for unwinding
//!    ([`unwind_index`]). [`demangling`] makes names readable.
//! 2. [`attribution`] gives each access to one function. An access in a library that runs on behalf of others, such as
//!    `memcpy`, is its caller's.
//! 3. [`FunctionReport`] ranks functions by their accesses, and says how many they make in a second of the time that they run:
//!    TELEPORT's *memory intensity* (section 7.4), by which functions are chosen for pushing down.
//! 4. [`table`], [`json`] and [`picture`] show it.
//!
//! # The time that a function runs
//! It is measured by the accesses themselves. The time between two accesses of a thread is that of the function which makes both.
//! If they are of two functions, each gets half of it, but not more than half a millisecond: what ran in between is unknown.
//! Waiting for pages is part of the time; the profile's own work is not.
//!
//! # Guarantees
//! No file that a program has executed makes this crate panic, or use memory beyond the limits in [`elf`]. A file that cannot be
//! read costs the names of its functions, and a note says why.

#![deny(missing_docs)]

mod attribution;
mod demangling;
mod elf;
mod json;
mod picture;
mod report;
mod symbols;
mod table;
mod text;
mod unwind_index;

pub use report::{FunctionCount, FunctionReport, FunctionRow};
