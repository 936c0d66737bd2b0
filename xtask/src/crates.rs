//! Limits the number of crates from which `heddle` is built: each takes time in every build, and is code to trust.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates of the program and of its build, ours included. Lower it when one goes.
const CRATES_MAX: usize = 227;
/// The platform of releases.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Counts the crates that `cargo build --release` compiles.
///
/// # Errors
/// There are more than [`CRATES_MAX`], or cargo cannot list them.
pub fn check() -> Result<(), String> {
    let crates = of("heddle")?;
    println!("heddle is built from {} crates; {CRATES_MAX} are allowed", crates.len());
    if crates.len() <= CRATES_MAX {
        return Ok(());
    }
    let count = crates.len();
    Err(format!(
        "heddle is built from {count} crates, {} more than allowed: `cargo tree --package heddle --edges normal,build --target {TARGET}` \
         shows who needs them, `--duplicates` which are there twice. Leave out features, or do the work in a program of its own, as \
         heddle-bench does; if heddle itself must have them, raise CRATES_MAX in xtask/src/crates.rs and say why in the commit",
        count - CRATES_MAX
    ))
}

/// Names and versions of all crates from which a package is built.
fn of(package: &str) -> Result<BTreeSet<String>, String> {
    tree(package, "normal,build", "{p}")
}

/// The lines of cargo's tree of a package.
fn tree(package: &str, edges: &str, format: &str) -> Result<BTreeSet<String>, String> {
    let arguments = ["tree", "--locked", "--package", package, "--edges", edges, "--prefix", "none"];
    let output = Command::new("cargo").args(arguments).args(["--target", TARGET, "--format", format]).output();
    let output = output.map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines.lines().filter(|line| !line.is_empty());
    // What follows are paths, notes that a crate has been listed before, and features in brackets.
    let words = |line: &str| {
        let words = line.split_whitespace().enumerate().filter(|(at, word)| *at < 2 || word.starts_with('['));
        words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    };
    Ok(lines.map(words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_and_simulations_are_not_built_into_heddle() {
        std::env::set_current_dir(crate::root()).expect("the workspace root");
        let crates = tree("heddle", "normal", "{p}").expect("cargo knows them");
        let has = |name: &str| crates.iter().any(|line| line.split(' ').next() == Some(name));
        assert!(has("heddle") && has("heddle-node") && has("aws-lc-sys"), "{crates:?}");
        for name in ["heddle-bench", "heddle-simulator", "plotters", "regex-automata"] {
            assert!(!has(name), "{name}");
        }
    }

    /// A crate with other features is compiled again, and so is everything that depends on it.
    #[test]
    fn heddle_bench_is_built_from_the_crates_that_heddle_has_compiled() {
        std::env::set_current_dir(crate::root()).expect("the workspace root");
        let with_features = |package| tree(package, "normal", "{p} [{f}]").expect("cargo knows them");
        let (heddle, bench) = (with_features("heddle"), with_features("heddle-bench"));
        assert!(heddle.len() > 100 && heddle.iter().any(|line| line.contains("[")), "{heddle:?}");
        let others: Vec<&String> = heddle.difference(&bench).collect();
        assert!(others.is_empty(), "give heddle the features of heddle-bench: {others:?}");
    }
}
