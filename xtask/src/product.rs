//! Checks that the product contains no test code (ADR 36): no fail point, no planted mistake, no simulation, no test
//! double.
//!
//! 1. [`compile`] compiles the product's variant of our crates, cheaply, with the dependencies of the tests.
//! 2. [`check`] searches a program for the names of all fail points and mutants, which `docs/faults.md` lists, and for
//!    [`PARTS`] of symbols and source paths.
//! 3. [`nightly`] builds the release and searches it. Then it searches the program of the tests, where it must find the
//!    names; otherwise the search of the release would prove nothing.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{self, PROFILE};
use crate::step::run;

/// Where all names are.
const LIST: &str = "docs/faults.md";

/// Parts of symbols and paths of sources that are in a program only with the code of tests.
const PARTS: &[&str] = &[
    // Modules, by their length and name, as both of rustc's manglings write them.
    "2rt10simulation",
    "heddle_rma3sim",
    "5fault5plant",
    "7unplant",
    "12inject_fault",
    "11ModelEngine",
    // Sources, in locations of panics and in line tables.
    "base/src/rt/simulation/",
    "rma/src/sim/",
    "storage/src/tables/model/",
    "contract/src/model.rs",
    // What a process would read.
    "HEDDLE_FAULTS",
];
/// Crates whose tests ask for the test code of our own crates by a feature, which [`compile`] must not select.
const WITH_TEST_FEATURES: &[&str] =
    &["heddle-kv", "heddle-ordered-log", "heddle-rma", "heddle-rma-verbs", "heddle-sift"];

/// What a release has.
const PACKAGES: &[&str] =
    &["heddle", "heddle-bench", "heddle-farmem-preload", "heddle-pushdown-caller", "heddle-pushdown-executor"];

/// Names that the program of the tests has at least.
const NAMES_OF_TESTS_MIN: usize = 100;

/// Compiles our crates as in the product, without debug assertions, and with dependencies as clippy has checked them for the tests.
///
/// For the program alone, cargo would select fewer features of shared dependencies, and check these a second time. So it gets the other
/// crates too, and an example, for which it looks at what tests need.
///
/// # Errors
/// They do not compile, or a lint of theirs fails.
pub fn compile() -> Result<(), String> {
    let mut clippy = Command::new("cargo");
    clippy.args(["clippy", "--profile", PROFILE, "--config", &format!("profile.{PROFILE}.debug-assertions=false")]);
    clippy.arg("--workspace").args(WITH_TEST_FEATURES.iter().flat_map(|name| ["--exclude", name]));
    run(clippy.args(["--bin", "heddle", "--example", "signature_costs", "--", "--deny", "warnings"]))
}

/// Looks for the code of tests in a program of a release.
///
/// # Errors
/// The program contains some, or cannot be read.
pub fn check(program: &Path) -> Result<(), String> {
    let found = look(program)?;
    match found.is_empty() {
        true => {
            println!("{}: contains no fail point, no mutant and no simulation", program.display());
            Ok(())
        }
        false => {
            let shown: Vec<&str> = found.iter().take(20).map(String::as_str).collect();
            Err(format!("{} contains {} names of tests: {}", program.display(), found.len(), shown.join(", ")))
        }
    }
}

/// Builds the release and looks into it, and into the program of the tests.
///
/// # Errors
/// The release contains code of tests, or the look finds none where it is.
pub fn nightly() -> Result<(), String> {
    check(&build()?)?;
    let tested = programs::program("heddle", "program")?;
    let found = look(Path::new(tested.get_program()))?;
    match found.len() {
        NAMES_OF_TESTS_MIN.. => Ok(()),
        count => Err(format!("the look is blind: it finds {count} names in the program of the tests")),
    }
}

/// Builds the release: the program with the benchmarks, the library for far heaps, and the library and the executor of pushed-down functions beside
/// it. Returns the program.
///
/// # Errors
/// It does not build.
pub fn build() -> Result<PathBuf, String> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    run(Command::new("cargo").args(["build", "--release", "--locked"]).args(packages))?;
    Ok(released())
}

/// The program of a release build.
pub fn released() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("release").join("heddle")
}

/// The names of tests that a program contains.
fn look(program: &Path) -> Result<BTreeSet<String>, String> {
    let list = std::fs::read_to_string(LIST).map_err(|error| format!("{LIST}: {error}"))?;
    let names = listed(&list);
    if names.len() < 2 * NAMES_OF_TESTS_MIN {
        return Err(format!("{LIST}: has only {} names", names.len()));
    }
    let bytes = std::fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(contained(&bytes, names.into_iter().chain(PARTS.iter().copied())))
}

/// The names in the tables of the list.
fn listed(list: &str) -> Vec<&str> {
    list.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect()
}

/// Those of `names` that occur in `bytes`, in one pass.
fn contained<'a>(bytes: &[u8], names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    const START: usize = 4;
    let mut by_start: HashMap<&[u8], Vec<&str>> = HashMap::new();
    for name in names {
        by_start.entry(&name.as_bytes()[..START]).or_default().push(name);
    }
    let mut found = BTreeSet::new();
    for (offset, start) in bytes.windows(START).enumerate() {
        let candidates = by_start.get(start).into_iter().flatten();
        found.extend(
            candidates.filter(|name| bytes[offset..].starts_with(name.as_bytes())).map(|name| (*name).to_owned()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_name_is_found_and_others_are_not() {
        let list =
            "# Faults\n\n| name | what |\n|---|---|\n| `pool.grant.lost` | failure |\n| `pool.list.lost` | failure |\n";
        let names = listed(list);
        assert_eq!(names, ["pool.grant.lost", "pool.list.lost"]);
        let look = |bytes: &[u8]| contained(bytes, names.iter().copied().chain(PARTS.iter().copied()));
        assert!(look(b"the pool.grant.loss of a pool.list").is_empty());
        assert_eq!(look(b"\0pool.grant.lostpool.gra"), BTreeSet::from(["pool.grant.lost".to_owned()]));
        let symbol = b"_ZN11heddle_base2rt10simulation5World4with17h0123456789abcdefE";
        assert_eq!(look(symbol), BTreeSet::from(["2rt10simulation".to_owned()]));
    }
}
