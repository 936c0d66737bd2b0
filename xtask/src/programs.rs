//! The workspace's programs, built with the same options as its tests.

use std::process::Command;

use serde::Deserialize;

use crate::step::run;

/// The profile of everything that is built here (ADR 6).
pub const PROFILE: &str = "checks";

/// Our crates that are optimised for simulations, and not for unit tests. `heddle-base` and `heddle-p256-verify` are missing:
/// their unit tests run simulations, and arithmetic on large tables.
const UNOPTIMIZED: &[&str] = &[
    "heddle-block-transport",
    "heddle-cgroup",
    "heddle-chain",
    "heddle-contract",
    "heddle-farmem",
    "heddle-identity",
    "heddle-kv",
    "heddle-ledger",
    "heddle-link-transport",
    "heddle-manager",
    "heddle-ordered-log",
    "heddle-page-coherence",
    "heddle-pool",
    "heddle-private-data",
    "heddle-proto",
    "heddle-raft",
    "heddle-replica",
    "heddle-rma",
    "heddle-rma-verbs",
    "heddle-rules",
    "heddle-sift",
    "heddle-simulator",
    "heddle-state",
    "heddle-storage",
    "heddle-storage-copies",
    "heddle-utilisation",
    "heddle-validation",
    "heddle-wire",
];

/// `cargo test` of the whole workspace, with these arguments: for a part of it, cargo would select other features for
/// shared dependencies, and compile most of them again.
pub fn tests(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--profile", PROFILE, "--workspace"]).args(arguments);
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

/// `cargo test` of the unit tests, without optimisation of our crates: they run for seconds, and optimising them takes
/// minutes (ADR 6).
pub fn unit_tests() -> Command {
    let mut command = tests(&["--lib", "--bins", "--no-fail-fast"]);
    for package in UNOPTIMIZED {
        for setting in ["opt-level=0", "codegen-units=16"] {
            command.args(["--config", &format!("profile.{PROFILE}.package.{package}.{setting}")]);
        }
    }
    command
}

/// `cargo test` of all integration tests but those that need a feature, such as a device.
///
/// # Errors
/// Cargo cannot list them.
pub fn integration_tests() -> Result<Command, String> {
    let mut cargo = Command::new("cargo");
    let output = cargo.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}; {}", String::from_utf8_lossy(&output.stderr)))?;
    let mut command = tests(&["--no-fail-fast"]);
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
