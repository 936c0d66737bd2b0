//! `cargo xtask attack`: Heddle is attacked by programs that share no code with it. See `crates/attack/src/campaign/mod.rs`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::programs::PROFILE;
use crate::step::run;

/// Builds Heddle and the attacks, and runs the campaign with these arguments; `heddle` is attacked instead of what is built
/// here.
///
/// # Errors
/// They do not build, or an attack succeeds.
pub fn campaign(heddle: Option<PathBuf>, arguments: &[OsString]) -> Result<(), String> {
    let attack = program()?;
    let heddle = heddle.unwrap_or_else(|| attack.with_file_name("heddle"));
    run(Command::new(&attack).args(["campaign", "--heddle"]).arg(heddle).args(arguments))
}

/// Names the attacks.
///
/// # Errors
/// They do not build.
pub fn list() -> Result<(), String> {
    run(Command::new(program()?).arg("list"))
}

/// The attacks' program; Heddle's lies beside it.
fn program() -> Result<PathBuf, String> {
    // All of the workspace, so that what all share has the features that it has in tests.
    run(Command::new("cargo").args(["build", "--profile", PROFILE, "--workspace", "--bins", "--quiet"]))?;
    let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
    Ok(own.with_file_name("attack"))
}
