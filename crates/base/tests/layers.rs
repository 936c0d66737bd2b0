//! The workspace's layers, read from the manifests: a crate may depend only on crates of a lower layer.
//!
//! The checks:
//! 1. Dependencies between our crates, those of tests included, follow [`LAYERS`] (DESIGN, section 3), except for
//!    [`EXCEPTIONS`].
//! 2. A crate without a layer fails: a new crate must be added to the list.
//! 3. Transport libraries stay in the upper layers, and so does tokio, except for `base`.
//! 4. `unsafe` occurs only in the listed places.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layer of every crate, named by its folder.
const LAYERS: &[(&str, u32)] = &[
    ("base", 0),
    ("proto", 0),
    ("p256_verify", 0),
    ("cgroup", 0),
    ("wire", 0),
    ("farmem_control", 0),
    ("bare", 0),
    ("farmem_preload", 1),
    ("rma", 1),
    ("identity", 1),
    ("rma_verbs", 2),
    ("pool", 2),
    ("storage", 1),
    ("storage_copies", 2),
    ("page_coherence", 2),
    ("pushdown", 3),
    ("pushdown_executor", 4),
    ("executors", 4),
    ("pushdown_caller", 5),
    ("sift", 3),
    ("raft", 3),
    ("farmem", 3),
    ("ledger", 3),
    ("replica", 3),
    ("farmem_profile", 4),
    ("ordered_log", 4),
    ("kv", 4),
    ("block_transport", 4),
    ("private_data", 4),
    ("state", 4),
    ("utilisation", 4),
    ("rules", 5),
    ("contract", 5),
    ("validation", 6),
    ("chain", 7),
    ("manager", 7),
    ("gateway", 8),
    ("link_transport", 8),
    ("executor_relay", 8),
    ("node", 9),
    ("heddle", 10),
    ("simulator", 10),
    ("measurement", 11),
    ("bench", 12),
    ("attack", 10),
];

/// Dependencies that break the layers, each with its reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("executor_relay", "link_transport", "its tests carry its links over mutual TLS; it knows no transport itself"),
    ("ordered_log", "ordered_log", "its tests need its own conformance suite, a feature"),
    ("rma", "rma", "its tests need its own conformance suite, a feature"),
    ("sift", "sift", "its tests need its own simulated memory nodes, a feature"),
];

/// The first layer that may speak gRPC and HTTP, and use tokio itself.
const TRANSPORT_LAYER: u32 = 8;
/// Libraries that only those layers may use.
const TRANSPORT: &[&str] = &["tonic", "hyper", "axum", "h2", "http", "tower", "tokio-rustls", "reqwest"];
/// Crates below those layers that may use tokio, each with its reason.
const TOKIO: &[(&str, &str)] =
    &[("base", "the runtime stands on it"), ("rma", "its providers' sockets, each provider a module of its own")];
/// Crates that may contain unsafe code.
const UNSAFE: &[&str] = &[
    "rma",
    "rma_verbs",
    "bare",
    "farmem",
    "farmem_control",
    "farmem_preload",
    "pushdown",
    "pushdown_caller",
    "pushdown_executor",
    "executors",
    "executor_relay",
];
/// Files of other crates that may: the vector instructions of the P-256 verifier (ADR 34), and measured functions that share pages
/// without coherence (ADR 54), with the bare link beside which their messages are measured.
const UNSAFE_FILES: &[&str] = &[
    "p256_verify/src/ifma.rs",
    "bench/src/teleport/subject/calls.rs",
    "bench/src/teleport/subject/contention.rs",
    "bench/src/teleport/subject/false_sharing.rs",
    "bench/src/teleport/subject/messages.rs",
];
/// Test files that may: one that searches for the word, and those whose allocator counts allocations.
const UNSAFE_TESTS: &[&str] = &["layers.rs", "allocation.rs"];

/// The parts of a crate's manifest that concern the layers.
struct Crate {
    folder: String,
    path: PathBuf,
    /// Name of each dependency, and whether only tests (or the build) use it.
    dependencies: Vec<(String, bool)>,
}

fn workspace() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize().expect("the workspace is two folders up")
}

fn crates() -> Vec<Crate> {
    let folders = fs::read_dir(workspace().join("crates")).expect("the workspace has crates");
    let mut crates: Vec<Crate> = folders.filter_map(|entry| read_crate(entry.expect("readable").path())).collect();
    crates.sort_by(|one, other| one.folder.cmp(&other.folder));
    assert!(crates.len() > 5, "the workspace has crates");
    crates
}

fn read_crate(path: PathBuf) -> Option<Crate> {
    let manifest = fs::read_to_string(path.join("Cargo.toml")).ok()?;
    let manifest: toml::Table = manifest.parse().expect("cargo has read it");
    let mut dependencies = Vec::new();
    let mut tables = vec![&manifest];
    // Dependencies for one platform count as well.
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    tables.extend(targets.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table));
    for table in tables {
        for (section, for_tests) in [("dependencies", false), ("dev-dependencies", true), ("build-dependencies", true)]
        {
            let entries = table.get(section).and_then(toml::Value::as_table);
            for (name, entry) in entries.into_iter().flatten() {
                // A renamed dependency is known by its package.
                let package = entry.get("package").and_then(toml::Value::as_str).unwrap_or(name);
                dependencies.push((package.strip_prefix("heddle-").unwrap_or(package).to_owned(), for_tests));
            }
        }
    }
    let folder = path.file_name().and_then(|name| name.to_str()).expect("folders have plain names").to_owned();
    Some(Crate { folder, path, dependencies })
}

fn layers() -> BTreeMap<&'static str, u32> {
    LAYERS.iter().copied().collect()
}

/// All rules that the manifests break.
fn broken_rules(crates: &[Crate]) -> Vec<String> {
    let layers = layers();
    let ours: BTreeSet<&str> = crates.iter().map(|one| one.folder.as_str()).collect();
    let mut broken = Vec::new();
    for Crate { folder, dependencies, .. } in crates {
        let Some(layer) = layers.get(folder.as_str()) else {
            broken.push(format!("{folder} stands in no layer"));
            continue;
        };
        for (dependency, _) in dependencies {
            let excepted = EXCEPTIONS.iter().any(|(from, to, _)| from == folder && to == dependency);
            if ours.contains(dependency.as_str()) || layers.contains_key(dependency.as_str()) {
                let below = layers.get(dependency.as_str()).is_some_and(|other| other < layer);
                if !below && !excepted {
                    broken.push(format!("{folder} (layer {layer}) depends on {dependency}, which is not below it"));
                }
            }
            if *layer < TRANSPORT_LAYER && TRANSPORT.contains(&dependency.as_str()) {
                broken.push(format!("{folder} (layer {layer}) depends on {dependency}, a transport"));
            }
            let may_tokio = TOKIO.iter().any(|(from, _)| from == folder);
            if *layer < TRANSPORT_LAYER && !may_tokio && dependency == "tokio" {
                broken.push(format!("{folder} (layer {layer}) depends on tokio; use base::rt"));
            }
        }
    }
    broken
}

#[test]
fn every_crate_depends_only_on_lower_layers_and_transport_stays_above() {
    let broken = broken_rules(&crates());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_dependency_upwards_sideways_or_on_a_transport_is_noticed() {
    let made = |folder: &str, dependencies: &[&str]| Crate {
        folder: folder.to_owned(),
        path: PathBuf::new(),
        dependencies: dependencies.iter().map(|name| ((*name).to_owned(), true)).collect(),
    };
    for (folder, dependency, rule) in [
        ("storage", "ledger", "not below"),
        ("state", "state", "not below"),
        ("pool", "storage_copies", "not below"),
        ("chain", "tonic", "a transport"),
        ("ledger", "tokio", "use base::rt"),
        ("helpers", "base", "no layer"),
        ("measurement", "bench", "not below"),
    ] {
        let broken = broken_rules(&[made(folder, &[dependency])]);
        assert!(broken.len() == 1 && broken[0].contains(rule), "{folder} -> {dependency}: {broken:?}");
    }
    assert!(broken_rules(&[made("bench", &["heddle"]), made("base", &["tokio"])]).is_empty());
}

#[test]
fn unsafe_code_stands_only_where_it_is_meant_to() {
    let mut found = Vec::new();
    for Crate { folder, path, .. } in crates() {
        if !UNSAFE.contains(&folder.as_str()) {
            find_unsafe(&path, &mut found);
        }
    }
    found.retain(|path| !UNSAFE_FILES.iter().any(|file| path.ends_with(file)));
    assert!(found.is_empty(), "unsafe code in {found:?}");
}

/// Files below `path` with the keyword outside comments and strings, as far as a single line shows.
fn find_unsafe(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            find_unsafe(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !UNSAFE_TESTS.iter().any(|test| path.ends_with(format!("tests/{test}")))
        {
            let text = fs::read_to_string(&path).expect("source code is text");
            if text.lines().any(has_unsafe) {
                found.push(path);
            }
        }
    }
}

fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Text between quotes is every second part.
    let outside_strings = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    outside_strings.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
        || (code.contains("allow") && code.contains("unsafe_code"))
}

#[test]
fn the_search_for_unsafe_code_finds_it() {
    assert!(
        ["unsafe { f() }", "    unsafe fn g() {", "x(unsafe{h()})", "#![allow(unsafe_code)]"]
            .map(has_unsafe)
            .iter()
            .all(|found| *found)
    );
    assert!(
        !["// unsafe", "let unsafely = 1;", "\"unsafe\"", "#![deny(unsafe_code)]"]
            .map(has_unsafe)
            .iter()
            .any(|found| *found)
    );
}
