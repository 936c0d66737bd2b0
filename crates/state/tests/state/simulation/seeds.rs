//! Seeds without a planted mistake: every one must pass.

use std::collections::BTreeMap;

use base::rt::simulation::{Simulation, SimulationFailure, SimulationReport};
use replica::fault::Mutant as ReplicaMutant;
use state::disaggregated::fault::Mutant;

use super::mutants::{Planted, plant};
use super::scenario::{FAULT_POINTS, Focus, scenario};

/// Seeds of every run of the tests.
const SEEDS: u64 = 400;

/// Events that must have happened, each in at least one of this many seeds.
const HAPPENED: [(&str, u64); 18] = [
    ("heddle_state_evicted_records_total", 2),
    ("heddle_state_evicted_superseded_total", 4),
    ("heddle_state_eviction_persists_total", 4),
    ("heddle_state_fills_total", 2),
    ("heddle_state_follower_blocks_total", 4),
    ("heddle_state_follower_work_items_failed_total", 8),
    ("heddle_state_follower_work_items_total", 4),
    ("heddle_state_followers_fenced_total", 4),
    ("heddle_state_followers_joined_total", 3),
    ("heddle_state_followers_left_total", 8),
    ("heddle_state_keys_mended_total", 8),
    ("heddle_state_reads_without_lease_total", 40),
    ("heddle_state_records_adopted_total", 4),
    ("heddle_state_sections_adopted_total", 4),
    ("heddle_state_sections_drained_total", 10),
    ("heddle_state_sections_migrated_total", 4),
    ("heddle_state_sections_not_adopted_total", 40),
    ("heddle_state_subtables_moved_total", 40),
];

pub fn run(seed: u64, mutant: Planted, focus: Focus) -> Result<SimulationReport<()>, Box<SimulationFailure>> {
    plant(mutant);
    let outcome = Simulation::new(seed).steps_max(20_000_000).run(|sim| async move {
        if let Planted::Fault(name) = mutant {
            sim.inject(name, 1.0);
        }
        scenario(sim, focus).await;
    });
    plant(Planted::State(Mutant::None));
    plant(Planted::Replica(ReplicaMutant::None));
    let report = outcome?;
    Ok(report)
}

/// Check 2.
pub fn suspicious(report: &SimulationReport<()>) -> Option<String> {
    let names = ["heddle_state_records_untrusted_total", "heddle_state_slots_missed_total"];
    let counted = names.into_iter().filter_map(|name| match report.events.get(name) {
        Some(base::event::EventValue::Counter(count)) if *count > 0 => Some(format!("{name} is {count}")),
        _ => None,
    });
    counted.reduce(|one, other| format!("{one}, {other}"))
}

pub fn seeds() -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("STATE_SEEDS") else { return 0..SEEDS };
    let (from, to) = asked.split_once("..").expect("STATE_SEEDS is FROM..TO");
    from.parse().expect("FROM is a number")..to.parse().expect("TO is a number")
}

/// Runs seeds on all cores: worlds on different threads are independent. Returns how often each fault point was hit, by
/// thread.
#[allow(clippy::disallowed_methods, reason = "each thread runs simulations of its own")]
fn run_all(seeds: std::ops::Range<u64>) -> Vec<BTreeMap<&'static str, u64>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let mine = seeds.clone().skip(thread).step_by(threads);
                scope.spawn(move || run_some(mine))
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("every seed passes")).collect()
    })
}

fn run_some(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut struck: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        let report = run(seed, Planted::NONE, Focus::of_seed(seed))
            .unwrap_or_else(|failure| panic!("STATE_SEEDS={seed}..{}: {failure}", seed + 1));
        if let Some(what) = suspicious(&report) {
            panic!("STATE_SEEDS={seed}..{}: {what}", seed + 1);
        }
        for (name, point) in &report.fault_points {
            *struck.entry(name).or_default() += point.injected;
        }
        for (name, _) in HAPPENED {
            if let Some(base::event::EventValue::Counter(count)) = report.events.get(name) {
                *struck.entry(name).or_default() += u64::from(*count > 0);
            }
        }
    }
    struck
}

#[test]
fn every_height_reads_as_its_blocks_left_it_whatever_fails() {
    let all = seeds();
    let mut struck: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (name, times) in run_all(all.clone()).into_iter().flatten() {
        *struck.entry(name).or_default() += times;
    }
    if all.end - all.start >= SEEDS {
        let missed: Vec<_> =
            FAULT_POINTS.into_iter().filter(|name| struck.get(name).is_none_or(|times| *times == 0)).collect();
        assert!(missed.is_empty(), "never struck: {missed:?}; {struck:?}");
        let seldom = |(name, part): &(&str, u64)| {
            let seeds = struck.get(name).copied().unwrap_or_default();
            seeds < (all.end - all.start) / part
        };
        let seldom: Vec<_> = HAPPENED.into_iter().filter(seldom).collect();
        assert!(seldom.is_empty(), "in too few seeds: {seldom:?}; {struck:?}");
    }
}

#[test]
fn a_seed_leaves_the_same_trace_twice() {
    for seed in 0..8 {
        let digests: Vec<_> =
            (0..2).map(|_| run(seed, Planted::NONE, Focus::of_seed(seed)).expect("the run is whole").digest).collect();
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
}
