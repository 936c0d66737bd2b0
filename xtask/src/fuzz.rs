//! `cargo xtask fuzz`: a search for inputs that make a decoder fail.
//!
//! 1. The command builds `fuzz_all`, which has all targets, with coverage counters in every crate. Flags of the stable
//!    compiler add the counters, and the build has a separate target folder; a C++ compiler builds libFuzzer.
//! 2. The command runs each target for at most the given time, from its seeds, from `fuzz/corpus/TARGET`, and from the
//!    findings of earlier searches on this machine in `target/fuzz/work/TARGET`. A target is *searched out*, and ends
//!    early, once it has run enough inputs and has covered nothing new for long enough. That time is processor time of
//!    the search, so that a loaded machine does not shorten it.
//! 3. Inputs that add coverage are minimised; the smallest of them, up to the bounds below, become
//!    `fuzz/corpus/TARGET`, which every `cargo test` replays.
//! 4. A table in Markdown shows how far each target came, and `fuzz/searched-out.md` keeps the rows of those that were
//!    searched out. After a failure the command names the file that reproduces it, and how to run that file.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::searched_out::{Search, SearchedOut, commit};
use crate::step::run;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const FOLDER: &str = "target/fuzz";
const PROGRAM: &str = "target/fuzz/x86_64-unknown-linux-gnu/fuzz/fuzz_all";
/// LLVM's counters for edges and comparisons, which libFuzzer reads.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";
/// Bytes of a target's corpus in the repository: with sixty targets, all of it stays below 2 MiB.
const CORPUS_BYTES_MAX: u64 = 28 << 10;
const CORPUS_FILES_MAX: usize = 64;
/// Bytes of the longest input.
const INPUT_BYTES_MAX: &str = "65536";
/// Longest time for an input of at most this size.
const INPUT_SECONDS_MAX: &str = "10";

/// The options of a search.
pub struct FuzzConfig {
    /// Seconds after which a target ends, searched out or not.
    pub seconds: u64,
    pub enough: FuzzBudget,
    /// Which targets; all if empty.
    pub targets: Vec<String>,
    /// Only targets that are not on record as searched out.
    pub unsearched: bool,
    pub jobs: usize,
    pub replay: Option<PathBuf>,
}

/// The conditions for a target to be searched out; both must hold.
#[derive(Clone, Copy)]
pub struct FuzzBudget {
    pub inputs: u64,
    /// Seconds of processor time without new coverage.
    pub quiet_seconds: u64,
}

impl FuzzBudget {
    /// What a target needs to be on record.
    pub const RECORDED: FuzzBudget = FuzzBudget { inputs: 1_000_000, quiet_seconds: 600 };

    fn is(self, inputs: u64, quiet: Duration) -> bool {
        inputs >= self.inputs && quiet.as_secs() >= self.quiet_seconds
    }
}

/// How far a target came.
#[derive(Default)]
struct FuzzOutcome {
    target: String,
    inputs: u64,
    edges: u64,
    /// Processor time of the search.
    processor: Duration,
    /// The part of it until the search last covered something new; coverage of the initial inputs is not new.
    newest: Duration,
    searched_out: bool,
    crash: Option<PathBuf>,
}

impl FuzzOutcome {
    /// The row for the record, if the search satisfies it.
    fn search(&self) -> Option<Search> {
        let FuzzOutcome { inputs, edges, processor, .. } = *self;
        let quiet = self.quiet();
        let is_enough = self.crash.is_none() && FuzzBudget::RECORDED.is(inputs, quiet);
        is_enough.then_some(Search { inputs, edges, quiet: quiet.as_secs(), processor: processor.as_secs() })
    }

    /// Processor time since something new was covered.
    fn quiet(&self) -> Duration {
        self.processor.saturating_sub(self.newest)
    }
}

/// Runs the search, or one input.
///
/// # Errors
/// The program cannot be built, or a target failed.
pub fn search(options: &FuzzConfig) -> Result<(), String> {
    build()?;
    let all = targets()?;
    if let Some(wrong) = options.targets.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no target {wrong}; there are {}", all.join(", ")));
    }
    let mut chosen = if options.targets.is_empty() { all.clone() } else { options.targets.clone() };
    if let Some(input) = &options.replay {
        let [target] = chosen.as_slice() else { return Err("--replay needs one --target".to_owned()) };
        return run(Command::new(PROGRAM).arg(input).env("HEDDLE_FUZZ_TARGET", target));
    }
    let commit = commit()?;
    let record = Mutex::new(SearchedOut::read()?);
    if options.unsearched {
        chosen.retain(|target| !locked(&record).has(target));
    }
    let count = chosen.len();
    println!("{count} targets for up to {} s each, {} at a time", options.seconds, options.jobs);
    let waiting = Mutex::new(VecDeque::from(chosen));
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, count.max(1)) {
            scope.spawn(|| {
                while let Some(target) = next(&waiting) {
                    let outcome = attack(&target, options);
                    let noted = outcome.and_then(|outcome| {
                        // At once: a search of all targets takes hours, and may be interrupted.
                        let mut record = locked(&record);
                        match outcome.search() {
                            Some(search) => record.note(&target, &commit, search),
                            None if outcome.crash.is_some() => record.forget(&target),
                            None => return Ok(outcome),
                        }
                        record.write(&all).map(|()| outcome)
                    });
                    locked(&outcomes).push(noted);
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
    // Because the target is named, build scripts and macros are built without the flags.
    command.args(["--target", TRIPLE, "--target-dir", FOLDER]);
    run(command.env("RUSTFLAGS", FLAGS)).map_err(|error| format!("{error}; libFuzzer needs a C++ compiler (g++)"))
}

fn targets() -> Result<Vec<String>, String> {
    let output = Command::new(PROGRAM).env("HEDDLE_FUZZ_TARGET", "list").output();
    let output = output.map_err(|error| format!("{PROGRAM}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Searches one target, and keeps its new inputs.
fn attack(target: &str, options: &FuzzConfig) -> Result<FuzzOutcome, String> {
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

/// Runs a search, reads its output, and ends it once the target is searched out.
fn follow(command: &mut Command, target: &str, enough: FuzzBudget) -> Result<FuzzOutcome, String> {
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let process = child.id();
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n');
    let start = Instant::now();
    let outcome = Mutex::new(FuzzOutcome { target: target.to_owned(), ..FuzzOutcome::default() });
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A search that covers nothing new prints nothing for long, so another thread watches the time.
        scope.spawn(|| watch(process, start, enough, &outcome, &ended));
        for line in lines.map_while(Result::ok) {
            let mut outcome = locked(&outcome);
            outcome.processor = cpu_time(process).unwrap_or(outcome.processor);
            hear(&String::from_utf8_lossy(&line), &mut outcome);
        }
        ended.store(true, Ordering::Release);
    });
    let status = child.wait().map_err(failed)?;
    let mut outcome = outcome.into_inner().expect("nobody panics with it");
    if !status.success() && outcome.crash.is_none() {
        // If libFuzzer names no file, a seed failed before the search; it does not write seeds again.
        outcome.crash = Some(Path::new(FOLDER).join("seeds").join(&outcome.target).join("seed-000"));
    }
    outcome.searched_out = outcome.crash.is_none() && enough.is(outcome.inputs, outcome.quiet());
    println!("{}: {} inputs, {} edges", outcome.target, outcome.inputs, outcome.edges);
    Ok(outcome)
}

/// Reads one line of a search's output.
fn hear(line: &str, outcome: &mut FuzzOutcome) {
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

/// Samples the processor time of a search each second, reports it each minute, and asks the search to end once its target
/// is searched out.
fn watch(process: u32, start: Instant, enough: FuzzBudget, outcome: &Mutex<FuzzOutcome>, ended: &AtomicBool) {
    let mut shown = start;
    let mut asked = false;
    while !ended.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_secs(1));
        let mut outcome = locked(outcome);
        outcome.processor = cpu_time(process).unwrap_or(outcome.processor);
        if shown.elapsed() > Duration::from_secs(60) {
            shown = Instant::now();
            let FuzzOutcome { target, inputs, edges, .. } = &*outcome;
            let (seconds, quiet) = (start.elapsed().as_secs(), outcome.quiet().as_secs());
            println!(
                "{target}: {inputs} inputs, {edges} edges after {seconds} s; {quiet} s of processor time without a new one"
            );
        }
        if !asked && enough.is(outcome.inputs, outcome.quiet()) {
            asked = true;
            // libFuzzer prints its figures and ends at this signal.
            let _ = Command::new("kill").args(["-USR1", &process.to_string()]).status();
        }
    }
}

/// The processor time of a process; `None` if it has ended.
fn cpu_time(process: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// Inputs and covered edges of a line such as `#4096 pulse cov: 120 ft: 300 corp: 12/90b …`.
fn progress(line: &str) -> Option<(u64, u64)> {
    let inputs = line.strip_prefix('#')?.split_whitespace().next()?.parse().ok()?;
    let edges = line.split("cov: ").nth(1)?.split_whitespace().next()?.parse().ok()?;
    Some((inputs, edges))
}

/// Minimises the inputs that add coverage, and puts the smallest of them into the repository.
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
    // The next search on this machine begins with all of them.
    let work = Path::new(FOLDER).join("work").join(target);
    fs::remove_dir_all(&work).map_err(wrong(&work))?;
    fs::rename(&merged, &work).map_err(wrong(&work))
}

fn table(outcomes: &[FuzzOutcome]) {
    println!("\n| target | inputs | edges | processor s without a new edge | processor s | searched out |");
    println!("|---|--:|--:|--:|--:|---|");
    for outcome in outcomes {
        let FuzzOutcome { target, inputs, edges, processor, .. } = outcome;
        let quiet = outcome.quiet();
        let verdict = match &outcome.crash {
            Some(crash) => format!("FAILED: {}", crash.display()),
            None if outcome.searched_out => "yes".to_owned(),
            None => "no".to_owned(),
        };
        println!("| {target} | {inputs} | {edges} | {} | {} | {verdict} |", quiet.as_secs(), processor.as_secs());
    }
    let total: u64 = outcomes.iter().map(|outcome| outcome.inputs).sum();
    let count = |wanted: fn(&&FuzzOutcome) -> bool| outcomes.iter().filter(wanted).count();
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
