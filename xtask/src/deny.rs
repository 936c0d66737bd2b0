//! The dependency audit: known vulnerabilities against a snapshot of their facts ([`crate::advisories`]), then licences, banned
//! crates, requirements and sources, as `deny.toml` says.
//!
//! The file has the form that cargo-deny reads, and means the same there. Building cargo-deny takes longer than everything that it
//! would check, so its rules that apply here are checked on what `cargo tree` lists:
//!
//! 1. The licence of each crate, an SPDX expression, can be met with the allowed licences alone.
//! 2. No banned crate is built, directly or through others.
//! 3. Our crates require a version of each other crate: none requires `*`.
//! 4. All crates come from the default registry, none from another one and none from a repository.
//!
//! Only crates count that are built for one of the file's targets.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::advisories;

const FILE: &str = "deny.toml";
/// What `deny.toml` permits.
#[derive(Deserialize)]
struct DependencyRules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    triple: String,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    name: String,
}

/// A crate that is built.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Package {
    name: String,
    version: String,
    /// Where it comes from, unless that is the default registry.
    origin: Option<String>,
    license: String,
}

/// The part of `cargo metadata` that is looked at, of our crates only.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Manifest>,
}

#[derive(Deserialize)]
struct Manifest {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    /// Where it is, for our own.
    path: Option<String>,
}

/// Checks all dependencies.
///
/// # Errors
/// What is not permitted; or cargo's metadata or `deny.toml` cannot be read.
pub fn check() -> Result<(), String> {
    advisories::check()?;
    let rules = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let rules: DependencyRules = toml::from_str(&rules).map_err(|error| format!("{FILE}: {error}"))?;
    let packages = packages(&rules.graph.targets)?;
    let manifests: Metadata = serde_json::from_slice(&cargo(&["metadata", "--no-deps", "--format-version", "1"])?)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let mut problems = problems(&rules, &packages);
    problems.extend(manifests.packages.iter().flat_map(wildcards));
    if problems.is_empty() {
        println!("licences, bans and sources: {} packages, none refused", packages.len());
        return Ok(());
    }
    Err(problems.join("; "))
}

fn cargo(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let output = Command::new("cargo").args(arguments).arg("--locked").output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

/// All crates but ours that are built for these targets, those of tests included.
fn packages(targets: &[Target]) -> Result<BTreeSet<Package>, String> {
    let mut arguments = vec!["tree", "--workspace", "--prefix", "none", "--format", "{p}|{l}"];
    for target in targets {
        arguments.extend(["--target", &target.triple]);
    }
    let tree = String::from_utf8_lossy(&cargo(&arguments)?).into_owned();
    let root = crate::root().to_string_lossy().into_owned();
    let packages = tree.lines().filter(|line| !line.is_empty()).map(|line| read_package(line, &root));
    packages.filter_map(Result::transpose).collect()
}

/// Reads a line of the tree: `NAME vVERSION (ORIGIN) (proc-macro)|LICENCE (*)`, with its brackets only where they apply.
/// `None` for our own, which lie below `root`.
fn read_package(line: &str, root: &str) -> Result<Option<Package>, String> {
    let malformed = || format!("cargo tree: {line:?} has another form than expected");
    let (crate_, license) = line.split_once('|').ok_or_else(malformed)?;
    let (name, rest) = crate_.split_once(" v").ok_or_else(malformed)?;
    let (version, notes) = rest.split_once(' ').unwrap_or((rest, ""));
    let notes = notes.split(") (").map(|note| note.trim_matches(['(', ')']));
    let origin = notes.filter(|note| !matches!(*note, "" | "proc-macro")).map(str::to_owned).next();
    let license = license.strip_suffix(" (*)").unwrap_or(license).to_owned();
    let is_own = origin.as_ref().is_some_and(|origin| origin.starts_with(root));
    Ok((!is_own).then(|| Package { name: name.to_owned(), version: version.to_owned(), origin, license }))
}

/// What the rules do not permit.
fn problems(rules: &DependencyRules, packages: &BTreeSet<Package>) -> Vec<String> {
    let mut problems = Vec::new();
    for Package { name, version, origin, license } in packages {
        if rules.bans.deny.iter().any(|banned| banned.name == *name) {
            problems.push(format!("{name} is banned by {FILE}: `cargo tree --invert {name}` shows who needs it"));
        }
        if let Some(origin) = origin {
            problems.push(format!("{name} {version} comes from {origin}; take it from the registry"));
        }
        if let Err(reason) = check_license(license, &rules.licenses.allow) {
            problems.push(format!("the licence of {name} {version}: {reason}"));
        }
    }
    problems
}

/// Rule 3, for one of our crates.
fn wildcards(manifest: &Manifest) -> impl Iterator<Item = String> {
    let any = manifest.dependencies.iter().filter(|one| one.req == "*" && one.path.is_none());
    any.map(|one| format!("{} requires any version of {}; name one", manifest.name, one.name))
}

/// Whether an SPDX expression can be met with these licences. Older crates write `/` for `OR`.
fn check_license(expression: &str, allowed: &BTreeSet<String>) -> Result<(), String> {
    let parsed = Expression::parse_mode(expression, ParseMode::LAX)
        .map_err(|error| format!("{expression:?} is no SPDX expression: {}", error.reason))?;
    match parsed.evaluate(|requirement| allowed.contains(&requirement.to_string())) {
        true => Ok(()),
        false => Err(format!("{FILE} does not allow {expression:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> DependencyRules {
        let text = "[graph]\ntargets = [{ triple = \"x\" }]\n[bans]\ndeny = [{ name = \"bad\" }]\n\
                    [licenses]\nallow = [\"MIT\", \"Apache-2.0 WITH LLVM-exception\"]\n";
        toml::from_str(text).expect("it has the form of the file")
    }

    #[test]
    fn what_the_rules_do_not_permit_is_refused_by_name() {
        for (line, expected) in [
            ("good v1.0.0|MIT OR GPL-3.0-only", None),
            ("old v1.0.0|MIT/Apache-2.0 (*)", None),
            ("derived v1.0.0 (proc-macro)|MIT", None),
            ("excepted v1.0.0|(MIT OR ISC) AND Apache-2.0 WITH LLVM-exception", None),
            ("ours v0.2.0 (/project/crates/ours)|Apache-2.0", None),
            ("both v1.0.0|MIT AND GPL-3.0-only", Some("the licence of both 1.0.0: deny.toml does not allow")),
            ("plain v1.0.0|Apache-2.0", Some("does not allow")),
            ("silent v1.0.0|", Some("no SPDX expression")),
            ("bad v1.0.0|MIT", Some("bad is banned")),
            ("forked v1.0.0 (https://example.com/forked#1234)|MIT", Some("take it from the registry")),
            ("near v1.0.0 (proc-macro) (/elsewhere/near)|MIT", Some("comes from /elsewhere/near")),
            ("other v1.0.0 (registry `private`)|MIT", Some("take it from the registry")),
        ] {
            let package = read_package(line, "/project").expect("it has the form of a line");
            let found = problems(&rules(), &package.into_iter().collect()).join("; ");
            match expected {
                None => assert_eq!(found, "", "{line}"),
                Some(expected) => assert!(found.contains(expected), "{line}: {found}"),
            }
        }
        read_package("warning: nothing to print", "/project").expect_err("it is no crate");
    }

    #[test]
    fn our_crates_name_the_versions_that_they_need() {
        let any = |path: Option<&str>| Dependency {
            name: "dep".to_owned(),
            req: "*".to_owned(),
            path: path.map(str::to_owned),
        };
        let manifest = Manifest { name: "ours".to_owned(), dependencies: vec![any(None), any(Some("/near"))] };
        assert_eq!(wildcards(&manifest).collect::<Vec<_>>(), ["ours requires any version of dep; name one"]);
    }
}
