//! Memory nodes that are persistent: all of them, or F+1 of 2F+1, by seed.
//!
//! Beside all other faults everybody loses power at once, and comes back one after the other, each with what its disk has: what was
//! not synced is kept, lost or torn. Persistent nodes also crash between two steps of what they do on their disk. The history,
//! before and after, must be linearizable, so that nothing is gone whose caller was answered.

use base::rt::simulation::{DiskOperation, Sim, Simulation};
use base::rt::{self, Stop};
use consensus::fault::{Mutant, plant};
use futures_util::FutureExt as _;

use super::{Duration, course, plans};
use crate::support::campaign::{Campaign, must_be_caught, tests_of};
use crate::support::{FAULT_POINTS, MEMORY_NODES, PROCESSORS, nodes};

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

/// Disks of memory nodes fail now and then, for one operation or for want of room, and nobody crashes for that.
async fn disks_fail(sim: Sim, until: Stop) {
    let mut chance = sim.chance();
    let nodes = nodes(sim.seed());
    while !until.is_stopped() {
        rt::sleep(chance.duration(&(Duration::from_millis(100)..Duration::from_millis(600)))).await;
        let disk = sim.node(MEMORY_NODES[chance.index(nodes)]).disk();
        match chance.index(3) {
            0 => disk.fail_next(DiskOperation::Sync, 1),
            1 => disk.fail_next(DiskOperation::Write, 1),
            _ => {
                disk.fill();
                rt::sleep(chance.duration(&(Duration::from_millis(10)..Duration::from_millis(200)))).await;
                disk.set_capacity(None);
            }
        }
    }
    // All is calm from here on but for this one, which writes all the time.
    sim.node(MEMORY_NODES[chance.index(nodes)]).disk().fail_next(DiskOperation::Sync, 1);
    rt::sleep(Duration::from_secs(1)).await;
}

/// One sync of a memory node's disk failed, or there was no room for a moment. The node refused everything from then on, and nobody
/// started it again: one node fewer of those that may be lost, and no word of it.
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

/// How the messages of the checks begin that may catch a mistake.
const CAUGHT_BY: &[&str] =
    &["linearizable:", "changed:", "report:", "torn:", "blocks:", "progress:", "a block is given"];

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "DURABLE",
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
