//! `heddle bench`: replaces this process with the program `heddle-bench`, which lies in the same directory.
//!
//! Benchmarks need more libraries than networks do, so they are a separate program, which is built only on request.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use heddle_cli::beside;

use crate::cli::BenchArguments;
use crate::failure::CommandError;

/// Returns only if the program cannot be started.
pub fn run(bench: &BenchArguments) -> CommandError {
    match beside::program("heddle-bench", "heddle-bench") {
        Ok(path) => {
            let error = Command::new(&path).args(&bench.arguments).exec();
            CommandError::new(format!("{} cannot be started: {error}", path.display()))
        }
        Err(missing) => missing,
    }
}
