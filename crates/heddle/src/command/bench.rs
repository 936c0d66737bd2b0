//! `heddle bench`: this process becomes the program `heddle-bench`, which lies beside it.
//!
//! Benchmarks need more libraries than networks do, so that they are built apart and only on request.

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
