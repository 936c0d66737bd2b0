//! Memory nodes that are persistent: all of them, or F+1 of 2F+1, by seed.
//!
//! Beside all other faults everybody loses power at once, and comes back one after the other, each with what its disk has: what was
//! not synced is kept, lost or torn. Persistent nodes also crash between two steps of what they do on their disk. The history,
//! before and after, must be linearizable, so that nothing is gone whose caller was answered.

use base::rt::simulation::Sim;
use base::rt::{self, Stop};
use consensus::fault::{Mutant, plant};

use super::{Duration, course, plans, simulation};
use crate::support::{Campaign, FAULT_POINTS, MEMORY_NODES, Outcome, PROCESSORS, must_be_caught, nodes};

pub const CRASH_POINTS: &[&str] = &["consensus.disk.followed", "consensus.disk.synced", "consensus.keep.sending"];

/// How many are persistent.
fn persistent(seed: u64) -> usize {
    let nodes = nodes(seed);
    if (seed / 2).is_multiple_of(2) { nodes } else { nodes / 2 + 1 }
}

async fn power_fails(sim: Sim, until: Stop) {
    let mut chance = sim.chance();
    CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.001));
    sim.inject("consensus.disk.followed", 0.1);
    let nodes = nodes(sim.seed());
    while !until.is_stopped() {
        let pause = chance.duration(&(Duration::from_millis(100)..Duration::from_millis(500)));
        rt::sleep(pause).await;
        let mut everybody: Vec<&str> = MEMORY_NODES[..nodes].iter().chain(&PROCESSORS).copied().collect();
        if chance.one_in(3) {
            everybody.iter().for_each(|name| sim.node(name).crash());
        }
        while !everybody.is_empty() {
            rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            let first = chance.index(everybody.len());
            sim.node(everybody.swap_remove(first)).restart();
        }
    }
}

async fn scenario(sim: Sim) -> u64 {
    let persistent = persistent(sim.seed());
    course(sim, persistent, power_fails).await
}

fn run(seed: u64, mutant: Mutant) -> Outcome {
    plant(mutant);
    let outcome = simulation(seed).run(scenario);
    plant(Mutant::None);
    outcome
}

fn campaign() -> Campaign<'static> {
    Campaign {
        run: &|seed| run(seed, Mutant::None),
        plans,
        points: FAULT_POINTS.iter().chain(super::CRASH_POINTS).chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        repeat: [
            "DURABLE_SEED=",
            " cargo test --release -p heddle-consensus --test consensus kv_simulation::durable::one_seed",
        ],
    }
}

#[test]
fn seeds_0_to_74() {
    campaign().run(0..75);
}

#[test]
fn seeds_75_to_149() {
    campaign().run(75..150);
}

/// `DURABLE_SEEDS=0..5000 cargo test --release -p heddle-consensus --test consensus kv_simulation::durable::chosen_seeds`
#[test]
fn chosen_seeds() {
    campaign().run_chosen("DURABLE_SEEDS");
}

/// `DURABLE_SEED=17 cargo test --release -p heddle-consensus --test consensus kv_simulation::durable::one_seed` repeats a seed.
#[test]
fn one_seed() {
    let Some(seed) = std::env::var("DURABLE_SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    run(seed, Mutant::None).expect("the seed succeeds");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..3 {
        simulation(seed).check(scenario).expect("both runs succeed and are the same");
    }
}

/// How the messages of the checks begin that may catch a mistake.
const MISTAKES: &[(Mutant, &[&str])] = &[
    (Mutant::AnswerUnsynced, &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:"]),
    (Mutant::FollowUnsynced, &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:"]),
    (
        Mutant::KeepUnsynced,
        &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:", "a block is given"],
    ),
    (
        Mutant::CountUnsynced,
        &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:", "a block is given"],
    ),
];

#[test]
fn every_planted_mistake_is_caught() {
    for (mutant, caught_by) in MISTAKES {
        must_be_caught(&format!("{mutant:?}"), caught_by, |seed| run(seed, *mutant));
    }
}
