//! What the simulations of a group and of a store on it have in common: memory nodes and processors, the faults of a seed, and
//! running many seeds.

pub mod campaign;
pub mod history;

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::{Bounds, FaultKind, Plan, Sim};
use base::rt::{self, Stop};
use consensus::{Error, Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Status, Timing};
use rma::sim::SimFabric;
use rma::{Fabric, Host, HostOptions, NodeId, TOKEN_BYTES, Token};

use campaign::{endure, plans_of};

pub const GROUP: GroupId = GroupId(7);
pub const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
pub const MEMORY_NODES: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];
pub const PROCESSORS: [&str; 3] = ["p0", "p1", "p2"];
/// How long faults happen.
const TROUBLE: Duration = Duration::from_millis(2500);
/// Before a processor that has crashed starts again.
const REVIVE: Duration = Duration::from_millis(60);
/// Within this everything works again.
pub const CALM_MAX: Duration = Duration::from_secs(20);

/// Every named place where a fault is injected, but those where processors crash.
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

pub fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(10),
        lease: Duration::from_millis(40),
        election_timeout: Duration::from_millis(50),
        attempt_max: Duration::from_millis(40),
        answer_max: Duration::from_millis(100),
        grace: Duration::from_millis(2),
        reconnect: Duration::from_millis(20),
        copy_bytes_per_second: Timing::UNLIMITED,
    }
}

/// Memory nodes of a seed.
pub fn nodes(seed: u64) -> usize {
    if seed % 4 == 3 { 5 } else { 3 }
}

/// Shares of data of a seed's blocks: every second eight seeds have a coded group.
pub fn data_shares(seed: u64) -> u32 {
    if seed / 8 % 2 == 1 { nodes(seed) as u32 / 2 + 1 } else { 1 }
}

/// Where so many memory nodes are, for whoever is called `name`.
pub fn places(memory_nodes: usize, name: &str) -> Vec<Place> {
    let place = |address: &&str| Place { address: (*address).to_owned(), name: name.into(), token: TOKEN };
    MEMORY_NODES[..memory_nodes].iter().map(place).collect()
}

/// A memory node's boot: it knows nothing of its past but what its disk has, of a persistent one. `wrap` stands before its host.
pub fn start_memory_node(
    sim: &Sim,
    fabric: &SimFabric,
    which: usize,
    layout: Layout,
    is_persistent: bool,
    wrap: impl Fn(Arc<dyn Host>) -> Arc<dyn Host> + Clone + Send + Sync + 'static,
) {
    let (fabric, address) = (fabric.clone(), MEMORY_NODES[which]);
    sim.node(address).start(move || {
        let (fabric, wrap) = (fabric.clone(), wrap.clone());
        async move {
            // Again after its disk has failed, as whoever runs one does.
            loop {
                let options = HostOptions { node: NodeId(which as u32), tokens: Arc::new(|_| Some(TOKEN)) };
                let host = loop {
                    match fabric.host(address, options.clone()).await {
                        Ok(host) => break host,
                        Err(_) => rt::sleep(Duration::from_millis(5)).await,
                    }
                };
                let groups = vec![GroupMemory { id: GROUP, layout }];
                let closing = Arc::clone(&host);
                let options = MemoryNodeOptions { host: wrap(host), groups, stop: Stop::new() };
                let started = match is_persistent {
                    false => MemoryNode::start(options).await,
                    true => match Directory::open("/memory").await {
                        Ok(directory) => MemoryNode::start_persistent(options, &directory).await,
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

/// Makes a group on memory nodes that were just started, as its operator does.
pub async fn format(sim: &Sim, group: Group) {
    rt::sleep(Duration::from_millis(20)).await;
    let formatted = sim.node("operator").spawn(async move { consensus::format(&group).await });
    formatted.await.expect("nothing crashes it").expect("all nodes answer");
}

/// Loses the memory of nodes, never of more at a time than the group survives. `status` is that of whoever coordinates.
async fn lose_memory(
    sim: Sim,
    memory_nodes: usize,
    is_coded: bool,
    status: impl Fn() -> Option<Status> + Send + 'static,
    until: Stop,
) {
    let mut chance = sim.chance();
    while !until.is_stopped() {
        rt::sleep(chance.duration(&(Duration::from_millis(100)..Duration::from_millis(900)))).await;
        if until.is_stopped() || status().is_none_or(|status| status.live != memory_nodes) {
            continue;
        }
        let count = 1 + chance.index(memory_nodes / 2);
        let first = chance.index(memory_nodes);
        for step in 0..count {
            // Of a coded group, a node that is lost to the coordinator alone has only old shares.
            let spare = status().map_or(0, |status| status.spare);
            if step > 0 && is_coded && spare == 0 {
                break;
            }
            let node = sim.node(MEMORY_NODES[(first + step) % memory_nodes]);
            node.crash();
            rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
            node.restart();
        }
        // Until a coordinator has noticed.
        rt::sleep(Duration::from_millis(500)).await;
    }
}

/// Faults of everybody, of these kinds, and so many crashes of processors.
pub fn plans(seed: u64, kinds: &[FaultKind], crashes: usize) -> [Plan; 2] {
    let memory_nodes = MEMORY_NODES[..nodes(seed)].iter();
    let everybody = memory_nodes.chain(&PROCESSORS).map(|node| (*node).to_owned()).collect();
    let bounds = Bounds {
        nodes: everybody,
        kinds: kinds.to_vec(),
        faults: 10,
        within: Duration::from_millis(300)..TROUBLE,
        lasting: Duration::from_millis(5)..Duration::from_millis(400),
        down_max: 2,
    };
    plans_of(seed, bounds, &PROCESSORS, crashes)
}

/// Trouble, with what `inject` injects, and then calm: nothing is injected any more, all is healed and runs.
pub async fn trouble(
    sim: &Sim,
    is_coded: bool,
    plans: [Plan; 2],
    status: impl Fn() -> Option<Status> + Send + 'static,
    inject: impl FnOnce(),
    points: impl Iterator<Item = &&'static str>,
) {
    let calm = Stop::new();
    rt::sleep(Duration::from_millis(200)).await;
    let memory_nodes = nodes(sim.seed());
    let losing = rt::spawn(lose_memory(sim.clone(), memory_nodes, is_coded, status, calm.clone()));
    inject();
    endure(sim, plans, &PROCESSORS, REVIVE, points).await;
    calm.stop();
    losing.await.expect("the driver does not crash");
}
