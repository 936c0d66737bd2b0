//! Figure 7 without a network: both forms of the state under YCSB and SmallBank.
//!
//! 1. YCSB-A and -B at 10 KB, SmallBank at 5, 50 and 95 % writes, through `shm` and under a latency of 2 µs a verb: runs of
//!    both forms in turn, with equal caches (how they are divided into metadata and data follows from the length of values),
//!    and a savepoint in the background every 32 blocks for both.
//! 2. The write-heavy ones again, the monolithic form with a memtable as large as the data and all data cached beside it, as
//!    in the paper's section 6.3: it persists once the memtable is full, and blocks wait for that. The disaggregated form's
//!    savepoint moves in the background, as rarely as storage can make the blocks in between into rows at one time
//!    (`storage.savepoint_blocks`); rows say how often either did. Its caches are an eighth of the data, as the paper's are
//!    under YCSB, and then as large as the monolithic form's (the paper does not say what they were under SmallBank, whose
//!    data its cache of 500 MB could hold).
//!
//! Whole networks are measured by the command, with the driver of `heddle bench ycsb` and `smallbank`.

use std::time::Duration;

use base::rt::Stop;

use super::{VALUE_BYTES, check};
use crate::error::Error;
use crate::figure::{Bound, Figure};
use crate::progress::{Measuring, Tell};
use crate::state::load::{Compared, Comparison, TRANSACTIONS, compare};
use crate::state::peer::Sizes;
use crate::state::transactions::Load;
use crate::state::{PERSIST_BLOCKS, setup};

/// Bytes of an account, as in the paper.
pub const ACCOUNT_BYTES: usize = 100;
/// Remote memory beside the data: the index, heads of records, and versions that wait to be reclaimed.
const MEMORY_BESIDE_BYTES: u64 = 256 << 20;
/// The least cache: shards of less would hold nothing.
const CACHE_BYTES_MIN: usize = 1 << 20;
/// The least memtable: SmallBank's data is small, and a savepoint for every few blocks is no memtable.
const MEMTABLE_BYTES_MIN: usize = 16 << 20;
/// How often the savepoint moves at least and at most beside a large memtable (`storage.savepoint_blocks`), and the bytes of
/// writes in between: as many as storage makes into rows at one time, from blocks that it need not read back.
const SAVEPOINT_BLOCKS: [u64; 2] = [PERSIST_BLOCKS, 128];
const SAVEPOINT_BYTES: u64 = 120 << 20;
/// About what an entry of a cache takes besides its value.
const ENTRY_BYTES: usize = 170;
/// What [`Options::memtable_window_min`] has to be for either form to persist in each run.
pub const MEMTABLE_WINDOW_MIN: Duration = Duration::from_secs(4);

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
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
    /// Of a verb, beside `shm` as it is.
    pub latency: Duration,
    pub seed: u64,
}

impl Options {
    /// The figure's loads by name.
    pub fn loads(&self) -> Vec<(String, Load)> {
        let ycsb = |updates_percent| Load::Ycsb { records: self.records, value_bytes: VALUE_BYTES, updates_percent };
        let bank = |writes_percent| {
            let (customers, value_bytes) = (self.customers, ACCOUNT_BYTES);
            (format!("smallbank {writes_percent} %"), Load::SmallBank { customers, value_bytes, writes_percent })
        };
        let letters = [("ycsb-a".to_owned(), ycsb(50)), ("ycsb-b".to_owned(), ycsb(5))];
        letters.into_iter().chain([5, 50, 95].map(bank)).collect()
    }
}

/// Which of the loads write heavily.
fn is_write_heavy(load: &Load) -> bool {
    match load {
        Load::Ycsb { updates_percent, .. } => *updates_percent >= 50,
        Load::SmallBank { writes_percent, .. } => *writes_percent >= 95,
    }
}

/// Of a form with remote memory for all data of a load, and caches of so many bytes, if that is enough for any.
fn sizes(load: &Load, cache_bytes: usize, persist_blocks: u64) -> Sizes {
    let cache_bytes = cache_bytes.max(CACHE_BYTES_MIN);
    Sizes {
        memory_bytes: load.data_bytes() * 5 / 4 + MEMORY_BESIDE_BYTES,
        section_bytes: pool::SECTION_BYTES_DEFAULT,
        cache_bytes,
        metadata_bytes: metadata_bytes(load, cache_bytes),
        delta_bytes_max: state::Settings::default().delta_bytes_max,
        persist_blocks: Some(persist_blocks),
    }
}

/// The metadata cache's part: in it as many entries have room as in the data cache, or more if they take little beside values.
fn metadata_bytes(load: &Load, cache_bytes: usize) -> usize {
    (cache_bytes * ENTRY_BYTES / (2 * ENTRY_BYTES + load.value_bytes())).max(cache_bytes / 16)
}

/// Blocks from one savepoint to the next beside a large memtable.
fn savepoint_blocks(load: &Load) -> u64 {
    let [least, most] = SAVEPOINT_BLOCKS;
    (SAVEPOINT_BYTES / load.bytes_written(TRANSACTIONS).max(1)).clamp(least, most)
}

/// Adds the rows and ratios of the state alone.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn state_only<'a>(
    options: &'a Options,
    figure: &'a mut Figure,
    stop: &'a Stop,
    tell: Tell<'a>,
) -> Measuring<'a, ()> {
    Box::pin(run_state_only(options, figure, stop, tell))
}

async fn run_state_only(options: &Options, figure: &mut Figure, stop: &Stop, tell: Tell<'_>) -> Result<(), Error> {
    for (latency, ratio, bound) in [
        (None, "state_over_monolithic_min", Some(Bound::AtLeast(0.9))),
        (Some(options.latency), "state_over_monolithic_shaped_min", None),
    ] {
        let provider = setup::provider(latency);
        let mut least = f64::INFINITY;
        for (name, load) in options.loads() {
            check(stop)?;
            tell(&format!("state alone: {name}, {provider}, both forms in turn"));
            let cache_bytes = state::Settings::default().cache_bytes.min(load.data_bytes() as usize * 5 / 8);
            let sizes = sizes(&load, cache_bytes, PERSIST_BLOCKS);
            let compared = compare(&options.comparison(load, latency, [sizes.clone(), sizes]), stop).await?;
            add(figure, "state", &name, &provider, &compared);
            least = least.min(compared.ratio);
        }
        figure.ratio(ratio, least, bound);
    }
    Ok(())
}

/// Adds those of the write-heavy loads with a large memtable.
///
/// # Errors
/// As [`state_only`].
pub fn large_memtable<'a>(
    options: &'a Options,
    figure: &'a mut Figure,
    stop: &'a Stop,
    tell: Tell<'a>,
) -> Measuring<'a, ()> {
    Box::pin(run_large_memtable(options, figure, stop, tell))
}

async fn run_large_memtable(options: &Options, figure: &mut Figure, stop: &Stop, tell: Tell<'_>) -> Result<(), Error> {
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
            let monolithic = Sizes {
                cache_bytes: all_cached,
                delta_bytes_max: data.max(MEMTABLE_BYTES_MIN),
                persist_blocks: None,
                ..disaggregated.clone()
            };
            let mut comparison = options.comparison(load.clone(), None, [disaggregated, monolithic]);
            comparison.window = comparison.window.max(options.memtable_window_min);
            let compared = compare(&comparison, stop).await?;
            add(figure, part, &name, &setup::provider(None), &compared);
            *least = least.min(compared.ratio);
        }
    }
    figure.ratio("large_memtable_over_monolithic_min", least[0], Some(Bound::AtLeast(1.0)));
    figure.ratio("large_memtable_equal_caches_min", least[1], Some(Bound::AtLeast(1.0)));
    Ok(())
}

impl Options {
    fn comparison(&self, load: Load, latency: Option<Duration>, sizes: [Sizes; 2]) -> Comparison {
        Comparison { load, latency, sizes, pairs: self.pairs, window: self.window, seed: self.seed }
    }
}

fn add(figure: &mut Figure, part: &str, load: &str, provider: &str, compared: &Compared) {
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
