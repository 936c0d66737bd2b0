//! The workspace's programs, built as its tests have them.

use std::process::Command;

use crate::step::run;

/// The program of this name, built. `test` is an integration test of its package, with which cargo builds it.
///
/// `cargo build` would choose other features for what tests and programs share, and compile most of it once more.
///
/// # Errors
/// It does not build.
pub fn program(name: &str, test: &str) -> Result<Command, String> {
    run(Command::new("cargo").args(["test", "--release", "--workspace", "--no-run", "--quiet", "--test", test]))?;
    // Beside this program: both are built in the release profile.
    let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    Ok(Command::new(own.with_file_name(name)))
}
