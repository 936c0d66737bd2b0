//! The command line: the benchmarks and their help texts.
//!
//! Their part of `docs/cli.md` is generated from these declarations, and a test compares the two.

pub mod bench;
pub mod component;
pub mod faults;
pub mod figure;
pub mod flexchain;
pub mod former;
pub mod kv;
mod seconds;
pub mod sift;
pub mod teleport;
pub mod workload;

use clap::Parser;

/// Measure: run a workload, and compare the result with the cost of its signatures
#[derive(Parser, Debug)]
#[command(
    name = "heddle-bench",
    bin_name = "heddle bench",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub benchmark: bench::BenchCommand,
}

#[cfg(test)]
mod tests;
