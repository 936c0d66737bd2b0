//! A channel whose orderers are a group on passive memory nodes: three orderers, three memory nodes, two peers and
//! clients, under crashes, pauses, partitions, and power loss of all orderers and memory nodes at once.
//!
//! Orderers acknowledge an envelope once its block is committed. At the end all faults are repaired. Then, besides
//! the checks of `simulation.rs`:
//! 1. every envelope that was ever acknowledged is in the chain, with one verdict that all peers share;
//! 2. every commit that a client was notified of has the same verdict at the peers, however often the envelope was
//!    ordered;
//! 3. all orderers show the same blocks in the end.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use crate::world::{RemoteNetwork, ask_verdict, run_client_of, serve_verdicts};
use async_trait::async_trait;
use base::TxId;
use base::rt::disk::Directory;
use base::rt::net::Parties;
use base::rt::simulation::{FaultKind, FaultPlan, FaultPlanLimits, Sim, Simulation};
use base::rt::{self, CancellationToken};
use chain::order::{AcknowledgeMode, Orderer, OrdererSetup, OrderingEngines};
use chain::peer::Peer;
use chain::remote::{RemoteOrderers, ServiceScope, serve_orderer, serve_peer};
use ledger::config::EndorsementRule;
use ordered_log::sift::{CpuNode, SiftConfig, SiftLog};
use ordered_log::{CpuNodeId, LogStore, OrderedLog};
use rma::sim::SimProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
};
use storage::GroupSync;
use storage::tables::ModelEngine;

const ORDERERS: usize = 3;
const MEMORY: usize = 3;
const PEERS: usize = 2;
const CLIENTS: usize = 2;
const GROUP: GroupId = GroupId(1);
const TOKEN: Token = Token::new([5; TOKEN_BYTES]);
const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 1 << 20, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 };

fn named(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}{index}")).collect()
}

async fn run_memory(provider: SimProvider, index: usize) {
    let options = HostConfig { node: NodeId(index as u32), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = loop {
        match provider.host(&format!("memory{index}"), options.clone()).await {
            Ok(host) => break host,
            Err(_) => rt::sleep(Duration::from_millis(5)).await,
        }
    };
    let groups = vec![GroupMemory { id: GROUP, layout: LAYOUT }];
    let options = LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() };
    let _node = LogMemoryNode::start(options).await.expect("there is memory");
    std::future::pending::<()>().await;
}

struct SimEngines {
    provider: SimProvider,
    index: usize,
}

#[async_trait]
impl OrderingEngines for SimEngines {
    async fn open(
        &self,
        _channel: &str,
        log_store: Arc<dyn LogStore>,
    ) -> Result<Arc<dyn OrderedLog>, ordered_log::Error> {
        let timing = SiftTimeouts {
            heartbeat: Duration::from_millis(10),
            lease: Duration::from_millis(40),
            election_timeout: Duration::from_millis(50),
            attempt_max: Duration::from_millis(40),
            answer_max: Duration::from_millis(200),
            grace: Duration::from_millis(5),
            reconnect: Duration::from_millis(50),
            copy_bytes_per_second: SiftTimeouts::UNLIMITED,
        };
        let place = |address: String| MemoryNodeAddress { address, name: "orderer".into(), token: TOKEN };
        let nodes = named("memory", MEMORY).into_iter().map(place).collect();
        let group = SiftGroup { id: GROUP, layout: LAYOUT, nodes, provider: Arc::new(self.provider.clone()), timing };
        let neighbour = |(number, address)| CpuNode { id: CpuNodeId(number), address };
        let options = SiftConfig {
            group,
            me: CpuNodeId(self.index as u64 + 1),
            cpu_nodes: (1..).zip(named("keeper", ORDERERS)).map(neighbour).collect(),
            log_store,
            volatile: false,
            disk_timeout: Duration::from_millis(500),
        };
        Ok(Arc::new(SiftLog::open(options).await?))
    }
}

async fn open_orderer(consortium: &Consortium, provider: &SimProvider, index: usize) -> Option<Arc<Orderer>> {
    let options = OrdererSetup {
        watermarks: None,
        signer: consortium.orderer.clone(),
        directory: Directory::open("orderer").await.ok()?,
        sync: GroupSync::new(),
        engines: Arc::new(SimEngines { provider: provider.clone(), index }),
        settings: chain::order::BroadcastConfig { acknowledge: AcknowledgeMode::Durable, ..Default::default() },
    };
    let orderer = Orderer::open(options).await.ok()?;
    orderer.join(&consortium.genesis).await.ok()?;
    orderer.serve(&format!("blocks{index}")).await.ok()?;
    Some(orderer)
}

async fn run_orderer(
    consortium: Arc<Consortium>,
    provider: SimProvider,
    index: usize,
    heights: Arc<Mutex<[u64; ORDERERS]>>,
) {
    loop {
        if let Some(orderer) = open_orderer(&consortium, &provider, index).await {
            let serving =
                serve_orderer(orderer.clone(), &format!("submit{index}"), &Parties::anyone(), CancellationToken::new())
                    .await;
            let _serving = serving.expect("nobody else listens there");
            let chain = orderer.channel(CHANNEL).expect("joined");
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
            let serving = serve_peer(
                peer.clone(),
                ServiceScope::Own,
                &format!("peer{index}"),
                &Parties::anyone(),
                CancellationToken::new(),
            )
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
    options.orderers = named("blocks", ORDERERS).into();
    let peer = Peer::open(options).await.ok()?;
    peer.join(&consortium.genesis).await.ok()?;
    Some(peer)
}

async fn world(sim: Sim, faults: bool) -> (usize, u64) {
    let setup = ConsortiumConfig { batch: batch(4), ..ConsortiumConfig::seeded(PEERS, EndorsementRule::Any) };
    let consortium = Arc::new(Consortium::create(setup));
    let provider = SimProvider::new(&sim);
    let heights: Arc<Mutex<[u64; ORDERERS]>> = Arc::default();
    for index in 0..MEMORY {
        let provider = provider.clone();
        sim.node(&format!("memory{index}")).start(move || run_memory(provider.clone(), index));
    }
    for index in 0..ORDERERS {
        let (consortium, provider, heights) = (consortium.clone(), provider.clone(), heights.clone());
        let boot = move || run_orderer(consortium.clone(), provider.clone(), index, heights.clone());
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
            let remote = RemoteNetwork::of(
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
        let orderers = FaultPlanLimits {
            nodes: named("orderer", ORDERERS),
            kinds: vec![FaultKind::Crash, FaultKind::Crash, FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 10,
            within: Duration::from_millis(100)..Duration::from_secs(8),
            lasting: Duration::from_millis(10)..Duration::from_secs(1),
            down_max: 2,
        };
        let others = FaultPlanLimits {
            nodes: [named("memory", MEMORY), named("orderer", ORDERERS), named("peer", PEERS)].concat(),
            kinds: vec![FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 8,
            ..orderers.clone()
        };
        let (one, other) = (FaultPlan::random(sim.seed(), &orderers), FaultPlan::random(sim.seed() ^ 1 << 40, &others));
        let also = sim.clone();
        let running = rt::spawn(async move { also.run_plan(&one).await });
        sim.run_plan(&other).await;
        running.await.expect("the driver does not crash");
        // All orderers and memory nodes lose power, with everything in their memory.
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
    // Until all peers and orderers give the same answer.
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
    let remote = RemoteNetwork::new(named("peer", PEERS));
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
