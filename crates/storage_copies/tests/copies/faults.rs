//! Many seeds of primaries, a follower, three storage nodes of which two are to have a copy, and every kind of fault.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rt::simulation::{Prng, Sim, Simulation, SimulationReport};
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Bytes, Epoch};
use storage::blocks::StoredBlocks;
use storage::node::{RemotePrivateRows, RemoteReads, RemoteStateStore, RemoteStoreConfig};
use storage::{PrivateRows, StateStore};
use storage_copies::{CopySet, copy_states};

use crate::evidence::{SharedEvidence, last_below, rows_of};
use crate::world::{CHANNEL, run_follower, run_primary, set, start_nodes};

const SEEDS: u64 = 40;
/// A run of at least this many seeds must inject the fault points in [`RARE`], too.
const MANY_SEEDS: u64 = 1_000;
/// A copy is emptied only after a learner has died.
const RARE: [&str; 1] = ["storage.node.resetting"];
const NODES: usize = 3;
const PRIMARIES: u64 = 3;
/// Longer than any seed takes.
const LONG: Duration = Duration::from_secs(900);
const FAULT_POINTS: [&str; 8] = [
    "storage.node.epoch_written",
    "storage.node.resetting",
    "storage.node.append_received",
    "storage.node.appended",
    "storage.node.durable",
    "storage.node.materializing",
    "storage.node.pruning",
    "storage.blocks.append_torn",
];

async fn break_things(sim: Sim, mut rng: Prng) {
    for _ in 0..4 + rng.index(5) {
        rt::sleep(rng.duration(&(Duration::from_millis(20)..Duration::from_millis(900)))).await;
        let name = format!("s{}", 1 + rng.index(NODES));
        let other = match rng.one_in(4) {
            true => format!("s{}", 1 + rng.index(NODES)),
            false => format!("p{}", 1 + rng.below(PRIMARIES)),
        };
        let lasting = rng.duration(&(Duration::from_millis(5)..Duration::from_millis(1500)));
        let (sim, node) = (sim.clone(), sim.node(&name));
        let healing = match rng.index(7) {
            0 | 1 => {
                node.crash();
                rt::spawn(async move {
                    rt::sleep(lasting).await;
                    node.restart();
                })
            }
            2 => {
                sim.cut(&other, &name);
                rt::spawn(async move {
                    rt::sleep(lasting).await;
                    sim.heal(&other, &name);
                })
            }
            3 => {
                sim.break_links(&other, &name);
                rt::spawn(async {})
            }
            4 => {
                node.pause();
                rt::spawn(async move {
                    rt::sleep(lasting).await;
                    node.resume();
                })
            }
            5 => {
                node.disk().fill();
                rt::spawn(async move {
                    rt::sleep(lasting).await;
                    node.disk().set_capacity(None);
                })
            }
            _ => {
                let primary = sim.node(&format!("p{}", 1 + rng.below(PRIMARIES)));
                primary.pause();
                rt::spawn(async move {
                    rt::sleep(lasting / 2).await;
                    primary.resume();
                })
            }
        };
        // Sometimes the next fault comes before this one has ended.
        if rng.one_in(2) {
            let _ = healing.await;
        } else {
            drop(healing);
        }
    }
}

pub async fn scenario(sim: Sim, mutant: Option<&'static str>) -> Vec<String> {
    let mut rng = sim.rng();
    start_nodes(&sim, NODES);
    for _ in 0..rng.index(4) {
        sim.inject(rng.pick::<&str>(&FAULT_POINTS), *rng.pick(&[0.03, 0.15]));
    }
    if let Some(mutant) = mutant {
        sim.inject(mutant, 1.0);
    }
    let (evidence, end) = (SharedEvidence::default(), CancellationToken::new());
    let set = set(NODES, 2);
    let follower = sim.node("f1").spawn(run_follower(evidence.clone(), set.clone(), sim.rng(), end.clone()));
    let breaking = rt::spawn(break_things(sim.clone(), sim.rng()));
    let mut primaries = Vec::new();
    for number in 1..=PRIMARIES {
        let node = sim.node(&format!("p{number}"));
        primaries.push(node.spawn(run_primary(evidence.clone(), set.clone(), sim.rng(), end.clone())));
        rt::sleep(rng.duration(&(Duration::from_millis(300)..Duration::from_millis(2500)))).await;
        if number < PRIMARIES {
            match rng.index(3) {
                0 => node.crash(),
                1 => {
                    node.pause();
                    let after = rng.duration(&(Duration::from_millis(1)..Duration::from_millis(900)));
                    drop(rt::spawn(async move {
                        rt::sleep(after).await;
                        node.resume();
                    }));
                }
                _ => {}
            }
        }
    }
    breaking.await.expect("nobody aborts it");
    // The longest fault ends.
    rt::sleep(Duration::from_secs(2)).await;
    sim.heal_all();
    for number in 1..=NODES {
        let node = sim.node(&format!("s{number}"));
        node.disk().set_capacity(None);
        node.resume();
    }
    for point in FAULT_POINTS {
        sim.inject(point, 0.0);
    }
    settle(&evidence, &set).await;
    let before = evidence.lock().followed;
    for _ in 0..100 {
        if evidence.lock().followed > before + 3 {
            break;
        }
        rt::sleep(Duration::from_millis(100)).await;
    }
    if evidence.lock().followed == before && evidence.lock().accusations.is_empty() {
        evidence.accuse("a follower gets no answers any more");
    }
    end.cancel();
    for task in primaries.into_iter().chain([follower]) {
        if rt::timeout(Duration::from_secs(60), task).await.is_err() {
            evidence.accuse("a primary or the follower hangs");
        }
    }
    validate(&evidence, &set).await;
    std::mem::take(&mut evidence.lock().accusations)
}

/// Waits until blocks become durable again and there are two complete copies, by a view that the primary knows to be in force.
pub async fn settle(evidence: &SharedEvidence, set: &CopySet) {
    let before = evidence.lock().durable.len();
    for _ in 0..600 {
        rt::sleep(Duration::from_millis(100)).await;
        if !evidence.lock().accusations.is_empty() {
            return;
        }
        let grows = evidence.lock().durable.len() > before + 5;
        if grows && are_two_in_force(set).await {
            // The answer of the last copy that took over the view is on its way to the primary. Should the complete copy be lost
            // before it arrives, the primary could not go on with the other one.
            rt::sleep(Duration::from_millis(500)).await;
            return;
        }
    }
    let members = newest_members(set).await;
    let durable = evidence.lock().durable.len() - before;
    evidence.accuse(format!("after all faults {durable} blocks became durable, and {members:?} are complete"));
}

/// Whether the newest view names two complete copies at least, and each copy that it names has it.
async fn are_two_in_force(set: &CopySet) -> bool {
    let states = copy_states(set, CHANNEL).await;
    let views: Vec<_> =
        states.iter().filter_map(|(node, status)| Some((&node.name, &status.as_ref().ok()?.registered.view))).collect();
    let Some((_, newest)) = views.iter().max_by_key(|(_, view)| view.id) else { return false };
    let has_it = |name: &String| views.iter().any(|(node, view)| *node == name && view.id == newest.id);
    newest.members().count() >= 2 && newest.copies.iter().all(|copy| has_it(&copy.name))
}

pub async fn newest_members(set: &CopySet) -> Vec<String> {
    let states = copy_states(set, CHANNEL).await;
    let newest =
        states.iter().filter_map(|(_, status)| status.as_ref().ok()).max_by_key(|status| status.registered.view.id);
    newest.map(|status| status.registered.view.members().map(str::to_owned).collect()).unwrap_or_default()
}

/// Checks every member of the newest view.
pub async fn validate(evidence: &SharedEvidence, set: &CopySet) {
    let members = newest_members(set).await;
    if members.is_empty() {
        evidence.accuse("there is no complete copy");
    }
    let mut chains: Vec<(String, Vec<Bytes>)> = Vec::new();
    for name in members {
        let node = set.node(&name).expect("it is configured");
        let remote = RemoteStoreConfig {
            address: node.address.clone(),
            token: Bytes::new(),
            channel: CHANNEL.to_owned(),
            epoch: Epoch(0),
        };
        if let Err(error) = validate_member(evidence, &name, remote, &mut chains).await {
            evidence.accuse(format!("{name}: {error}"));
        }
    }
    if let [(one, first), (other, second), ..] = &chains[..] {
        let common = first.len().min(second.len());
        if first[..common] != second[..common] {
            evidence.accuse(format!("{one} and {other} have different blocks"));
        }
    }
}

async fn validate_member(
    evidence: &SharedEvidence,
    name: &str,
    remote: RemoteStoreConfig,
    chains: &mut Vec<(String, Vec<Bytes>)>,
) -> Result<(), storage::Error> {
    let reads = RemoteReads::new(remote.clone());
    let (durable, savepoint) = {
        let evidence = evidence.lock();
        (evidence.durable.clone(), evidence.savepoint)
    };
    let mut chain = Vec::new();
    while let Some(block) = reads.read(BlockNumber(chain.len() as u64)).await? {
        chain.push(block);
    }
    for (number, (hash, text)) in &durable {
        let at = reads.number_by_hash(hash).await?;
        let found = chain.get(*number as usize).map(|block| &block[..]);
        if at != Some(BlockNumber(*number)) || found != Some(text.as_bytes()) {
            evidence.accuse(format!("{name}: block {number} was durable and is not there"));
            return Ok(());
        }
    }
    let rows = RemoteStateStore::open_read_only(remote.clone()).await?;
    let own = rows.savepoint().height;
    if own < savepoint {
        evidence.accuse(format!("{name}: rows of {own} blocks, and {savepoint} were reported"));
    }
    let texts: Vec<String> =
        chain.iter().take(own as usize).map(|block| String::from_utf8_lossy(block).into_owned()).collect();
    for ((namespace, key), (version, value)) in rows_of(&texts) {
        let found = rows.get(&namespace, key.as_bytes(), last_below(own)).await?;
        let found = found.map(|row| (row.version, row.value.map(|value| value.to_vec())));
        let expected = (version, value.map(String::into_bytes));
        // A deletion may have been pruned.
        if found.as_ref() != Some(&expected) && !(found.is_none() && expected.1.is_none()) {
            evidence.accuse(format!("{name}: {namespace} {key} is {found:?}, not {expected:?}"));
        }
    }
    let [committed, transient] = RemotePrivateRows::of_follower(remote);
    let newest = BlockNumber(u64::MAX);
    let keys: Vec<String> = evidence.lock().committed.keys().cloned().collect();
    for key in keys {
        let row = committed.get_many(&[("n", key.as_bytes())], newest).await?.pop().flatten();
        if !evidence.lock().is_acceptable(&key, row.as_ref()) {
            let attempts = evidence.lock().committed[&key].clone();
            let last = attempts.iter().rev().take(4).collect::<Vec<_>>();
            evidence.accuse(format!("{name}: private {key} is {row:?}; attempts, last first: {last:?}"));
        }
    }
    let waiting: Vec<(String, String)> = evidence.lock().transient.clone().into_iter().collect();
    for (key, value) in waiting {
        let row = transient.get_many(&[("t", key.as_bytes())], newest).await?.pop().flatten();
        if row.and_then(|row| row.value).as_deref() != Some(value.as_bytes()) {
            evidence.accuse(format!("{name}: transient row {key} was reported written and is not there"));
        }
    }
    chains.push((name.to_owned(), chain));
    Ok(())
}

pub fn run(seed: u64, mutant: Option<&'static str>) -> SimulationReport<Vec<String>> {
    let run = Simulation::new(seed).time_max(LONG).run(|sim| scenario(sim, mutant));
    run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// Runs seeds on all cores: worlds on different threads are independent. Returns how often each fault point was hit, by
/// thread.
#[allow(clippy::disallowed_methods, reason = "each thread runs simulations of its own")]
fn run_all(seeds: u64) -> Vec<BTreeMap<&'static str, u64>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run_some((0..seeds).skip(thread).step_by(threads))))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("every seed passes")).collect()
    })
}

fn run_some(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut hit: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        let report = run(seed, None);
        assert!(report.value.is_empty(), "seed {seed}: {:?}", report.value);
        for (name, point) in &report.fault_points {
            *hit.entry(name).or_default() += point.injected;
        }
    }
    hit
}

#[test]
fn nothing_that_was_reported_durable_is_lost() {
    let seeds = std::env::var("HEDDLE_COPIES_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut hit: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, hits) in run_all(seeds).into_iter().flatten() {
        *hit.entry(name).or_default() += hits;
    }
    for point in FAULT_POINTS.iter().filter(|point| seeds >= MANY_SEEDS || !RARE.contains(point)) {
        assert!(hit.get(point).is_some_and(|hits| *hits > 0), "no seed injected {point}: {hit:?}");
    }
}

#[test]
fn a_seed_runs_the_same_way_twice() {
    for seed in [5, 6] {
        let check = Simulation::new(seed).time_max(LONG).check(|sim| scenario(sim, None));
        check.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
