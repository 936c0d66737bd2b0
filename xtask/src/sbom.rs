//! The contents of the release: a bill of materials in CycloneDX 1.5, and data for `cargo audit` in the program itself.
//!
//! 1. [`print()`] writes one component for each package from which a program is built on Linux, with version, licence,
//!    checksum and dependencies. A package that is needed only at build time has the scope `excluded`. The same lock
//!    file gives the same bytes.
//! 2. [`release`] builds each program with `cargo auditable`, which embeds the list of packages in a section of the
//!    program, and reads the list back. The programs must contain no test code ([`crate::product`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::advisories::locked;
use crate::step::run;

/// The platform of releases.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The programs of a release. Each has the name of its package.
pub const PROGRAMS: [&str; 2] = ["heddle", "heddle-bench"];
/// The packages of what comes with them: the libraries of programs with far memory, and the executor of their functions.
const COMPANIONS: [&str; 3] = ["heddle-farmem-preload", "heddle-pushdown-caller", "heddle-pushdown-executor"];

/// Writes the bill of materials of a program to a file, or to standard output.
///
/// # Errors
/// Cargo does not know the packages, or the file cannot be written.
pub fn print(program: &str, output: Option<&Path>) -> Result<(), String> {
    let text = serde_json::to_string_pretty(&bill(program)?).expect("JSON can be written") + "\n";
    match output {
        None => print!("{text}"),
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?,
    }
    Ok(())
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Packages of a build, and whether each is in the program itself.
fn reached(metadata: &Value, program: &str) -> BTreeMap<String, bool> {
    let nodes: BTreeMap<String, &Value> =
        metadata["resolve"]["nodes"].as_array().into_iter().flatten().map(|node| (text(node, "id"), node)).collect();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let roots = packages.filter(|package| package["name"] == program).map(|package| (text(package, "id"), true));
    let mut waiting: VecDeque<(String, bool)> = roots.collect();
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    while let Some((id, is_inside)) = waiting.pop_front() {
        // Once for a package that is only needed at build time, and again if it turns out to be inside.
        match reached.get(&id) {
            Some(before) if *before || !is_inside => continue,
            _ => reached.insert(id.clone(), is_inside),
        };
        let dependencies = nodes.get(&id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        for dependency in dependencies {
            let kinds: Vec<&Value> =
                dependency["dep_kinds"].as_array().into_iter().flatten().map(|kind| &kind["kind"]).collect();
            let normal = kinds.iter().any(|kind| kind.is_null());
            if normal || kinds.iter().any(|kind| *kind == "build") {
                waiting.push_back((text(dependency, "pkg"), is_inside && normal));
            }
        }
    }
    reached
}

fn metadata() -> Result<Value, String> {
    let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET];
    let output = Command::new("cargo").args(arguments).output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn bill(program: &str) -> Result<Value, String> {
    let metadata = metadata()?;
    let lock = std::fs::read_to_string("Cargo.lock").map_err(|error| format!("Cargo.lock: {error}"))?;
    let checksums: BTreeMap<(String, String), String> = locked(&lock)?
        .into_iter()
        .filter_map(|package| Some(((package.name, package.version), package.checksum?)))
        .collect();
    let reached = reached(&metadata, program);
    let packages: BTreeMap<String, &Value> =
        metadata["packages"].as_array().into_iter().flatten().map(|package| (text(package, "id"), package)).collect();
    let address = |id: &String| {
        let package = packages[id];
        format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
    };
    let component = |(id, is_inside): (&String, &bool)| {
        let package = packages[id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        let mut component = json!({
            "type": if name == program { "application" } else { "library" },
            "bom-ref": address(id),
            "name": name,
            "version": version,
            "scope": if *is_inside { "required" } else { "excluded" },
            "purl": address(id),
        });
        if let Some(licence) = package["license"].as_str() {
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let mut components: Vec<Value> = reached.iter().map(component).collect();
    components.sort_by_key(|component| text(component, "bom-ref"));
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let mut graph: Vec<Value> = nodes
        .filter(|node| reached.contains_key(&text(node, "id")))
        .map(|node| {
            let all = node["deps"].as_array().into_iter().flatten().map(|dependency| text(dependency, "pkg"));
            let used: BTreeSet<String> = all.filter(|id| reached.contains_key(id)).map(|id| address(&id)).collect();
            json!({ "ref": address(&text(node, "id")), "dependsOn": used })
        })
        .collect();
    graph.sort_by_key(|node| text(node, "ref"));
    let root = components.iter().find(|component| component["name"] == program).cloned();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": root },
        "components": components,
        "dependencies": graph,
    }))
}

const AUDITABLE: &str = "0.7.7";

/// Builds each program of the release with the list of its packages inside, reads that list back, and writes the bill of
/// materials beside it.
///
/// # Errors
/// A tool is missing, the program contains code of tests, or the list read back differs from the build.
pub fn release() -> Result<(), String> {
    let tool = auditable()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folder = tool.parent().expect("a program lies in a folder").to_path_buf();
    let paths = [folder].into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(paths).map_err(|error| format!("PATH: {error}"))?;
    for name in PROGRAMS.into_iter().chain(COMPANIONS) {
        // One after the other: built together, each would have the features that only the other needs.
        let build = ["auditable", "build", "--release", "--locked", "--package", name];
        // Line tables, which a build from source leaves out, so that backtraces name lines.
        let lines = ("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
        run(Command::new("cargo").args(build).env("PATH", &path).env(lines.0, lines.1))?;
    }
    PROGRAMS.into_iter().try_for_each(checked)
}

/// Compares the list inside a program with its bill of materials, which it writes.
fn checked(name: &str) -> Result<(), String> {
    let program = Path::new("target/release").join(name);
    crate::product::check(&program)?;
    let bytes = std::fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let inside = listed(&bytes).map_err(|error| format!("{}: {error}", program.display()))?;
    let bill = bill(name)?;
    let required = |component: &&Value| component["scope"] == "required";
    let expected: BTreeSet<(String, String)> = bill["components"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(required)
        .map(|component| (text(component, "name"), text(component, "version")))
        .collect();
    let missing: Vec<String> =
        expected.difference(&inside).map(|(name, version)| format!("{name} {version}")).collect();
    if !missing.is_empty() {
        return Err(format!("{} does not list {}", program.display(), missing.join(", ")));
    }
    let beside = PathBuf::from(format!("{}.cdx.json", program.display()));
    print(name, Some(&beside))?;
    println!("{}: lists its {} packages; {}", program.display(), inside.len(), beside.display());
    Ok(())
}

/// The packages in a program's embedded list.
fn listed(program: &[u8]) -> Result<BTreeSet<(String, String)>, String> {
    let info = auditable_info::audit_info_from_slice(program, 8 << 20).map_err(|error| error.to_string())?;
    Ok(info.packages.into_iter().map(|package| (package.name, package.version.to_string())).collect())
}

/// The tool at its pinned version, installed if it is missing.
fn auditable() -> Result<PathBuf, String> {
    crate::tool::tool("cargo-auditable", AUDITABLE).ok_or_else(|| {
        format!("cargo-auditable could not be installed; run `cargo install cargo-auditable@{AUDITABLE} --locked`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo's own dependency tree of the program is the second source to compare with.
    #[test]
    fn the_bill_names_every_package_of_the_release() {
        std::env::set_current_dir(crate::root()).expect("the workspace root");
        for program in PROGRAMS {
            names_every_package(program);
        }
    }

    fn names_every_package(program: &str) {
        let bill = bill(program).expect("cargo knows the packages");
        let components = bill["components"].as_array().expect("a list");
        let named: BTreeSet<String> =
            components.iter().map(|one| format!("{} v{}", text(one, "name"), text(one, "version"))).collect();
        let arguments = ["tree", "--locked", "--package", program, "--edges", "normal,build", "--prefix", "none"];
        let output = Command::new("cargo").args(arguments).args(["--target", TARGET]).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect();
        assert!(tree.len() > 100, "a release has packages: {tree:?}");
        let missing: Vec<&String> = tree.difference(&named).collect();
        assert!(missing.is_empty(), "the bill does not name {missing:?}");
        let from_registry = components.iter().filter(|one| !text(one, "name").starts_with("heddle"));
        for component in from_registry {
            assert!(component["hashes"][0]["content"].is_string(), "{component}: no checksum");
            assert!(component["licenses"][0]["expression"].is_string(), "{component}: no licence");
        }
        assert_eq!(bill["dependencies"].as_array().map(Vec::len), Some(components.len()));
    }
}
