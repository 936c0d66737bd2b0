//! Figure 5 (b): throughput over remote memory, from a fraction of the data to more than all of it.
//!
//! A peer in one process: clients, each with one transaction in flight, and one committer.
//! 1. A client draws a key at random, reads its record (half of the transactions) or prepares a new one (the other half), and
//!    does what the signatures of a transaction cost a network of one organisation: [`floor::Work`].
//! 2. The committer takes what waits, at most [`BLOCK_TRANSACTIONS`], checks the versions that were read, and makes the rest a
//!    block: appended, synced, applied.
//! 3. What remote memory does not hold is read from storage, whose reads are delayed to stand for a disk's.
//!
//! The same is measured without the signatures, which is the state alone. Every size of memory has a peer of its own; rounds
//! go over all of them in turn.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use base::Version;
use base::rt::Stop;
use state::{WorldState, events};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::delayed::{DelayLine, Delayed};
use super::{VALUE_BYTES, check};
use crate::error::Error;
use crate::figure::{Bound, Curves, Figure};
use crate::floor::{Needs, Work};
use crate::progress::{Measuring, Tell};
use crate::random::Random;
use crate::state::PERSIST_BLOCKS;
use crate::state::peer::{Peer, Sizes, Wrap};
use crate::state::setup::{NAMESPACE, failed, keys, median, value};
use crate::workload::client_random;

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
/// The share of the data that fits into the caches, in a thousand: 500 MB of 40 GB in the paper.
const CACHE_PER_MILLE: u64 = 12;
/// The shares whose rates make the ratio.
const HALF_PERCENT: f64 = 50.0;
const FULL_PERCENT: f64 = 100.0;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of values.
    pub data_bytes: u64,
    /// Remote memory in percent of them; 50 and 100 are among these.
    pub memory_percents: Vec<f64>,
    /// How much longer a read of storage takes.
    pub delay: Duration,
    /// Clients with one transaction in flight each.
    pub clients: usize,
    /// Times that every size is measured.
    pub rounds: usize,
    /// How long each time takes.
    pub window: Duration,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
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
struct Sized {
    percent: f64,
    peer: Peer,
    line: Arc<DelayLine>,
}

/// One run.
struct Rate {
    tps: f64,
    /// What storage answered of what contracts and validation read, in percent.
    storage_percent: f64,
    invalid_percent: f64,
    /// How long storage held reads back, in microseconds.
    held_us: f64,
}

/// Measures. `tell` is told what is done next.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("flexchain-fig5b", "FlexChain, figure 5 (b): throughput over remote memory");
    let needs = Needs::new(1, 1, false);
    let work = Work::new();
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
    let mut rates: Vec<Vec<Vec<Rate>>> = ways.iter().map(|_| peers.iter().map(|_| Vec::new()).collect()).collect();
    // The first round warms up: what is read comes to memory, as far as there is room.
    for round in 0..=options.rounds {
        for ((way, work), rates) in ways.iter().zip(&mut rates) {
            // Who comes first changes.
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
        let number = |rates: &[Rate], number: fn(&Rate) -> f64| median(rates.iter().map(number).collect());
        let (mut half, mut full): (Option<&[Rate]>, Option<&[Rate]>) = (None, None);
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
            // Of one round each, so that what drifts between rounds falls on both.
            let ratios = half.iter().zip(full).map(|(half, full)| half.tps / full.tps).collect();
            let bound = (name == "half_over_full").then_some(Bound::AtLeast(0.6));
            figure.ratio(name, median(ratios), bound);
        }
    }
    figure.curves(Curves { x: "memory_percent", x_log: false, y: "median_tps" });
    figure.curves(Curves { x: "memory_percent", x_log: false, y: "storage_reads_percent" });
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
    fn new(options: &Options) -> Data {
        let mut random = Random::new(options.seed);
        let records = (options.data_bytes / VALUE_BYTES as u64).max(1) as usize;
        Data { keys: keys(records), values: (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect() }
    }
}

async fn load(options: &Options, percent: f64, data: &Data, folder: &Path) -> Result<Sized, Error> {
    let line = DelayLine::start().map_err(|error| failed("a thread that delays reads", error))?;
    let memory_bytes = (options.data_bytes as f64 * percent / 100.0) as u64;
    let cache_bytes = ((options.data_bytes * CACHE_PER_MILLE / 1000) as usize).max(CACHE_BYTES_MIN);
    let sizes = Sizes {
        memory_bytes: memory_bytes.max(SECTION_BYTES),
        section_bytes: SECTION_BYTES,
        cache_bytes,
        metadata_bytes: cache_bytes / 8,
        delta_bytes_max: state::Settings::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    };
    let (delay, of_store) = (options.delay, Arc::clone(&line));
    let wrap: Wrap = Box::new(move |store| Arc::new(Delayed::new(store, delay, of_store)));
    let mut peer = Peer::disaggregated(folder, None, &sizes, Some(wrap)).await?;
    for (number, chunk) in data.keys.chunks(BLOCK_TRANSACTIONS).enumerate() {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), data.values[number % VALUES].clone())).collect();
        peer.commit(&writes).await?;
    }
    peer.persist().await?;
    Ok(Sized { percent, peer, line })
}

/// What a client asks the committer for.
struct Submitted {
    key: usize,
    read: Option<Version>,
    write: Option<Bytes>,
    /// Told whether it was valid.
    done: oneshot::Sender<bool>,
}

/// What all clients of a run share.
struct Clients {
    state: Arc<dyn WorldState>,
    data: Arc<Data>,
    work: Option<Arc<(Work, Needs)>>,
    ended: AtomicBool,
    reads: AtomicU64,
}

async fn measure(
    options: &Options,
    sized: &mut Sized,
    data: &Arc<Data>,
    work: Option<Arc<(Work, Needs)>>,
    round: u64,
) -> Result<Rate, Error> {
    let clients = Arc::new(Clients {
        state: sized.peer.state.clone(),
        data: Arc::clone(data),
        work,
        ended: AtomicBool::new(false),
        reads: AtomicU64::new(0),
    });
    let (submit, submitted) = mpsc::channel(options.clients);
    let mut tasks = JoinSet::new();
    let (storage_before, (held_before, held_ns_before)) = (events::StorageReads.value(), sized.line.held_back());
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
    // What still moves must not burden the next.
    sized.peer.persisted().await?;
    let (held, held_ns) = sized.line.held_back();
    let (held, held_ns) = (held - held_before, held_ns - held_ns_before);
    let storage = events::StorageReads.value() - storage_before;
    let reads = clients.reads.load(Ordering::Relaxed).max(1);
    Ok(Rate {
        tps: valid as f64 / took.as_secs_f64(),
        storage_percent: 100.0 * storage as f64 / reads as f64,
        invalid_percent: 100.0 * invalid as f64 / (valid + invalid).max(1) as f64,
        held_us: held_ns as f64 / 1e3 / held.max(1) as f64,
    })
}

impl Clients {
    async fn client(self: Arc<Self>, mut random: Random, submit: mpsc::Sender<Submitted>) -> Result<(), Error> {
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
                // The others had no turn while this one kept the processor.
                tokio::task::yield_now().await;
            }
            let (done, told) = oneshot::channel();
            // The committer ends first: then nobody is told.
            if submit.send(Submitted { key, read, write, done }).await.is_err() || told.await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Commits until the time has come; numbers of valid and invalid transactions.
async fn commit(
    peer: &mut Peer,
    data: &Data,
    mut submitted: mpsc::Receiver<Submitted>,
    until: Instant,
    clients: &Clients,
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
            // As validation does: what an earlier transaction of the block wrote was not what this one has read.
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
