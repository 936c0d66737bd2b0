//! Random appends, syncs and crashes: a synced block is never lost, and a torn block is never served.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt;
use base::rt::simulation::{Prng, SimNode, Simulation};

use super::*;
use crate::lock;

const SEGMENT_BYTES: u64 = 7_000;
const INCARNATIONS: u64 = 5;

/// What the test knows of the store, across crashes of the node.
#[derive(Default)]
struct KnownBlocks {
    /// The blocks appended last at each number.
    appended: Vec<TestBlock>,
    /// Blocks below this number were reported durable.
    durable: u64,
    torn_tails: usize,
    unsynced_lost: usize,
}

/// Opens the store and compares it with the test's knowledge. Everything that it finds counts as durable from then on.
async fn open_and_compare(known: &Mutex<KnownBlocks>) -> BlockStore {
    let (store, report) = open("/blocks", SEGMENT_BYTES).await.expect("a crash leaves an openable store");
    let mut known = lock(known);
    assert!(report.height >= known.durable, "synced blocks were lost: {report:?}, durable {}", known.durable);
    assert!(report.height <= known.appended.len() as u64, "blocks appeared that nobody appended: {report:?}");
    known.torn_tails += usize::from(report.torn_tail.is_some());
    known.unsynced_lost += known.appended.len() - report.height as usize;
    known.appended.truncate(report.height as usize);
    known.durable = report.height;
    check_holds(&store, &known.appended);
    store
}

/// Opens the store and appends and syncs until the node crashes.
async fn live(known: Arc<Mutex<KnownBlocks>>, seed: u64) {
    let mut store = open_and_compare(&known).await;
    let mut rng = Prng::new(seed);
    loop {
        match rng.below(12) {
            0..6 => {
                let block = TestBlock::after(lock(&known).appended.last(), &mut rng, 1_500);
                // Noted before it is appended: a crash may come between the two.
                lock(&known).appended.push(block.clone());
                store.append(block.new_block()).await.expect("the block follows");
            }
            6 => sync(&store, &known).await,
            7 => drop(rt::spawn({
                let (store, known) = (store.clone(), known.clone());
                async move { sync(&store, &known).await }
            })),
            8 => store.close().await.expect("the disk is well"),
            // As after the end of a process whose machine keeps running: unsynced data is in the page cache.
            9 => store = open_and_compare(&known).await,
            _ => rt::sleep(Duration::from_millis(rng.below(3))).await,
        }
        rt::yield_now().await;
    }
}

async fn sync(store: &BlockStore, known: &Mutex<KnownBlocks>) {
    let height = store.height();
    let durable = store.sync().await.expect("the disk is well");
    assert!(durable >= height, "the sync covers what was appended before it");
    let mut known = lock(known);
    known.durable = known.durable.max(durable);
}

async fn run_incarnations(node: &SimNode, seed: u64) -> KnownBlocks {
    let known = Arc::new(Mutex::new(KnownBlocks::default()));
    let mut rng = Prng::new(seed);
    for life in 0..INCARNATIONS {
        let task = node.spawn(live(known.clone(), seed * INCARNATIONS + life));
        let sleep = rt::timeout(Duration::from_micros(1 + rng.below(60_000)), task).await;
        assert!(sleep.is_err(), "a life ends by its crash");
        node.crash();
    }
    let last = node.spawn({
        let known = known.clone();
        async move { drop(open_and_compare(&known).await) }
    });
    last.await.expect("the node does not crash");
    std::mem::take(&mut lock(&known))
}

#[test]
fn synced_blocks_survive_crashes_and_torn_ones_are_never_served() {
    let (mut blocks, mut torn_tails, mut unsynced_lost) = (0, 0, 0);
    for seed in 0..200 {
        let report = Simulation::new(seed)
            .run(move |sim| async move { run_incarnations(&sim.node("peer"), seed).await })
            .expect("the run succeeds");
        blocks += report.value.appended.len();
        torn_tails += report.value.torn_tails;
        unsynced_lost += report.value.unsynced_lost;
    }
    // The test would prove little if the crashes tore no records.
    assert!(blocks > 5_000, "{blocks}");
    assert!(torn_tails > 50, "{torn_tails}");
    assert!(unsynced_lost > 300, "{unsynced_lost}");
}

#[test]
fn runs_with_crashes_repeat_exactly() {
    Simulation::new(3)
        .check(|sim| async move {
            run_incarnations(&sim.node("peer"), 3).await;
        })
        .expect("both runs are the same");
}
