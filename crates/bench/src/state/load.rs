//! Runs loads in blocks on a state whose blocks and tables are on disk; the disaggregated and the monolithic form take turns.
//!
//! A block has 500 transactions. Each transaction reads through the newest snapshot and writes some of the keys that it has
//! read.

use measurement::interval::median;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;

use super::peer::{BenchmarkPeer, PeerMemoryConfig};
use super::setup::{NAMESPACE, failed, value};
use super::transactions::{DrawnTransaction, TransactionMix};
use measurement::error::Error;
use measurement::process;
use measurement::random::Random;

/// Transactions of a block.
pub const TRANSACTIONS: usize = 500;
/// Values that updates choose from: making them is not to be measured.
const VALUES: usize = 64;

/// The conditions under which the two forms are compared.
#[derive(Clone, Debug)]
pub struct LoadComparison {
    pub load: TransactionMix,
    /// The latency of a verb, for the disaggregated form.
    pub latency: Option<Duration>,
    /// The sizes of the disaggregated form's parts, and of the monolithic form's.
    pub sizes: [PeerMemoryConfig; 2],
    /// Pairs of runs that count.
    pub pairs: usize,
    /// How long each run takes.
    pub window: Duration,
    pub seed: u64,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct ComparedRates {
    /// Medians in transactions a second: disaggregated, monolithic.
    pub tps: [f64; 2],
    /// Medians of this process's time for a transaction, all threads and savepoints included, in microseconds.
    pub cpu_us: [f64; 2],
    /// Savepoints that started during the runs.
    pub savepoints: [usize; 2],
    /// Median over the pairs of disaggregated over monolithic throughput.
    pub ratio: f64,
    /// The least of these ratios.
    pub ratio_least: f64,
}

/// The data of a load, and how it is run.
struct LoadRunner {
    load: TransactionMix,
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
    random: Random,
}

impl LoadRunner {
    fn new(load: &TransactionMix, seed: u64) -> LoadRunner {
        let mut random = Random::new(seed);
        let values = (0..VALUES).map(|_| value(&mut random, load.value_bytes())).collect();
        LoadRunner { load: load.clone(), keys: load.keys(), values, random }
    }

    fn write(&mut self, key: usize) -> (Arc<str>, Bytes) {
        (self.keys[key].clone(), self.values[self.random.below(VALUES as u64) as usize].clone())
    }

    /// Loads the data into both forms.
    async fn fill(&mut self, peers: [&mut BenchmarkPeer; 2]) -> Result<(), Error> {
        let keys: Vec<usize> = (0..self.keys.len()).collect();
        let [one, other] = peers;
        for chunk in keys.chunks(TRANSACTIONS) {
            let writes: Vec<_> = chunk.iter().map(|key| self.write(*key)).collect();
            one.commit(&writes).await?;
            other.commit(&writes).await?;
        }
        one.persisted().await?;
        other.persisted().await
    }

    /// Runs for a window; returns transactions a second, and processor time of each in microseconds.
    async fn run(&mut self, peer: &mut BenchmarkPeer, window: Duration) -> Result<[f64; 2], Error> {
        let cpu_before = process::usage(None).map_err(Error::Proc)?.cpu_us;
        let begin = Instant::now();
        let (mut transactions, mut transaction) = (0, DrawnTransaction::default());
        while begin.elapsed() < window {
            let snapshot = peer.state.snapshot();
            let mut writes = Vec::with_capacity(TRANSACTIONS);
            for _ in 0..TRANSACTIONS {
                self.load.draw(&mut self.random, &mut transaction);
                for key in &transaction.reads {
                    let found = snapshot.get(NAMESPACE, &self.keys[*key]).await;
                    let found = found.map_err(|error| failed("a read", error))?;
                    let found = found.ok_or_else(|| failed("a read", "a record is missing"))?;
                    if found.value.len() != self.load.value_bytes() {
                        return Err(failed("a read", "a record has another length"));
                    }
                }
                for key in &transaction.writes {
                    writes.push(self.write(*key));
                }
            }
            peer.commit(&writes).await?;
            transactions += TRANSACTIONS;
        }
        let tps = transactions as f64 / begin.elapsed().as_secs_f64();
        // Outstanding writes of one form must not burden the other.
        peer.persisted().await?;
        let cpu_us = process::usage(None).map_err(Error::Proc)?.cpu_us - cpu_before;
        Ok([tps, cpu_us as f64 / transactions as f64])
    }
}

/// Runs both forms in turns.
pub async fn compare(comparison: &LoadComparison, stop: &CancellationToken) -> Result<ComparedRates, Error> {
    let LoadComparison { load, latency, sizes, pairs, window, seed } = comparison;
    let mut runner = LoadRunner::new(load, *seed);
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let mut disaggregated =
        BenchmarkPeer::disaggregated(&folder.path().join("disaggregated"), *latency, &sizes[0], None).await?;
    let mut monolithic = BenchmarkPeer::monolithic(&folder.path().join("monolithic"), &sizes[1]).await?;
    runner.fill([&mut disaggregated, &mut monolithic]).await?;
    let filled = [disaggregated.savepoints, monolithic.savepoints];
    let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
    let mut times = [Vec::new(), Vec::new()];
    // The first pair warms up and is not counted.
    for pair in 0..=*pairs {
        let mut rate = [0.0; 2];
        let mut time = [0.0; 2];
        // The first form changes, so that neither always has the warmer machine.
        for turn in 0..2 {
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            let form = (pair + turn) % 2;
            let peer = if form == 0 { &mut disaggregated } else { &mut monolithic };
            [rate[form], time[form]] = runner.run(peer, *window).await?;
        }
        if pair > 0 {
            ratios.push(rate[0] / rate[1]);
            rates.iter_mut().zip(rate).for_each(|(rates, rate)| rates.push(rate));
            times.iter_mut().zip(time).for_each(|(times, time)| times.push(time));
        }
    }
    let ratio_least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(ComparedRates {
        tps: rates.map(median),
        cpu_us: times.map(median),
        savepoints: [disaggregated.savepoints - filled[0], monolithic.savepoints - filled[1]],
        ratio: median(ratios),
        ratio_least,
    })
}
