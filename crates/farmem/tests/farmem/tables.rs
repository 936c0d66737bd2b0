//! The page table in seeded worlds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farmem::mutant::{Mutant, plant};
use farmem::table::RegionStats;

use crate::table_world::{Faults, Workload, World};

/// Seeds of a test run.
const SEEDS: u64 = 36;
const STEPS: u32 = 12_000;
const FAULTS: Faults = Faults { store_fails: 20, node_lost: 400, pinned: 50 };
const WORKLOADS: [Workload; 3] = [Workload::Random, Workload::Skewed, Workload::Streams];

/// Runs a seed to its end, with a fork in the middle; a panic of the table counts as found.
pub fn run(seed: u64, faults: Faults) -> (Vec<String>, World) {
    let mut world = World::new(seed, WORKLOADS[(seed % 3) as usize], faults);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        run_steps(&mut world, STEPS / 2);
        let mut child = world.fork(seed + SEEDS);
        run_steps(&mut child, STEPS / 4);
        child.finish();
        run_steps(&mut world, STEPS / 2);
        world.finish();
        child.wrong.iter().for_each(|wrong| world.wrong.push(format!("in the child of the fork: {wrong}")));
    }));
    let mut wrong = std::mem::take(&mut world.wrong);
    if ran.is_err() {
        wrong.push("the table panicked".to_owned());
    }
    (wrong, world)
}

fn run_steps(world: &mut World, steps: u32) {
    for _ in 0..steps {
        if !world.wrong.is_empty() {
            return;
        }
        world.step(true);
    }
}

pub fn first_wrong(seed: u64) -> Option<String> {
    run(seed, FAULTS).0.into_iter().next()
}

#[test]
fn no_fault_leads_to_wrong_bytes_or_a_thread_that_waits_for_ever() {
    let mut sum = RegionStats::default();
    let (mut losses_seen, mut nodes_lost, mut discarded) = (0, 0, 0);
    for seed in 0..SEEDS {
        let (wrong, world) = run(seed, FAULTS);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        let stats = world.table.stats();
        sum.evicted_pages += stats.evicted_pages;
        sum.restored_pages += stats.restored_pages;
        sum.prefetch_hits += stats.prefetch_hits;
        sum.first_writes += stats.first_writes;
        losses_seen += world.losses_seen;
        nodes_lost += world.nodes_lost;
        discarded += world.discarded;
    }
    println!("{sum:?}, {nodes_lost} nodes lost, {losses_seen} accesses to lost pages, {discarded} pages discarded");
    assert!(discarded > 10_000);
    assert!(sum.evicted_pages > 10_000 && sum.restored_pages > 100 && sum.prefetch_hits > 1000);
    assert!(sum.first_writes > 1000 && nodes_lost > SEEDS && losses_seen > 100);
}

#[test]
fn without_faults_nothing_is_lost_and_nothing_is_written_twice_for_one_change() {
    for seed in 0..SEEDS {
        let (wrong, world) = run(seed, Faults { store_fails: 0, node_lost: 0, pinned: 0 });
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        let stats = world.table.stats();
        assert_eq!((stats.lost_pages, stats.restored_pages, world.losses_seen), (0, 0, 0));
    }
}

/// Fills per thousand reads under a skewed load.
fn skewed_fills() -> u64 {
    let mut world = World::new(7, Workload::Skewed, Faults { store_fails: 0, node_lost: 0, pinned: 0 });
    (0..100_000).for_each(|_| world.step(true));
    assert!(world.wrong.is_empty(), "{:?}", world.wrong);
    world.table.stats().fills * 1000 / world.reads
}

#[test]
fn pages_that_come_back_soon_survive_a_pass_of_the_clock() {
    let with = skewed_fills();
    plant(Mutant::NoSecondChance);
    let without = skewed_fills();
    plant(Mutant::None);
    println!("fills per 1000 reads: {with} with a second chance, {without} without");
    assert!(with < without * 9 / 10, "{with} with a second chance, {without} without");
}
