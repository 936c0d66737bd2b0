//! `heddle bench rma`: measures the cost of each verb of remote memory and compares each provider with its floor. The *floor*
//! of a provider is the least that the same batch can cost.
//!
//! 1. [`target`] makes a host and a caller's connection to it, in this process.
//! 2. [`verbs`] calls a batch of one verb, sequentially or with many in flight.
//! 3. The floor performs the same batch. For `shm` it is a copy or an atomic instruction ([`copy`]). For `tcp` it is a
//!    request and a reply of the same sizes over a bare socket ([`echo`]); both ends poll and sleep as the provider's do, and
//!    [`cpu_affinity`] pins both to cores.
//! 4. Batches of the verb and of the floor alternate; for `tcp` this is repeated with several pairs of connections. [`samples`]
//!    computes percentiles of the single verbs and medians of the batches' rates.
//!
//! `shm` reads and writes are measured warm (at one offset) and cold (all over a large region), and the floor uses the same
//! pattern of offsets. Under `shaped` the floor is that of the underlying provider: the rest of the cost is the network.

mod copy;
mod cpu_affinity;
mod echo;
mod samples;
mod target;
mod verbs;

use std::time::Duration;

use base::rt::CancellationToken;

use crate::error::Error;
use crate::figure::{Figure, RatioBound};
use crate::progress::{MeasurementFuture, ReportProgress};
use samples::{MeasuredSide, PairedSamples};
use target::{ProviderKind, RmaTarget};
use verbs::{AccessPattern, Verb, VerbCase};

/// Bytes that verbs move.
const SIZES: [usize; 5] = [8, 64, 1 << 10, 10 << 10, 1 << 20];
/// Latency ratios are those of verbs of at most this many bytes; beyond that, bandwidth counts.
const LATENCY_BYTES_MAX: usize = 10 << 10;
/// Bandwidth ratios are those of reads and writes of this many bytes.
const BANDWIDTH_BYTES: usize = 1 << 20;

/// The cost of TLS is measured with verbs of this many bytes.
const TLS_BYTES: usize = 64 << 10;

/// How to measure.
#[derive(Clone, Debug)]
pub struct RmaConfig {
    /// Batches of each verb and of its floor, in turns.
    pub rounds: usize,
    /// The approximate length of one batch.
    pub batch: Duration,
    /// Bytes of the region that cold verbs go over.
    pub data_bytes: u64,
    /// Fixes the offsets.
    pub seed: u64,
    /// `shm` is measured.
    pub shm: bool,
    /// `tcp` is measured.
    pub tcp: bool,
    /// Latencies of the shaped interconnect.
    pub shapes: Vec<Duration>,
}

impl Default for RmaConfig {
    fn default() -> RmaConfig {
        RmaConfig {
            rounds: 31,
            batch: Duration::from_millis(3),
            data_bytes: 256 << 20,
            seed: 1,
            shm: true,
            tcp: true,
            shapes: vec![Duration::from_micros(2), Duration::from_micros(8)],
        }
    }
}

/// The ratios as far as they are known.
#[derive(Default)]
struct RmaRatios {
    shm_over_floor_ns: Option<f64>,
    shm_cold_over_floor_ns: Option<f64>,
    tcp_over_echo: Option<f64>,
    bandwidth_over_floor: Option<f64>,
    /// Medians of reads and writes of [`TLS_BYTES`] over the floor's, without TLS and with it, in the order of measuring.
    plain_64k: Vec<f64>,
    tls_64k: Vec<f64>,
}

impl RmaRatios {
    /// Adds a row of a provider that is not shaped.
    fn count(&mut self, provider: ProviderKind, case: &VerbCase, measured: &PairedSamples) {
        let [median, floor] = [MeasuredSide::Verb, MeasuredSide::Floor].map(|side| measured.quantile_ns(side, 0.5));
        let most = |before: Option<f64>, value: f64| Some(before.map_or(value, |before| before.max(value)));
        if case.bytes == TLS_BYTES {
            match provider {
                ProviderKind::Tcp => self.plain_64k.push(median / floor),
                ProviderKind::TcpTls => self.tls_64k.push(median / floor),
                ProviderKind::Shm => {}
            }
        }
        if case.bytes <= LATENCY_BYTES_MAX {
            match (provider, case.pattern) {
                (ProviderKind::Shm, AccessPattern::Warm) => {
                    self.shm_over_floor_ns = most(self.shm_over_floor_ns, median - floor);
                }
                (ProviderKind::Shm, AccessPattern::Cold) => {
                    self.shm_cold_over_floor_ns = most(self.shm_cold_over_floor_ns, median - floor);
                }
                (ProviderKind::Tcp, _) => self.tcp_over_echo = most(self.tcp_over_echo, median / floor),
                (ProviderKind::TcpTls, _) => {}
            }
        }
        let is_warm = case.pattern == AccessPattern::Warm;
        if is_warm && case.bytes == BANDWIDTH_BYTES && matches!(case.verb, Verb::Read | Verb::Write) {
            let ratio = measured.rate(MeasuredSide::Verb) / measured.rate(MeasuredSide::Floor);
            self.bandwidth_over_floor = Some(self.bandwidth_over_floor.map_or(ratio, |before| before.min(ratio)));
        }
    }
}

fn cases(provider: ProviderKind) -> Vec<VerbCase> {
    let tls = [Verb::Read, Verb::Write].map(|verb| VerbCase { verb, bytes: TLS_BYTES, pattern: AccessPattern::Warm });
    let mut cases = if provider == ProviderKind::Shm { Vec::new() } else { tls.to_vec() };
    if provider == ProviderKind::TcpTls {
        return cases;
    }
    for verb in Verb::ALL {
        for bytes in if verb.is_atomic() { &SIZES[..1] } else { &SIZES[..] } {
            cases.push(VerbCase { verb, bytes: *bytes, pattern: AccessPattern::Warm });
        }
    }
    // Over a network, the difference between warm and cold memory does not show.
    if provider == ProviderKind::Shm {
        for verb in [Verb::Read, Verb::Write] {
            cases.extend(SIZES.map(|bytes| VerbCase { verb, bytes, pattern: AccessPattern::Cold }));
        }
    }
    cases
}

/// Measures. `tell` gets a description of each next step.
///
/// # Errors
/// A provider or a socket cannot be set up, a verb fails, or `stop` was stopped.
pub fn run<'a>(options: &'a RmaConfig, stop: &'a CancellationToken, tell: ReportProgress<'a>) -> MeasurementFuture<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &RmaConfig, stop: &CancellationToken, tell: ReportProgress<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("rma", "Remote memory: each verb beside its floor");
    figure.setting("rounds", options.rounds);
    figure.setting("batch_ms", options.batch.as_secs_f64() * 1e3);
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("seed", options.seed);
    let mut ratios = RmaRatios::default();
    let providers =
        [(ProviderKind::Shm, options.shm), (ProviderKind::Tcp, options.tcp), (ProviderKind::TcpTls, options.tcp)];
    let shapes = || std::iter::once(None).chain(options.shapes.iter().copied().map(Some));
    for latency in shapes() {
        for provider in providers.iter().filter(|(_, wanted)| *wanted).map(|(provider, _)| *provider) {
            // A shaped network hides the cost of TLS.
            if provider == ProviderKind::TcpTls && latency.is_some() {
                continue;
            }
            let name = provider.name(latency);
            tell(&format!("{name}: setting up"));
            let mut target = RmaTarget::start(provider, latency, options.data_bytes).await?;
            for case in cases(provider) {
                if stop.is_cancelled() {
                    return Err(Error::Interrupted);
                }
                let (verb, memory) = (case.verb.name(), case.pattern.name());
                tell(&format!("{name}: {verb} of {} bytes, {memory}", case.bytes));
                let measured = samples::measure(options, &mut target, &case).await?;
                let labels = [
                    ("provider", name.as_str()),
                    ("verb", verb),
                    ("bytes", &case.bytes.to_string()),
                    ("memory", memory),
                ];
                figure.row(&labels, &numbers(&measured, case.bytes));
                if latency.is_none() {
                    ratios.count(provider, &case, &measured);
                }
            }
        }
    }
    if let Some(ns) = ratios.shm_over_floor_ns {
        figure.ratio("shm_over_floor_ns_max", ns, Some(RatioBound::AtMost(100.0)));
    }
    if let Some(ns) = ratios.shm_cold_over_floor_ns {
        figure.ratio("shm_cold_over_floor_ns_max", ns, None);
    }
    if let Some(ratio) = ratios.tcp_over_echo {
        figure.ratio("tcp_over_echo_max", ratio, Some(RatioBound::AtMost(1.5)));
    }
    if let Some(ratio) = ratios.bandwidth_over_floor {
        figure.ratio("bandwidth_over_floor_min", ratio, Some(RatioBound::AtLeast(0.8)));
    }
    let tls_over_plain = ratios.tls_64k.iter().zip(&ratios.plain_64k).map(|(tls, plain)| tls / plain);
    if let Some(ratio) = tls_over_plain.reduce(f64::max) {
        figure.ratio("tls_over_plain_64k", ratio, Some(RatioBound::AtMost(1.8)));
    }
    figure.note("One task calls; percentiles are those of verbs one after the other, rates those of many in flight.");
    figure.note("The caller of tcp and of its floor has one core, the answering thread another.");
    figure.note("Connections over loopback differ by a third, those of the floor too; many of both are measured.");
    figure.note("A send over shm ends when its receiver has it; over tcp it is answered by one of the same size.");
    Ok(figure)
}

fn numbers(measured: &PairedSamples, bytes: usize) -> [(&'static str, f64); 9] {
    let ns = |side, quantile| measured.quantile_ns(side, quantile);
    let mib = |side| measured.rate(side) * bytes as f64 / f64::from(1 << 20);
    [
        ("p50_ns", ns(MeasuredSide::Verb, 0.5)),
        ("floor_p50_ns", ns(MeasuredSide::Floor, 0.5)),
        ("p99_ns", ns(MeasuredSide::Verb, 0.99)),
        ("floor_p99_ns", ns(MeasuredSide::Floor, 0.99)),
        ("p999_ns", ns(MeasuredSide::Verb, 0.999)),
        ("per_second", measured.rate(MeasuredSide::Verb)),
        ("floor_per_second", measured.rate(MeasuredSide::Floor)),
        ("mib_per_second", mib(MeasuredSide::Verb)),
        ("floor_mib_per_second", mib(MeasuredSide::Floor)),
    ]
}
