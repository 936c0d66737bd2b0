//! Runs many seeds, on all cores.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use base::rt::simulation::FaultPoint;

use crate::mutant::Mutant;
use crate::seed::{RunConfig, RunFailure, RunOutcome, run, run_once};

/// The totals of a campaign's seeds.
#[derive(Clone, Debug, Default)]
pub struct CampaignTotals {
    /// Seeds without a violation.
    pub passed: u64,
    /// Seeds with a violation.
    pub failed: u64,
    /// Blocks of all ledgers that passed.
    pub blocks: u64,
    /// Polls of tasks.
    pub steps: u64,
    /// Seconds of virtual time.
    pub virtual_seconds: f64,
    /// How clients' operations ended.
    pub operations: BTreeMap<&'static str, u64>,
    /// How often each validation code occurs in the ledgers.
    pub codes: BTreeMap<u8, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// By fault point: how often it was reached, and how often its fault was injected.
    pub fault_points: BTreeMap<&'static str, FaultPoint>,
}

impl CampaignTotals {
    /// Adds a seed that passed.
    pub fn add(&mut self, outcome: &RunOutcome) {
        self.passed += 1;
        self.blocks += outcome.blocks;
        self.steps += outcome.steps;
        self.virtual_seconds += outcome.elapsed.as_secs_f64();
        for (operation, count) in &outcome.operations {
            *self.operations.entry(operation).or_default() += count;
        }
        for (code, count) in &outcome.codes {
            *self.codes.entry(*code).or_default() += count;
        }
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        for (name, point) in &outcome.fault_points {
            let total = self.fault_points.entry(name).or_default();
            total.reached += point.reached;
            total.injected += point.injected;
        }
    }
}

/// Runs seeds on all cores, and calls `each` with every result as it comes. Seeds that `twice_every` divides run twice and
/// must give the same run both times.
#[allow(clippy::disallowed_methods, reason = "threads run whole simulations; within one there are none")]
pub fn run_seeds(
    seeds: impl Iterator<Item = u64>,
    twice_every: NonZeroU64,
    mut each: impl FnMut(&Result<RunOutcome, Box<RunFailure>>),
) -> CampaignTotals {
    let seeds: Vec<u64> = seeds.collect();
    let next = AtomicU64::new(0);
    let mut totals = CampaignTotals::default();
    thread::scope(|scope| {
        let (results, received) = mpsc::sync_channel(64);
        for _ in 0..threads() {
            let (results, next, seeds) = (results.clone(), &next, &seeds);
            scope.spawn(move || {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let config = RunConfig { seed: *seed, ..RunConfig::default() };
                    let result = if *seed % twice_every == 0 { run(&config) } else { run_once(&config) };
                    if results.send(result).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for result in received {
            match &result {
                Ok(outcome) => totals.add(outcome),
                Err(_) => totals.failed += 1,
            }
            each(&result);
        }
    });
    totals
}

/// Seeds within which a planted mistake must be caught.
pub const MUTANT_SEEDS_MAX: u64 = 100;

/// Runs a planted mistake under one seed after the other until one catches it.
///
/// # Errors
/// If none of [`MUTANT_SEEDS_MAX`] seeds catches it.
pub fn catch_mutant(mutant: Mutant, first: u64) -> Result<Box<RunFailure>, String> {
    let seeds = first..first + MUTANT_SEEDS_MAX;
    for seed in seeds.clone() {
        if let Err(broken) = run_once(&RunConfig { seed, mutant: Some(mutant), plan: None })
            && broken.reason.contains(mutant.expected_violation())
        {
            return Ok(broken);
        }
    }
    Err(format!("no seed of {seeds:?} catches the planted mistake {}", mutant.name()))
}

/// Runs all planted mistakes, and calls `each` with every result as it comes.
#[allow(clippy::disallowed_methods, reason = "threads run whole simulations; within one there are none")]
pub fn catch_all_mutants(first: u64, mut each: impl FnMut(Mutant, &Result<Box<RunFailure>, String>)) -> bool {
    let next = AtomicU64::new(0);
    let caught = AtomicBool::new(true);
    thread::scope(|scope| {
        let (results, received) = mpsc::sync_channel(Mutant::ALL.len());
        for _ in 0..threads() {
            let (results, next, caught) = (results.clone(), &next, &caught);
            scope.spawn(move || {
                while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let result = catch_mutant(*mutant, first);
                    caught.fetch_and(result.is_ok(), Ordering::Relaxed);
                    if results.send((*mutant, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for (mutant, result) in received {
            each(mutant, &result);
        }
    });
    caught.into_inner()
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
