//! Loads on blocks of a state whose blocks and tables are on disk, disaggregated and monolithic in turn.
//!
//! A block is 500 transactions, each of which reads through the newest snapshot, and writes some of what it has read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::Stop;

use super::peer::{Peer, Sizes};
use super::setup::{NAMESPACE, failed, median, value};
use super::transactions::{Load, Transaction};
use crate::error::Error;
use crate::process;
use crate::random::Random;

/// Transactions of a block.
pub const TRANSACTIONS: usize = 500;
/// Values that updates choose from: making them is not what is measured.
const VALUES: usize = 64;

/// What to compare the two forms under.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub load: Load,
    /// Of a verb, for the disaggregated form.
    pub latency: Option<Duration>,
    /// How large the disaggregated form's parts are, and the monolithic form's.
    pub sizes: [Sizes; 2],
    /// Pairs of runs that count.
    pub pairs: usize,
    /// How long each run takes.
    pub window: Duration,
    pub seed: u64,
}

/// What became of a comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Medians in transactions a second: disaggregated, monolithic.
    pub tps: [f64; 2],
    /// Medians of this process's time for a transaction, all threads and savepoints included, in microseconds.
    pub cpu_us: [f64; 2],
    /// Savepoints that began during the runs.
    pub savepoints: [usize; 2],
    /// Median over the pairs of disaggregated over monolithic throughput.
    pub ratio: f64,
    /// The least of them.
    pub ratio_least: f64,
}

/// The data of a load, and how it is run.
struct Runner {
    load: Load,
    keys: Vec<Arc<str>>,
    values: Vec<Bytes>,
    random: Random,
}

impl Runner {
    fn new(load: &Load, seed: u64) -> Runner {
        let mut random = Random::new(seed);
        let values = (0..VALUES).map(|_| value(&mut random, load.value_bytes())).collect();
        Runner { load: load.clone(), keys: load.keys(), values, random }
    }

    fn write(&mut self, key: usize) -> (Arc<str>, Bytes) {
        (self.keys[key].clone(), self.values[self.random.below(VALUES as u64) as usize].clone())
    }

    /// Loads the data into both.
    async fn fill(&mut self, peers: [&mut Peer; 2]) -> Result<(), Error> {
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

    /// Runs for a while; transactions a second, and processor time of each in microseconds.
    async fn run(&mut self, peer: &mut Peer, window: Duration) -> Result<[f64; 2], Error> {
        let cpu_before = process::usage(None).map_err(Error::Proc)?.cpu_us;
        let begin = Instant::now();
        let (mut transactions, mut transaction) = (0, Transaction::default());
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
        // What one form still writes must not burden the other.
        peer.persisted().await?;
        let cpu_us = process::usage(None).map_err(Error::Proc)?.cpu_us - cpu_before;
        Ok([tps, cpu_us as f64 / transactions as f64])
    }
}

/// Runs both forms in turns.
pub async fn compare(comparison: &Comparison, stop: &Stop) -> Result<Compared, Error> {
    let Comparison { load, latency, sizes, pairs, window, seed } = comparison;
    let mut runner = Runner::new(load, *seed);
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let mut disaggregated =
        Peer::disaggregated(&folder.path().join("disaggregated"), *latency, &sizes[0], None).await?;
    let mut monolithic = Peer::monolithic(&folder.path().join("monolithic"), &sizes[1]).await?;
    runner.fill([&mut disaggregated, &mut monolithic]).await?;
    let filled = [disaggregated.savepoints, monolithic.savepoints];
    let (mut ratios, mut rates) = (Vec::new(), [Vec::new(), Vec::new()]);
    let mut times = [Vec::new(), Vec::new()];
    // The first pair warms up and is not counted.
    for pair in 0..=*pairs {
        let mut rate = [0.0; 2];
        let mut time = [0.0; 2];
        // Who goes first changes, so that neither always has the warmer machine.
        for turn in 0..2 {
            if stop.is_stopped() {
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
    Ok(Compared {
        tps: rates.map(median),
        cpu_us: times.map(median),
        savepoints: [disaggregated.savepoints - filled[0], monolithic.savepoints - filled[1]],
        ratio: median(ratios),
        ratio_least,
    })
}
