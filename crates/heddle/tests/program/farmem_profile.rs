//! Profiles of a program whose functions make remote accesses in known proportions: `support/far_functions.c`.
//!
//! The proportions are those of accesses, of which each function makes a fixed number; nothing here depends on how long they take.
//! The library is built as for [`farmem`](super::farmem).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{run, text};

/// A compiled program, and what its profiles wrote.
struct ProfiledProgram {
    folder: tempfile::TempDir,
}

impl ProfiledProgram {
    fn compile(options: &[&str]) -> ProfiledProgram {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/support/far_functions.c");
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("far_functions");
        let compiled = Command::new("cc").arg("-O1").args(options).arg("-o").arg(program).arg(source).output();
        let compiled = compiled.expect("a C compiler is installed, as for a dependency");
        assert!(compiled.status.success(), "{}", text(&compiled));
        ProfiledProgram { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Profiles a part of the program. Returns what was printed, and the JSON.
    fn profile(&self, options: &[&str], part: &str) -> (Output, Value) {
        let [json, picture, program] = ["profile.json", "profile.svg", "far_functions"].map(|name| self.file(name));
        let [json, picture, program] = [&json, &picture, &program].map(|path| path.to_str().expect("UTF-8"));
        let heap = ["farmem", "profile", "--budget", "2M", "--memory", "256M", "--json", json, "--picture", picture];
        let output = run(&[&heap, options, &["--", program, part]].concat());
        let json = std::fs::read_to_string(json).unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
        let json = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {}: {json}", text(&output)));
        (output, json)
    }
}

fn functions(profile: &Value) -> &[Value] {
    profile["functions"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The row of a function of the program.
fn function<'a>(profile: &'a Value, name: &str) -> &'a Value {
    let found = functions(profile).iter().find(|row| row["function"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing in {profile:#}"))
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {row}"))
}

#[test]
fn functions_are_ranked_by_their_remote_accesses() {
    let program = ProfiledProgram::compile(&[]);
    let (output, profile) = program.profile(&["--top", "1"], "query");
    assert!(output.status.success() && text(&output).contains("done"), "{}", text(&output));
    let (scan, probe) = (function(&profile, "scan_orders"), function(&profile, "probe_index"));
    assert_eq!(&functions(&profile)[0], scan, "{profile:#}");
    // It makes ten of eleven accesses; some pages may be resident still.
    let ratio = number(scan, "accesses") / number(probe, "accesses");
    assert!((5.0..20.0).contains(&ratio), "{profile:#}");
    assert!(number(scan, "share") > 0.75, "{profile:#}");
    assert!(number(&profile, "accesses") > 5000.0 && profile["accesses"] == profile["samples"], "{profile:#}");
    for row in [scan, probe] {
        assert_eq!(row["object"].as_str().map(Path::new), Some(&*program.file("far_functions")));
        assert!(number(row, "seconds") > 0.0 && number(row, "accesses_per_second") > 0.0, "{row}");
    }
    let table = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(table.contains("scan_orders") && !table.contains("probe_index"), "{table}");
    assert!(table.contains("more functions, with"), "{table}");
    let picture = std::fs::read_to_string(program.file("profile.svg")).expect("it was written");
    assert!(picture.starts_with("<svg ") && picture.contains(">scan_orders<"), "{picture}");
}

#[test]
fn accesses_of_the_c_library_and_of_system_calls_are_their_callers() {
    let (output, profile) = ProfiledProgram::compile(&[]).profile(&[], "library");
    assert!(output.status.success(), "{}", text(&output));
    let (copy, write) = (function(&profile, "copy_rows"), function(&profile, "write_rows"));
    let ratio = number(copy, "accesses") / number(write, "accesses");
    assert!((2.0..8.0).contains(&ratio), "{profile:#}");
    assert!(number(copy, "share") > 0.5 && number(write, "share") > 0.08, "{profile:#}");
    for row in [copy, write] {
        let library = &row["runtimes"][0];
        assert!(library["object"].as_str().is_some_and(|path| path.contains("libc")), "{row}");
        assert!(number(library, "accesses") > 0.9 * number(row, "accesses"), "{row}");
    }
}

#[test]
fn callers_have_the_accesses_of_what_they_call() {
    let (output, profile) = ProfiledProgram::compile(&[]).profile(&["--callers"], "query");
    assert!(output.status.success(), "{}", text(&output));
    let (query, scan, probe) =
        (function(&profile, "run_query"), function(&profile, "scan_orders"), function(&profile, "probe_index"));
    let both = number(scan, "accesses") + number(probe, "accesses");
    assert!(number(query, "inclusive_accesses") > 0.9 * both, "{profile:#}");
    assert!(number(query, "accesses") < 0.05 * both, "{profile:#}");
    assert_eq!(scan["callers"][0]["function"], "run_query");
    assert!(number(&scan["callers"][0], "accesses") > 0.9 * number(scan, "accesses"), "{profile:#}");
}

/// Both are counted together: the child has made four of five accesses.
#[test]
fn accesses_of_children_are_counted() {
    let (output, profile) = ProfiledProgram::compile(&[]).profile(&[], "forks");
    assert!(output.status.success(), "{}", text(&output));
    let (scan, probe) = (function(&profile, "scan_orders"), function(&profile, "probe_index"));
    let ratio = number(scan, "accesses") / number(probe, "accesses");
    assert!((2.0..8.0).contains(&ratio), "{profile:#}");
}

#[test]
fn a_stripped_program_has_the_bounds_of_its_functions() {
    let (_, profile) = ProfiledProgram::compile(&["-s"]).profile(&[], "query");
    let rows = functions(&profile);
    let is_bounds = |row: &Value| row["function"].as_str().is_some_and(|name| name.starts_with("(no name) 0x"));
    assert!(is_bounds(&rows[0]) && number(&rows[0], "share") > 0.75, "{profile:#}");
}

#[test]
fn code_that_a_program_has_made_is_a_row_of_its_own() {
    let (output, profile) = ProfiledProgram::compile(&[]).profile(&[], "made-code");
    assert!(output.status.success(), "{}", text(&output));
    let (made, probe) = (function(&profile, "(code made at run time)"), function(&profile, "probe_index"));
    let ratio = number(made, "accesses") / number(probe, "accesses");
    assert!((2.0..8.0).contains(&ratio), "{profile:#}");
}

#[test]
fn some_accesses_stand_for_all() {
    let (_, profile) = ProfiledProgram::compile(&[]).profile(&["--every", "8"], "query");
    let (accesses, samples) = (number(&profile, "accesses"), number(&profile, "samples"));
    assert!((4.0..16.0).contains(&(accesses / samples)), "{profile:#}");
    let (scan, probe) = (function(&profile, "scan_orders"), function(&profile, "probe_index"));
    let ratio = number(scan, "accesses") / number(probe, "accesses");
    assert!((3.0..30.0).contains(&ratio), "{profile:#}");
    let counted: f64 = functions(&profile).iter().map(|row| number(row, "accesses")).sum();
    assert!((0.95 * accesses..=accesses).contains(&counted), "{profile:#}");
}

#[test]
fn a_program_that_fails_is_profiled_and_a_file_that_cannot_be_written_is_an_error_at_once() {
    let program = ProfiledProgram::compile(&[]);
    let (output, profile) = program.profile(&[], "fails");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert_eq!(profile["version"], 1);
    let missing = program.file("missing/profile.svg");
    let output =
        run(&["farmem", "profile", "--picture", missing.to_str().expect("UTF-8"), "--", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("missing/profile.svg"), "{}", text(&output));
}
