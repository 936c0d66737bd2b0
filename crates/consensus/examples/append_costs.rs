//! What a replicated 64-byte write costs one client, beside its floor: three raw writes of 64 bytes posted together.
//!
//! `cargo run --release -p heddle-consensus --example append_costs`
//!
//! F = 1, over shared memory, and over shared memory slowed to 2 µs a verb. Both are measured in turns, batch by batch, so
//! that a machine that is slow for a while is slow for both. The client writes to one block after the other, as fast as it
//! is answered; applying, headers and heartbeats are in its way as they fall.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::{self, Stop};
use base::{Bytes, BytesMut};
use consensus::{
    Coordinator, Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Standby, Timing,
};
use rma::shaped::{Shape, Shaped};
use rma::shm::Shm;
use rma::{Capability, Credential, Endpoint, Fabric, HostOptions, NodeId, Rights, TOKEN_BYTES, Token};

const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const LAYOUT: Layout =
    Layout { log_bytes: 4 << 20, direct_bytes: 0, memory_bytes: 16 << 20, block_bytes: 64, data_shares: 1 };
const BATCHES: usize = 60;
const CALLS: usize = 2000;
const NODES: usize = 3;

/// Three regions and the way to them.
struct Floor {
    nodes: Vec<(Endpoint, Capability)>,
    _hosts: Vec<Arc<dyn rma::Host>>,
}

impl Floor {
    async fn start(host_fabric: &Shm, fabric: &Arc<dyn Fabric>, name: &str) -> Floor {
        let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
        for node in 0..NODES {
            let options = HostOptions { node: NodeId(node as u32), tokens: Arc::new(|_| Some(TOKEN)) };
            let host = host_fabric.host(&format!("local:{name}-floor-{node}"), options).await.expect("a host");
            let region = host.register("floor", LAYOUT.log_bytes).await.expect("memory");
            let capability = host.grant(region, Rights::ALL, "x").expect("a grant");
            let credential = Credential { name: "bench".to_owned(), token: TOKEN };
            nodes.push((fabric.connect(&host.address(), &credential).await.expect("connects"), capability));
            hosts.push(host);
        }
        Floor { nodes, _hosts: hosts }
    }

    async fn write(&self, at: u64, bytes: &Bytes) {
        let posted: [_; NODES] = std::array::from_fn(|node| {
            let (endpoint, capability) = &self.nodes[node];
            endpoint.write(capability, at, std::slice::from_ref(bytes))
        });
        for write in posted {
            write.await.expect("nobody revokes it");
        }
    }
}

async fn group(host_fabric: &Shm, fabric: &Arc<dyn Fabric>, name: &str) -> (Coordinator, Vec<Arc<MemoryNode>>) {
    let mut nodes = Vec::new();
    let place = |node| Place { address: format!("local:{name}-{node}"), name: "bench".into(), token: TOKEN };
    let id = GroupId(1);
    for node in 0..NODES {
        let options = HostOptions { node: NodeId(node as u32), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = host_fabric.host(&place(node).address, options).await.expect("a host");
        let groups = vec![GroupMemory { id, layout: LAYOUT }];
        let options = MemoryNodeOptions { host, groups, stop: Stop::new() };
        nodes.push(MemoryNode::start(options).await.expect("memory"));
    }
    // A machine that others use too is not always there when a heartbeat is due.
    let timing = Timing { lease: Duration::from_millis(500), ..Timing::default() };
    let group =
        Group { id, layout: LAYOUT, nodes: (0..NODES).map(place).collect(), fabric: Arc::clone(fabric), timing };
    consensus::format(&group).await.expect("blank nodes");
    let coordinator = Standby::new(group, 1).expect("a good group").take_over().await.expect("a majority");
    (coordinator, nodes)
}

/// The time at which so many of a thousand are done, in nanoseconds.
fn quantile(times: &mut [u64], thousandths: usize) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) * thousandths / 1000]
}

async fn measure(what: &str, name: &str, host_fabric: &Shm, fabric: Arc<dyn Fabric>) {
    let floor = Floor::start(host_fabric, &fabric, name).await;
    let (coordinator, _nodes) = group(host_fabric, &fabric, name).await;
    let bytes = BytesMut::from(&[7; 64][..]).freeze();
    let blocks = LAYOUT.memory_bytes / 64;
    let mut at = 0;
    let (mut floors, mut appends, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        let (mut raw, mut whole) = (Vec::new(), Vec::new());
        for call in 0..CALLS {
            let start = Instant::now();
            floor.write(call as u64 * 128, &bytes).await;
            raw.push(start.elapsed().as_nanos() as u64);
        }
        for _ in 0..CALLS {
            at = (at + 1) % blocks;
            let start = Instant::now();
            coordinator.write(at * 64, bytes.clone()).await.expect("it serves");
            whole.push(start.elapsed().as_nanos() as u64);
        }
        ratios.push(quantile(&mut whole, 500) * 1000 / quantile(&mut raw, 500).max(1));
        floors.append(&mut raw);
        appends.append(&mut whole);
    }
    println!(
        "{what:<14} floor p50 {:>5} p99 {:>6} ns   append p50 {:>5} p99 {:>6} ns, mean {:>5}   x {:.2} (median of batches)",
        quantile(&mut floors, 500),
        quantile(&mut floors, 990),
        quantile(&mut appends, 500),
        quantile(&mut appends, 990),
        appends.iter().sum::<u64>() / appends.len() as u64,
        quantile(&mut ratios, 500) as f64 / 1000.0,
    );
}

fn main() {
    let runtime = rt::production::Runtime::new(2).expect("threads");
    runtime.block_on(async {
        let shm = Shm::default();
        measure("shm", "plain", &shm, Arc::new(shm.clone())).await;
        let shape = Shape::of_latency(Duration::from_micros(2));
        measure("shaped 2 us", "shaped", &shm, Arc::new(Shaped::new(Arc::new(shm.clone()), shape))).await;
    });
}
