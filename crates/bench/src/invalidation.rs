//! What it costs a peer that a block invalidates what its other compute nodes have cached (FlexChain, section 4.2: a block
//! has committed only when every other compute node has answered).
//!
//! 1. A primary and its followers run in this process, with real pooled memory, over links within the process. The protocol,
//!    leases, caches and acknowledgements are those of the product. The primary runs on one thread, its
//!    followers on another.
//! 2. Each follower reads all keys, so that it has cached what the blocks change.
//! 3. The primary applies blocks, without followers, with 8, and with as many as a peer can have. The cost of a block's
//!    invalidations is the processor time of the primary's thread for a block, less that without followers.
//!
//! Nothing is simulated. The time until a block shows is reported too, but depends on the processors of this
//! machine, which all followers share.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::rt::net::{self, Link};
use base::rt::{self, CancellationToken};
use measurement::error::Error;
use measurement::figure::Figure;
use measurement::floor::thread_us;
use measurement::interval::median;
use measurement::random::Random;
use pool::{Donor, ReadOnlySpace, ReadOnlySpaceConfig};
use replica::offload::WorkPlacement as _;
use replica::{FindPrimary, ReplicatedState as _};
use state::disaggregated::DisaggregatedConfig;
use state::disaggregated::followers::FollowerEnvironment;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Follower, Snapshot as _};
use storage::{MemoryStateStore, StateStore};

use crate::state::setup::{NAMESPACE, OWNER, PooledState, failed, keys, provider, value};

/// The numbers of followers. Of 64 compute nodes, one is the primary.
const FOLLOWERS: [usize; 3] = [0, 8, replica::NODES_MAX - 1];
/// Pooled memory of the peer.
const MEMORY_BYTES: u64 = 64 << 20;
/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// How long followers may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// A follower reads this many keys before others have their turn.
const KEYS_BETWEEN_YIELDS: usize = 50;
const POLL: Duration = Duration::from_millis(5);

/// Numbers the primaries of this process, for their addresses.
static PRIMARIES: AtomicU64 = AtomicU64::new(0);

/// The measurement's parameters.
#[derive(Clone, Debug)]
pub struct InvalidationConfig {
    /// Blocks of each round.
    pub blocks: u64,
    /// Keys that a block writes.
    pub writes: usize,
    /// Keys in all, which every follower has cached.
    pub keys: usize,
    /// Whether a block counts although a follower was fenced meanwhile: for a quick look at a busy machine.
    pub may_lose_followers: bool,
    /// Rounds; the median counts.
    pub rounds: usize,
    /// Determines values and keys.
    pub seed: u64,
}

impl Default for InvalidationConfig {
    fn default() -> InvalidationConfig {
        InvalidationConfig { blocks: 100, writes: 200, keys: 2_000, may_lose_followers: false, rounds: 5, seed: 1 }
    }
}

/// What a follower needs around it.
struct BenchmarkEnvironment {
    address: String,
    store: MemoryStateStore,
    donor: Donor,
}

#[async_trait]
impl FindPrimary for BenchmarkEnvironment {
    async fn primary(&self) -> io::Result<Link> {
        net::connect(&self.address).await
    }
}

#[async_trait]
impl FollowerEnvironment for BenchmarkEnvironment {
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let space = ReadOnlySpace::open(ReadOnlySpaceConfig {
            owner: OWNER.to_owned(),
            provider: provider(None),
            donors: vec![self.donor.clone()],
            section_bytes: pool::SECTION_BYTES_DEFAULT,
            find_donor: Arc::new(|_| None),
        });
        Ok(Arc::new(space.await.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(self.store.clone()))
    }
}

/// What a block costs, in microseconds.
#[derive(Clone, Copy)]
struct BlockCost {
    /// Processor time of the primary.
    primary_us: f64,
    /// The time until the block shows.
    block_us: f64,
}

/// Applies blocks at a peer with this many followers. Blocks its thread, which is the primary's.
fn measure(
    followers: usize,
    config: &InvalidationConfig,
    round: usize,
    stop: &CancellationToken,
) -> Result<BlockCost, Error> {
    let runtime = |mut builder: tokio::runtime::Builder| {
        builder.enable_all().build().map_err(|error| failed("a thread of a compute node", error))
    };
    let mut of_followers = tokio::runtime::Builder::new_multi_thread();
    of_followers.worker_threads(1);
    let of_followers = runtime(of_followers)?;
    let of_primary = runtime(tokio::runtime::Builder::new_current_thread())?;
    of_primary.block_on(on_primary(followers, config, round, of_followers.handle(), stop))
}

async fn on_primary(
    followers: usize,
    config: &InvalidationConfig,
    round: usize,
    of_followers: &tokio::runtime::Handle,
    stop: &CancellationToken,
) -> Result<BlockCost, Error> {
    let mut random = Random::new(config.seed ^ ((round as u64) << 32));
    let keys = keys(config.keys);
    let primary = Arc::new(PooledState::start(None, MEMORY_BYTES, DisaggregatedConfig::default()).await?);
    let address = format!("bench-primary-{}", PRIMARIES.fetch_add(1, Ordering::Relaxed));
    let mut listener = net::listen(&address).await.map_err(|error| failed("the primary's port", error))?;
    let serving = Arc::clone(&primary);
    let _serving = rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            let primary = Arc::clone(&serving);
            drop(rt::spawn(async move {
                // A follower that is gone has ended its link.
                let _ = primary.state.serve_follower(link).await;
            }));
        }
    })
    .abort_on_drop();
    primary.state.admit_followers().await;
    for chunk in keys.chunks(config.writes) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), value(&mut random, VALUE_BYTES))).collect();
        primary.apply(&writes).await?;
    }
    let environment = BenchmarkEnvironment { address, store: primary.store.clone(), donor: primary.pool.donor.clone() };
    let joining = of_followers.spawn(join(followers, environment, keys.clone(), stop.clone()));
    let followers = joining.await.map_err(|error| failed("followers", error))??;

    let mut blocks = Vec::with_capacity(config.blocks as usize);
    for _ in 0..config.blocks {
        let start = random.below((keys.len() - config.writes) as u64 + 1) as usize;
        let chosen = &keys[start..start + config.writes];
        blocks.push(chosen.iter().map(|key| (key.clone(), value(&mut random, VALUE_BYTES))).collect::<Vec<_>>());
    }
    let (before, began) = (thread_us(), Instant::now());
    for writes in &blocks {
        primary.apply(writes).await?;
    }
    let (used, passed) = (thread_us() - before, began.elapsed().as_secs_f64() * 1e6);
    if !config.may_lose_followers && primary.state.followers() != followers.len() {
        return Err(failed("followers", "one was fenced, so blocks did not wait for it; the machine is busy"));
    }
    // Their tasks run on their own threads.
    of_followers.spawn(async move { drop(followers) }).await.map_err(|error| failed("followers", error))?;
    Ok(BlockCost { primary_us: used / config.blocks as f64, block_us: passed / config.blocks as f64 })
}

/// Starts followers, and returns them when each has a lease and has read all keys.
async fn join(
    count: usize,
    environment: BenchmarkEnvironment,
    keys: Vec<Arc<str>>,
    stop: CancellationToken,
) -> Result<Vec<Follower>, Error> {
    let environment: Arc<dyn FollowerEnvironment> = Arc::new(environment);
    let start = || Follower::start(Arc::clone(&environment), DisaggregatedConfig::default());
    let followers: Vec<Follower> = (0..count).map(|_| start()).collect();
    let began = Instant::now();
    for follower in &followers {
        // Without a lease it reads again: it may have had to wait for the processors that it shares with the others.
        while let Err(error) = read(follower, &keys).await {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if began.elapsed() > JOIN_TIMEOUT {
                return Err(failed("a follower", format!("{error}, for {} s", JOIN_TIMEOUT.as_secs())));
            }
            rt::sleep(POLL).await;
        }
    }
    Ok(followers)
}

/// Reads all keys, so that the follower has cached them.
async fn read(follower: &Follower, keys: &[Arc<str>]) -> Result<(), state::Error> {
    for some in keys.chunks(KEYS_BETWEEN_YIELDS) {
        // The others renew their leases on the same thread.
        tokio::task::yield_now().await;
        let view = follower.view().await?;
        for key in some {
            let found = view.get(NAMESPACE, key).await?;
            assert!(found.is_some(), "the primary has written every key");
        }
    }
    Ok(())
}

/// Measures, and adds a row for each number of followers. Returns the cost of a block's invalidations with the most
/// followers over that with 8.
///
/// # Errors
/// [`Error::Interrupted`], or a part that failed.
pub async fn run(config: &InvalidationConfig, figure: &mut Figure, stop: &CancellationToken) -> Result<f64, Error> {
    assert!(0 < config.writes && config.writes <= config.keys, "a block writes each key once");
    let mut measured: [Vec<BlockCost>; FOLLOWERS.len()] = Default::default();
    for round in 0..config.rounds {
        for (followers, measured) in FOLLOWERS.into_iter().zip(&mut measured) {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            let (config, stop) = (config.clone(), stop.clone());
            let measuring = tokio::task::spawn_blocking(move || measure(followers, &config, round, &stop));
            measured.push(measuring.await.map_err(|error| failed("a primary", error))??);
        }
    }
    let of = |rounds: &[BlockCost], number: fn(&BlockCost) -> f64| median(rounds.iter().map(number));
    let cpu: Vec<f64> = measured.iter().map(|rounds| of(rounds, |cost| cost.primary_us)).collect();
    for ((followers, rounds), primary_us) in FOLLOWERS.iter().zip(&measured).zip(&cpu) {
        let numbers = [
            ("primary_us", *primary_us),
            ("block_us", of(rounds, |cost| cost.block_us)),
            ("invalidation_us", primary_us - cpu[0]),
        ];
        figure.row(&[("followers", &followers.to_string())], &numbers);
    }
    figure.setting("invalidation_writes_per_block", config.writes as u64);
    Ok((cpu[2] - cpu[0]) / (cpu[1] - cpu[0]).max(f64::MIN_POSITIVE))
}
