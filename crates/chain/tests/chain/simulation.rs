//! A whole channel in simulated worlds: three peers, an orderer and clients, under crashes, pauses, partitions and full
//! disks.
//!
//! Nodes communicate only over links, and only their disks survive a crash. At the end all faults are repaired, and then:
//! 1. all peers hold the same blocks and equal states;
//! 2. every commit that any peer ever reported is still there, with the same code, in the same block;
//! 3. a sequential interpreter that reads only the blocks reaches the same codes and the same state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use crate::world::{RemoteNetwork, TRANSACTIONS, ask_verdict, run_client, run_orderer, serve_verdicts};
use base::TxId;
use base::rt::disk::Directory;
use base::rt::net::Parties;
use base::rt::simulation::{FaultKind, FaultPlan, FaultPlanLimits, Sim, Simulation};
use base::rt::{self, CancellationToken};
use chain::peer::Peer;
use chain::remote::{ServiceScope, serve_peer};
use ledger::config::EndorsementRule;
use storage::tables::ModelEngine;

const PEERS: usize = 3;
const CLIENTS: usize = 3;

fn peers() -> Vec<String> {
    (0..PEERS).map(|index| format!("peer{index}")).collect()
}

async fn run_peer(consortium: Arc<Consortium>, index: usize) {
    loop {
        if let Some(peer) = open_peer(&consortium, index).await {
            let address = format!("peer{index}");
            let serving =
                serve_peer(peer.clone(), ServiceScope::Own, &address, &Parties::anyone(), CancellationToken::new())
                    .await;
            let _serving = serving.expect("nobody else listens there");
            return serve_verdicts(&format!("verdict{index}"), &peer).await;
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

async fn open_peer(consortium: &Consortium, index: usize) -> Option<Arc<Peer>> {
    let root = Directory::open("peer").await.ok()?;
    let tables = ModelEngine::open(root.subdirectory("tables").await.ok()?).await.ok()?;
    let mut options = peer_options(consortium, &root, index, tables).await;
    options.orderers = vec!["blocks".to_owned()].into();
    options.settings.commit.persist_interval_blocks = 3;
    options.settings.commit.replay_blocks_max = 6;
    let peer = Peer::open(options).await.ok()?;
    peer.join(&consortium.genesis).await.ok()?;
    Some(peer)
}

async fn world(sim: Sim, faults: bool) -> (usize, u64) {
    let setup = ConsortiumConfig { batch: batch(4), ..ConsortiumConfig::seeded(PEERS, EndorsementRule::Any) };
    let consortium = Arc::new(Consortium::create(setup));
    let names: Vec<String> = (0..PEERS).map(|index| format!("peer{index}")).chain(["orderer".to_owned()]).collect();
    for (index, name) in names.iter().enumerate() {
        let consortium = consortium.clone();
        if index < PEERS {
            sim.node(name).start(move || run_peer(consortium.clone(), index));
        } else {
            sim.node(name).start(move || run_orderer(consortium.clone()));
        }
    }
    let created = sim.node("client0").spawn(run_client(consortium.clone(), sim.clone(), peers(), true));
    assert!(!created.await.expect("clients run to their end").is_empty());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| {
            sim.node(&format!("client{index}")).spawn(run_client(consortium.clone(), sim.clone(), peers(), false))
        })
        .collect();
    if faults {
        for point in [
            "chain.commit.validated",
            "chain.commit.appended",
            "chain.commit.durable",
            "chain.commit.applied",
            "chain.order.appended",
            "chain.order.durable",
        ] {
            sim.inject(point, 0.1);
        }
        let bounds = FaultPlanLimits {
            nodes: names.clone(),
            kinds: vec![
                FaultKind::Crash,
                FaultKind::Crash,
                FaultKind::Pause,
                FaultKind::Cut,
                FaultKind::Break,
                FaultKind::Fill,
            ],
            faults: 12,
            within: Duration::from_millis(100)..Duration::from_secs(12),
            ..FaultPlanLimits::default()
        };
        sim.run_plan(&FaultPlan::random(sim.seed(), &bounds)).await;
    }
    let mut reports = Vec::new();
    for client in clients {
        reports.extend(client.await.expect("clients run to their end"));
    }
    sim.heal_all();
    for name in &names {
        let node = sim.node(name);
        node.disk().set_capacity(None);
        node.resume();
        node.restart();
    }
    // Until all peers give the same answer.
    let mut verdicts = Vec::new();
    for _ in 0..200 {
        rt::sleep(Duration::from_millis(500)).await;
        verdicts.clear();
        for index in 0..PEERS {
            verdicts.push(ask_verdict(&format!("verdict{index}")).await.unwrap_or_default());
        }
        let same = verdicts.iter().all(|verdict| *verdict == verdicts[0]);
        if same && verdicts[0].split(' ').count() == 3 && !verdicts[0].starts_with("the state") {
            break;
        }
    }
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0] && !verdict.is_empty()), "{verdicts:#?}");
    let height: u64 = verdicts[0].split(' ').next().and_then(|height| height.parse().ok()).expect("a height");
    let remote = RemoteNetwork::new(peers());
    for peer in &remote.peers {
        peer.reached().await;
    }
    for (tx_id, code, block) in &reports {
        for index in 0..PEERS {
            let status = remote.status(index, &TxId::from(tx_id.as_str())).await.expect("it was committed");
            assert_eq!(status, (*code, *block), "{tx_id} at peer{index}");
        }
    }
    sim.note(&verdicts[0]);
    (reports.len(), height)
}

#[test]
fn a_quiet_world_commits_everything() {
    let report = Simulation::new(1).run(|sim| world(sim, false)).expect("the run succeeds");
    let (reported, height) = report.value;
    let sent = TRANSACTIONS as usize * CLIENTS;
    assert!(reported > sent * 3 / 4 && height > 20, "{reported} of {sent} reported, height {height}");
}

#[test]
fn nothing_reported_is_lost_and_peers_agree_under_faults() {
    let seeds: Vec<u64> = match std::env::var("HEDDLE_SEED") {
        Ok(seeds) => match seeds.split_once("..") {
            Some((first, end)) => {
                let number = |text: &str| text.parse::<u64>().expect("HEDDLE_SEED is a number or a range");
                (number(first)..number(end)).collect()
            }
            None => vec![seeds.parse().expect("HEDDLE_SEED is a number or a range")],
        },
        Err(_) => (1..=8).collect(),
    };
    let mut injected = BTreeMap::new();
    for seed in seeds {
        let report = Simulation::new(seed).run(|sim| world(sim, true));
        let report = report.unwrap_or_else(|failure| panic!("HEDDLE_SEED={seed}: {failure}"));
        println!("seed {seed}: {:?} reported and blocks, {:?}", report.value, report.elapsed);
        assert!(report.value.0 > 0, "seed {seed} committed nothing");
        for (name, point) in report.fault_points {
            *injected.entry(name).or_insert(0) += point.injected;
        }
    }
    // Mutants are planted by the simulator.
    for (name, times) in injected.into_iter().filter(|(name, _)| !name.contains(".mutant.")) {
        assert!(
            times > 0 || !name.starts_with("chain.") || std::env::var("HEDDLE_SEED").is_ok(),
            "{name} was never hit"
        );
    }
}

#[test]
fn a_seed_decides_everything() {
    Simulation::new(77).check(|sim| world(sim, true)).expect("both runs are the same");
}
