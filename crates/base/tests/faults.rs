//! Compares docs/faults.md, the list of all fault points and mutants, with the sources: each one is in the list, and
//! each one is tested.
//!
//! `UPDATE_DOCS=1 cargo test --profile checks --package heddle-base --test faults` writes the list again.
//! `cargo xtask release` reads the list to check that the product contains none of the names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The functions at a fault point, and what each does there.
const POINTS: &[(&str, &str)] = &[("crash_point(", "crash"), ("hold_up(", "delay"), ("fault_point(", "failure")];
/// Endings of the names that `pool` keeps in a table, one row for each kind of request.
const TABLE: &[&str] = &[".lost", ".answer_lost"];

/// The line above a module of tests, and the start of its declaration.
const TESTS_ONLY: &str = "#[cfg(test)]\nmod ";

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the crate lies two folders below the root").to_path_buf()
}

/// Rust files below a folder, with their text.
fn files(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("the repository can be listed") {
        let path = entry.expect("the repository can be listed").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            found.push((path, text));
        }
    }
}

/// The files of the modules that a file declares for its tests alone.
fn test_modules<'a>(path: &'a Path, text: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    let is_door = ["mod.rs", "lib.rs", "main.rs"].iter().any(|door| path.ends_with(door));
    let folder = if is_door { path.with_file_name("") } else { path.with_extension("") };
    let names = text.split(TESTS_ONLY).skip(1).filter_map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
        rest[end..].starts_with(';').then_some(&rest[..end])
    });
    names.flat_map(move |name| [folder.join(name), folder.join(format!("{name}.rs"))])
}

/// The code under test without its tests, and the tests.
fn sources() -> (Vec<String>, Vec<String>) {
    let (mut code, mut tests, mut all) = (Vec::new(), Vec::new(), Vec::new());
    files(&root().join("crates"), &mut all);
    let of_tests: BTreeSet<PathBuf> = all.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    for (path, text) in all {
        let shown = path.display().to_string();
        // The module that defines them, and these tests, contain examples.
        if shown.ends_with("base/src/rt/fault.rs") || shown.ends_with("base/tests/faults.rs") {
            continue;
        }
        let is_test = ["/tests/", "/simulator/", "/examples/"].iter().any(|part| shown.contains(part))
            || path.ancestors().any(|above| of_tests.contains(above));
        if is_test {
            tests.push(text);
            continue;
        }
        // Unit tests stand at the end of a file.
        let start = text.match_indices(TESTS_ONLY).map(|(start, _)| start).find(|start| {
            let line = text[start + TESTS_ONLY.len()..].lines().next();
            line.is_some_and(|line| line.ends_with('{'))
        });
        let (before, after) = text.split_at(start.unwrap_or(text.len()));
        code.push(before.to_owned());
        tests.push(after.to_owned());
    }
    assert!(
        code.len() > 200 && tests.len() > 100,
        "there are more than {} files and {} tests",
        code.len(),
        tests.len()
    );
    (code, tests)
}

/// The string literals of a text, each with the text before it.
fn literals(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let start = offset + text[offset..].find('"')?;
        let end = start + 1 + text[start + 1..].find('"')?;
        // A quotation mark in a comment or a character may start a pair that is no literal; then the next starts at its end.
        let literal = &text[start + 1..end];
        offset = if is_name(literal) { end + 1 } else { start + 1 };
        Some((&text[..start], literal))
    })
}

/// Whether a literal has the form of the name of a fault point.
fn is_name(literal: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    literal.contains('.') && literal.split('.').all(is_word)
}

/// The fault points of the code, and what happens there.
fn points(code: &[String]) -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    for text in code {
        for (before, name) in literals(text).filter(|(_, literal)| is_name(literal)) {
            let called = POINTS.iter().find(|(function, _)| before.trim_end().ends_with(function));
            let kind = match called {
                _ if name.contains(".mutant.") => "mutant",
                Some((_, kind)) => kind,
                None if TABLE.iter().any(|ending| name.ends_with(ending)) => "failure",
                None => continue,
            };
            found.insert(name.to_owned(), kind);
        }
    }
    found
}

/// The mutants that modules declare: full name, name of the variant, and what the mistake is.
fn mutants(code: &[String]) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for text in code {
        for block in text.split("base::mutants! {").skip(1) {
            let block = &block[..block.find("\n}").expect("the block ends")];
            let module = block.split('"').nth(1).expect("the block names its module");
            let mut mistake = String::new();
            for line in block.lines().map(str::trim) {
                if let Some(words) = line.strip_prefix("///") {
                    mistake.push_str(words);
                } else if let Some(name) = line.strip_suffix(',') {
                    found.push((
                        format!("{module}.{name}"),
                        name.to_owned(),
                        std::mem::take(&mut mistake).trim().to_owned(),
                    ));
                }
            }
        }
    }
    found.sort();
    found
}

fn document(points: &BTreeMap<String, &str>, mutants: &[(String, String, String)]) -> String {
    let mut text = String::from(
        "# Fail points and mutants\n\n\
         Made from the sources by `UPDATE_DOCS=1 cargo test --profile checks --package heddle-base --test faults`. Do not edit.\n\n\
         Tests reach these through `base::rt::fault`. The product contains none of them ([ADR 36](adr/0036-no-faults-in-the-product.md)):\n\
         `cargo xtask release` looks for every name of this page in the program.\n\n",
    );
    let _ = writeln!(text, "## Fault points ({})\n\n| name | what a test can cause there |\n|---|---|", points.len());
    for (name, kind) in points {
        let _ = writeln!(text, "| `{name}` | {kind} |");
    }
    let _ = writeln!(text, "\n## Mutants ({})\n\n| name | the mistake |\n|---|---|", mutants.len());
    for (name, _, mistake) in mutants {
        let _ = writeln!(text, "| `{name}` | {mistake} |");
    }
    text
}

#[test]
fn the_list_of_faults_is_complete() {
    let (code, _) = sources();
    let document = document(&points(&code), &mutants(&code));
    let path = root().join("docs/faults.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &document).expect("the document can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let how = "UPDATE_DOCS=1 cargo test --profile checks --package heddle-base --test faults";
    assert!(written == document, "docs/faults.md is out of date: {how}");
}

#[test]
fn every_mutant_is_asked_for_by_the_code_and_planted_by_a_test() {
    let (code, tests) = sources();
    let mutants = mutants(&code);
    assert!(mutants.len() >= 69, "there are only {} mutants", mutants.len());
    let names: BTreeSet<&String> = mutants.iter().map(|(full, ..)| full).collect();
    assert_eq!(names.len(), mutants.len(), "two mutants have the same full name");
    // Modules may have mutants of the same name, each of which has a place of its own.
    let uses = |texts: &[String], name: &str| {
        let ends = |rest: &str| !rest.starts_with(|letter: char| letter.is_ascii_alphanumeric());
        let used = format!("Mutant::{name}");
        texts.iter().filter(|text| text.split(&used).skip(1).any(ends)).count()
    };
    let mut missing = Vec::new();
    for (full, name, _) in &mutants {
        let modules = mutants.iter().filter(|(_, other, _)| other == name).count();
        for (texts, what) in [(&code, "asked for by the code"), (&tests, "planted by a test")] {
            let found = uses(texts, name);
            if found < modules {
                missing.push(format!("{full}: {found} files of {modules} have it {what}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_fault_point_is_named_by_a_test() {
    let (code, tests) = sources();
    let named: BTreeSet<&str> = tests.iter().flat_map(|text| literals(text)).map(|(_, literal)| literal).collect();
    let points = points(&code);
    assert!(points.len() > 120, "there are only {} fault points", points.len());
    let unnamed: Vec<&String> = points.keys().filter(|name| !named.contains(name.as_str())).collect();
    assert!(unnamed.is_empty(), "no test reaches {unnamed:?}");
}
