//! Runs named steps one after the other and reports how each ended.

use std::process::Command;
use std::time::{Duration, Instant};

type Check = Box<dyn FnOnce() -> Result<(), String>>;
/// How a step ended; `None` if it was left out.
type StepOutcome = Option<Result<(), String>>;

/// One thing that must pass.
pub struct Step {
    pub name: &'static str,
    check: Check,
}

impl Step {
    pub fn new(name: &'static str, check: impl FnOnce() -> Result<(), String> + 'static) -> Self {
        Step { name, check: Box::new(check) }
    }

    pub fn command(name: &'static str, program: &'static str, arguments: &'static [&'static str]) -> Self {
        Step::new(name, move || run(Command::new(program).args(arguments)))
    }
}

/// Runs every wanted step, even after a failure, and prints a summary. True if all wanted steps passed.
pub fn run_all(steps: Vec<Step>, wanted: impl Fn(&str) -> bool) -> bool {
    let mut rows: Vec<(&str, StepOutcome, Duration)> = Vec::new();
    for step in steps {
        if !wanted(step.name) {
            rows.push((step.name, None, Duration::ZERO));
            continue;
        }
        println!("\n=== {} ===", step.name);
        let start = Instant::now();
        let outcome = (step.check)();
        rows.push((step.name, Some(outcome), start.elapsed()));
    }
    println!("\n=== summary ===");
    for (name, outcome, took) in &rows {
        match outcome {
            None => println!("{name:<12} left out"),
            Some(Ok(())) => println!("{name:<12} passed  {:>6.1} s", took.as_secs_f64()),
            Some(Err(reason)) => println!("{name:<12} FAILED  {:>6.1} s  {reason}", took.as_secs_f64()),
        }
    }
    let failed = rows.iter().filter(|row| matches!(row.1, Some(Err(_)))).count();
    let passed = rows.iter().filter(|row| matches!(row.1, Some(Ok(())))).count();
    println!("steps: {passed} passed, {failed} failed");
    failed == 0
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
