//! A store that is kept in tables of the storage engine, on a disk that all processors reach; memory nodes are volatile.
//!
//! Beside all other faults everybody loses power at once, the disk what was not synced too. Then all memory is gone: the group
//! is formatted anew, and the next coordinator makes the store of what the tables have. Callers are told nothing that the tables
//! have not, so the history, before and after, must be linearizable.

use std::sync::{Arc, Mutex, PoisonError};

use base::rt::disk::Directory;
use base::rt::simulation::Sim;
use base::rt::{self, Stop};
use consensus::Error;
use consensus::kv::Persistent;
use consensus::kv::fault::{Mutant, plant};
use storage::tables::{ModelEngine, TablesEngine as _};

use super::{Duration, World, course_of, plans, simulation};
use crate::support::{Campaign, FAULT_POINTS, MEMORY_NODES, Outcome, PROCESSORS, must_be_caught, nodes};

pub const CRASH_POINTS: &[&str] = &["consensus.kv.persisted", "consensus.kv.persisting", "consensus.kv.restoring"];
/// Whose disk it is.
const DISK: &str = "disk";

/// The tables as they are open now.
pub type Open = Arc<Mutex<Option<Persistent>>>;

async fn open(sim: &Sim, tables: &Open) {
    let opening = sim.node(DISK).spawn(async {
        let directory = Directory::open("/tables").await.expect("a directory can be made");
        let engine = ModelEngine::open(directory).await.expect("it opens");
        engine.tables("kv").await.expect("no crash damages them")
    });
    let opened = opening.await.expect("it does not crash");
    let persistent = Persistent { tables: opened, is_synchronous: true };
    *tables.lock().unwrap_or_else(PoisonError::into_inner) = Some(persistent);
}

async fn power_fails(world: World, until: Stop) {
    let sim = world.sim.clone();
    let mut chance = sim.chance();
    CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.005));
    sim.inject("consensus.kv.restoring", 0.2);
    let memory_nodes = &MEMORY_NODES[..nodes(sim.seed())];
    loop {
        let pause = chance.duration(&(Duration::from_millis(300)..Duration::from_millis(900)));
        if until.or_stopped(rt::sleep(pause)).await.is_none() {
            return;
        }
        PROCESSORS.iter().chain(memory_nodes).chain(&[DISK]).for_each(|name| sim.node(name).crash());
        sim.node(DISK).restart();
        open(&sim, &world.tables).await;
        memory_nodes.iter().for_each(|name| sim.node(name).restart());
        loop {
            let formatting = world.clone();
            let formatted = sim.node("operator").spawn(async move { consensus::format(&formatting.group()).await });
            match formatted.await.expect("nothing crashes it") {
                Ok(()) | Err(Error::AlreadyFormatted(_)) => break,
                Err(_) => rt::sleep(Duration::from_millis(10)).await,
            }
        }
        PROCESSORS.iter().for_each(|name| sim.node(name).restart());
    }
}

async fn scenario(sim: Sim) -> u64 {
    let tables = Open::default();
    open(&sim, &tables).await;
    course_of(sim, 0, tables, power_fails).await
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
        points: FAULT_POINTS.iter().chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        repeat: [
            "TABLES_SEED=",
            " cargo test --release -p heddle-consensus --test consensus kv_simulation::tables::one_seed",
        ],
    }
}

#[test]
fn seeds_0_to_99() {
    campaign().run(0..100);
}

/// `TABLES_SEEDS=0..5000 cargo test --release -p heddle-consensus --test consensus kv_simulation::tables::chosen_seeds`
#[test]
fn chosen_seeds() {
    campaign().run_chosen("TABLES_SEEDS");
}

/// `TABLES_SEED=17 cargo test --release -p heddle-consensus --test consensus kv_simulation::tables::one_seed` repeats a seed.
#[test]
fn one_seed() {
    let Some(seed) = std::env::var("TABLES_SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    run(seed, Mutant::None).expect("the seed succeeds");
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..3 {
        simulation(seed).check(scenario).expect("both runs succeed and are the same");
    }
}

#[test]
fn every_planted_mistake_is_caught() {
    for mutant in [Mutant::TellUnpersisted, Mutant::ApplyUnpersisted] {
        let by = &["linearizable:", "changed:", "report:"];
        must_be_caught(&format!("{mutant:?}"), by, |seed| run(seed, mutant));
    }
}
