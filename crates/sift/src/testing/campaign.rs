//! Runs many seeds of a simulation, and seeds that must fail because a mistake is planted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base::rt::net::BoxFuture;
use base::rt::simulation::{
    FaultKind, FaultPlan, FaultPlanLimits, Sim, Simulation, SimulationFailure, SimulationReport,
};
use base::rt::{self, CancellationToken};

/// Seeds whose two runs must be identical.
const SEEDS_TWICE: Range<u64> = 0..4;
/// Seeds of which one must catch a planted mistake.
const SEEDS_TO_CATCH: Range<u64> = 0..200;

/// The outcome of a seed: its number of operations.
pub type Outcome = Result<SimulationReport<u64>, Box<SimulationFailure>>;

/// The seeds of a simulation. `P` is the type of the mistakes that can be planted in it.
pub struct Campaign<P: 'static> {
    /// The prefix of the environment variables that choose seeds: one by `…_SEED`, many by `…_SEEDS`.
    pub name: &'static str,
    /// The crate whose tests these are, and their test program.
    pub program: &'static str,
    /// The module of the test program.
    pub tests: &'static str,
    /// Steps after which a seed fails.
    pub steps_max: u64,
    /// The run of a seed, which returns its number of operations.
    pub scenario: fn(Sim, P) -> BoxFuture<'static, u64>,
    /// Faults of a seed.
    pub plans: fn(u64) -> [FaultPlan; 2],
    /// Points that `enough` seeds together must have reached.
    pub points: Vec<&'static str>,
    /// This many.
    pub enough: u64,
    /// Plants a mistake in this thread.
    pub plant: fn(P),
    /// The value for no mistake.
    pub sound: P,
    /// The mistakes that must be caught, each with the prefixes of the checkers' messages that may catch it.
    pub mistakes: &'static [(P, &'static [&'static str])],
}

impl<P: Copy + Debug + Send + Sync + 'static> Campaign<P> {
    fn simulation(&self, seed: u64) -> Simulation {
        Simulation::new(seed).steps_max(self.steps_max).trace_lines_max(60)
    }

    fn run_planted(&self, seed: u64, planted: P) -> Outcome {
        (self.plant)(planted);
        let outcome = self.simulation(seed).run(|sim| (self.scenario)(sim, planted));
        (self.plant)(self.sound);
        outcome
    }

    /// Runs seeds; each must succeed.
    pub fn run(&self, seeds: Range<u64>) {
        let mut totals = Totals::default();
        seeds.clone().for_each(|seed| totals.add(self, seed, self.run_planted(seed, self.sound)));
        self.evaluate(seeds, &totals);
    }

    /// The same, on all cores.
    #[allow(clippy::disallowed_methods, reason = "each thread runs simulations of its own")]
    fn run_on_all(&self, seeds: Range<u64>) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, mut totals) = (AtomicU64::new(seeds.start), Totals::default());
        std::thread::scope(|scope| {
            let (outcomes, received) = mpsc::sync_channel(threads);
            for _ in 0..threads {
                let (outcomes, next, end) = (outcomes.clone(), &next, seeds.end);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end || outcomes.send((seed, self.run_planted(seed, self.sound))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(outcomes);
            received.into_iter().for_each(|(seed, outcome)| totals.add(self, seed, outcome));
        });
        self.evaluate(seeds, &totals);
    }

    fn evaluate(&self, seeds: Range<u64>, totals: &Totals) {
        let Totals { operations, faults, injected } = totals;
        println!("seeds {seeds:?}: {operations} operations, {faults} faults, injected {injected:?}");
        if seeds.end - seeds.start >= self.enough {
            for point in &self.points {
                assert!(injected.get(point).is_some_and(|count| *count > 0), "no seed injected {point}");
            }
        }
    }

    /// Runs the seeds in the variable `…_SEEDS`, if it is set: a range, such as 0..5000.
    pub fn run_chosen(&self) {
        let variable = format!("{}_SEEDS", self.name);
        let Ok(seeds) = std::env::var(&variable) else { return };
        let bounds = seeds.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let (from, to) = bounds.unwrap_or_else(|| panic!("{variable} is a range, such as 0..5000"));
        self.run_on_all(from..to);
    }

    /// Runs the seed in the variable `…_SEED`, if it is set, with the mistake in `…_PLANTED`, if that is set too.
    pub fn run_one(&self) {
        let variable = |what| std::env::var(format!("{}_{what}", self.name)).ok();
        let Some(seed) = variable("SEED").and_then(|seed| seed.parse().ok()) else { return };
        let [trouble, crashes] = (self.plans)(seed);
        println!("fault plan: {trouble}\n{crashes}");
        let planted = variable("PLANTED").map_or(self.sound, |name| {
            let planted = self.mistakes.iter().map(|(planted, _)| *planted);
            planted.into_iter().find(|planted| format!("{planted:?}") == name).expect("it can be planted")
        });
        self.run_planted(seed, planted).expect("the seed succeeds");
    }

    /// A seed decides everything: two runs are identical.
    pub fn run_twice(&self) {
        for seed in SEEDS_TWICE {
            let outcome = self.simulation(seed).check(|sim| (self.scenario)(sim, self.sound));
            outcome.expect("both runs succeed and are the same");
        }
    }

    /// Each mistake is caught.
    pub fn run_planted_mistakes(&self) {
        assert!(!self.mistakes.is_empty(), "nothing is planted");
        for (planted, by) in self.mistakes {
            must_be_caught(&format!("{planted:?}"), by, |seed| self.run_planted(seed, *planted));
        }
    }
}

/// The totals of all seeds.
#[derive(Default)]
struct Totals {
    operations: u64,
    faults: usize,
    injected: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add<P: Copy + Debug + Send + Sync + 'static>(&mut self, campaign: &Campaign<P>, seed: u64, outcome: Outcome) {
        let plans = (campaign.plans)(seed);
        let report = outcome.unwrap_or_else(|failure| {
            let ([trouble, crashes], Campaign { name, program, tests, .. }) = (&plans, campaign);
            let package = program.replace('_', "-");
            let repeat = format!(
                "{name}_SEED={seed} cargo test --profile checks -p heddle-{package} --test {program} {tests}one_seed"
            );
            panic!("seed {seed}: {failure}\nfault plan: {trouble}\n{crashes}\nrepeat with: {repeat}")
        });
        self.operations += report.value;
        self.faults += plans.iter().map(|plan| plan.steps.len()).sum::<usize>();
        for (point, counts) in report.fault_points {
            *self.injected.entry(point).or_default() += counts.injected;
        }
    }
}

/// Declares the tests that all simulations have, each for its campaign.
#[macro_export]
macro_rules! tests_of {
    ($campaign:expr) => {
        #[test]
        fn chosen_seeds() {
            $campaign.run_chosen();
        }

        #[test]
        fn one_seed() {
            $campaign.run_one();
        }

        #[test]
        fn a_seed_decides_everything() {
            $campaign.run_twice();
        }

        #[test]
        fn every_planted_mistake_is_caught() {
            $campaign.run_planted_mistakes();
        }
    };
}
pub use tests_of;

/// Some seed must catch the planted mistake, by one of the intended checks.
pub fn must_be_caught(what: &str, by: &[&str], run: impl Fn(u64) -> Outcome) {
    let caught = SEEDS_TO_CATCH.into_iter().find_map(|seed| run(seed).err().map(|failure| (seed, failure)));
    let (seed, failure) = caught.unwrap_or_else(|| panic!("no seed catches {what}"));
    let reason = failure.reason.to_string();
    println!("{what}: seed {seed}: {reason}");
    let as_meant = by.iter().any(|check| reason.contains(&format!("panicked: {check}")));
    assert!(as_meant, "{what} is caught, but by something else: {reason}");
}

/// Faults within these bounds, and `crashes` crashes of the nodes `crashing`.
pub fn plans_of(seed: u64, bounds: FaultPlanLimits, crashing: &[&str], crashes: usize) -> [FaultPlan; 2] {
    let nodes = crashing.iter().map(|name| (*name).to_owned()).collect();
    let kinds = vec![FaultKind::Crash];
    let crashes = FaultPlanLimits { nodes, kinds, faults: crashes, ..bounds.clone() };
    [FaultPlan::random(seed, &bounds), FaultPlan::random(seed ^ 1 << 40, &crashes)]
}

/// Trouble, and then calm: both plans run, and crashed nodes start again after a pause. Then no fault is injected any
/// more, everything is healed and runs.
pub async fn endure(
    sim: &Sim,
    [trouble, crashes]: [FaultPlan; 2],
    names: &[&'static str],
    pause: Duration,
    points: impl Iterator<Item = &&'static str>,
) {
    let calm = CancellationToken::new();
    let (other, crashed, until) = (sim.clone(), names.to_vec(), calm.clone());
    let reviving = rt::spawn(async move {
        while until.run_until_cancelled(rt::sleep(pause)).await.is_some() {
            crashed.iter().for_each(|name| other.node(name).restart());
        }
    });
    let other = sim.clone();
    let crashing = rt::spawn(async move { other.run_plan(&crashes).await });
    sim.run_plan(&trouble).await;
    crashing.await.expect("the driver does not crash");
    points.for_each(|point| sim.inject(point, 0.0));
    sim.heal_all();
    calm.cancel();
    reviving.await.expect("the driver does not crash");
    names.iter().for_each(|name| sim.node(name).restart());
}
