//! Figure 7 without a network: both forms of the world state, disaggregated and monolithic, under YCSB and SmallBank.
//!
//! The figure has two parts. In both, runs of the two forms alternate.
//!
//! 1. *Equal sizes*: YCSB-A and YCSB-B with values of 10 KB, and SmallBank with 5, 50 and 95 % writes, over plain `shm`
//!    and with a latency of 2 µs per verb. Both forms have equally large caches, which are divided into metadata and
//!    data according to the length of the values. Both forms move the savepoint in the background every 32 blocks.
//! 2. *A large memtable*, as in the paper's section 6.3: the write-heavy loads again. The rows say how often each form
//!    moved its savepoint.
//!    * The monolithic form has a memtable as large as the data, and also caches all data. It persists when the
//!      memtable is full, and blocks wait for that.
//!    * The disaggregated form moves its savepoint in the background. Storage must materialise all blocks since the
//!      previous savepoint at one time, and `storage.savepoint_blocks` limits their number. The savepoint moves as
//!      seldom as this limit allows. The caches of this form are first an eighth of the data, as in the paper under
//!      YCSB, and then as large as those of the monolithic form. The paper does not give their size under SmallBank,
//!      whose data fits into its cache of 500 MB.
//!
//! Whole networks are measured by the command, with the driver of `heddle bench ycsb` and `heddle bench smallbank`.

use std::time::Duration;

use base::rt::CancellationToken;

use super::{VALUE_BYTES, check};
use crate::state::load::{ComparedRates, LoadComparison, TRANSACTIONS, compare};
use crate::state::peer::PeerMemoryConfig;
use crate::state::transactions::TransactionMix;
use crate::state::{PERSIST_BLOCKS, setup};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};

/// Bytes of an account, as in the paper.
pub const ACCOUNT_BYTES: usize = 100;
/// Remote memory beside the data: the index, heads of records, and versions that wait to be reclaimed.
const MEMORY_BESIDE_BYTES: u64 = 256 << 20;
/// The least cache: shards of less would hold nothing.
const CACHE_BYTES_MIN: usize = 1 << 20;
/// The least memtable: SmallBank's data is small, and a savepoint for every few blocks is no memtable.
const MEMTABLE_BYTES_MIN: usize = 16 << 20;
/// The least and the most blocks between savepoints beside a large memtable (`storage.savepoint_blocks`), and the bytes of
/// writes in between: as many as storage materialises at one time, from blocks that it need not read back.
const SAVEPOINT_BLOCKS: [u64; 2] = [PERSIST_BLOCKS, 128];
const SAVEPOINT_BYTES: u64 = 120 << 20;
/// The approximate bytes of an entry of a cache besides its value.
const ENTRY_BYTES: u64 = 170;
/// The least [`Fig7Config::memtable_window_min`] with which either form persists in each run.
pub const MEMTABLE_WINDOW_MIN: Duration = Duration::from_secs(4);

/// How to measure.
#[derive(Clone, Debug)]
pub struct Fig7Config {
    /// Records of YCSB.
    pub records: usize,
    /// Customers of SmallBank.
    pub customers: usize,
    /// Pairs of runs of each load.
    pub pairs: usize,
    /// How long each run takes.
    pub window: Duration,
    /// The shortest run beside a large memtable.
    pub memtable_window_min: Duration,
    /// The latency of a verb in the second measurement, beside plain `shm`.
    pub latency: Duration,
    /// Fixes the choice of keys.
    pub seed: u64,
}

impl Fig7Config {
    /// The figure's loads by name.
    pub fn loads(&self) -> Vec<(String, TransactionMix)> {
        let ycsb =
            |updates_percent| TransactionMix::Ycsb { records: self.records, value_bytes: VALUE_BYTES, updates_percent };
        let bank = |writes_percent| {
            let (customers, value_bytes) = (self.customers, ACCOUNT_BYTES);
            (
                format!("smallbank {writes_percent} %"),
                TransactionMix::SmallBank { customers, value_bytes, writes_percent },
            )
        };
        let letters = [("ycsb-a".to_owned(), ycsb(50)), ("ycsb-b".to_owned(), ycsb(5))];
        letters.into_iter().chain([5, 50, 95].map(bank)).collect()
    }
}

/// Whether a load writes heavily.
fn is_write_heavy(load: &TransactionMix) -> bool {
    match load {
        TransactionMix::Ycsb { updates_percent, .. } => *updates_percent >= 50,
        TransactionMix::SmallBank { writes_percent, .. } => *writes_percent >= 95,
    }
}

/// The sizes of a form with remote memory for all data of a load, and caches of this many bytes, or the least size.
fn sizes(load: &TransactionMix, cache_bytes: usize, persist_blocks: u64) -> PeerMemoryConfig {
    let cache_bytes = cache_bytes.max(CACHE_BYTES_MIN);
    PeerMemoryConfig {
        memory_bytes: load.data_bytes() * 5 / 4 + MEMORY_BESIDE_BYTES,
        section_bytes: pool::SECTION_BYTES_DEFAULT,
        cache_bytes,
        metadata_bytes: metadata_bytes(cache_bytes as u64, load.value_bytes() as u64) as usize,
        delta_bytes_max: state::MonolithicConfig::default().delta_bytes_max,
        persist_blocks: Some(persist_blocks),
    }
}

/// The metadata cache's part: it holds as many entries as the data cache, or more if they are small beside values.
pub fn metadata_bytes(cache_bytes: u64, value_bytes: u64) -> u64 {
    (cache_bytes * ENTRY_BYTES / (2 * ENTRY_BYTES + value_bytes)).max(cache_bytes / 16)
}

/// Blocks from one savepoint to the next beside a large memtable.
fn savepoint_blocks(load: &TransactionMix) -> u64 {
    let [least, most] = SAVEPOINT_BLOCKS;
    (SAVEPOINT_BYTES / load.bytes_written(TRANSACTIONS).max(1)).clamp(least, most)
}

/// Adds the rows and ratios of the state alone.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn state_only<'a>(
    options: &'a Fig7Config,
    figure: &'a mut Figure,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a, ()> {
    Box::pin(run_state_only(options, figure, stop, tell))
}

async fn run_state_only(
    options: &Fig7Config,
    figure: &mut Figure,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<(), Error> {
    for (latency, ratio, bound) in [
        (None, "state_over_monolithic_min", Some(RatioBound::AtLeast(0.9))),
        (Some(options.latency), "state_over_monolithic_shaped_min", None),
    ] {
        let provider = setup::provider_name(latency);
        let mut least = f64::INFINITY;
        for (name, load) in options.loads() {
            check(stop)?;
            tell(&format!("state alone: {name}, {provider}, both forms in turn"));
            let cache_bytes = state::MonolithicConfig::default().cache_bytes.min(load.data_bytes() as usize * 5 / 8);
            let sizes = sizes(&load, cache_bytes, PERSIST_BLOCKS);
            let compared = compare(&options.comparison(load, latency, [sizes.clone(), sizes]), stop).await?;
            add(figure, "state", &name, &provider, &compared);
            least = least.min(compared.ratio);
        }
        figure.ratio(ratio, least, bound);
    }
    Ok(())
}

/// Adds the rows and ratios of the write-heavy loads with a large memtable.
///
/// # Errors
/// As [`state_only`].
pub fn large_memtable<'a>(
    options: &'a Fig7Config,
    figure: &'a mut Figure,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a, ()> {
    Box::pin(run_large_memtable(options, figure, stop, tell))
}

async fn run_large_memtable(
    options: &Fig7Config,
    figure: &mut Figure,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<(), Error> {
    let mut least = [f64::INFINITY; 2];
    for (name, load) in options.loads().into_iter().filter(|(_, load)| is_write_heavy(load)) {
        let data = load.data_bytes() as usize;
        // An entry of a small record takes several times its bytes.
        let all_cached = data * if load.value_bytes() < 1024 { 8 } else { 2 };
        let caches = [("state, large memtable", data / 8), ("state, large memtable, equal caches", all_cached)];
        for ((part, cache_bytes), least) in caches.into_iter().zip(&mut least) {
            check(stop)?;
            tell(&format!("{part}: {name}"));
            let disaggregated = sizes(&load, cache_bytes, savepoint_blocks(&load));
            let monolithic = PeerMemoryConfig {
                cache_bytes: all_cached,
                delta_bytes_max: data.max(MEMTABLE_BYTES_MIN),
                persist_blocks: None,
                ..disaggregated.clone()
            };
            let mut comparison = options.comparison(load.clone(), None, [disaggregated, monolithic]);
            comparison.window = comparison.window.max(options.memtable_window_min);
            let compared = compare(&comparison, stop).await?;
            add(figure, part, &name, &setup::provider_name(None), &compared);
            *least = least.min(compared.ratio);
        }
    }
    figure.ratio("large_memtable_over_monolithic_min", least[0], Some(RatioBound::AtLeast(1.0)));
    figure.ratio("large_memtable_equal_caches_min", least[1], Some(RatioBound::AtLeast(1.0)));
    Ok(())
}

impl Fig7Config {
    fn comparison(
        &self,
        load: TransactionMix,
        latency: Option<Duration>,
        sizes: [PeerMemoryConfig; 2],
    ) -> LoadComparison {
        LoadComparison { load, latency, sizes, pairs: self.pairs, window: self.window, seed: self.seed }
    }
}

fn add(figure: &mut Figure, part: &str, load: &str, provider: &str, compared: &ComparedRates) {
    for (at, form) in ["disaggregated", "monolithic"].into_iter().enumerate() {
        let labels = [("part", part), ("load", load), ("provider", provider), ("form", form)];
        let numbers = [
            ("median_tps", compared.tps[at]),
            ("cpu_us", compared.cpu_us[at]),
            ("savepoints", compared.savepoints[at] as f64),
            ("ratio_median", compared.ratio),
            ("ratio_least", compared.ratio_least),
        ];
        figure.row(&labels, &numbers);
    }
}
