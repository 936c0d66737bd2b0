//! Figure 5 (b): throughput for several sizes of remote memory, from a fraction of the data to more than all of it.
//!
//! A peer in one process: clients, each with one transaction in flight, and one committer:
//! 1. A client draws a key at random. In half of the transactions it reads the key's record, in the others it prepares
//!    a new record. It also makes and verifies as many signatures as a transaction needs in a network of one
//!    organisation ([`SignatureWork`]).
//! 2. The committer takes the waiting transactions, at most [`BLOCK_TRANSACTIONS`], and checks the versions that they
//!    read. It puts the valid ones into a block, which it appends, syncs and applies.
//! 3. Records that are not in remote memory are read from storage, which delays reads as a disk would.
//!
//! A second measurement leaves the signatures out, and so measures the state alone. There is one peer for each size of
//! remote memory; each round measures all peers in turn.

use measurement::interval::median;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use base::Version;
use base::rt::CancellationToken;
use state::{WorldState, events};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::delayed::{DelayLine, DelayedStateStore};
use super::{VALUE_BYTES, check};
use crate::state::PERSIST_BLOCKS;
use crate::state::peer::{BenchmarkPeer, PeerMemoryConfig, WrapStore};
use crate::state::setup::{NAMESPACE, failed, keys, value};
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::floor::{SignatureNeeds, SignatureWork};
use measurement::progress::{MeasurementFuture, ReportProgress};
use measurement::random::Random;
use measurement::workload::client_random;

/// Most transactions of a block.
const BLOCK_TRANSACTIONS: usize = 500;
/// How many of a hundred transactions write: YCSB-A.
const WRITES_PERCENT: u64 = 50;
/// Values that writes choose from.
const VALUES: usize = 64;
/// Sections small enough for the least memory to have some.
const SECTION_BYTES: u64 = 256 << 10;
/// The least cache: shards of less would hold nothing.
const CACHE_BYTES_MIN: usize = 256 << 10;
/// The part of the data that fits into the caches, in a thousand: 500 MB of 40 GB in the paper.
const CACHE_PER_MILLE: u64 = 12;
/// The percentages of memory whose rates make the ratio.
const HALF_PERCENT: f64 = 50.0;
const FULL_PERCENT: f64 = 100.0;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Fig5bConfig {
    /// Bytes of values.
    pub data_bytes: u64,
    /// Remote memory in percent of the data; must include 50 and 100.
    pub memory_percents: Vec<f64>,
    /// The delay of a read of storage.
    pub delay: Duration,
    /// Clients with one transaction in flight each.
    pub clients: usize,
    /// Measurements of every size.
    pub rounds: usize,
    /// The length of each measurement.
    pub window: Duration,
    /// Fixes the choice of keys.
    pub seed: u64,
}

impl Default for Fig5bConfig {
    fn default() -> Fig5bConfig {
        Fig5bConfig {
            data_bytes: 64 << 20,
            memory_percents: vec![2.5, 10.0, 25.0, HALF_PERCENT, 75.0, FULL_PERCENT, 125.0],
            delay: Duration::from_micros(100),
            clients: 128,
            rounds: 9,
            window: Duration::from_millis(600),
            seed: 1,
        }
    }
}

/// A peer with some remote memory.
struct SizedPeer {
    percent: f64,
    peer: BenchmarkPeer,
    line: Arc<DelayLine>,
}

/// One run.
struct MeasuredRate {
    tps: f64,
    /// The part of the reads of contracts and validation that storage answered, in percent.
    storage_percent: f64,
    invalid_percent: f64,
    /// How long storage delayed a read, in microseconds.
    held_us: f64,
}

/// Measures. `tell` gets a description of each next step.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(
    options: &'a Fig5bConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Fig5bConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("flexchain-fig5b", "FlexChain, figure 5 (b): throughput over remote memory");
    let needs = SignatureNeeds::new(1, 1, false);
    let work = SignatureWork::new();
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("value_bytes", VALUE_BYTES);
    figure.setting("storage_delay_us", options.delay.as_micros() as u64);
    figure.setting("clients", options.clients);
    figure.setting("rounds", options.rounds);
    figure.setting("seconds", options.window.as_secs_f64());
    figure.setting("seed", options.seed);
    figure.setting("verifications", needs.verifications);
    figure.setting("signatures", needs.signatures);

    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let data = Arc::new(Data::new(options));
    let mut peers = Vec::new();
    for percent in &options.memory_percents {
        check(stop)?;
        tell(&format!("loading a peer with {percent} % of its data in remote memory"));
        peers.push(load(options, *percent, &data, &folder.path().join(percent.to_string())).await?);
    }
    let ways = [("signatures and state", Some(Arc::new((work, needs)))), ("state alone", None)];
    let mut rates: Vec<Vec<Vec<MeasuredRate>>> =
        ways.iter().map(|_| peers.iter().map(|_| Vec::new()).collect()).collect();
    // The first round warms up: records that are read come to memory, as far as there is space.
    for round in 0..=options.rounds {
        for ((way, work), rates) in ways.iter().zip(&mut rates) {
            // The first size changes.
            let count = peers.len();
            for at in (0..count).map(|at| (at + round) % count) {
                let (sized, rates) = (&mut peers[at], &mut rates[at]);
                check(stop)?;
                let part = if round == 0 { "warming up".to_owned() } else { format!("round {round}") };
                tell(&format!("{part} of {}: {way}, {} % in memory", options.rounds, sized.percent));
                let rate = measure(options, sized, &data, work.clone(), round as u64).await?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
    }
    for (((way, _), rates), name) in ways.iter().zip(&rates).zip(["half_over_full", "half_over_full_state"]) {
        let number = |rates: &[MeasuredRate], number: fn(&MeasuredRate) -> f64| median(rates.iter().map(number));
        let (mut half, mut full): (Option<&[MeasuredRate]>, Option<&[MeasuredRate]>) = (None, None);
        for (sized, rates) in peers.iter().zip(rates) {
            let numbers = [
                ("memory_percent", sized.percent),
                ("median_tps", number(rates, |rate| rate.tps)),
                ("storage_reads_percent", number(rates, |rate| rate.storage_percent)),
                ("storage_held_us", number(rates, |rate| rate.held_us)),
                ("invalid_percent", number(rates, |rate| rate.invalid_percent)),
            ];
            figure.row(&[("transactions", way)], &numbers);
            half = half.or((sized.percent == HALF_PERCENT).then_some(rates));
            full = full.or((sized.percent == FULL_PERCENT).then_some(rates));
        }
        if let (Some(half), Some(full)) = (half, full) {
            // Both of one round, so that a drift between rounds affects both.
            let ratios = half.iter().zip(full).map(|(half, full)| half.tps / full.tps);
            let bound = (name == "half_over_full").then_some(RatioBound::AtLeast(0.6));
            figure.ratio(name, median(ratios), bound);
        }
    }
    figure.curves(CurvePlot { x: "memory_percent", x_log: false, y: "median_tps" });
    figure.curves(CurvePlot { x: "memory_percent", x_log: false, y: "storage_reads_percent" });
    figure.note(format!(
        "Uniform YCSB-A at 10 KB on one peer in one process. With signatures, each transaction costs the processor {} P-256 \
         verifications and {} signature, as in a network of one organisation; the contract does nothing else.",
        needs.verifications, needs.signatures
    ));
    figure.note("Memory counts records, their heads and the index: 100 % holds a little less than all of the data.");
    Ok(figure)
}

/// Keys and values.
struct Data {
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
}

impl Data {
    fn new(options: &Fig5bConfig) -> Data {
        let mut random = Random::new(options.seed);
        let records = (options.data_bytes / VALUE_BYTES as u64).max(1) as usize;
        Data { keys: keys(records), values: (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect() }
    }
}

async fn load(options: &Fig5bConfig, percent: f64, data: &Data, folder: &Path) -> Result<SizedPeer, Error> {
    let line = DelayLine::start().map_err(|error| failed("a thread that delays reads", error))?;
    let memory_bytes = (options.data_bytes as f64 * percent / 100.0) as u64;
    let cache_bytes = ((options.data_bytes * CACHE_PER_MILLE / 1000) as usize).max(CACHE_BYTES_MIN);
    let sizes = PeerMemoryConfig {
        memory_bytes: memory_bytes.max(SECTION_BYTES),
        section_bytes: SECTION_BYTES,
        cache_bytes,
        metadata_bytes: cache_bytes / 8,
        delta_bytes_max: state::MonolithicConfig::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    };
    let (delay, of_store) = (options.delay, Arc::clone(&line));
    let wrap: WrapStore = Box::new(move |store| Arc::new(DelayedStateStore::new(store, delay, of_store)));
    let mut peer = BenchmarkPeer::disaggregated(folder, None, &sizes, Some(wrap)).await?;
    for (number, chunk) in data.keys.chunks(BLOCK_TRANSACTIONS).enumerate() {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), data.values[number % VALUES].clone())).collect();
        peer.commit(&writes).await?;
    }
    peer.persist().await?;
    Ok(SizedPeer { percent, peer, line })
}

/// A transaction that a client submits to the committer.
struct SubmittedTransaction {
    key: usize,
    read: Option<Version>,
    write: Option<Bytes>,
    /// Gets whether it was valid.
    done: oneshot::Sender<bool>,
}

/// The shared state of all clients of a run.
struct ClientGroup {
    state: Arc<dyn WorldState>,
    data: Arc<Data>,
    work: Option<Arc<(SignatureWork, SignatureNeeds)>>,
    ended: AtomicBool,
    reads: AtomicU64,
}

async fn measure(
    options: &Fig5bConfig,
    sized: &mut SizedPeer,
    data: &Arc<Data>,
    work: Option<Arc<(SignatureWork, SignatureNeeds)>>,
    round: u64,
) -> Result<MeasuredRate, Error> {
    let clients = Arc::new(ClientGroup {
        state: sized.peer.state.clone(),
        data: Arc::clone(data),
        work,
        ended: AtomicBool::new(false),
        reads: AtomicU64::new(0),
    });
    let (submit, submitted) = mpsc::channel(options.clients);
    let mut tasks = JoinSet::new();
    let (storage_before, (held_before, held_ns_before)) = (events::StorageReads.value(), sized.line.delayed_reads());
    let begin = Instant::now();
    for client in 0..options.clients {
        let random = client_random(options.seed ^ (round << 32), client);
        tasks.spawn(Arc::clone(&clients).client(random, submit.clone()));
    }
    drop(submit);
    let committed = commit(&mut sized.peer, data, submitted, begin + options.window, &clients).await;
    let took = begin.elapsed();
    clients.ended.store(true, Ordering::Release);
    while let Some(client) = tasks.join_next().await {
        client.map_err(|error| failed("a client", error))??;
    }
    let (valid, invalid) = committed?;
    // A savepoint that still moves must not burden the next run.
    sized.peer.persisted().await?;
    let (held, held_ns) = sized.line.delayed_reads();
    let (held, held_ns) = (held - held_before, held_ns - held_ns_before);
    let storage = events::StorageReads.value() - storage_before;
    let reads = clients.reads.load(Ordering::Relaxed).max(1);
    Ok(MeasuredRate {
        tps: valid as f64 / took.as_secs_f64(),
        storage_percent: 100.0 * storage as f64 / reads as f64,
        invalid_percent: 100.0 * invalid as f64 / (valid + invalid).max(1) as f64,
        held_us: held_ns as f64 / 1e3 / held.max(1) as f64,
    })
}

impl ClientGroup {
    async fn client(
        self: Arc<Self>,
        mut random: Random,
        submit: mpsc::Sender<SubmittedTransaction>,
    ) -> Result<(), Error> {
        while !self.ended.load(Ordering::Acquire) {
            let key = random.below(self.data.keys.len() as u64) as usize;
            let (mut read, mut write) = (None, None);
            if random.percent(WRITES_PERCENT) {
                write = Some(self.data.values[random.below(VALUES as u64) as usize].clone());
            } else {
                let found = self.state.snapshot().get(NAMESPACE, &self.data.keys[key]).await;
                let found = found.map_err(|error| failed("a read", error))?;
                let found = found.filter(|found| found.value.len() == VALUE_BYTES);
                read =
                    Some(found.ok_or_else(|| failed("a read", "a record is missing, or has another length"))?.version);
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(work) = &self.work {
                let (work, needs) = &**work;
                work.transaction(needs);
                // The others did not run while this client kept the core.
                tokio::task::yield_now().await;
            }
            let (done, told) = oneshot::channel();
            // The committer ends first; then there is no answer.
            if submit.send(SubmittedTransaction { key, read, write, done }).await.is_err() || told.await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Commits until the end of the window; returns the numbers of valid and invalid transactions.
async fn commit(
    peer: &mut BenchmarkPeer,
    data: &Data,
    mut submitted: mpsc::Receiver<SubmittedTransaction>,
    until: Instant,
    clients: &ClientGroup,
) -> Result<(u64, u64), Error> {
    let (mut valid, mut invalid) = (0, 0);
    let mut block = Vec::new();
    while Instant::now() < until && submitted.recv_many(&mut block, BLOCK_TRANSACTIONS).await > 0 {
        let snapshot = peer.state.snapshot();
        let read: Vec<usize> = (0..block.len()).filter(|at| block[*at].read.is_some()).collect();
        clients.reads.fetch_add(read.len() as u64, Ordering::Relaxed);
        let names: Vec<(&str, &str)> = read.iter().map(|at| (NAMESPACE, data.keys[block[*at].key].as_ref())).collect();
        let versions = snapshot.versions(&names).await.map_err(|error| failed("a check of versions", error))?;
        let mut known = vec![None; block.len()];
        read.iter().zip(versions).for_each(|(at, version)| known[*at] = version);
        let mut written = base::Set::default();
        let (mut writes, mut outcomes) = (Vec::new(), Vec::with_capacity(block.len()));
        for (transaction, known) in block.iter().zip(known) {
            // As in validation: a key that an earlier transaction of the block wrote is in conflict with this read.
            let is_valid =
                transaction.read.is_none() || (transaction.read == known && !written.contains(&transaction.key));
            if let Some(write) = transaction.write.clone().filter(|_| is_valid) {
                written.insert(transaction.key);
                writes.push((data.keys[transaction.key].clone(), write));
            }
            outcomes.push(is_valid);
        }
        peer.commit(&writes).await?;
        for (transaction, is_valid) in block.drain(..).zip(outcomes) {
            if is_valid {
                valid += 1
            } else {
                invalid += 1
            }
            let _ = transaction.done.send(is_valid);
        }
    }
    Ok((valid, invalid))
}
