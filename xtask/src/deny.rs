//! The dependency audit: licences, banned and duplicate crates, and sources, as `deny.toml` says.
//!
//! The advisory database is not part of it: fetching it needs a host outside the package registries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{first_line, run};

const VERSION: &str = "0.19.0";

pub fn check() -> Result<(), String> {
    let program = installed().or_else(install).ok_or(
        "cargo-deny could not be installed into target/tools; see the messages above, or leave this step out with \
         `--without deny`",
    )?;
    // On a fresh machine nothing but xtask's own dependencies is there yet.
    run(Command::new("cargo").args(["fetch", "--locked"]))?;
    run(Command::new(program).args(["--offline", "check", "bans", "licenses", "sources"]))
}

/// The pinned version only, so that every machine gives the same verdict.
fn installed() -> Option<PathBuf> {
    let version = first_line(&local().to_string_lossy(), &["--version"])?;
    version.ends_with(VERSION).then(local)
}

fn local() -> PathBuf {
    Path::new("target/tools/bin/cargo-deny").to_path_buf()
}

/// Built without optimisation, which halves the wait for a program that runs for two seconds.
fn install() -> Option<PathBuf> {
    println!("installing cargo-deny {VERSION} into target/tools; this takes a few minutes, once");
    let version = format!("cargo-deny@{VERSION}");
    let arguments = ["install", "--debug", "--quiet", "--locked", "--root", "target/tools", &version];
    run(Command::new("cargo").args(arguments).env("CARGO_PROFILE_DEV_DEBUG", "0")).ok()?;
    installed()
}
