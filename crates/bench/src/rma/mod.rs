//! `heddle bench rma`: what each verb of remote memory costs, for each provider beside its floor.
//!
//! 1. [`target`] makes a host and a caller's connection to it, in this process.
//! 2. [`verbs`] makes a batch of one verb, one after the other or many in flight.
//! 3. The floor makes the same batch: [`copy`] for `shm`, a copy or an atomic instruction; [`echo`] for `tcp`, a request
//!    and a reply of the same sizes over a bare socket, whose two ends wait as the provider does.
//! 4. Batches of both alternate, for `tcp` over one pair of connections after another, and [`samples`] has the percentiles of
//!    their verbs and the medians of their rates.
//!
//! `shm` reads and writes are measured warm, in one place, and cold, all over a large region; the floor goes to places of
//! the same pattern. Under `shaped` the floor is that of the provider beneath: what is above it is the network.

mod copy;
mod echo;
mod processors;
mod samples;
mod target;
mod verbs;

use std::time::Duration;

use base::rt::Stop;

use crate::error::Error;
use crate::figure::{Bound, Figure};
use crate::progress::{Measuring, Tell};
use samples::{Measured, Side};
use target::{Provider, Target};
use verbs::{Case, Pattern, Verb};

/// Bytes that verbs move.
const SIZES: [usize; 5] = [8, 64, 1 << 10, 10 << 10, 1 << 20];
/// Latency ratios are those of verbs of at most so many bytes; beyond that, bandwidth counts.
const LATENCY_BYTES_MAX: usize = 10 << 10;
/// Bandwidth ratios are those of reads and writes of so many bytes.
const BANDWIDTH_BYTES: usize = 1 << 20;

/// What TLS costs is that of verbs of so many bytes.
const TLS_BYTES: usize = 64 << 10;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Batches of each verb and of its floor, in turns.
    pub rounds: usize,
    /// How long one batch takes, about.
    pub batch: Duration,
    /// Bytes of the region that cold verbs go over.
    pub data_bytes: u64,
    /// Fixes the places.
    pub seed: u64,
    /// `shm` is measured.
    pub shm: bool,
    /// `tcp` is measured.
    pub tcp: bool,
    /// Latencies of the shaped interconnect.
    pub shapes: Vec<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
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
struct Ratios {
    shm_over_floor_ns: Option<f64>,
    shm_cold_over_floor_ns: Option<f64>,
    tcp_over_echo: Option<f64>,
    bandwidth_over_floor: Option<f64>,
    /// Medians over the floor's of reads and writes of [`TLS_BYTES`], without TLS and with it, in the order of measuring.
    plain_64k: Vec<f64>,
    tls_64k: Vec<f64>,
}

impl Ratios {
    /// Counts a row of a provider that is not shaped.
    fn count(&mut self, provider: Provider, case: &Case, measured: &Measured) {
        let [median, floor] = [Side::Verb, Side::Floor].map(|side| measured.quantile_ns(side, 0.5));
        let most = |before: Option<f64>, value: f64| Some(before.map_or(value, |before| before.max(value)));
        if case.bytes == TLS_BYTES {
            match provider {
                Provider::Tcp => self.plain_64k.push(median / floor),
                Provider::TcpTls => self.tls_64k.push(median / floor),
                Provider::Shm => {}
            }
        }
        if case.bytes <= LATENCY_BYTES_MAX {
            match (provider, case.pattern) {
                (Provider::Shm, Pattern::Warm) => {
                    self.shm_over_floor_ns = most(self.shm_over_floor_ns, median - floor);
                }
                (Provider::Shm, Pattern::Cold) => {
                    self.shm_cold_over_floor_ns = most(self.shm_cold_over_floor_ns, median - floor);
                }
                (Provider::Tcp, _) => self.tcp_over_echo = most(self.tcp_over_echo, median / floor),
                (Provider::TcpTls, _) => {}
            }
        }
        let is_warm = case.pattern == Pattern::Warm;
        if is_warm && case.bytes == BANDWIDTH_BYTES && matches!(case.verb, Verb::Read | Verb::Write) {
            let share = measured.rate(Side::Verb) / measured.rate(Side::Floor);
            self.bandwidth_over_floor = Some(self.bandwidth_over_floor.map_or(share, |before| before.min(share)));
        }
    }
}

fn cases(provider: Provider) -> Vec<Case> {
    let tls = [Verb::Read, Verb::Write].map(|verb| Case { verb, bytes: TLS_BYTES, pattern: Pattern::Warm });
    let mut cases = if provider == Provider::Shm { Vec::new() } else { tls.to_vec() };
    if provider == Provider::TcpTls {
        return cases;
    }
    for verb in Verb::ALL {
        for bytes in if verb.is_atomic() { &SIZES[..1] } else { &SIZES[..] } {
            cases.push(Case { verb, bytes: *bytes, pattern: Pattern::Warm });
        }
    }
    // Where a network is in between, nobody sees whether memory was cold.
    if provider == Provider::Shm {
        for verb in [Verb::Read, Verb::Write] {
            cases.extend(SIZES.map(|bytes| Case { verb, bytes, pattern: Pattern::Cold }));
        }
    }
    cases
}

/// Measures. `tell` is told what is done next.
///
/// # Errors
/// A provider or a socket cannot be set up, a verb fails, or `stop` was stopped.
pub fn run<'a>(options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(options, stop, tell))
}

async fn run_all(options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new("rma", "Remote memory: each verb beside its floor");
    figure.setting("rounds", options.rounds);
    figure.setting("batch_ms", options.batch.as_secs_f64() * 1e3);
    figure.setting("data_bytes", options.data_bytes);
    figure.setting("seed", options.seed);
    let mut ratios = Ratios::default();
    let providers = [(Provider::Shm, options.shm), (Provider::Tcp, options.tcp), (Provider::TcpTls, options.tcp)];
    let shapes = || std::iter::once(None).chain(options.shapes.iter().copied().map(Some));
    for latency in shapes() {
        for provider in providers.iter().filter(|(_, wanted)| *wanted).map(|(provider, _)| *provider) {
            // A shaped network hides what TLS costs.
            if provider == Provider::TcpTls && latency.is_some() {
                continue;
            }
            let name = provider.name(latency);
            tell(&format!("{name}: setting up"));
            let mut target = Target::start(provider, latency, options.data_bytes).await?;
            for case in cases(provider) {
                if stop.is_stopped() {
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
        figure.ratio("shm_over_floor_ns_max", ns, Some(Bound::AtMost(100.0)));
    }
    if let Some(ns) = ratios.shm_cold_over_floor_ns {
        figure.ratio("shm_cold_over_floor_ns_max", ns, None);
    }
    if let Some(ratio) = ratios.tcp_over_echo {
        figure.ratio("tcp_over_echo_max", ratio, Some(Bound::AtMost(1.5)));
    }
    if let Some(ratio) = ratios.bandwidth_over_floor {
        figure.ratio("bandwidth_over_floor_min", ratio, Some(Bound::AtLeast(0.8)));
    }
    let tls_over_plain = ratios.tls_64k.iter().zip(&ratios.plain_64k).map(|(tls, plain)| tls / plain);
    if let Some(ratio) = tls_over_plain.reduce(f64::max) {
        figure.ratio("tls_over_plain_64k", ratio, Some(Bound::AtMost(1.8)));
    }
    figure.note("One task calls; percentiles are those of verbs one after the other, rates those of many in flight.");
    figure.note("The caller of tcp and of its floor has one processor, whoever answers another.");
    figure.note("Connections over loopback differ by a third, those of the floor too; of both many are measured.");
    figure.note("A send over shm ends when its receiver has it; over tcp it is answered by one of the same size.");
    Ok(figure)
}

fn numbers(measured: &Measured, bytes: usize) -> [(&'static str, f64); 9] {
    let ns = |side, quantile| measured.quantile_ns(side, quantile);
    let mib = |side| measured.rate(side) * bytes as f64 / f64::from(1 << 20);
    [
        ("p50_ns", ns(Side::Verb, 0.5)),
        ("floor_p50_ns", ns(Side::Floor, 0.5)),
        ("p99_ns", ns(Side::Verb, 0.99)),
        ("floor_p99_ns", ns(Side::Floor, 0.99)),
        ("p999_ns", ns(Side::Verb, 0.999)),
        ("per_second", measured.rate(Side::Verb)),
        ("floor_per_second", measured.rate(Side::Floor)),
        ("mib_per_second", mib(Side::Verb)),
        ("floor_mib_per_second", mib(Side::Floor)),
    ]
}
