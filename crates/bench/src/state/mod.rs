//! `heddle bench state`: the world state alone, without a network.
//!
//! 1. [`reads`]: warm and cold reads, ranges, and what a record costs in remote memory, beside an in-process hash map,
//!    the storage engine alone, and FlexChain's division of labour, in which look-up and allocation are asked of the memory
//!    node ([`two_sided`]).
//! 2. [`blocks`]: applying blocks, beside the same.
//! 3. [`load`]: YCSB-A and -B on blocks, disaggregated and monolithic in turn, each a [`peer`] with blocks and tables on disk.
//! 4. [`pressure`]: reads while others are evicted, and updates for long within constant memory.
//!
//! Both sides of a ratio are measured in one run, in turns, and the medians of the turns are compared.

mod blocks;
pub(crate) mod load;
pub(crate) mod peer;
mod pressure;
mod reads;
pub(crate) mod setup;
pub(crate) mod transactions;
pub(crate) mod two_sided;

use std::time::Duration;

use base::rt::Stop;

use crate::error::Error;
use crate::figure::{Bound, Figure};
use crate::progress::{Measuring, Tell};
use load::Comparison;
use peer::Sizes;
use transactions::Load;

/// Records of YCSB.
const YCSB_RECORDS: usize = 10_000;
/// Bytes of each of their values.
const YCSB_VALUE_BYTES: usize = 10_240;
/// Remote memory for YCSB: the data and room for versions that wait to be reclaimed.
const YCSB_MEMORY_BYTES: u64 = 384 << 20;
/// How often the savepoint moves, in blocks.
pub(crate) const PERSIST_BLOCKS: u64 = 32;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of values in remote memory for reads.
    pub data_bytes: u64,
    /// Bytes of one value for reads.
    pub value_bytes: usize,
    /// How long each pair of runs of the load takes, for each form.
    pub seconds: f64,
    /// Pairs of runs of the load.
    pub pairs: usize,
    /// Fixes the choice of keys.
    pub seed: u64,
    /// Latencies of the shaped interconnect.
    pub shapes: Vec<Duration>,
    /// How long updates go on within constant memory.
    pub steady: Duration,
    /// What to measure: all of it, unless given.
    pub only: Option<Part>,
}

/// A part of the figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Reads,
    Blocks,
    Load,
    Pressure,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            data_bytes: 256 << 20,
            value_bytes: 1024,
            seconds: 3.0,
            pairs: 5,
            seed: 1,
            shapes: vec![Duration::from_micros(2), Duration::from_micros(8)],
            steady: Duration::from_secs(30),
            only: None,
        }
    }
}

/// Measures. `tell` is told what is done next.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("state", "The world state alone");
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("value_bytes", options.value_bytes);
    figure.setting("seconds", options.seconds);
    figure.setting("pairs", options.pairs);
    figure.setting("seed", options.seed);
    figure.setting("steady_seconds", options.steady.as_secs_f64());
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::Reads) {
        all_reads(options, stop, tell, &mut figure).await?;
    }
    if wanted(Part::Blocks) {
        tell("blocks");
        for shape in std::iter::once(None).chain(options.shapes.iter().copied().map(Some)) {
            blocks::measure(options, shape, &mut figure).await?;
            check(stop)?;
        }
    }
    if wanted(Part::Load) {
        loads(options, stop, tell, &mut figure).await?;
    }
    if wanted(Part::Pressure) {
        tell("reads while others are evicted");
        pressure::evicting(options, stop, &mut figure).await?;
        pressure::steady(options, stop, &mut figure, tell).await?;
    }
    figure
        .note("Reads and blocks are made by one task; medians of batches, in turns with what they are compared with.");
    Ok(figure)
}

fn check(stop: &Stop) -> Result<(), Error> {
    if stop.is_stopped() { Err(Error::Interrupted) } else { Ok(()) }
}

async fn all_reads(options: &Options, stop: &Stop, tell: Tell<'_>, figure: &mut Figure) -> Result<(), Error> {
    tell("reads through shm");
    let through_shm = reads::measure(options, None, figure).await?;
    check(stop)?;
    figure.ratio("warm_over_hashmap", through_shm.warm_over_hashmap, Some(Bound::AtMost(3.0)));
    figure.ratio("cold_1k_us", through_shm.cold_us, Some(Bound::AtMost(1.5)));
    figure.ratio("record_overhead_bytes", through_shm.record_overhead_bytes, Some(Bound::AtMost(96.0)));
    for latency in &options.shapes {
        let micros = latency.as_micros();
        tell(&format!("reads under a latency of {micros} µs"));
        let shaped = reads::measure(options, Some(*latency), figure).await?;
        check(stop)?;
        // A verb's latency is what one verb takes that reads a record, through the same interconnect in the same run.
        match micros {
            2 => figure.ratio("cold_verbs_at_2us", shaped.cold_over_verb, Some(Bound::AtMost(2.2))),
            8 => figure.ratio("cold_verbs_at_8us", shaped.cold_over_verb, None),
            _ => {}
        }
    }
    Ok(())
}

async fn loads(options: &Options, stop: &Stop, tell: Tell<'_>, figure: &mut Figure) -> Result<(), Error> {
    let mut least = f64::INFINITY;
    for (name, updates_percent) in [("ycsb-a", 50), ("ycsb-b", 5)] {
        tell(&format!("{name} at 10 KB, both forms in turn"));
        least = least.min(compare(options, name, updates_percent, None, stop, figure).await?);
    }
    figure.ratio("state_over_monolithic_min", least, Some(Bound::AtLeast(0.9)));
    if let Some(latency) = options.shapes.first() {
        tell("ycsb-a at 10 KB under latency");
        compare(options, "ycsb-a", 50, Some(*latency), stop, figure).await?;
    }
    Ok(())
}

/// Runs YCSB at 10 KB on both forms; the median over the pairs of disaggregated over monolithic throughput.
async fn compare(
    options: &Options,
    name: &str,
    updates_percent: u64,
    latency: Option<Duration>,
    stop: &Stop,
    figure: &mut Figure,
) -> Result<f64, Error> {
    let sizes = Sizes {
        memory_bytes: YCSB_MEMORY_BYTES,
        section_bytes: pool::SECTION_BYTES_DEFAULT,
        cache_bytes: state::Settings::default().cache_bytes,
        metadata_bytes: state::Settings::default().cache_bytes / 8,
        delta_bytes_max: state::Settings::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    };
    let comparison = Comparison {
        load: Load::Ycsb { records: YCSB_RECORDS, value_bytes: YCSB_VALUE_BYTES, updates_percent },
        latency,
        sizes: [sizes.clone(), sizes],
        pairs: options.pairs,
        window: Duration::from_secs_f64(options.seconds),
        seed: options.seed,
    };
    let compared = load::compare(&comparison, stop).await?;
    let provider = setup::provider(latency);
    for (form, tps) in ["disaggregated", "monolithic"].into_iter().zip(compared.tps) {
        let labels = [("load", name), ("form", form), ("provider", provider.as_str())];
        let ratios = [("ratio_median", compared.ratio), ("ratio_least", compared.ratio_least)];
        figure.row(&labels, &[("median_tps", tps), ratios[0], ratios[1]]);
    }
    Ok(compared.ratio)
}
