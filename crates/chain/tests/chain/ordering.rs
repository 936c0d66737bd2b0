//! A channel whose orderers are a group on passive memory nodes: three orderers, three memory nodes, two peers and clients, under
//! crashes, pauses, cuts, and lost power of all orderers and memory nodes at once.
//!
//! Orderers acknowledge what is in a safe block. At the end everything is healed, and then, besides what `simulation.rs` checks:
//! 1. every envelope that was ever acknowledged is in the chain, with one verdict that all peers share;
//! 2. whoever was told of a commit was told the same as the peers say then, however often the envelope was ordered;
//! 3. all orderers come to show the same blocks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use crate::world::{Remote, ask_verdict, run_client_of, tell_verdicts};
use async_trait::async_trait;
use base::TxId;
use base::rt::disk::Directory;
use base::rt::net::Parties;
use base::rt::simulation::{Bounds, FaultKind, Plan, Sim, Simulation};
use base::rt::{self, Stop};
use chain::order::{Acknowledge, Engines, Orderer, OrdererOptions};
use chain::peer::Peer;
use chain::remote::{RemoteOrderers, Scope, serve_orderer, serve_peer};
use consensus::ordered::sift::{Neighbour, Sift, SiftOptions};
use consensus::ordered::{Journal, OrderedLog, Processor};
use consensus::{Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Timing};
use ledger::config::EndorsementRule;
use rma::sim::SimFabric;
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};
use storage::GroupSync;
use storage::tables::ModelEngine;

const ORDERERS: usize = 3;
const MEMORY: usize = 3;
const PEERS: usize = 2;
const CLIENTS: usize = 2;
const GROUP: GroupId = GroupId(1);
const TOKEN: Token = Token::new([5; TOKEN_BYTES]);
const LAYOUT: Layout = Layout { log_bytes: 1 << 20, direct_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shares: 1 };

fn named(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}{index}")).collect()
}

async fn run_memory(fabric: SimFabric, index: usize) {
    let options = HostOptions { node: NodeId(index as u32), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = loop {
        match fabric.host(&format!("memory{index}"), options.clone()).await {
            Ok(host) => break host,
            Err(_) => rt::sleep(Duration::from_millis(5)).await,
        }
    };
    let groups = vec![GroupMemory { id: GROUP, layout: LAYOUT }];
    let options = MemoryNodeOptions { host, groups, stop: Stop::new() };
    let _node = MemoryNode::start(options).await.expect("there is memory");
    std::future::pending::<()>().await;
}

struct SimEngines {
    fabric: SimFabric,
    index: usize,
}

#[async_trait]
impl Engines for SimEngines {
    async fn open(&self, _channel: &str, journal: Arc<dyn Journal>) -> Result<Arc<dyn OrderedLog>, consensus::Error> {
        let timing = Timing {
            heartbeat: Duration::from_millis(10),
            lease: Duration::from_millis(40),
            election_timeout: Duration::from_millis(50),
            attempt_max: Duration::from_millis(40),
            answer_max: Duration::from_millis(200),
            grace: Duration::from_millis(5),
            reconnect: Duration::from_millis(50),
            copy_bytes_per_second: Timing::UNLIMITED,
        };
        let place = |address: String| Place { address, name: "orderer".into(), token: TOKEN };
        let nodes = named("memory", MEMORY).into_iter().map(place).collect();
        let group = Group { id: GROUP, layout: LAYOUT, nodes, fabric: Arc::new(self.fabric.clone()), timing };
        let neighbour = |(number, address)| Neighbour { processor: Processor(number), address };
        let options = SiftOptions {
            group,
            me: Processor(self.index as u64 + 1),
            processors: (1..).zip(named("keeper", ORDERERS)).map(neighbour).collect(),
            journal,
            volatile: false,
            disk_max: Duration::from_millis(500),
        };
        Ok(Arc::new(Sift::open(options).await?))
    }
}

async fn open_orderer(consortium: &Consortium, fabric: &SimFabric, index: usize) -> Option<Arc<Orderer>> {
    let options = OrdererOptions {
        watermarks: None,
        signer: consortium.orderer.clone(),
        directory: Directory::open("orderer").await.ok()?,
        sync: GroupSync::new(),
        engines: Arc::new(SimEngines { fabric: fabric.clone(), index }),
        settings: chain::order::Settings { acknowledge: Acknowledge::Durable, ..Default::default() },
    };
    let orderer = Orderer::open(options).await.ok()?;
    orderer.join(&consortium.genesis).await.ok()?;
    orderer.serve(&format!("blocks{index}")).await.ok()?;
    Some(orderer)
}

async fn run_orderer(
    consortium: Arc<Consortium>,
    fabric: SimFabric,
    index: usize,
    heights: Arc<Mutex<[u64; ORDERERS]>>,
) {
    loop {
        if let Some(orderer) = open_orderer(&consortium, &fabric, index).await {
            let serving =
                serve_orderer(orderer.clone(), &format!("submit{index}"), &Parties::anyone(), Stop::new()).await;
            let _serving = serving.expect("nobody else listens there");
            let chain = orderer.chain(CHANNEL).expect("joined");
            loop {
                heights.lock().expect("no holder panics")[index] = chain.height();
                if let Some(failure) = chain.failure() {
                    panic!("orderer{index}: {failure}");
                }
                rt::sleep(Duration::from_millis(50)).await;
            }
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

async fn run_peer(consortium: Arc<Consortium>, index: usize) {
    loop {
        if let Some(peer) = open_peer(&consortium, index).await {
            let serving =
                serve_peer(peer.clone(), Scope::Own, &format!("peer{index}"), &Parties::anyone(), Stop::new()).await;
            let _serving = serving.expect("nobody else listens there");
            return tell_verdicts(&format!("verdict{index}"), &peer).await;
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}

async fn open_peer(consortium: &Consortium, index: usize) -> Option<Arc<Peer>> {
    let root = Directory::open("peer").await.ok()?;
    let tables = ModelEngine::open(root.subdirectory("tables").await.ok()?).await.ok()?;
    let mut options = peer_options(consortium, &root, index, tables).await;
    options.orderers = named("blocks", ORDERERS).into();
    let peer = Peer::open(options).await.ok()?;
    peer.join(&consortium.genesis).await.ok()?;
    Some(peer)
}

async fn world(sim: Sim, faults: bool) -> (usize, u64) {
    let setup = Terms_ { batch: batch(4), ..Terms_::seeded(PEERS, EndorsementRule::Any) };
    let consortium = Arc::new(Consortium::found(setup));
    let fabric = SimFabric::new(&sim);
    let heights: Arc<Mutex<[u64; ORDERERS]>> = Arc::default();
    for index in 0..MEMORY {
        let fabric = fabric.clone();
        sim.node(&format!("memory{index}")).start(move || run_memory(fabric.clone(), index));
    }
    for index in 0..ORDERERS {
        let (consortium, fabric, heights) = (consortium.clone(), fabric.clone(), heights.clone());
        let boot = move || run_orderer(consortium.clone(), fabric.clone(), index, heights.clone());
        sim.node(&format!("orderer{index}")).start(boot);
    }
    for index in 0..PEERS {
        let consortium = consortium.clone();
        sim.node(&format!("peer{index}")).start(move || run_peer(consortium.clone(), index));
    }
    let acknowledged: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let client = |creates: bool| {
        let (consortium, sim, acknowledged) = (consortium.clone(), sim.clone(), acknowledged.clone());
        async move {
            let remote = Remote::of(
                named("peer", PEERS),
                Box::new(RemoteOrderers::new(named("submit", ORDERERS), Parties::anyone())),
            );
            let note = move |id: &TxId| {
                acknowledged.lock().expect("no holder panics").insert(id.to_string());
            };
            run_client_of(consortium, sim, remote, creates, note).await
        }
    };
    let created = sim.node("client0").spawn(client(true));
    assert!(!created.await.expect("clients run to their end").is_empty());
    let clients: Vec<_> = (0..CLIENTS).map(|index| sim.node(&format!("client{index}")).spawn(client(false))).collect();
    if faults {
        let orderers = Bounds {
            nodes: named("orderer", ORDERERS),
            kinds: vec![FaultKind::Crash, FaultKind::Crash, FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 10,
            within: Duration::from_millis(100)..Duration::from_secs(8),
            lasting: Duration::from_millis(10)..Duration::from_secs(1),
            down_max: 2,
        };
        let others = Bounds {
            nodes: [named("memory", MEMORY), named("orderer", ORDERERS), named("peer", PEERS)].concat(),
            kinds: vec![FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 8,
            ..orderers.clone()
        };
        let (one, other) = (Plan::random(sim.seed(), &orderers), Plan::random(sim.seed() ^ 1 << 40, &others));
        let also = sim.clone();
        let running = rt::spawn(async move { also.run_plan(&one).await });
        sim.run_plan(&other).await;
        running.await.expect("the driver does not crash");
        // All that orders loses power, with whatever it has in memory.
        let names = [named("memory", MEMORY), named("orderer", ORDERERS)].concat();
        names.iter().for_each(|name| sim.node(name).crash());
        rt::sleep(Duration::from_millis(100)).await;
        names.iter().for_each(|name| sim.node(name).restart());
    }
    let mut reports = Vec::new();
    for client in clients {
        reports.extend(client.await.expect("clients run to their end"));
    }
    sim.heal_all();
    for name in [named("memory", MEMORY), named("orderer", ORDERERS), named("peer", PEERS)].concat() {
        sim.node(&name).resume();
        sim.node(&name).restart();
    }
    // Until all peers and orderers say the same.
    let (mut verdicts, mut height) = (Vec::new(), 0);
    for _ in 0..200 {
        rt::sleep(Duration::from_millis(200)).await;
        verdicts.clear();
        for index in 0..PEERS {
            verdicts.push(ask_verdict(&format!("verdict{index}")).await.unwrap_or_default());
        }
        let same = verdicts.iter().all(|verdict| *verdict == verdicts[0]) && verdicts[0].split(' ').count() == 3;
        height = verdicts[0].split(' ').next().and_then(|height| height.parse().ok()).unwrap_or(0);
        if same && *heights.lock().expect("no holder panics") == [height; ORDERERS] {
            break;
        }
    }
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0] && !verdict.is_empty()), "{verdicts:#?}");
    assert_eq!(*heights.lock().expect("no holder panics"), [height; ORDERERS], "the orderers' heights");
    let remote = Remote::new(named("peer", PEERS));
    for peer in &remote.peers {
        peer.reached().await;
    }
    for (tx_id, code, block) in &reports {
        for index in 0..PEERS {
            let status = remote.status(index, &TxId::from(tx_id.as_str())).await.expect("it was committed");
            assert_eq!(status, (*code, *block), "{tx_id} at peer{index}");
        }
    }
    let acknowledged = acknowledged.lock().expect("no holder panics").clone();
    for tx_id in &acknowledged {
        let status = remote.status(0, &TxId::from(tx_id.as_str())).await;
        assert!(status.is_some(), "{tx_id} was acknowledged and is in no block");
        assert_eq!(remote.status(1, &TxId::from(tx_id.as_str())).await, status, "{tx_id}");
    }
    sim.note(&verdicts[0]);
    (reports.len(), height)
}

fn simulation(seed: u64) -> Simulation {
    Simulation::new(seed).steps_max(20_000_000)
}

#[test]
fn a_quiet_group_commits_everything() {
    let report = simulation(1).run(|sim| world(sim, false)).expect("the run succeeds");
    let (reported, height) = report.value;
    assert!(reported > 60 && height > 15, "{reported} reported, height {height}");
}

#[test]
fn nothing_acknowledged_is_lost_and_nobody_is_told_otherwise_under_faults() {
    let seeds = match std::env::var("HEDDLE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..9u64,
    };
    for seed in seeds {
        let report = simulation(seed).run(|sim| world(sim, true));
        let report = report.unwrap_or_else(|failure| panic!("HEDDLE_SEED={seed}: {failure}"));
        println!("seed {seed}: {:?} reported and blocks, {:?}", report.value, report.elapsed);
        assert!(report.value.0 > 0, "seed {seed} committed nothing");
    }
}

#[test]
fn a_seed_decides_everything() {
    simulation(5).check(|sim| world(sim, true)).expect("both runs are the same");
}
