//! The cost of a replicated 64-byte write for one client, compared with its floor: three raw writes of 64 bytes posted
//! together.
//!
//! `cargo run --release -p heddle-sift --example append_costs`
//!
//! F = 1. The benchmark runs over shared memory, and then over shared memory slowed to 2 µs per verb. In both runs
//! batches of writes and batches of the floor alternate, so that a slow phase of the machine affects both. The client
//! writes to one block after another, and starts each write as soon as the previous write is acknowledged. Applying,
//! headers and heartbeats interrupt the client as they occur.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::{Capability, Credential, Endpoint, HostConfig, NodeId, Provider, Rights, TOKEN_BYTES, Token};
use sift::{
    Coordinator, GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup,
    SiftTimeouts, Standby,
};

const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 4 << 20, unlogged_bytes: 0, memory_bytes: 16 << 20, block_bytes: 64, data_shards: 1 };
const BATCHES: usize = 60;
const CALLS: usize = 2000;
const NODES: usize = 3;

/// Three regions and connections to them.
struct Floor {
    nodes: Vec<(Endpoint, Capability)>,
    _hosts: Vec<Arc<dyn rma::Host>>,
}

impl Floor {
    async fn start(host_provider: &ShmProvider, provider: &Arc<dyn Provider>, name: &str) -> Floor {
        let (mut nodes, mut hosts) = (Vec::new(), Vec::new());
        for node in 0..NODES {
            let options = HostConfig { node: NodeId(node as u32), tokens: Arc::new(|_| Some(TOKEN)) };
            let host = host_provider.host(&format!("local:{name}-floor-{node}"), options).await.expect("a host");
            let region = host.register("floor", LAYOUT.log_bytes).await.expect("memory");
            let capability = host.grant(region, Rights::ALL, "x").expect("a grant");
            let credential = Credential { name: "bench".to_owned(), token: TOKEN };
            nodes.push((provider.connect(&host.address(), &credential).await.expect("connects"), capability));
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

async fn group(
    host_provider: &ShmProvider,
    provider: &Arc<dyn Provider>,
    name: &str,
) -> (Coordinator, Vec<Arc<LogMemoryNode>>) {
    let mut nodes = Vec::new();
    let place =
        |node| MemoryNodeAddress { address: format!("local:{name}-{node}"), name: "bench".into(), token: TOKEN };
    let id = GroupId(1);
    for node in 0..NODES {
        let options = HostConfig { node: NodeId(node as u32), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = host_provider.host(&place(node).address, options).await.expect("a host");
        let groups = vec![GroupMemory { id, layout: LAYOUT }];
        let options = LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() };
        nodes.push(LogMemoryNode::start(options).await.expect("memory"));
    }
    // A shared machine may send a heartbeat late.
    let timing = SiftTimeouts { lease: Duration::from_millis(500), ..SiftTimeouts::default() };
    let group = SiftGroup {
        id,
        layout: LAYOUT,
        nodes: (0..NODES).map(place).collect(),
        provider: Arc::clone(provider),
        timing,
    };
    sift::format(&group).await.expect("blank nodes");
    let coordinator = Standby::new(group, 1).expect("a good group").take_over().await.expect("a majority");
    (coordinator, nodes)
}

/// A percentile in thousandths, in nanoseconds.
fn quantile(times: &mut [u64], thousandths: usize) -> u64 {
    times.sort_unstable();
    times[(times.len() - 1) * thousandths / 1000]
}

async fn measure(what: &str, name: &str, host_provider: &ShmProvider, provider: Arc<dyn Provider>) {
    let floor = Floor::start(host_provider, &provider, name).await;
    let (coordinator, _nodes) = group(host_provider, &provider, name).await;
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
        let shm = ShmProvider::default();
        measure("shm", "plain", &shm, Arc::new(shm.clone())).await;
        let shape = ShapingConfig::from_latency(Duration::from_micros(2));
        measure("shaped 2 us", "shaped", &shm, Arc::new(ShapedProvider::new(Arc::new(shm.clone()), shape))).await;
    });
}
