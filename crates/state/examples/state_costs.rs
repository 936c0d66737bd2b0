//! The processor time of reads and blocks of the state on pooled memory, compared with verbs alone and with the
//! monolithic state.
//!
//! `cargo run --release -p heddle-state --example state_costs [-- PART [ROUNDS]]` runs one part: `warm`, `cold`,
//! `shaped`, `apply` or `ycsb`; without `PART` it runs all. `ROUNDS` is 200 by default. The program is meant for a
//! profiler: `perf record -e cpu-clock -g …`. Times depend on the machine.

use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, CancellationToken, production};
use base::{Bytes, BytesMut, Epoch, Version};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, Token};
use state::disaggregated::DisaggregatedConfig;
use state::{Disaggregated, Monolithic, UpdateBatch, WorldState};
use storage::tables::{FjallConfig, FjallEngine, TablesEngine};
use storage::{MemoryStateStore, StateStore};

const NAMESPACE: &str = "ycsb";
const BUDGET_BYTES: u64 = 512 << 20;
const BLOCK_WRITES: usize = 500;

struct Bench {
    space: AddressSpace,
    state: Disaggregated,
    store: MemoryStateStore,
    _node: Arc<MemoryNode>,
}

impl Bench {
    async fn start(name: &str, latency: Option<Duration>, cache_bytes: usize) -> Bench {
        let shm = || -> Arc<dyn Provider> { Arc::new(ShmProvider::default()) };
        let token = Token::random();
        let expected = token.clone();
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(expected.clone())) };
        let host = shm().host(&format!("local:{name}"), options).await.expect("a host");
        let (section_bytes, stop) = (pool::SECTION_BYTES_DEFAULT, CancellationToken::new());
        let options = MemoryNodeConfig { host, budget_bytes: BUDGET_BYTES, section_bytes, stop };
        let node = MemoryNode::start(options).await.expect("a memory node");
        let provider = match latency {
            None => shm(),
            Some(latency) => {
                Arc::new(ShapedProvider::new(shm(), ShapingConfig { latency, bytes_per_second: 7_000_000_000 }))
            }
        };
        let space = AddressSpace::open(AddressSpaceConfig {
            owner: "bench".to_owned(),
            epoch: Epoch(1),
            provider,
            donors: vec![Donor { address: node.address(), token }],
            section_bytes,
            budget_bytes: BUDGET_BYTES,
        });
        let space = space.await.expect("an address space");
        let store = MemoryStateStore::new();
        let backing: Arc<dyn StateStore> = Arc::new(store.clone());
        let settings = DisaggregatedConfig {
            metadata_cache_bytes: (cache_bytes / 8).max(64 << 10),
            data_cache_bytes: cache_bytes - cache_bytes / 8,
            ..DisaggregatedConfig::default()
        };
        let state = Disaggregated::open(Arc::new(space.clone()), backing, settings).await.expect("a state");
        Bench { space, state, store, _node: node }
    }

    async fn apply(&self, writes: &[(Arc<str>, Bytes)]) -> Duration {
        let number = self.state.height();
        let rows = writes.iter().zip(0..).map(|((key, value), tx)| {
            (NAMESPACE.to_owned(), key.as_bytes().to_vec(), Version::new(number, tx), Some(value.clone()))
        });
        self.store.add_block(rows.collect());
        let batch = batch(number, writes);
        let begin = rt::now();
        self.state.apply(number, batch).await.expect("a block");
        let took = rt::now().since(begin);
        if number.is_multiple_of(32) {
            self.state.persist().await.expect("a savepoint");
        }
        took
    }
}

fn batch(number: u64, writes: &[(Arc<str>, Bytes)]) -> UpdateBatch {
    let namespace: Arc<str> = NAMESPACE.into();
    let mut batch = UpdateBatch::default();
    for ((key, value), tx) in writes.iter().zip(0..) {
        batch.put(&namespace, key.clone(), Some(value.clone()), Version::new(number, tx));
    }
    batch
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

fn keys(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|number| format!("user{number:012}").into()).collect()
}

/// The minimum and the median: the minimum is the least disturbed by other load on the machine.
fn summary(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    format!("{:.0} ns at least, {:.0} as the median", times[0], times[times.len() / 2])
}

/// One task's reads of random keys, beside the cost of two verbs of the same lengths at random addresses.
async fn reads(what: &str, latency: Option<Duration>, records: usize, cache_bytes: usize, rounds: usize) {
    let bench = Bench::start(what, latency, cache_bytes).await;
    let keys = keys(records);
    let value = Bytes::from(vec![7; 1024]);
    for chunk in keys.chunks(BLOCK_WRITES) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value.clone())).collect();
        bench.apply(&writes).await;
    }
    let view = bench.state.view();
    let mut random = Random(1);
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    let first = bench.space.section_bytes();
    let end = first + (records as u64 * 1100).min(bench.space.section_bytes() * 14);
    for round in 0..rounds {
        let places: Vec<usize> = (0..1000).map(|_| random.below(records)).collect();
        // The caller of a read has the key at hand.
        let chosen: Vec<String> = places.iter().map(|place| keys[*place].to_string()).collect();
        let begin = rt::now();
        for key in &chosen {
            let found = view.read(NAMESPACE, key).await.expect("a read").expect("a record");
            assert_eq!(found.value.len(), 1024);
        }
        let took = rt::now().since(begin).as_nanos() as f64 / places.len() as f64;
        let begin = rt::now();
        let mut buffer = BytesMut::with_capacity(2048);
        for place in &places {
            for (length, stride) in [(128, 7919), (1152, 1)] {
                let address = first + ((*place as u64 * 1088 * stride) % (end - first)) / 64 * 64;
                let room = bench.space.section_bytes() - address % bench.space.section_bytes();
                let length = length.min(room as usize);
                buffer.clear();
                buffer = bench.space.read(address, length, buffer).await.expect("a verb");
            }
        }
        if round > 0 {
            ours.push(took);
            floor.push(rt::now().since(begin).as_nanos() as f64 / places.len() as f64);
        }
    }
    println!("{what}, a read: {}; two verbs alone: {}", summary(ours), summary(floor));
}

async fn apply(value_bytes: usize, records: usize, rounds: usize) {
    let bench = Bench::start("apply", None, 64 << 20).await;
    let folder = tempfile::tempdir().expect("a folder");
    let engine = FjallEngine::open(folder.path(), FjallConfig::default()).await.expect("an engine");
    let monolithic = Monolithic::open(engine.tables("t").await.expect("tables"), state::MonolithicConfig::default());
    let keys = keys(records);
    let value = Bytes::from(vec![7; value_bytes]);
    let mut random = Random(1);
    let loading = records / BLOCK_WRITES;
    let (mut ours, mut local) = (Vec::new(), Vec::new());
    for round in 0..loading + rounds {
        let writes: Vec<_> = (0..BLOCK_WRITES)
            .map(|at| if round < loading { round * BLOCK_WRITES + at } else { random.below(records) })
            .map(|place| (keys[place].clone(), value.clone()))
            .collect();
        let took = bench.apply(&writes).await;
        let update = batch(round as u64, &writes);
        let begin = rt::now();
        if monolithic.wants_persist() {
            monolithic.persist().await.expect("a savepoint");
        }
        monolithic.apply(round as u64, update).await.expect("a block");
        if round >= loading {
            ours.push(took.as_nanos() as f64 / BLOCK_WRITES as f64);
            local.push(rt::now().since(begin).as_nanos() as f64 / BLOCK_WRITES as f64);
        }
    }
    println!("apply, a write of {value_bytes} B: {}; monolithic: {}", summary(ours), summary(local));
}

/// Alternating reads and updates of 10 KB records, as `heddle bench state` makes them, without blocks on disk.
async fn ycsb(rounds: usize) {
    let records = 10_000;
    let bench = Bench::start("ycsb", None, 64 << 20).await;
    let keys = keys(records);
    let values: Vec<Bytes> = (0..64).map(|fill| Bytes::from(vec![fill; 10_240])).collect();
    for chunk in keys.chunks(BLOCK_WRITES) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), values[0].clone())).collect();
        bench.apply(&writes).await;
    }
    let mut random = Random(1);
    let (mut reading, mut writing) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let view = bench.state.view();
        let mut writes = Vec::new();
        let begin = rt::now();
        for _ in 0..BLOCK_WRITES {
            let key = &keys[random.below(records)];
            view.read(NAMESPACE, key).await.expect("a read").expect("a record");
            if random.below(2) == 0 {
                writes.push((key.clone(), values[random.below(64)].clone()));
            }
        }
        reading.push(rt::now().since(begin).as_nanos() as f64 / BLOCK_WRITES as f64);
        writing.push(bench.apply(&writes).await.as_nanos() as f64 / writes.len() as f64);
    }
    println!("ycsb-a of 10 KB, a read: {}; a write: {}", summary(reading), summary(writing));
}

fn main() {
    let part = std::env::args().nth(1);
    let rounds = std::env::args().nth(2).and_then(|rounds| rounds.parse().ok()).unwrap_or(200);
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    production::run(async {
        if wanted("warm") {
            reads("warm", None, 10_000, 128 << 20, rounds).await;
        }
        if wanted("cold") {
            reads("cold", None, 200_000, 128 << 10, rounds).await;
        }
        if wanted("shaped") {
            reads("cold at 2 µs", Some(Duration::from_micros(2)), 200_000, 128 << 10, rounds).await;
        }
        if wanted("apply") {
            apply(1024, 20_000, rounds).await;
        }
        if wanted("ycsb") {
            ycsb(rounds).await;
        }
    });
}
