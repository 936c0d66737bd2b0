//! `cargo xtask fuzz`: a search for inputs that a decoder does not withstand.
//!
//! 1. It builds `fuzz_all`, which has all targets, with coverage counters in every crate. These are flags of the stable compiler,
//!    in a target folder of its own; a C++ compiler builds libFuzzer.
//! 2. It runs each target for the given time, from its seeds, from `fuzz/corpus/TARGET`, and from what earlier searches on this
//!    machine have found in `target/fuzz/work/TARGET`.
//! 3. What has covered something is minimised; the smallest files of it, up to the bounds below, become
//!    `fuzz/corpus/TARGET`, which every `cargo test` replays.
//! 4. A table says how far each target came. After a failure the command says which file repeats it, and how.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::step::run;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const FOLDER: &str = "target/fuzz";
const PROGRAM: &str = "target/fuzz/x86_64-unknown-linux-gnu/fuzz/fuzz_all";
/// LLVM's counters for edges and comparisons, which libFuzzer reads.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// Of a target's corpus in the repository: with sixty targets, all of it stays below 2 MiB.
const CORPUS_BYTES_MAX: u64 = 28 << 10;
const CORPUS_FILES_MAX: usize = 64;
/// Bytes of the longest input.
const INPUT_BYTES_MAX: &str = "65536";
/// Nothing of an input's size may take longer.
const INPUT_SECONDS_MAX: &str = "10";

/// What is to be done.
pub struct Options {
    pub seconds: u64,
    pub targets: Vec<String>,
    pub jobs: usize,
    pub replay: Option<PathBuf>,
}

/// How far a target came.
struct Outcome {
    target: String,
    inputs: u64,
    edges: u64,
    seconds_since_new: u64,
    crash: Option<PathBuf>,
}

/// Runs the search, or one input.
///
/// # Errors
/// The program cannot be built, or a target failed.
pub fn search(options: &Options) -> Result<(), String> {
    build()?;
    let all = targets()?;
    if let Some(wrong) = options.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no target {wrong}; there are {}", all.join(", ")));
    }
    let chosen = if options.targets.is_empty() { all } else { options.targets.clone() };
    if let Some(input) = &options.replay {
        let [target] = chosen.as_slice() else { return Err("--replay needs one --target".to_owned()) };
        return run(Command::new(PROGRAM).arg(input).env("HEDDLE_FUZZ_TARGET", target));
    }
    let count = chosen.len();
    println!("{count} targets for {} s each, {} at a time", options.seconds, options.jobs);
    let waiting = Mutex::new(VecDeque::from(chosen));
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, count) {
            scope.spawn(|| {
                while let Some(target) = next(&waiting) {
                    let outcome = attack(&target, options.seconds);
                    outcomes.lock().expect("nobody panics with it").push(outcome);
                }
            });
        }
    });
    let mut outcomes =
        outcomes.into_inner().expect("nobody panics with it").into_iter().collect::<Result<Vec<_>, _>>()?;
    outcomes.sort_by(|one, other| one.target.cmp(&other.target));
    table(&outcomes);
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| {
            let input = outcome.crash.as_ref()?.display();
            Some(format!("repeat it with: cargo xtask fuzz --target {} --replay {input}", outcome.target))
        })
        .collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

fn next(waiting: &Mutex<VecDeque<String>>) -> Option<String> {
    waiting.lock().expect("nobody panics with it").pop_front()
}

fn build() -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.args(["build", "--locked", "--profile", "fuzz", "--package", "heddle-fuzz", "--features", "engine"]);
    // With a target that is named, build scripts and macros are built without the flags.
    command.args(["--target", TRIPLE, "--target-dir", FOLDER]);
    run(command.env("RUSTFLAGS", FLAGS)).map_err(|error| format!("{error}; libFuzzer needs a C++ compiler (g++)"))
}

fn targets() -> Result<Vec<String>, String> {
    let output = Command::new(PROGRAM).env("HEDDLE_FUZZ_TARGET", "list").output();
    let output = output.map_err(|error| format!("{PROGRAM}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Searches one target, and keeps what is new.
fn attack(target: &str, seconds: u64) -> Result<Outcome, String> {
    let folder = |kind: &str| -> Result<PathBuf, String> {
        let folder = Path::new(FOLDER).join(kind).join(target);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    };
    let (work, seeds, crashes) = (folder("work")?, folder("seeds")?, folder("crashes")?);
    let kept = Path::new("fuzz/corpus").join(target);
    fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let mut command = Command::new(PROGRAM);
    command.args([&work, &kept, &seeds]).env("HEDDLE_FUZZ_TARGET", target).env("HEDDLE_FUZZ_SEEDS", &seeds);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-timeout={INPUT_SECONDS_MAX}")).arg(format!("-artifact_prefix={}/", crashes.display()));
    command.args(["-print_final_stats=1", "-use_value_profile=1"]);
    let outcome = follow(&mut command, target)?;
    if outcome.crash.is_none() {
        keep(target, &[&work, &kept, &seeds])?;
    }
    Ok(outcome)
}

/// Runs a search and reads what it says.
fn follow(command: &mut Command, target: &str) -> Result<Outcome, String> {
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n');
    let (start, mut shown) = (Instant::now(), Instant::now());
    let mut newest = start;
    let mut outcome = Outcome { target: target.to_owned(), inputs: 0, edges: 0, seconds_since_new: 0, crash: None };
    for line in lines.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if let Some(path) = line.split("Test unit written to ").nth(1) {
            outcome.crash = Some(PathBuf::from(path.trim()));
        }
        if let Some(inputs) = line.strip_prefix("stat::number_of_executed_units:") {
            outcome.inputs = inputs.trim().parse().unwrap_or(outcome.inputs);
        }
        if let Some((inputs, edges)) = progress(&line) {
            outcome.inputs = inputs;
            if edges > outcome.edges {
                (outcome.edges, newest) = (edges, Instant::now());
            }
            if shown.elapsed() > Duration::from_secs(30) {
                shown = Instant::now();
                println!("{target}: {inputs} inputs, {edges} edges after {} s", start.elapsed().as_secs());
            }
        } else if line.contains("panicked at") || line.contains("ERROR: libFuzzer") {
            println!("{target}: {line}");
        }
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() && outcome.crash.is_none() {
        // Before any search there are the seeds, which libFuzzer does not write again.
        outcome.crash = Some(Path::new(FOLDER).join("seeds").join(target).join("seed-000"));
    }
    outcome.seconds_since_new = newest.elapsed().as_secs();
    println!("{target}: {} inputs, {} edges", outcome.inputs, outcome.edges);
    Ok(outcome)
}

/// Inputs and covered edges of a line such as `#4096 pulse cov: 120 ft: 300 corp: 12/90b …`.
fn progress(line: &str) -> Option<(u64, u64)> {
    let inputs = line.strip_prefix('#')?.split_whitespace().next()?.parse().ok()?;
    let edges = line.split("cov: ").nth(1)?.split_whitespace().next()?.parse().ok()?;
    Some((inputs, edges))
}

/// Minimises what covers something, and puts the smallest of it into the repository.
fn keep(target: &str, from: &[&PathBuf]) -> Result<(), String> {
    let wrong = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    let merged = Path::new(FOLDER).join("merged").join(target);
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged).map_err(wrong(&merged))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-merge=1").arg(format!("-max_len={INPUT_BYTES_MAX}")).arg(&merged).args(from);
    let output = command.env("HEDDLE_FUZZ_TARGET", target).output().map_err(wrong(Path::new(PROGRAM)))?;
    if !output.status.success() {
        return Err(format!("{target}: its corpus could not be minimised"));
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&merged).map_err(wrong(&merged))? {
        let entry = entry.map_err(wrong(&merged))?;
        files.push((entry.metadata().map_err(wrong(&merged))?.len(), entry.file_name()));
    }
    files.sort();
    let kept = Path::new("fuzz/corpus").join(target);
    fs::remove_dir_all(&kept).map_err(wrong(&kept))?;
    fs::create_dir_all(&kept).map_err(wrong(&kept))?;
    let mut bytes = 0;
    for (length, name) in files.into_iter().take(CORPUS_FILES_MAX) {
        bytes += length;
        if bytes > CORPUS_BYTES_MAX {
            break;
        }
        fs::copy(merged.join(&name), kept.join(&name)).map_err(wrong(&kept))?;
    }
    // The next search here begins with all of it.
    let work = Path::new(FOLDER).join("work").join(target);
    fs::remove_dir_all(&work).map_err(wrong(&work))?;
    fs::rename(&merged, &work).map_err(wrong(&work))
}

fn table(outcomes: &[Outcome]) {
    println!("\n{:<30} {:>12} {:>8} {:>12}  failure", "target", "inputs", "edges", "s since new");
    for outcome in outcomes {
        let crash = outcome.crash.as_ref().map_or_else(|| "none".to_owned(), |crash| crash.display().to_string());
        let Outcome { target, inputs, edges, seconds_since_new, .. } = outcome;
        println!("{target:<30} {inputs:>12} {edges:>8} {seconds_since_new:>12}  {crash}");
    }
    let total: u64 = outcomes.iter().map(|outcome| outcome.inputs).sum();
    let crashes = outcomes.iter().filter(|outcome| outcome.crash.is_some()).count();
    println!("{} targets, {total} inputs, {crashes} failures", outcomes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_read() {
        let line = "#65536\tpulse  cov: 120 ft: 300 corp: 12/90b lim: 4096 exec/s: 1000 rss: 40Mb";
        assert_eq!(progress(line), Some((65_536, 120)));
        assert_eq!(progress("INFO: seed corpus: files: 5"), None);
    }
}
