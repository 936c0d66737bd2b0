//! `cargo xtask attack`: attacks Heddle with programs that share no code with it. See `crates/attack/src/campaign.rs`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::product;
use crate::programs::program;
use crate::step::run;

/// Runs the campaign with these arguments, against `heddle` if given, otherwise against a local build.
///
/// # Errors
/// Heddle or the attacks do not build, or an attack succeeds.
pub fn campaign(heddle: Option<PathBuf>, arguments: &[OsString]) -> Result<(), String> {
    let heddle = match heddle {
        Some(heddle) => heddle,
        None => program("heddle", "program")?.get_program().into(),
    };
    run(attack()?.args(["campaign", "--heddle"]).arg(heddle).args(arguments))
}

/// Measures what throughput a network keeps under attack, with release builds of all programs.
///
/// # Errors
/// They do not build, or the measurement fails.
pub fn bench() -> Result<(), String> {
    let heddle = product::build()?;
    run(Command::new("cargo").args(["build", "--release", "--locked", "--package", "heddle-attack"]))?;
    run(Command::new(heddle).args(["bench", "under-attack"]))
}

/// Lists the attacks.
///
/// # Errors
/// The attacks do not build.
pub fn list() -> Result<(), String> {
    run(attack()?.arg("list"))
}

fn attack() -> Result<Command, String> {
    program("attack", "attacks")
}
