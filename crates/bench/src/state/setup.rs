//! The common setup of the state benchmarks: a memory node, an address space, a state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use base::{Bytes, Epoch, Version};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, Token};
use state::disaggregated::DisaggregatedConfig;
use state::{Disaggregated, UpdateBatch, WorldState};
use storage::{MemoryStateStore, StateStore};

use measurement::error::Error;
use measurement::random::Random;

/// The namespace of all keys.
pub const NAMESPACE: &str = "ycsb";
/// The owner of the remote memory.
pub const OWNER: &str = "bench";
/// Bytes a second of a shaped link: 56 Gbit/s, as on the testbed of FlexChain's section 5.
const SHAPED_BYTES_PER_SECOND: u64 = 56_000_000_000 / 8;

/// Numbers the hosts of this process.
static HOSTS: AtomicU64 = AtomicU64::new(0);

pub fn failed(what: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Part { what, reason: error.to_string() }
}

/// A memory node within this process, and its owner's side.
pub struct BenchmarkPool {
    pub space: AddressSpace,
    /// Where it is, for other readers of the memory.
    pub donor: Donor,
    /// Runs until the pool is dropped.
    _node: Arc<MemoryNode>,
}

/// The interconnect: `shm`, plain or with a latency.
pub fn provider(latency: Option<Duration>) -> Arc<dyn Provider> {
    let shm: Arc<dyn Provider> = Arc::new(ShmProvider::default());
    match latency {
        None => shm,
        Some(latency) => {
            Arc::new(ShapedProvider::new(shm, ShapingConfig { latency, bytes_per_second: SHAPED_BYTES_PER_SECOND }))
        }
    }
}

/// The name of the interconnect in tables.
pub fn provider_name(latency: Option<Duration>) -> String {
    match latency {
        None => "shm".to_owned(),
        Some(latency) => format!("shm + {} µs", latency.as_micros()),
    }
}

impl BenchmarkPool {
    pub async fn start(
        latency: Option<Duration>,
        budget_bytes: u64,
        section_bytes: u64,
    ) -> Result<BenchmarkPool, Error> {
        let token = Token::random();
        let expected = token.clone();
        let number = HOSTS.fetch_add(1, Ordering::Relaxed);
        let address = format!("local:bench-{}-{number}", std::process::id());
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(expected.clone())) };
        // The host's own side is never shaped: the side that posts a verb pays for the network.
        let host = provider(None).host(&address, options).await.map_err(|error| failed("a memory node", error))?;
        let budget_bytes = budget_bytes.next_multiple_of(section_bytes);
        let node =
            MemoryNode::start(MemoryNodeConfig { host, budget_bytes, section_bytes, stop: CancellationToken::new() });
        let node = node.await.map_err(|error| failed("a memory node", error))?;
        let donor = Donor { address: node.address(), token };
        let space = space(latency, donor.clone(), budget_bytes, section_bytes).await?;
        Ok(BenchmarkPool { space, donor, _node: node })
    }
}

/// An address space on the memory of one donor.
pub async fn space(
    latency: Option<Duration>,
    donor: Donor,
    budget_bytes: u64,
    section_bytes: u64,
) -> Result<AddressSpace, Error> {
    let space = AddressSpace::open(AddressSpaceConfig {
        owner: OWNER.to_owned(),
        epoch: Epoch(1),
        provider: provider(latency),
        donors: vec![donor],
        section_bytes,
        budget_bytes,
    });
    space.await.map_err(|error| failed("an address space", error))
}

/// A state on a pool, with its storage in memory.
pub struct PooledState {
    pub state: Disaggregated,
    pub store: MemoryStateStore,
    pub pool: BenchmarkPool,
}

impl PooledState {
    pub async fn start(
        latency: Option<Duration>,
        budget_bytes: u64,
        settings: DisaggregatedConfig,
    ) -> Result<PooledState, Error> {
        PooledState::with_sections(latency, budget_bytes, pool::SECTION_BYTES_DEFAULT, settings).await
    }

    pub async fn with_sections(
        latency: Option<Duration>,
        budget_bytes: u64,
        section_bytes: u64,
        settings: DisaggregatedConfig,
    ) -> Result<PooledState, Error> {
        let pool = BenchmarkPool::start(latency, budget_bytes, section_bytes).await?;
        let store = MemoryStateStore::new();
        let backing: Arc<dyn StateStore> = Arc::new(store.clone());
        let state = Disaggregated::open(Arc::new(pool.space.clone()), backing, settings).await;
        Ok(PooledState { state: state.map_err(|error| failed("the state", error))?, store, pool })
    }

    /// Applies these writes as the next block.
    pub async fn apply(&self, writes: &[(Arc<str>, Bytes)]) -> Result<(), Error> {
        self.apply_batch(block(self.state.height(), writes).0).await
    }

    /// Applies a batch as the next block; storage gets it first, as the order of durability requires.
    pub async fn apply_batch(&self, batch: UpdateBatch) -> Result<(), Error> {
        self.apply_timed(batch).await.map(drop)
    }

    /// As [`PooledState::apply_batch`]; returns how long the state alone took.
    pub async fn apply_timed(&self, batch: UpdateBatch) -> Result<Duration, Error> {
        let row = |(namespace, key, update): (&Arc<str>, &Arc<str>, &state::Update)| {
            (namespace.to_string(), key.as_bytes().to_vec(), update.version, update.value.clone())
        };
        self.store.add_block(batch.iter().map(row).collect());
        if self.state.wants_persist() {
            self.state.persist().await.map_err(|error| failed("a savepoint", error))?;
        }
        let start = Instant::now();
        self.state.apply(self.state.height(), batch).await.map_err(|error| failed("a block", error))?;
        Ok(start.elapsed())
    }
}

/// The rows of a block.
pub type StoredRows = Vec<(Arc<str>, Version, Bytes)>;

/// A block of these writes, one transaction each.
pub fn block(number: u64, writes: &[(Arc<str>, Bytes)]) -> (UpdateBatch, StoredRows) {
    let namespace: Arc<str> = NAMESPACE.into();
    let mut batch = UpdateBatch::default();
    let mut rows = Vec::with_capacity(writes.len());
    for (transaction, (key, value)) in writes.iter().enumerate() {
        let version = Version::new(number, u32::try_from(transaction).expect("blocks are small"));
        batch.put(&namespace, key.clone(), Some(value.clone()), version);
        rows.push((key.clone(), version, value.clone()));
    }
    (batch, rows)
}

/// The rows of a block as storage takes them.
pub fn stored(rows: StoredRows) -> Vec<(String, Vec<u8>, Version, Option<Bytes>)> {
    let row = |(key, version, value): (Arc<str>, Version, Bytes)| {
        (NAMESPACE.to_owned(), key.as_bytes().to_vec(), version, Some(value))
    };
    rows.into_iter().map(row).collect()
}

/// The keys of a data set.
pub fn keys(count: usize) -> Vec<Arc<str>> {
    (0..count).map(|number| format!("user{number:012}").into()).collect()
}

/// A value that does not compress.
pub fn value(random: &mut Random, bytes: usize) -> Bytes {
    let mut value = vec![0; bytes];
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.draw().to_le_bytes()[..chunk.len()]);
    }
    value.into()
}

/// The mean nanoseconds of `count` operations that started at `since`.
pub fn each_ns(since: Instant, count: usize) -> f64 {
    since.elapsed().as_nanos() as f64 / count.max(1) as f64
}
