//! Simulations in which primaries replace one another while the node crashes, links are cut, and old primaries resume.
//! These properties are checked:
//!
//! 1. Every block that was reported durable is in the final chain.
//! 2. At and above the height that a primary found when it opened, no block is of an older epoch.
//! 3. A write of an older primary fails if it began after a newer primary was admitted.
//! 4. The rows of the final chain are those of its blocks, at every height; the savepoint names its block.
//! 5. A transaction is found in its block as soon as the block is appended; a transaction that is in no block is not found.
//! 6. A primary that was not replaced can append again once every fault is healed.

use std::collections::BTreeMap;
use std::sync::Mutex;

use base::ErrorKind;
use base::rt::simulation::{Sim, Simulation, SimulationReport};
use base::rt::{self};

use super::basics::check_rows;
use super::*;
use crate::lock;
use crate::state_store::StateStore;

const SEEDS: u64 = 300;
const PRIMARIES: u64 = 4;
const FAULT_POINTS: [&str; 9] = [
    "storage.node.epoch_written",
    "storage.node.learning",
    "storage.node.append_received",
    "storage.node.appended",
    "storage.node.durable",
    "storage.node.materializing",
    "storage.node.materialized",
    "storage.node.pruning",
    "storage.blocks.append_torn",
];
const MUTANT: &str = "storage.node.mutant.append_unfenced";

/// What the observer knows. It lies outside the simulated world: no node learns anything from it.
#[derive(Default)]
struct Evidence {
    /// Hashes of blocks that were reported durable, by number.
    durable: BTreeMap<u64, [u8; 32]>,
    /// Epochs that were admitted, with the height found.
    opened: BTreeMap<u64, u64>,
    accusations: Vec<String>,
}

impl Evidence {
    fn newest(&self) -> u64 {
        self.opened.keys().next_back().copied().unwrap_or(0)
    }
}

type SharedEvidence = std::sync::Arc<Mutex<Evidence>>;

/// One primary: opens, appends, materialises and prunes until it is fenced or told to end.
async fn run_primary(evidence: SharedEvidence, epoch: u64, mut rng: Prng, end: rt::CancellationToken) {
    let accuse = |what: String| lock(&evidence).accusations.push(format!("epoch {epoch}: {what}"));
    let (blocks, state) = loop {
        match RemoteBlocks::open(options(epoch)).await {
            Ok(blocks) => match RemoteStateStore::open(options(epoch)).await {
                Ok(state) => break (blocks, state),
                Err(error) if error.kind() == ErrorKind::Fenced => return,
                Err(error) if error.kind() == ErrorKind::Retry => {}
                Err(error) => return accuse(format!("opening rows: {error}")),
            },
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) if error.kind() == ErrorKind::Retry => {}
            Err(error) => return accuse(format!("opening: {error}")),
        }
        rt::sleep(Duration::from_millis(20)).await;
    };
    lock(&evidence).opened.insert(epoch, blocks.height());
    // A new primary does other work first, while an old one may still be writing.
    rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(80)))).await;
    while !end.is_cancelled() {
        let newest = lock(&evidence).newest();
        let from = blocks.height();
        let mut appended = Vec::new();
        for _ in 0..1 + rng.index(6) {
            let block = TestBlock::after(blocks.tip(), &mut rng);
            match block.append(&blocks).await {
                Ok(()) => {
                    appended.push((block.number, block.header_hash));
                    let asked = [block.transactions[0].0.clone(), TxId::from("never sent")];
                    match blocks.find_transactions(&asked).await {
                        Ok(found) if found[0].is_some_and(|place| place.block.get() == block.number) => {
                            if found[1].is_some() {
                                return accuse("found what was never sent".to_owned());
                            }
                        }
                        Ok(found) => return accuse(format!("block {}: found {found:?}", block.number)),
                        Err(error) if error.kind() == ErrorKind::Retry => {}
                        Err(error) => return accuse(format!("finding: {error}")),
                    }
                }
                Err(error) if error.kind() == ErrorKind::Fenced => return,
                Err(error) => return accuse(format!("appending: {error}")),
            }
        }
        match blocks.sync().await {
            Ok(_) if newest > epoch => return accuse(format!("appended {from} after epoch {newest} was let in")),
            Ok(_) => lock(&evidence).durable.extend(appended),
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) => return accuse(format!("syncing: {error}")),
        }
        if rng.one_in(4) {
            let newest = lock(&evidence).newest();
            let outcome = match rng.one_in(2) {
                true => state.materialize(blocks.height()).await.map(drop),
                false => state.prune(BlockNumber(0)).await,
            };
            match outcome {
                Ok(()) if newest > epoch => return accuse(format!("wrote rows after epoch {newest} was let in")),
                Err(error) if error.kind() == ErrorKind::Fenced => return,
                Err(error) if error.kind() != ErrorKind::Retry => return accuse(format!("writing rows: {error}")),
                _ => {}
            }
        }
        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(40)))).await;
    }
}

async fn faults(sim: Sim, mut rng: Prng) {
    let storage = sim.node("storage");
    for _ in 0..6 {
        rt::sleep(rng.duration(&(Duration::from_millis(10)..Duration::from_millis(300)))).await;
        let primary = format!("primary{}", 1 + rng.below(PRIMARIES));
        let lasting = rng.duration(&(Duration::from_millis(5)..Duration::from_millis(600)));
        match rng.index(6) {
            0 => {
                storage.crash();
                rt::sleep(lasting / 4).await;
                storage.restart();
            }
            1 => {
                sim.cut(&primary, "storage");
                rt::sleep(lasting).await;
                sim.heal(&primary, "storage");
            }
            2 => sim.break_links(&primary, "storage"),
            3 => {
                storage.pause();
                rt::sleep(lasting / 4).await;
                storage.resume();
            }
            4 => {
                storage.disk().fill();
                rt::sleep(lasting).await;
                storage.disk().set_capacity(None);
            }
            _ => {
                sim.node(&primary).pause();
                rt::sleep(lasting).await;
                sim.node(&primary).resume();
            }
        }
    }
}

async fn serve_for_ever() {
    loop {
        match start().await {
            Ok(node) => {
                std::future::pending::<()>().await;
                drop(node);
            }
            // A full disk; it will be freed.
            Err(error) if error.kind() != ErrorKind::Corrupt => rt::sleep(Duration::from_millis(50)).await,
            Err(error) => panic!("the node finds its data corrupt: {error}"),
        }
    }
}

async fn scenario(sim: Sim, mutant: bool) -> Vec<String> {
    let mut rng = sim.rng();
    sim.node("storage").start(serve_for_ever);
    if mutant {
        sim.inject(MUTANT, 1.0);
    }
    for _ in 0..rng.index(4) {
        let point: &&str = rng.pick(&FAULT_POINTS);
        sim.inject(point, *rng.pick(&[0.05, 0.2]));
    }
    let evidence = SharedEvidence::default();
    let end = rt::CancellationToken::new();
    let breaking = rt::spawn(faults(sim.clone(), sim.rng()));
    let mut primaries = Vec::new();
    for epoch in 1..=PRIMARIES {
        let node = sim.node(&format!("primary{epoch}"));
        primaries.push(node.spawn(run_primary(evidence.clone(), epoch, sim.rng(), end.clone())));
        let time = rng.duration(&(Duration::from_millis(50)..Duration::from_millis(500)));
        rt::sleep(time).await;
        // Sometimes the last primary is paused in the middle of its work, and resumes after the next one has begun.
        if epoch < PRIMARIES && rng.one_in(2) {
            node.pause();
            let after = rng.duration(&(Duration::from_millis(1)..Duration::from_millis(100)));
            drop(rt::spawn(async move {
                rt::sleep(after).await;
                node.resume();
            }));
        }
    }
    breaking.await.expect("nobody aborts it");
    sim.heal_all();
    for point in FAULT_POINTS {
        sim.inject(point, 0.0);
    }
    let before = lock(&evidence).durable.len();
    for _ in 0..300 {
        rt::sleep(Duration::from_millis(100)).await;
        let state = lock(&evidence);
        if state.durable.len() > before + 10 && state.opened.contains_key(&PRIMARIES) {
            break;
        }
    }
    end.cancel();
    for task in primaries {
        if rt::timeout(Duration::from_secs(60), task).await.is_err() {
            lock(&evidence).accusations.push("a primary hangs".to_owned());
        }
    }
    if lock(&evidence).durable.len() <= before {
        lock(&evidence).accusations.push("the last primary appends no more".to_owned());
    }
    let mut accusations = std::mem::take(&mut lock(&evidence).accusations);
    if accusations.is_empty() {
        accusations.extend(validate(&lock_out(&evidence)).await);
    }
    accusations
}

fn lock_out(evidence: &SharedEvidence) -> (BTreeMap<u64, [u8; 32]>, BTreeMap<u64, u64>) {
    let evidence = lock(evidence);
    (evidence.durable.clone(), evidence.opened.clone())
}

async fn validate((durable, opened): &(BTreeMap<u64, [u8; 32]>, BTreeMap<u64, u64>)) -> Vec<String> {
    let blocks = RemoteBlocks::open(options(PRIMARIES + 1)).await.expect("everything is healed");
    let state = RemoteStateStore::open(options(PRIMARIES + 1)).await.expect("everything is healed");
    let mut accusations = Vec::new();
    let (mut texts, mut hashes) = (Vec::new(), Vec::new());
    let mut ids = Vec::new();
    let mut previous = nothing();
    while previous.height < blocks.height() {
        for block in blocks.read_page(BlockNumber(previous.height), 50).await.expect("blocks are readable") {
            assert_eq!((block.number.get(), block.previous_hash), (previous.height, previous.header_hash));
            for (epoch, height) in opened.iter().filter(|(epoch, _)| **epoch > block.epoch.get()) {
                if block.number.get() >= *height {
                    let (number, of) = (block.number, block.epoch);
                    accusations.push(format!("block {number} of epoch {of}, but {epoch} was let in at {height}"));
                }
            }
            previous = ChainTip { height: previous.height + 1, header_hash: block.header_hash, epoch: block.epoch };
            ids.extend(block.transactions.iter().map(|(id, _)| (block.number, id.clone())));
            texts.push(String::from_utf8(block.payload.to_vec()).expect("blocks of this test are text"));
            hashes.push(block.header_hash);
        }
    }
    let asked: Vec<TxId> = ids.iter().map(|(_, id)| id.clone()).collect();
    let found = blocks.find_transactions(&asked).await.expect("everything is healed");
    if let Some(((number, id), _)) =
        ids.iter().zip(found).find(|((number, _), found)| found.is_none_or(|found| found.block != *number))
    {
        accusations.push(format!("transaction {id} of block {number} is not found"));
    }
    for (number, hash) in durable {
        if hashes.get(*number as usize) != Some(hash) {
            accusations.push(format!("block {number} was durable and is not there"));
        }
    }
    if accusations.is_empty() && !texts.is_empty() {
        let savepoint = state.materialize(u64::MAX).await.expect("everything is healed");
        assert_eq!(savepoint.height, texts.len() as u64);
        assert_eq!(Some(&savepoint.block_hash), hashes.last());
        // Older heights were pruned at the last opening.
        check_rows(&state, &texts, texts.len().saturating_sub(1)).await;
    }
    accusations
}

fn run(seed: u64, mutant: bool) -> SimulationReport<Vec<String>> {
    let run = Simulation::new(seed).time_max(LONG).run(|sim| scenario(sim, mutant));
    run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

#[test]
fn no_primary_writes_after_a_newer_one_was_let_in() {
    let mut hit: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let report = run(seed, false);
        assert!(report.value.is_empty(), "seed {seed}: {:?}", report.value);
        for (name, point) in &report.fault_points {
            *hit.entry(name).or_default() += point.injected;
        }
    }
    for point in FAULT_POINTS {
        assert!(hit.get(point).is_some_and(|hits| *hits > 0), "no seed injected {point}: {hit:?}");
    }
}

#[test]
fn a_seed_runs_the_same_way_twice() {
    for seed in [3, 14, 15] {
        let check = Simulation::new(seed).time_max(LONG).check(|sim| scenario(sim, false));
        check.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn a_node_that_appends_without_the_epoch_check_is_caught() {
    let caught = (0..SEEDS).filter(|seed| !run(*seed, true).value.is_empty()).count();
    assert!(caught > 0, "the planted mistake was not found in {SEEDS} seeds");
}
