//! Common parts of the simulations of a group, and of the store and the ordered log on it: memory nodes, CPU nodes, the
//! faults of a seed, and [campaigns](campaign) of many seeds.
//!
//! This module exists only with the feature `testing`, which only tests enable.

pub mod campaign;

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::{FaultKind, FaultPlan, FaultPlanLimits, Sim};
use base::rt::{self, CancellationToken};
use rma::sim::SimProvider;
use rma::{Host, HostConfig, NodeId, Provider, TOKEN_BYTES, Token};

use crate::{
    CoordinatorStatus, Error, GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress,
    SiftGroup, SiftTimeouts,
};
use campaign::{endure, plans_of};

/// The group.
pub const GROUP: GroupId = GroupId(7);
/// The token of its memory nodes.
pub const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
/// Names of memory nodes; a seed has the first three or all of them.
pub const MEMORY_NODES: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];
/// Names of CPU nodes.
pub const CPU_NODES: [&str; 3] = ["p0", "p1", "p2"];
/// How long faults happen.
const TROUBLE: Duration = Duration::from_millis(2500);
/// Time before a crashed CPU node starts again.
const REVIVE: Duration = Duration::from_millis(60);
/// Within this time everything works again.
pub const CALM_MAX: Duration = Duration::from_secs(20);

/// Every named point where a fault is injected, except those where CPU nodes crash.
pub const FAULT_POINTS: &[&str] = &[
    "consensus.node.answer_lost",
    "consensus.node.request_lost",
    "consensus.node.unconfirmed",
    "rma.sim.delay_revocation",
    "rma.sim.delay_verb",
    "rma.sim.lose_completion",
    "rma.sim.lose_verb",
    "rma.sim.tear",
];

/// Short time-outs, so that a short run has many elections.
pub fn timing() -> SiftTimeouts {
    SiftTimeouts {
        heartbeat: Duration::from_millis(10),
        lease: Duration::from_millis(40),
        election_timeout: Duration::from_millis(50),
        attempt_max: Duration::from_millis(40),
        answer_max: Duration::from_millis(100),
        grace: Duration::from_millis(2),
        reconnect: Duration::from_millis(20),
        copy_bytes_per_second: SiftTimeouts::UNLIMITED,
    }
}

/// Memory nodes of a seed.
pub fn nodes(seed: u64) -> usize {
    if seed % 4 == 3 { 5 } else { 3 }
}

/// Data shards of a seed's blocks: every second eight seeds have an erasure-coded group.
pub fn data_shares(seed: u64) -> u32 {
    if seed / 8 % 2 == 1 { nodes(seed) as u32 / 2 + 1 } else { 1 }
}

/// The addresses of the first `memory_nodes` nodes, for a client called `name`.
pub fn addresses(memory_nodes: usize, name: &str) -> Vec<MemoryNodeAddress> {
    let place = |address: &&str| MemoryNodeAddress { address: (*address).to_owned(), name: name.into(), token: TOKEN };
    MEMORY_NODES[..memory_nodes].iter().map(place).collect()
}

/// Starts a memory node, which knows nothing of its past except what the disk of a persistent node has. `wrap` wraps
/// its host.
pub fn start_memory_node(
    sim: &Sim,
    provider: &SimProvider,
    which: usize,
    layout: GroupLayout,
    is_persistent: bool,
    wrap: impl Fn(Arc<dyn Host>) -> Arc<dyn Host> + Clone + Send + Sync + 'static,
) {
    let (provider, address) = (provider.clone(), MEMORY_NODES[which]);
    sim.node(address).start(move || {
        let (provider, wrap) = (provider.clone(), wrap.clone());
        async move {
            // Start again after its disk has failed, as the operator's supervisor does.
            loop {
                let options = HostConfig { node: NodeId(which as u32), tokens: Arc::new(|_| Some(TOKEN)) };
                let host = loop {
                    match provider.host(address, options.clone()).await {
                        Ok(host) => break host,
                        Err(_) => rt::sleep(Duration::from_millis(5)).await,
                    }
                };
                let groups = vec![GroupMemory { id: GROUP, layout }];
                let closing = Arc::clone(&host);
                let options = LogMemoryNodeConfig { host: wrap(host), groups, stop: CancellationToken::new() };
                let started = match is_persistent {
                    false => LogMemoryNode::start(options).await,
                    true => match Directory::open("/memory").await {
                        Ok(directory) => LogMemoryNode::start_persistent(options, &directory).await,
                        Err(error) => Err(Error::Disk { doing: "opening a directory", reason: error.to_string() }),
                    },
                };
                match started {
                    Ok(node) => {
                        node.failed().await;
                        node.stop().await;
                    }
                    Err(Error::Disk { .. }) => closing.close().await,
                    Err(error) => panic!("report: a memory node does not start: {error}"),
                }
                rt::sleep(Duration::from_millis(20)).await;
            }
        }
    });
}

/// Formats a group on memory nodes that were just started, as its operator does.
pub async fn format(sim: &Sim, group: SiftGroup) {
    rt::sleep(Duration::from_millis(20)).await;
    let formatted = sim.node("operator").spawn(async move { crate::format(&group).await });
    formatted.await.expect("nothing crashes it").expect("all nodes answer");
}

/// Loses the memory of nodes, never of more at a time than the group survives. `status` is the current coordinator's.
async fn lose_memory(
    sim: Sim,
    memory_nodes: usize,
    is_coded: bool,
    status: impl Fn() -> Option<CoordinatorStatus> + Send + 'static,
    until: CancellationToken,
) {
    let mut rng = sim.rng();
    while !until.is_cancelled() {
        rt::sleep(rng.duration(&(Duration::from_millis(100)..Duration::from_millis(900)))).await;
        if until.is_cancelled() || status().is_none_or(|status| status.live != memory_nodes) {
            continue;
        }
        let count = 1 + rng.index(memory_nodes / 2);
        let first = rng.index(memory_nodes);
        for step in 0..count {
            // In an erasure-coded group, a node that only the coordinator has lost has old shards only.
            let spare = status().map_or(0, |status| status.spare);
            if step > 0 && is_coded && spare == 0 {
                break;
            }
            let node = sim.node(MEMORY_NODES[(first + step) % memory_nodes]);
            node.crash();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
            node.restart();
        }
        // Wait until a coordinator has noticed.
        rt::sleep(Duration::from_millis(500)).await;
    }
}

/// Faults of these kinds at all nodes, and `crashes` crashes of CPU nodes.
pub fn plans(seed: u64, kinds: &[FaultKind], crashes: usize) -> [FaultPlan; 2] {
    let memory_nodes = MEMORY_NODES[..nodes(seed)].iter();
    let everybody = memory_nodes.chain(&CPU_NODES).map(|node| (*node).to_owned()).collect();
    let bounds = FaultPlanLimits {
        nodes: everybody,
        kinds: kinds.to_vec(),
        faults: 10,
        within: Duration::from_millis(300)..TROUBLE,
        lasting: Duration::from_millis(5)..Duration::from_millis(400),
        down_max: 2,
    };
    plans_of(seed, bounds, &CPU_NODES, crashes)
}

/// Trouble, with the faults that `inject` injects, and then calm: no fault is injected any more, everything is healed
/// and runs.
pub async fn trouble(
    sim: &Sim,
    is_coded: bool,
    plans: [FaultPlan; 2],
    status: impl Fn() -> Option<CoordinatorStatus> + Send + 'static,
    inject: impl FnOnce(),
    points: impl Iterator<Item = &&'static str>,
) {
    let calm = CancellationToken::new();
    rt::sleep(Duration::from_millis(200)).await;
    let memory_nodes = nodes(sim.seed());
    let losing = rt::spawn(lose_memory(sim.clone(), memory_nodes, is_coded, status, calm.clone()));
    inject();
    endure(sim, plans, &CPU_NODES, REVIVE, points).await;
    calm.cancel();
    losing.await.expect("the driver does not crash");
}
