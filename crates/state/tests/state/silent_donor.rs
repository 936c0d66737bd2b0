//! Tests with a donor whose process is suspended: it does not answer for a while, though its memory can be read and
//! written.

use std::time::Duration;

use crate::support::{Donors, disaggregated, rows};
use base::rt;
use base::rt::simulation::Simulation;
use base::{Bytes, Version};
use state::{DisaggregatedConfig, UpdateBatch, WorldState};
use storage::MemoryStateStore;

const SECTION_BYTES: u64 = 8 << 10;
/// A section holds two of these.
const VALUE_BYTES: usize = 3 << 10;
const KEYS: usize = 10;
const SILENT: Duration = Duration::from_secs(2);
/// How long a block may take meanwhile.
const BLOCK_MAX: Duration = Duration::from_millis(200);

fn key(number: usize) -> String {
    format!("k{number}")
}

fn block(number: u64, keys: usize) -> UpdateBatch {
    let mut batch = UpdateBatch::default();
    for tx in 0..keys {
        let value = Bytes::from(vec![number as u8; VALUE_BYTES]);
        batch.put(&"cc".into(), key(tx).as_str().into(), Some(value), Version { block: number, tx: tx as u32 });
    }
    batch
}

/// The story: a block waited, with its lock held, for the five seconds in which the pool found that the donor does not
/// answer, and did so for each of its keys: the pause before asking the pool again was counted from before the wait,
/// and was over after it.
#[test]
fn a_silent_donor_holds_up_a_block_once_and_shortly_and_what_it_gives_late_is_used() {
    let run = Simulation::new(1).run(|sim| async move {
        let donors = Donors::start(&sim, 1, SECTION_BYTES, 16 * SECTION_BYTES).await;
        let donor = sim.node(&donors.names[0]);
        let primary = sim.node("primary").spawn(async move {
            let space = donors.open(1, 16 * SECTION_BYTES).await.expect("there is memory");
            let store = MemoryStateStore::new();
            let state = disaggregated(space, &store, DisaggregatedConfig::default()).await;
            let apply = async |number, keys| {
                let batch = block(number, keys);
                store.add_block(rows(&batch));
                let began = rt::now();
                state.apply(number, batch).await.expect("a block is applied whatever memory there is");
                began.elapsed()
            };
            apply(0, 1).await;
            let before = state.usage().await.leased;
            donor.pause();
            let paused = rt::now();
            let mut number = 1;
            while paused.elapsed() < SILENT {
                let took = apply(number, KEYS).await;
                assert!(took < BLOCK_MAX, "block {number} took {took:?}");
                number += 1;
                rt::sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(state.usage().await.leased, before, "nothing was given meanwhile");
            donor.resume();
            rt::sleep(Duration::from_millis(200)).await;
            assert!(state.usage().await.leased > before, "what comes late is used");
            for tx in 0..KEYS {
                let found = state.snapshot().get("cc", &key(tx)).await.expect("it is somewhere");
                assert_eq!(found.map(|found| found.version.block), Some(number - 1));
            }
        });
        primary.await.expect("nobody ends it");
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The story: a memory node was to be vacated while the only other one did not answer. Its sections were emptied to
/// storage, as if the other one had no memory.
#[test]
fn sections_stay_warm_until_the_other_memory_node_answers_again() {
    let run = Simulation::new(1).run(|sim| async move {
        let donors = Donors::start(&sim, 2, SECTION_BYTES, 16 * SECTION_BYTES).await;
        let other = sim.node(&donors.names[1]);
        let primary = sim.node("primary").spawn(async move {
            let space = donors.open(1, 8 * SECTION_BYTES).await.expect("there is memory");
            let store = MemoryStateStore::new();
            let state = disaggregated(space.clone(), &store, DisaggregatedConfig::default()).await;
            assert!(space.set_vacated(&donors.names[1], true));
            let batch = block(0, KEYS);
            store.add_block(rows(&batch));
            state.apply(0, batch).await.expect("there is memory");
            let sections = space.sections().len() as u64;
            assert!(sections >= 4, "{sections}");
            other.pause();
            space.set_vacated(&donors.names[1], false);
            space.set_vacated(&donors.names[0], true);
            state.vacate();
            rt::sleep(10 * SILENT).await;
            assert_eq!(space.sections().len() as u64, sections, "they wait");
            other.resume();
            rt::sleep(10 * SILENT).await;
            let usage = state.usage().await;
            assert_eq!((usage.sections_migrated, usage.sections_drained), (sections, 0), "{usage:?}");
        });
        primary.await.expect("nobody ends it");
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// How long the longest block takes while one of two memory nodes cannot be reached, though no connection ends.
fn longest_block(is_watched: bool) -> Duration {
    let run = Simulation::new(1).run(|sim| async move {
        if !is_watched {
            sim.inject("pool.watch.mutant.blind", 1.0);
        }
        let donors = Donors::start(&sim, 2, SECTION_BYTES, 16 * SECTION_BYTES).await;
        let hung = donors.names[0].clone();
        let cut = sim.clone();
        let primary = sim.node("primary").spawn(async move {
            let space = donors.open(1, 16 * SECTION_BYTES).await.expect("there is memory");
            let store = MemoryStateStore::new();
            let state = disaggregated(space, &store, DisaggregatedConfig::default()).await;
            let mut longest = Duration::ZERO;
            for number in 0..20 {
                if number == 4 {
                    cut.mute("primary", &hung);
                }
                let batch = block(number, KEYS);
                store.add_block(rows(&batch));
                let began = rt::now();
                state.apply(number, batch).await.expect("a block is applied whatever memory there is");
                longest = longest.max(began.elapsed());
                rt::sleep(Duration::from_millis(50)).await;
            }
            for tx in 0..KEYS {
                let found = state.snapshot().get("cc", &key(tx)).await.expect("it is somewhere");
                assert_eq!(found.map(|found| found.version.block), Some(19));
            }
            longest
        });
        primary.await.expect("nobody ends it")
    });
    run.unwrap_or_else(|failure| panic!("{failure}")).value
}

/// The story: when the process of one of two memory nodes at TCP addresses was stopped, no transaction of its peer was
/// committed any more: the verbs that were in flight there never completed.
#[test]
fn a_memory_node_that_hangs_holds_up_blocks_until_its_connection_is_closed() {
    let longest = longest_block(true);
    assert!(longest < pool::space::STUCK_AFTER + Duration::from_secs(1), "{longest:?}");
    let unwatched = longest_block(false);
    assert!(unwatched > 2 * longest, "without the watch it is {unwatched:?}");
}
