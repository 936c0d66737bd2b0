//! A store on persistent memory nodes: all 2F+1 nodes are persistent, or F+1 of them, depending on the seed.
//!
//! In addition to the faults of [`super`], all nodes lose power at once, and come back one after another, each with the
//! content of its disk: bytes that were not synced are kept, lost or torn. Persistent nodes also crash between two
//! steps of their disk protocol. The history across the power failure must be linearizable, so no acknowledged
//! operation is lost.

use base::rt::simulation::{DiskOperation, Sim, Simulation};
use base::rt::{self, CancellationToken};
use futures_util::FutureExt as _;
use sift::fault::{Mutant, plant};

use super::{Duration, course, plans};
use sift::testing::campaign::{Campaign, must_be_caught, tests_of};
use sift::testing::{CPU_NODES, FAULT_POINTS, MEMORY_NODES, nodes};

pub const CRASH_POINTS: &[&str] = &["consensus.disk.followed", "consensus.disk.synced", "consensus.background.sending"];

/// The number of persistent memory nodes.
fn persistent(seed: u64) -> usize {
    let nodes = nodes(seed);
    if (seed / 2).is_multiple_of(2) { nodes } else { nodes / 2 + 1 }
}

async fn power_fails(sim: Sim, until: CancellationToken) {
    let mut rng = sim.rng();
    CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.001));
    sim.inject("consensus.disk.followed", 0.1);
    let nodes = nodes(sim.seed());
    while !until.is_cancelled() {
        let pause = rng.duration(&(Duration::from_millis(100)..Duration::from_millis(500)));
        rt::sleep(pause).await;
        let mut everybody: Vec<&str> = MEMORY_NODES[..nodes].iter().chain(&CPU_NODES).copied().collect();
        if rng.one_in(3) {
            everybody.iter().for_each(|name| sim.node(name).crash());
        }
        while !everybody.is_empty() {
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            let first = rng.index(everybody.len());
            sim.node(everybody.swap_remove(first)).restart();
        }
    }
}

/// Disks of memory nodes fail now and then, for one operation or because they are full for a moment, and no node
/// crashes for that.
async fn disks_fail(sim: Sim, until: CancellationToken) {
    let mut rng = sim.rng();
    let nodes = nodes(sim.seed());
    while !until.is_cancelled() {
        rt::sleep(rng.duration(&(Duration::from_millis(100)..Duration::from_millis(600)))).await;
        let disk = sim.node(MEMORY_NODES[rng.index(nodes)]).disk();
        match rng.index(3) {
            0 => disk.fail_next(DiskOperation::Sync, 1),
            1 => disk.fail_next(DiskOperation::Write, 1),
            _ => {
                disk.fill();
                rt::sleep(rng.duration(&(Duration::from_millis(10)..Duration::from_millis(200)))).await;
                disk.set_capacity(None);
            }
        }
    }
    // No other fault from here on, and this client writes all the time.
    sim.node(MEMORY_NODES[rng.index(nodes)]).disk().fail_next(DiskOperation::Sync, 1);
    rt::sleep(Duration::from_secs(1)).await;
}

/// One sync of a memory node's disk failed, or the disk was full for a moment. From then on the node rejected
/// everything, and nothing restarted it: the group could lose one node fewer, and no message said so.
#[test]
fn a_memory_node_whose_disk_failed_once_takes_part_again() {
    let run = |seed, mutant| {
        plant(mutant);
        let simulation = Simulation::new(seed).steps_max(6_000_000).trace_lines_max(60);
        let outcome = simulation.run(|sim| async move {
            let persistent = nodes(sim.seed());
            course(sim, persistent, disks_fail).await
        });
        plant(Mutant::None);
        outcome
    };
    for seed in 0..20 {
        run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    must_be_caught("StayFailed", &["progress:"], |seed| run(seed, Mutant::StayFailed));
}

async fn scenario(sim: Sim) -> u64 {
    let persistent = persistent(sim.seed());
    course(sim, persistent, power_fails).await
}

/// The prefixes of the checkers' messages that may catch a mistake.
const CAUGHT_BY: &[&str] =
    &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:", "a block is given"];

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "DURABLE",
        program: "kv",
        tests: "kv_simulation::durable::",
        steps_max: 6_000_000,
        scenario: |sim, _| scenario(sim).boxed(),
        plans,
        points: FAULT_POINTS.iter().chain(super::CRASH_POINTS).chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        plant,
        sound: Mutant::None,
        mistakes: &[
            (Mutant::AnswerUnsynced, CAUGHT_BY),
            (Mutant::FollowUnsynced, CAUGHT_BY),
            (Mutant::KeepUnsynced, CAUGHT_BY),
            (Mutant::CountUnsynced, CAUGHT_BY),
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

tests_of!(campaign());
