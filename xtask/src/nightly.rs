//! The record of nightly runs, `target/nightly.json`: the commit on which all steps last passed, and the cost of the
//! last cold build.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use crate::step::{first_line, run};

const RECORD: &str = "target/nightly.json";
/// Where the cold build builds; removed before and after.
const COLD: &str = "target/cold-build";
/// Linux reports processor time in hundredths of a second on every architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Says on what commit all steps last passed.
pub fn announce() {
    match read()["passed"]["commit"].as_str() {
        None => println!("no nightly run has passed here so far, says {RECORD}"),
        Some(commit) => {
            let since = first_line("git", &["rev-list", "--count", &format!("{commit}..HEAD")]);
            let since = since.unwrap_or_else(|| "an unknown number of".to_owned());
            println!("the nightly run last passed on commit {commit}, {since} commits ago");
        }
    }
}

/// Notes that all steps passed on the commit that is checked out. Changes that are not committed are no commit: with them
/// nothing is noted.
pub fn passed() {
    match commit() {
        Some(commit) if !commit.ends_with("-dirty") => {
            println!("the nightly run passed on commit {commit}");
            note("passed", json!({ "commit": commit }));
        }
        _ => println!("all steps passed, on changes that are not committed: {RECORD} stays as it was"),
    }
}

/// Builds the release from nothing, and prints and notes what that costs.
///
/// # Errors
/// It does not build.
pub fn cold_build() -> Result<(), String> {
    // Downloads are no part of it.
    run(Command::new("cargo").args(["fetch", "--locked"]))?;
    clear()?;
    let (start, cpu) = (Instant::now(), children_cpu_seconds()?);
    let built = run(Command::new("cargo").args(["build", "--release", "--locked"]).env("CARGO_TARGET_DIR", COLD));
    let (wall, cpu) = (start.elapsed().as_secs_f64(), children_cpu_seconds()? - cpu);
    clear()?;
    built?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    println!("a cold build took {wall:.0} s on {processors} processors, {cpu:.0} s of processor time");
    let before = &read()["cold_build"];
    if let (Some(wall), Some(cpu)) = (before["wall_s"].as_f64(), before["cpu_s"].as_f64()) {
        println!("the one before, on {}, took {wall:.0} s, {cpu:.0} s of processor time", before["commit"]);
    }
    note("cold_build", json!({ "commit": commit(), "processors": processors, "wall_s": wall, "cpu_s": cpu }));
    Ok(())
}

fn clear() -> Result<(), String> {
    match std::fs::remove_dir_all(COLD) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{COLD}: {error}")),
        _ => Ok(()),
    }
}

/// The commit that is checked out.
fn commit() -> Option<String> {
    first_line("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}

/// Processor time of all child processes that have ended, and of theirs.
fn children_cpu_seconds() -> Result<f64, String> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    // Fields count from after the command's name, which may hold spaces: user and system time of children.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    Ok((ticks(13) + ticks(14)) / TICKS_PER_SECOND)
}

fn read() -> Value {
    let text = std::fs::read_to_string(RECORD).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_else(|_| json!({}))
}

fn note(key: &str, value: Value) {
    let mut record = read();
    record[key] = value;
    let written = std::fs::create_dir_all(Path::new(RECORD).parent().expect("it lies in a folder"))
        .and_then(|()| std::fs::write(RECORD, format!("{record:#}\n")));
    if let Err(error) = written {
        eprintln!("xtask: {RECORD}: {error}");
    }
}
