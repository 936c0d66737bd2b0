//! Runs named steps one after the other, some beside those after them, and reports how each ended.

use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Check = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// How a step that ran ended, and after how long.
type StepOutcome = (Result<(), String>, Duration);

/// One thing that must pass.
pub struct Step {
    pub name: &'static str,
    check: Check,
    is_background: bool,
}

impl Step {
    pub fn new(name: &'static str, check: impl FnOnce() -> Result<(), String> + Send + 'static) -> Self {
        Step { name, check: Box::new(check), is_background: false }
    }

    /// Lets the steps after this one run beside it: for one that keeps a single processor busy, or waits.
    pub fn in_background(self) -> Self {
        Step { is_background: true, ..self }
    }

    pub fn command(name: &'static str, program: &'static str, arguments: &'static [&'static str]) -> Self {
        Step::new(name, move || run(Command::new(program).args(arguments)))
    }
}

/// A step of the summary.
enum Progress {
    LeftOut,
    Ended(StepOutcome),
    Running(JoinHandle<StepOutcome>),
}

/// Runs every wanted step, even after a failure, and prints a summary. True if all wanted steps passed.
pub fn run_all(steps: Vec<Step>, wanted: impl Fn(&str) -> bool) -> bool {
    let mut rows: Vec<(&str, Progress)> = Vec::new();
    for step in steps {
        if !wanted(step.name) {
            rows.push((step.name, Progress::LeftOut));
            continue;
        }
        let check = move || {
            let start = Instant::now();
            ((step.check)(), start.elapsed())
        };
        let progress = if step.is_background {
            println!("\n=== {}, beside the next steps ===", step.name);
            Progress::Running(std::thread::spawn(check))
        } else {
            println!("\n=== {} ===", step.name);
            Progress::Ended(check())
        };
        rows.push((step.name, progress));
    }
    let outcomes: Vec<(&str, Option<StepOutcome>)> =
        rows.into_iter().map(|(name, progress)| (name, progress.wait())).collect();
    println!("\n=== summary ===");
    for (name, outcome) in &outcomes {
        match outcome {
            None => println!("{name:<12} left out"),
            Some((Ok(()), took)) => println!("{name:<12} passed  {:>6.1} s", took.as_secs_f64()),
            Some((Err(reason), took)) => println!("{name:<12} FAILED  {:>6.1} s  {reason}", took.as_secs_f64()),
        }
    }
    let ran = || outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref());
    let failed = ran().filter(|(outcome, _)| outcome.is_err()).count();
    println!("steps: {} passed, {failed} failed", ran().count() - failed);
    failed == 0
}

impl Progress {
    /// Waits until the step has ended. Returns `None` if it was left out.
    fn wait(self) -> Option<StepOutcome> {
        match self {
            Progress::LeftOut => None,
            Progress::Ended(outcome) => Some(outcome),
            Progress::Running(thread) => {
                Some(thread.join().unwrap_or_else(|_| (Err("the step panicked".to_owned()), Duration::ZERO)))
            }
        }
    }
}

/// The same program, which leaves the processors to others that want them: for one that only calculates, beside tests that
/// wait for each other with deadlines.
pub fn yielding(program: &Command) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(program.get_program());
    command
}

/// Runs a command to its end with its output shown.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// The first line that a command prints, or `None` if it cannot run.
pub fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}
