//! Runs the measurement: each verb in alternation with its floor, then the ratios.

use base::rt::CancellationToken;

use super::config::{BANDWIDTH_BYTES, LATENCY_BYTES_MAX, RmaConfig, SIZES, TLS_BYTES};
use super::samples::{MeasuredSide, PairedSamples};
use super::target::RmaTarget;
use super::verbs::{AccessPattern, Verb, VerbCase};
use crate::rma::provider::ProviderKind;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::progress::{MeasurementFuture, ReportProgress};

/// The ratios as far as they are known.
#[derive(Default)]
pub(super) struct RmaRatios {
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

pub(super) fn cases(provider: ProviderKind) -> Vec<VerbCase> {
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

pub(super) async fn run_all(
    options: &RmaConfig,
    stop: &CancellationToken,
    tell: ReportProgress<'_>,
) -> Result<Figure, Error> {
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
                let measured = super::samples::measure(options, &mut target, &case).await?;
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

pub(super) fn numbers(measured: &PairedSamples, bytes: usize) -> [(&'static str, f64); 9] {
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
