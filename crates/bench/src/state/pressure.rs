//! Memory under pressure: reads of resident records while others are evicted, and long runs of updates within constant memory.
//!
//! *Evicting.* Two peers hold the same records. The larger peer has remote memory for all of them, the smaller peer for
//! a third. A task reads a few of the records again and again. No local cache holds them, so each read goes to remote
//! memory. Three cases take turns:
//! 1. The smaller peer, without any other load.
//! 2. The larger peer, while blocks write its other records; nothing is evicted.
//! 3. The smaller peer, while blocks write its other records; cold records are evicted all the time.
//!
//! *Steady.* Blocks of YCSB-A, with keys by Zipf's law, and less remote memory than data. So versions are superseded,
//! reclaimed and evicted during the whole run. The run is divided into [`SLICES`]. The last slice is compared with the
//! second, because during the first slice caches and tables still fill.

use measurement::interval::median;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::{self, CancellationToken};
use state::{WorldState, events};

use super::peer::{BenchmarkPeer, PeerMemoryConfig};
use super::setup::{NAMESPACE, failed, keys, value};
use super::{PERSIST_BLOCKS, StateConfig};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::process;
use measurement::progress::ReportProgress;
use measurement::random::Random;
use measurement::zipf::Zipf;

/// Records of the peers whose reads are measured, and the number of them that are read.
const RECORDS: usize = 96 << 10;
const READ_RECORDS: usize = 4 << 10;
const VALUE_BYTES: usize = 1024;
/// Writes of a block beside the reading task.
const WRITES: usize = 500;
/// The length of a round, and the number of rounds of each kind.
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;
/// Reads of one view: as many as a contract makes; blocks arrive meanwhile.
const READS_A_VIEW: usize = 100;
/// Most reads of one round whose times are kept.
const READS_MAX: usize = 4 << 20;
/// Remote memory of either peer. The part of the smaller one that eviction leaves is several times the records that are read.
const ALL_BYTES: u64 = 256 << 20;
const THIRD_BYTES: u64 = 40 << 20;
const SECTION_BYTES: u64 = 1 << 20;
/// Both caches together: very small.
const CACHE_BYTES: usize = 128 << 10;

/// Records of the steady run, so small that minutes of blocks fit on a disk.
const STEADY_RECORDS: usize = 200_000;
const STEADY_VALUE_BYTES: usize = 256;
const STEADY_TRANSACTIONS: usize = 500;
const STEADY_CACHE_BYTES: usize = 8 << 20;
/// Less memory than the records with their heads and the index need.
const STEADY_MEMORY_BYTES: u64 = 48 << 20;
/// Zipf's exponent, YCSB's.
const SKEW: f64 = 0.99;
/// Parts of the steady run: of ten minutes, one minute each.
pub const SLICES: usize = 10;
/// Values that writes choose from.
const VALUES: usize = 64;

fn sizes(memory_bytes: u64, cache_bytes: usize) -> PeerMemoryConfig {
    PeerMemoryConfig {
        memory_bytes,
        section_bytes: SECTION_BYTES,
        cache_bytes,
        metadata_bytes: cache_bytes / 8,
        delta_bytes_max: state::MonolithicConfig::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    }
}

/// Commits all records in blocks, and has them materialised.
async fn load(peer: &mut BenchmarkPeer, keys: &[Arc<str>], values: &[Bytes], random: &mut Random) -> Result<(), Error> {
    for chunk in keys.chunks(STEADY_TRANSACTIONS) {
        let writes: Vec<_> = chunk.iter().map(|key| (key.clone(), any(values, random))).collect();
        peer.commit(&writes).await?;
    }
    peer.persist().await
}

fn any(values: &[Bytes], random: &mut Random) -> Bytes {
    values[random.below(values.len() as u64) as usize].clone()
}

/// Adds the rows and the ratio of reads while others are evicted.
///
/// # Errors
/// A part cannot be set up, `stop` was stopped, or nothing was evicted.
pub async fn evicting(options: &StateConfig, stop: &CancellationToken, figure: &mut Figure) -> Result<(), Error> {
    let mut random = Random::new(options.seed);
    let keys = keys(RECORDS);
    let (read, written) = keys.split_at(READ_RECORDS);
    let values: Vec<Bytes> = (0..VALUES).map(|_| value(&mut random, VALUE_BYTES)).collect();
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let mut roomy =
        BenchmarkPeer::disaggregated(&folder.path().join("roomy"), None, &sizes(ALL_BYTES, CACHE_BYTES), None).await?;
    let mut tight =
        BenchmarkPeer::disaggregated(&folder.path().join("tight"), None, &sizes(THIRD_BYTES, CACHE_BYTES), None)
            .await?;
    load(&mut roomy, &keys, &values, &mut random).await?;
    load(&mut tight, &keys, &values, &mut random).await?;
    let ways = ["nothing else", "blocks, nothing evicted", "blocks, others evicted"];
    let mut times: [[Vec<f64>; 3]; 3] = Default::default();
    let (mut counts, mut from_storage, mut blocks) = ([0; 3], [0; 3], [0; 3]);
    let mut evicted = 0;
    // The first round brings the records that are read back to memory, and is not counted.
    for round in 0..=ROUNDS {
        for way in 0..ways.len() {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            let peer = if way == 1 { &mut roomy } else { &mut tight };
            let state = peer.state.clone();
            let (storage_before, evicted_before) = (events::StorageReads.value(), events::RecordsEvicted.value());
            let done = Arc::new(AtomicBool::new(false));
            let reader = rt::spawn(reads(state, read.to_vec(), random.draw(), done.clone()));
            if way > 0 {
                while !done.load(Ordering::Acquire) {
                    let draw = |random: &mut Random| written[random.below(written.len() as u64) as usize].clone();
                    let writes: Vec<_> = (0..WRITES).map(|_| (draw(&mut random), any(&values, &mut random))).collect();
                    peer.commit(&writes).await?;
                    blocks[way] += u64::from(round > 0);
                }
            }
            let (count, took) = reader.await.map_err(|_| failed("reads", "the task ended"))??;
            if round > 0 {
                times[way].iter_mut().zip(took).for_each(|(times, took)| times.push(took));
                counts[way] += count;
                from_storage[way] += events::StorageReads.value() - storage_before;
                evicted += if way == 2 { events::RecordsEvicted.value() - evicted_before } else { 0 };
            }
            peer.persisted().await?;
        }
    }
    if evicted == 0 {
        return Err(failed("reads while others are evicted", "nothing was evicted"));
    }
    let mut p99 = [0.0; 3];
    for (way, name) in ways.into_iter().enumerate() {
        let [p50, p99_of_way, p999] = std::array::from_fn(|rank| median(times[way][rank].clone()));
        p99[way] = p99_of_way;
        let numbers = [
            ("p50_ns", p50),
            ("p99_ns", p99_of_way),
            ("p999_ns", p999),
            ("reads", counts[way] as f64),
            ("from_storage_percent", 100.0 * from_storage[way] as f64 / counts[way] as f64),
            ("blocks", blocks[way] as f64),
            ("evicted_records", if way == 2 { evicted as f64 } else { 0.0 }),
        ];
        figure.row(&[("reads of resident records, beside", name)], &numbers);
    }
    figure.ratio("evicting_p99_over_idle", p99[2] / p99[0], Some(RatioBound::AtMost(3.0)));
    figure.ratio("evicting_p99_over_blocks", p99[2] / p99[1], None);
    Ok(())
}

/// Reads keys at random for [`ROUND`]; returns their number, and the median, the 99th and the 99.9th percentile of the time of
/// a read, in nanoseconds.
async fn reads(
    state: Arc<dyn WorldState>,
    keys: Vec<Arc<str>>,
    seed: u64,
    done: Arc<AtomicBool>,
) -> Result<(usize, [f64; 3]), Error> {
    let read = async {
        let mut random = Random::new(seed);
        let mut times: Vec<u32> = Vec::with_capacity(READS_MAX);
        let until = Instant::now() + ROUND;
        while Instant::now() < until && times.len() + READS_A_VIEW <= READS_MAX {
            // Lets other tasks of this thread run: fills that these reads requested, and the writer.
            rt::yield_now().await;
            let snapshot = state.snapshot();
            for _ in 0..READS_A_VIEW {
                let key = &keys[random.below(keys.len() as u64) as usize];
                let begin = Instant::now();
                let found = snapshot.get(NAMESPACE, key).await.map_err(|error| failed("a read", error))?;
                times.push(u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX));
                if found.is_none_or(|found| found.value.len() != VALUE_BYTES) {
                    return Err(failed("a read", "a record was not found, or has another length"));
                }
            }
        }
        times.sort_unstable();
        let at = |part: f64| f64::from(times[((times.len() - 1) as f64 * part) as usize]);
        Ok((times.len(), [at(0.5), at(0.99), at(0.999)]))
    };
    let times = read.await;
    // In case of an error too, because the writer runs until then.
    done.store(true, Ordering::Release);
    times
}

/// Adds the rows and the ratio of updates within constant memory.
///
/// # Errors
/// As [`evicting`].
pub async fn steady(
    options: &StateConfig,
    stop: &CancellationToken,
    figure: &mut Figure,
    tell: ReportProgress<'_>,
) -> Result<(), Error> {
    let mut random = Random::new(options.seed);
    let keys = keys(STEADY_RECORDS);
    let values: Vec<Bytes> = (0..VALUES).map(|_| value(&mut random, STEADY_VALUE_BYTES)).collect();
    let zipf = Zipf::new(STEADY_RECORDS as u64, SKEW);
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let sizes = sizes(STEADY_MEMORY_BYTES, STEADY_CACHE_BYTES);
    let mut peer = BenchmarkPeer::disaggregated(folder.path(), None, &sizes, None).await?;
    load(&mut peer, &keys, &values, &mut random).await?;
    // Popular keys are scattered among the others.
    let scatter = |item: u64| &keys[(item * 7_919 % STEADY_RECORDS as u64) as usize];
    let (mut rates, mut most_leased) = (Vec::new(), 0);
    let evicted_at_first = events::RecordsEvicted.value();
    for slice in 0..SLICES {
        tell(&format!("updates within constant memory, part {} of {SLICES}", slice + 1));
        let (begin, mut transactions) = (Instant::now(), 0);
        let (evicted, reclaimed) = (events::RecordsEvicted.value(), events::BytesReclaimed.value());
        while begin.elapsed() < options.steady / SLICES as u32 {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            let snapshot = peer.state.snapshot();
            let mut writes = Vec::with_capacity(STEADY_TRANSACTIONS);
            for _ in 0..STEADY_TRANSACTIONS {
                let key = scatter(zipf.draw(&mut random));
                let found = snapshot.get(NAMESPACE, key).await.map_err(|error| failed("a read", error))?;
                if found.is_none() {
                    return Err(failed("a read", "a record is missing"));
                }
                if random.percent(50) {
                    writes.push((key.clone(), any(&values, &mut random)));
                }
            }
            peer.commit(&writes).await?;
            transactions += STEADY_TRANSACTIONS;
        }
        let tps = transactions as f64 / begin.elapsed().as_secs_f64();
        let leased = events::RemoteBytesLeased.value();
        most_leased = most_leased.max(leased);
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let resident = process::usage(None).map_err(Error::Proc)?.resident_bytes;
        figure.row(
            &[("steady", "ycsb-a, Zipf 0.99")],
            &[
                ("end_s", (options.steady * (slice as u32 + 1) / SLICES as u32).as_secs_f64()),
                ("tps", tps),
                ("remote_mib", mib(leased as f64)),
                ("resident_mib", mib(resident as f64)),
                ("evicted_records", (events::RecordsEvicted.value() - evicted) as f64),
                ("reclaimed_mib", mib((events::BytesReclaimed.value() - reclaimed) as f64)),
            ],
        );
        rates.push(tps);
    }
    if events::RecordsEvicted.value() == evicted_at_first {
        return Err(failed("updates within constant memory", "nothing was evicted"));
    }
    if most_leased > STEADY_MEMORY_BYTES as i64 {
        return Err(failed("updates within constant memory", format!("{most_leased} bytes were leased")));
    }
    figure.ratio("steady_last_over_second", rates[SLICES - 1] / rates[1], Some(RatioBound::AtLeast(0.9)));
    peer.persisted().await
}
