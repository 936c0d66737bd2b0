//! Programs that a task needs beside the toolchain, from the package registry.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::run;

/// A program from the registry at a pinned version, so that every machine gives the same verdict; installed if it is
/// missing.
pub fn tool(name: &str, version: &str) -> Option<PathBuf> {
    installed(name, version).or_else(|| install(name, version))
}

fn installed(name: &str, version: &str) -> Option<PathBuf> {
    // Cargo's list of the programs that it has installed there.
    let list = std::fs::read_to_string(tools().join(".crates.toml")).ok()?;
    let program = tools().join("bin").join(name);
    (list.contains(&format!("\"{name} {version} (")) && program.is_file()).then_some(program)
}

/// In the user's cache, so that it is built once for all clones.
fn tools() -> PathBuf {
    let folder = |variable: &str| std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    cache.map_or_else(|| Path::new("target").join("tools"), |cache| cache.join("heddle").join("tools"))
}

/// Built without optimisation, which halves the wait for a program that runs for two seconds.
fn install(name: &str, version: &str) -> Option<PathBuf> {
    let tools = tools();
    println!("installing {name} {version} into {}; this takes a few minutes, once", tools.display());
    let wanted = format!("{name}@{version}");
    let mut command = Command::new("cargo");
    command.args(["install", "--debug", "--quiet", "--locked", &wanted, "--root"]).arg(tools);
    run(command.env("CARGO_PROFILE_DEV_DEBUG", "0")).ok()?;
    installed(name, version)
}
