//! Running many seeds of a simulation, and seeds that must fail.

use std::collections::BTreeMap;
use std::ops::Range;

use base::rt::simulation::{Failure, Plan, Report};

/// What became of a seed: how many operations there were.
pub type Outcome = Result<Report<u64>, Box<Failure>>;

/// A simulation's seeds.
pub struct Campaign<'a> {
    pub run: &'a dyn Fn(u64) -> Outcome,
    pub plans: fn(u64) -> [Plan; 2],
    /// What all of so many seeds must have come by.
    pub points: Vec<&'static str>,
    pub enough: u64,
    /// The command that repeats a seed; the seed belongs between the two parts.
    pub repeat: [&'static str; 2],
}

impl Campaign<'_> {
    /// Runs seeds; each must succeed.
    pub fn run(&self, seeds: Range<u64>) {
        let mut injected: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut operations, mut faults) = (0, 0);
        for seed in seeds.clone() {
            let plans = (self.plans)(seed);
            let report = match (self.run)(seed) {
                Ok(report) => report,
                Err(failure) => {
                    let [before, behind] = self.repeat;
                    let [trouble, crashes] = plans;
                    panic!(
                        "seed {seed}: {failure}\nfault plan: {trouble}\n{crashes}\nrepeat with: {before}{seed}{behind}"
                    )
                }
            };
            operations += report.value;
            faults += plans.iter().map(|plan| plan.steps.len()).sum::<usize>();
            for (point, counts) in report.fault_points {
                *injected.entry(point).or_default() += counts.injected;
            }
        }
        println!("seeds {seeds:?}: {operations} operations, {faults} faults, injected {injected:?}");
        if seeds.end - seeds.start >= self.enough {
            for point in &self.points {
                assert!(injected.get(point).is_some_and(|count| *count > 0), "no seed injected {point}");
            }
        }
    }

    /// Runs those that a variable of the environment names, if it is there.
    pub fn run_chosen(&self, variable: &str) {
        let Ok(seeds) = std::env::var(variable) else { return };
        let bounds = seeds.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to) = bounds.unwrap_or_else(|| panic!("{variable} is a range, such as 0..5000"));
        self.run(from..to);
    }
}

/// Some seed catches what was planted, by one of the checks that are to.
pub fn must_be_caught(what: &str, by: &[&str], run: impl Fn(u64) -> Outcome) {
    let caught = (0..200).find_map(|seed| run(seed).err().map(|failure| (seed, failure)));
    let (seed, failure) = caught.unwrap_or_else(|| panic!("no seed catches {what}"));
    let reason = failure.reason.to_string();
    println!("{what}: seed {seed}: {reason}");
    let as_meant = by.iter().any(|check| reason.contains(&format!("panicked: {check}")));
    assert!(as_meant, "{what} is caught, but by something else: {reason}");
}
