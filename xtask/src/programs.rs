//! The workspace's programs, built with the same options as its tests.

use std::process::Command;

use crate::step::run;

/// The profile of everything that is built here (ADR 6).
pub const PROFILE: &str = "checks";

/// `cargo test` of the whole workspace, with these arguments: for a part of it, cargo would select other features for
/// shared dependencies, and compile most of them again.
pub fn tests(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", PROFILE, "--workspace"]).args(arguments);
    command
}

/// Builds the program of this name. `test` is an integration test of its package, with which cargo builds it.
///
/// # Errors
/// The program does not build.
pub fn program(name: &str, test: &str) -> Result<Command, String> {
    run(&mut tests(&["--no-run", "--quiet", "--test", test]))?;
    // In the folder of this program: both are built in [`PROFILE`].
    let own = std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?;
    Ok(Command::new(own.with_file_name(name)))
}
