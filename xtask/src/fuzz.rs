//! `cargo xtask fuzz`: a search for inputs that a decoder does not withstand.
//!
//! 1. It builds `fuzz_all`, which has all targets, with coverage counters in every crate. These are flags of the stable compiler,
//!    in a target folder of its own; a C++ compiler builds libFuzzer.
//! 2. It runs each target for the given time, from its seeds, from `fuzz/corpus/TARGET`, and from what earlier searches on this
//!    machine have found in `target/fuzz/work/TARGET`. A target is *searched out*, and ends early, when it has taken enough inputs
//!    and has covered nothing new for long enough. That time is processor time of the search, so that a loaded machine does not
//!    shorten it.
//! 3. What has covered something is minimised; the smallest files of it, up to the bounds below, become
//!    `fuzz/corpus/TARGET`, which every `cargo test` replays.
//! 4. A table in Markdown says how far each target came. After a failure the command says which file repeats it, and how.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
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
    /// A target ends after that many, searched out or not.
    pub seconds: u64,
    pub enough: Enough,
    pub targets: Vec<String>,
    pub jobs: usize,
    pub replay: Option<PathBuf>,
}

/// When a target is searched out: both hold.
#[derive(Clone, Copy)]
pub struct Enough {
    pub inputs: u64,
    /// Seconds of processor time without new coverage.
    pub quiet_seconds: u64,
}

impl Enough {
    fn is(self, inputs: u64, quiet: Duration) -> bool {
        inputs >= self.inputs && quiet.as_secs() >= self.quiet_seconds
    }
}

/// How far a target came.
#[derive(Default)]
struct Outcome {
    target: String,
    inputs: u64,
    edges: u64,
    /// Processor time that the search has used.
    processor: Duration,
    /// Of that, until it last covered something new; what it began with is not new.
    newest: Duration,
    searched_out: bool,
    crash: Option<PathBuf>,
}

impl Outcome {
    /// Processor time since something new was covered.
    fn quiet(&self) -> Duration {
        self.processor.saturating_sub(self.newest)
    }
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
    println!("{count} targets for up to {} s each, {} at a time", options.seconds, options.jobs);
    let waiting = Mutex::new(VecDeque::from(chosen));
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, count) {
            scope.spawn(|| {
                while let Some(target) = next(&waiting) {
                    let outcome = attack(&target, options);
                    locked(&outcomes).push(outcome);
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
    locked(waiting).pop_front()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with it")
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
fn attack(target: &str, options: &Options) -> Result<Outcome, String> {
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
    command.arg(format!("-max_total_time={}", options.seconds)).arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg(format!("-timeout={INPUT_SECONDS_MAX}")).arg(format!("-artifact_prefix={}/", crashes.display()));
    command.args(["-print_final_stats=1", "-use_value_profile=1"]);
    let outcome = follow(&mut command, target, options.enough)?;
    if outcome.crash.is_none() {
        keep(target, &[&work, &kept, &seeds])?;
    }
    Ok(outcome)
}

/// Runs a search, reads what it says, and ends it when the target is searched out.
fn follow(command: &mut Command, target: &str, enough: Enough) -> Result<Outcome, String> {
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let process = child.id();
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n');
    let start = Instant::now();
    let outcome = Mutex::new(Outcome { target: target.to_owned(), ..Outcome::default() });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A target that covers nothing new says nothing for long: the time is not watched where its lines are read.
        scope.spawn(|| watch(process, start, enough, &outcome, &ended));
        for line in lines.map_while(Result::ok) {
            let mut outcome = locked(&outcome);
            outcome.processor = processor_time(process).unwrap_or(outcome.processor);
            hear(&String::from_utf8_lossy(&line), &mut outcome);
        }
        ended.store(true, Ordering::Release);
    });
    let status = child.wait().map_err(failed)?;
    let mut outcome = outcome.into_inner().expect("nobody panics with it");
    if !status.success() && outcome.crash.is_none() {
        // Before any search there are the seeds, which libFuzzer does not write again.
        outcome.crash = Some(Path::new(FOLDER).join("seeds").join(&outcome.target).join("seed-000"));
    }
    outcome.searched_out = outcome.crash.is_none() && enough.is(outcome.inputs, outcome.quiet());
    println!("{}: {} inputs, {} edges", outcome.target, outcome.inputs, outcome.edges);
    Ok(outcome)
}

/// What a search says in one line.
fn hear(line: &str, outcome: &mut Outcome) {
    if let Some(path) = line.split("Test unit written to ").nth(1) {
        outcome.crash = Some(PathBuf::from(path.trim()));
    }
    if let Some(inputs) = line.strip_prefix("stat::number_of_executed_units:") {
        outcome.inputs = inputs.trim().parse().unwrap_or(outcome.inputs);
    }
    if let Some((inputs, edges)) = progress(line) {
        outcome.inputs = inputs;
        if edges > outcome.edges {
            (outcome.edges, outcome.newest) = (edges, outcome.processor);
        }
    } else if line.contains("panicked at") || line.contains("ERROR: libFuzzer") {
        println!("{}: {line}", outcome.target);
    }
}

/// Takes the processor time of a search each second, tells of it each minute, and asks it to end when its target is searched out.
fn watch(process: u32, start: Instant, enough: Enough, outcome: &Mutex<Outcome>, ended: &AtomicBool) {
    let mut shown = start;
    let mut asked = false;
    while !ended.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_secs(1));
        let mut outcome = locked(outcome);
        outcome.processor = processor_time(process).unwrap_or(outcome.processor);
        if shown.elapsed() > Duration::from_secs(60) {
            shown = Instant::now();
            let Outcome { target, inputs, edges, .. } = &*outcome;
            let (seconds, quiet) = (start.elapsed().as_secs(), outcome.quiet().as_secs());
            println!(
                "{target}: {inputs} inputs, {edges} edges after {seconds} s; {quiet} s of processor time without a new one"
            );
        }
        if !asked && enough.is(outcome.inputs, outcome.quiet()) {
            asked = true;
            // libFuzzer ends at this signal, with its figures.
            let _ = Command::new("kill").args(["-USR1", &process.to_string()]).status();
        }
    }
}

/// What a process has used; none when it has ended.
fn processor_time(process: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
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
    println!("\n| target | inputs | edges | processor s without a new edge | processor s | searched out |");
    println!("|---|--:|--:|--:|--:|---|");
    for outcome in outcomes {
        let Outcome { target, inputs, edges, processor, .. } = outcome;
        let quiet = outcome.quiet();
        let verdict = match &outcome.crash {
            Some(crash) => format!("FAILED: {}", crash.display()),
            None if outcome.searched_out => "yes".to_owned(),
            None => "no".to_owned(),
        };
        println!("| {target} | {inputs} | {edges} | {} | {} | {verdict} |", quiet.as_secs(), processor.as_secs());
    }
    let total: u64 = outcomes.iter().map(|outcome| outcome.inputs).sum();
    let count = |wanted: fn(&&Outcome) -> bool| outcomes.iter().filter(wanted).count();
    let (out, failed) = (count(|outcome| outcome.searched_out), count(|outcome| outcome.crash.is_some()));
    println!("\n{} targets, {total} inputs, {out} searched out, {failed} failed", outcomes.len());
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
