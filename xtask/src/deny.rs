//! The dependency audit: licences, banned and duplicate crates, and sources, as `deny.toml` says.
//!
//! The advisory database is not part of it: fetching it needs a host outside the package registries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{first_line, run};

const VERSION: &str = "0.19.0";

pub fn check() -> Result<(), String> {
    let program = installed().or_else(install).ok_or(
        "cargo-deny could not be installed; see the messages above, or leave this step out with `--without deny`",
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
    tools().join("bin/cargo-deny")
}

/// The user's cache, so that it is built once for all clones.
fn tools() -> PathBuf {
    let folder = |variable: &str| std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    cache.map_or_else(|| Path::new("target").join("tools"), |cache| cache.join("heddle").join("tools"))
}

/// Built without optimisation, which halves the wait for a program that runs for two seconds.
fn install() -> Option<PathBuf> {
    let tools = tools();
    println!("installing cargo-deny {VERSION} into {}; this takes a few minutes, once", tools.display());
    let version = format!("cargo-deny@{VERSION}");
    let mut command = Command::new("cargo");
    command.args(["install", "--debug", "--quiet", "--locked", &version, "--root"]).arg(tools);
    run(command.env("CARGO_PROFILE_DEV_DEBUG", "0")).ok()?;
    installed()
}
