//! The workspace's programs, built as its tests have them.

use std::process::Command;

use crate::step::run;

/// The profile of everything that is built here (ADR 6).
pub const PROFILE: &str = "checks";

/// `cargo test` of the whole workspace, with these arguments: of a part of it, cargo would choose other features for what all
/// share, and compile most of it once more.
pub fn tests(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", PROFILE, "--workspace"]).args(arguments);
    command
}

/// The program of this name, built. `test` is an integration test of its package, with which cargo builds it.
///
/// # Errors
/// It does not build.
pub fn program(name: &str, test: &str) -> Result<Command, String> {
    run(&mut tests(&["--no-run", "--quiet", "--test", test]))?;
    // Beside this program: both are built in [`PROFILE`].
    let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    Ok(Command::new(own.with_file_name(name)))
}
