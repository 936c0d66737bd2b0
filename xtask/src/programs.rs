//! The workspace's programs, built with the same options as its tests.

use std::process::Command;

use serde::Deserialize;

use crate::rustc;
use crate::step::run;

/// The profile of everything that is built here (ADR 6).
pub const PROFILE: &str = "checks";

/// `cargo test` of the whole workspace, with these arguments: for a part of it, cargo would select other features for
/// shared dependencies, and compile most of them again.
pub fn tests(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", PROFILE, "--workspace"]).args(arguments);
    // One that a developer has set is kept: unit tests are optimised then, which only takes longer.
    if let (None, Ok(own)) = (std::env::var_os(rustc::VARIABLE), std::env::current_exe()) {
        command.env(rustc::VARIABLE, own);
    }
    command
}

/// The part of `cargo metadata` that is looked at.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    #[serde(rename = "required-features", default)]
    required_features: Vec<String>,
}

/// `cargo test` of all unit tests, and of all integration tests but those that need a feature, such as a device.
///
/// # Errors
/// Cargo cannot list them.
pub fn all_tests() -> Result<Command, String> {
    let mut cargo = Command::new("cargo");
    let output = cargo.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}; {}", String::from_utf8_lossy(&output.stderr)))?;
    // Examples are built only when somebody runs them; clippy has checked that they compile.
    let mut command = tests(&["--no-fail-fast", "--lib", "--bins"]);
    for target in metadata.packages.iter().flat_map(|package| &package.targets) {
        if target.kind == ["test"] && target.required_features.is_empty() {
            command.args(["--test", &target.name]);
        }
    }
    Ok(command)
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
