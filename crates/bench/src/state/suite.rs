//! Runs the parts of the measurement, one after the other.

use std::time::Duration;

use base::rt::CancellationToken;

use super::config::{PERSIST_BLOCKS, StateConfig, StatePart};
use super::load::LoadComparison;
use super::peer::PeerMemoryConfig;
use super::transactions::TransactionMix;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};

/// Records of YCSB.
pub(super) const YCSB_RECORDS: usize = 10_000;
/// Bytes of each of their values.
pub(super) const YCSB_VALUE_BYTES: usize = 10_240;
/// Remote memory for YCSB: the data, and space for versions that wait to be reclaimed.
pub(super) const YCSB_MEMORY_BYTES: u64 = 384 << 20;
/// Measures. `tell` gets a description of each next step.
///
/// # Errors
/// A part cannot be set up, or `stop` was stopped.
pub fn run<'a>(
    options: &'a StateConfig,
    stop: &'a CancellationToken,
    tell: ReportProgress<'a>,
) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

pub(super) async fn run_all(
    options: &StateConfig,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
    let mut figure = Figure::new("state", "The world state alone");
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("value_bytes", options.value_bytes);
    figure.setting("seconds", options.seconds);
    figure.setting("pairs", options.pairs);
    figure.setting("seed", options.seed);
    figure.setting("steady_seconds", options.steady.as_secs_f64());
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(StatePart::Reads) {
        all_reads(options, stop, tell, &mut figure).await?;
    }
    if wanted(StatePart::Blocks) {
        tell("blocks");
        for shape in std::iter::once(None).chain(options.shapes.iter().copied().map(Some)) {
            super::blocks::measure(options, shape, &mut figure).await?;
            check(stop)?;
        }
    }
    if wanted(StatePart::Load) {
        loads(options, stop, tell, &mut figure).await?;
    }
    if wanted(StatePart::Pressure) {
        tell("reads while others are evicted");
        super::pressure::evicting(options, stop, &mut figure).await?;
        super::pressure::steady(options, stop, &mut figure, tell).await?;
    }
    figure.note("One task makes reads and blocks; medians of batches, in turns with their baselines.");
    Ok(figure)
}

pub(super) fn check(stop: &CancellationToken) -> Result<(), Error> {
    if stop.is_cancelled() { Err(Error::Interrupted) } else { Ok(()) }
}

pub(super) async fn all_reads(
    options: &StateConfig,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
    figure: &mut Figure,
) -> Result<(), Error> {
    tell("reads through shm");
    let through_shm = super::reads::measure(options, None, figure).await?;
    check(stop)?;
    figure.ratio("warm_over_hashmap", through_shm.warm_over_hashmap, Some(RatioBound::AtMost(3.0)));
    figure.ratio("cold_1k_us", through_shm.cold_us, Some(RatioBound::AtMost(1.5)));
    figure.ratio("record_overhead_bytes", through_shm.record_overhead_bytes, Some(RatioBound::AtMost(96.0)));
    for latency in &options.shapes {
        let micros = latency.as_micros();
        tell(&format!("reads under a latency of {micros} µs"));
        let shaped = super::reads::measure(options, Some(*latency), figure).await?;
        check(stop)?;
        // A verb's latency is the time of one verb that reads a record, through the same interconnect in the same run.
        match micros {
            2 => figure.ratio("cold_verbs_at_2us", shaped.cold_over_verb, Some(RatioBound::AtMost(2.2))),
            8 => figure.ratio("cold_verbs_at_8us", shaped.cold_over_verb, None),
            _ => {}
        }
    }
    Ok(())
}

pub(super) async fn loads(
    options: &StateConfig,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
    figure: &mut Figure,
) -> Result<(), Error> {
    let mut least = f64::INFINITY;
    for (name, updates_percent) in [("ycsb-a", 50), ("ycsb-b", 5)] {
        tell(&format!("{name} at 10 KB, both forms in turn"));
        least = least.min(compare(options, name, updates_percent, None, stop, figure).await?);
    }
    figure.ratio("state_over_monolithic_min", least, Some(RatioBound::AtLeast(0.9)));
    if let Some(latency) = options.shapes.first() {
        tell("ycsb-a at 10 KB under latency");
        compare(options, "ycsb-a", 50, Some(*latency), stop, figure).await?;
    }
    Ok(())
}

/// Runs YCSB at 10 KB on both forms; returns the median over the pairs of disaggregated over monolithic throughput.
pub(super) async fn compare(
    options: &StateConfig,
    name: &str,
    updates_percent: u64,
    latency: Option<Duration>,
    stop: &CancellationToken,
    figure: &mut Figure,
) -> Result<f64, Error> {
    let sizes = PeerMemoryConfig {
        memory_bytes: YCSB_MEMORY_BYTES,
        section_bytes: pool::SECTION_BYTES_DEFAULT,
        cache_bytes: state::MonolithicConfig::default().cache_bytes,
        metadata_bytes: state::MonolithicConfig::default().cache_bytes / 8,
        delta_bytes_max: state::MonolithicConfig::default().delta_bytes_max,
        persist_blocks: Some(PERSIST_BLOCKS),
    };
    let comparison = LoadComparison {
        load: TransactionMix::Ycsb { records: YCSB_RECORDS, value_bytes: YCSB_VALUE_BYTES, updates_percent },
        latency,
        sizes: [sizes.clone(), sizes],
        pairs: options.pairs,
        window: Duration::from_secs_f64(options.seconds),
        seed: options.seed,
    };
    let compared = super::load::compare(&comparison, stop).await?;
    let provider = super::setup::provider_name(latency);
    for (form, tps) in ["disaggregated", "monolithic"].into_iter().zip(compared.tps) {
        let labels = [("load", name), ("form", form), ("provider", provider.as_str())];
        let ratios = [("ratio_median", compared.ratio), ("ratio_least", compared.ratio_least)];
        figure.row(&labels, &[("median_tps", tps), ratios[0], ratios[1]]);
    }
    Ok(compared.ratio)
}
