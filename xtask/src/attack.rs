//! `cargo xtask attack`: attacks Heddle with programs that share no code with it. See `crates/attack/src/campaign.rs`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

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
