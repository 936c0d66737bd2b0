//! Reports a measurement as a table for people and as JSON for scripts (`docs/formats/bench.md`).

use std::fmt::Write as _;

use proto::protos::TxValidationCode;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::driver::Measurement;
use crate::figure::RatioBound;
use crate::floor::{SignatureNeeds, SignaturePrices};
use crate::histogram::Histogram;
use crate::latency_floor::{FSYNCS, LatencyPrices, ROUND_TRIPS};
use crate::outcome::{REJECTED_BY_CONTRACT, STAGES};
use crate::process;
use crate::tally::VALID;

pub mod pairs;

/// The subject and the method of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct BenchmarkConfig {
    /// The workload's name.
    #[serde(skip)]
    pub figure: String,
    /// Organisations, each with a peer and a gateway.
    pub organizations: usize,
    /// The endorsement policy: `any`, `majority` or `all`.
    pub policy: String,
    /// Endorsements that a transaction carries.
    pub endorsers: usize,
    /// Clients with one transaction in flight each.
    pub clients: usize,
    /// Connections that they share.
    pub connections: usize,
    /// How a client learns of the commit: `status` or `events`.
    pub wait: String,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Fixes the clients' calls.
    pub seed: u64,
    /// Seconds before the measurement.
    pub warm_up_seconds: f64,
    /// The workload's parameters.
    pub workload: Map<String, Value>,
}

/// The least number of cores, of two, that servers and clients together keep busy with [`CORES_USED_CLIENTS`] clients.
const CORES_USED_MIN: f64 = 1.95;
const CORES_USED_CLIENTS: usize = 400;
/// The most that the median latency of a lone client may be, over its floor.
const P50_OVER_FLOOR_MAX: f64 = 2.0;

/// A measurement with everything that is needed to assess it.
pub struct BenchmarkReport {
    settings: BenchmarkConfig,
    measurement: Measurement,
    prices: SignaturePrices,
    needs: SignatureNeeds,
    /// Of one client alone.
    latency: Option<LatencyPrices>,
}

impl BenchmarkReport {
    /// `prices` must be measured on the same machine in the same minute.
    pub fn new(settings: BenchmarkConfig, measurement: Measurement, prices: SignaturePrices) -> BenchmarkReport {
        let count = |number: usize| u32::try_from(number).expect("a network has few organisations");
        let needs =
            SignatureNeeds::new(count(settings.endorsers), count(settings.organizations), settings.wait == "status");
        BenchmarkReport { settings, measurement, prices, needs, latency: None }
    }

    /// Adds the comparison of the latency of the only client with its floor.
    #[must_use]
    pub fn with_latency_floor(self, prices: Option<LatencyPrices>) -> BenchmarkReport {
        BenchmarkReport { latency: prices, ..self }
    }

    /// The measurement.
    pub fn measurement(&self) -> &Measurement {
        &self.measurement
    }

    /// The subject of the report, in one line.
    pub fn title(&self) -> String {
        let BenchmarkConfig { figure, organizations, policy, clients, .. } = &self.settings;
        format!("{figure}: {organizations} organisations, policy {policy}, {clients} clients")
    }

    /// Valid transactions a second.
    pub fn valid_tps(&self) -> f64 {
        self.measurement.tally.valid() as f64 / self.measurement.elapsed.as_secs_f64()
    }

    /// Processor time of the servers for each valid transaction, in microseconds. If there is none, their whole processor time.
    pub fn server_cpu_us(&self) -> f64 {
        self.for_each_valid(self.measurement.server_cpu_us)
    }

    /// The servers' processor time of a transaction over that of its signatures.
    pub fn server_cpu_over_crypto_floor(&self) -> f64 {
        self.server_cpu_us() / self.needs.floor_us(&self.prices)
    }

    /// The same of the chaincodes outside of the servers.
    pub fn chaincode_cpu_us(&self) -> f64 {
        self.for_each_valid(self.measurement.chaincode_cpu_us)
    }

    /// Cores that servers, chaincodes and clients together kept busy.
    pub fn cores_used(&self) -> f64 {
        let Measurement { server_cpu_us, chaincode_cpu_us, client_cpu_us, elapsed, .. } = &self.measurement;
        (server_cpu_us + chaincode_cpu_us + client_cpu_us) as f64 / elapsed.as_micros() as f64
    }

    /// Cores of this machine that were idle. The rest is the kernel's own threads, and other programs.
    pub fn idle_cores(&self) -> f64 {
        self.measurement.idle_us as f64 / self.measurement.elapsed.as_micros() as f64
    }

    /// The median latency, in milliseconds.
    pub fn p50_ms(&self) -> f64 {
        self.measurement.tally.latency.quantile_us(0.5) as f64 / 1e3
    }

    /// The median latency over its floor, where that was measured.
    pub fn p50_over_floor(&self) -> Option<f64> {
        self.latency.map(|prices| self.p50_ms() / prices.floor_ms())
    }

    /// The bounds of this report's own ratios.
    fn bounds(&self) -> Map<String, Value> {
        let mut bounds = Map::new();
        if self.settings.clients == CORES_USED_CLIENTS && process::cores() == 2 {
            bounds.insert("processors_used".to_owned(), RatioBound::AtLeast(CORES_USED_MIN).text().into());
        }
        if self.latency.is_some() {
            bounds.insert("p50_over_floor".to_owned(), RatioBound::AtMost(P50_OVER_FLOOR_MAX).text().into());
        }
        bounds
    }

    fn for_each_valid(&self, amount: u64) -> f64 {
        amount as f64 / self.measurement.tally.valid().max(1) as f64
    }

    fn verifications_per_valid(&self) -> Option<f64> {
        self.measurement.signatures_verified.map(|count| self.for_each_valid(count))
    }

    fn invalid_percent(&self) -> f64 {
        let tally = &self.measurement.tally;
        100.0 * (tally.committed() - tally.valid()) as f64 / tally.committed().max(1) as f64
    }

    fn block_transactions(&self) -> f64 {
        let tally = &self.measurement.tally;
        tally.committed() as f64 / tally.blocks().max(1) as f64
    }

    fn disk_bytes_for_each(&self) -> f64 {
        let (before, after) = self.measurement.disk_bytes;
        // Includes the bytes of the warm-up, which overstates the result slightly in short runs.
        self.for_each_valid(after.saturating_sub(before))
    }

    /// The JSON of `docs/formats/bench.md`.
    pub fn to_json(&self) -> Value {
        let Measurement { tally, elapsed, load, .. } = &self.measurement;
        let codes: Map<String, Value> = tally.codes.iter().map(|(code, n)| (code_name(*code), (*n).into())).collect();
        let refusals: Map<String, Value> = tally
            .rejections
            .iter()
            .filter(|((_, status), _)| *status != REJECTED_BY_CONTRACT)
            .map(|((stage, status), refusals)| {
                let value = json!({ "count": refusals.count, "example": refusals.example });
                (format!("{} {status}", stage.name()), value)
            })
            .collect();
        let stages: Map<String, Value> = STAGES
            .iter()
            .zip(&tally.stages)
            .map(|(stage, times)| (stage.name().to_owned(), quantiles(times)))
            .collect();
        let seconds: Vec<Value> =
            tally.seconds.iter().map(|second| json!([second.valid, second.invalid, second.rejected])).collect();
        let heddle = json!({
            "name": "heddle",
            "seconds": rounded(elapsed.as_secs_f64()),
            "valid_tps": rounded(self.valid_tps()),
            "valid": tally.valid(),
            "invalid_percent": rounded(self.invalid_percent()),
            "codes": codes,
            "refused_by_contract": tally.rejected_by_contract(),
            "errors": refusals,
            "latency_ms": quantiles(&tally.latency),
            "stages_ms": stages,
            "server_cpu_us_per_valid": rounded(self.server_cpu_us()),
            "chaincode_cpu_us_per_valid": rounded(self.chaincode_cpu_us()),
            "client_cpu_us_per_valid": rounded(self.for_each_valid(self.measurement.client_cpu_us)),
            "server_processors": rounded(self.measurement.server_cpu_us as f64 / elapsed.as_micros() as f64),
            "client_processors": rounded(self.measurement.client_cpu_us as f64 / elapsed.as_micros() as f64),
            "idle_processors": rounded(self.idle_cores()),
            "verifications_per_valid": self.verifications_per_valid().map(rounded),
            "server_resident_bytes": self.measurement.server_resident_bytes,
            "disk_bytes": self.measurement.disk_bytes.1,
            "disk_bytes_per_valid": rounded(self.disk_bytes_for_each()),
            "block_transactions": rounded(self.block_transactions()),
            "load_seconds": load.map(|load| rounded(load.as_secs_f64())),
            "per_second": seconds,
        });
        let floor = json!({
            "name": "crypto floor",
            "server_cpu_us_per_valid": rounded(self.needs.floor_us(&self.prices)),
            "verifications": self.needs.verifications,
            "signatures": self.needs.signatures,
            "verify_us": rounded(self.prices.verify_us),
            "sign_us": rounded(self.prices.sign_us),
        });
        let mut rows = vec![heddle, floor];
        let mut ratios = json!({
            "server_cpu_over_crypto_floor": rounded(self.server_cpu_over_crypto_floor()),
            "processors_used": rounded(self.cores_used()),
        });
        if let (Some(prices), Some(over)) = (self.latency, self.p50_over_floor()) {
            rows.push(json!({
                "name": "latency floor",
                "latency_ms": rounded(prices.floor_ms()),
                "fsyncs": FSYNCS,
                "round_trips": ROUND_TRIPS,
                "fsync_us": rounded(prices.fsync_us),
                "round_trip_us": rounded(prices.round_trip_us),
            }));
            ratios["p50_over_floor"] = rounded(over).into();
        }
        json!({
            "figure": self.settings.figure,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": process::machine(),
            "settings": self.settings,
            "valid_tps": rounded(self.valid_tps()),
            "rows": rows,
            "ratios": ratios,
            "bounds": self.bounds(),
        })
    }

    /// The table for people.
    pub fn to_table(&self) -> String {
        let Measurement { tally, elapsed, .. } = &self.measurement;
        let mut table = ReportTable(format!("{}, {:.1} s\n", self.title(), elapsed.as_secs_f64()));
        table.row("valid transactions", format!("{} a second", grouped(self.valid_tps().round() as u64)));
        let invalid: Vec<String> = tally
            .codes
            .iter()
            .filter(|(code, _)| **code != VALID)
            .map(|(code, count)| format!("{} {}", grouped(*count), code_name(*code)))
            .collect();
        let invalid = if invalid.is_empty() { String::new() } else { format!(": {}", invalid.join(", ")) };
        table.row("invalid in blocks", format!("{:.2} %{invalid}", self.invalid_percent()));
        if tally.rejected_by_contract() > 0 {
            table.row(REJECTED_BY_CONTRACT, grouped(tally.rejected_by_contract()));
        }
        for ((stage, status), refusals) in
            tally.rejections.iter().filter(|((_, status), _)| *status != REJECTED_BY_CONTRACT)
        {
            let count = grouped(refusals.count);
            table.row("errors", format!("{count} {status} at {}, the first: {}", stage.name(), refusals.example));
        }
        table.row("latency", latency_text(&tally.latency));
        for (stage, times) in STAGES.iter().zip(&tally.stages) {
            table.row(&format!("  {}", stage.name()), latency_text(times));
        }
        if let (Some(prices), Some(over)) = (self.latency, self.p50_over_floor()) {
            let bound = RatioBound::AtMost(P50_OVER_FLOOR_MAX);
            table.row(
                "  floor",
                format!(
                    "{:.2} ms: {FSYNCS} fsyncs of {:.0} µs, {ROUND_TRIPS} round trips of {:.0} µs; p50 is {over:.2} times that; \
                     bound {}: {}",
                    prices.floor_ms(),
                    prices.fsync_us,
                    prices.round_trip_us,
                    bound.text(),
                    if bound.is_kept_by(over) { "kept" } else { "not kept" }
                ),
            );
        }
        table.row("a block", format!("{:.0} transactions", self.block_transactions()));
        table.row(
            "servers' processor",
            format!(
                "{:.0} µs a valid transaction, {:.2} times its signatures",
                self.server_cpu_us(),
                self.server_cpu_over_crypto_floor()
            ),
        );
        table.row(
            "  crypto floor",
            format!(
                "{:.0} µs: {} verifications of {:.1} µs, {} signatures of {:.1} µs",
                self.needs.floor_us(&self.prices),
                self.needs.verifications,
                self.prices.verify_us,
                self.needs.signatures,
                self.prices.sign_us
            ),
        );
        if let Some(count) = self.verifications_per_valid() {
            table.row("  verified", format!("{count:.2} signatures a valid transaction"));
        }
        if self.measurement.chaincode_cpu_us > 0 {
            table.row("chaincodes' processor", format!("{:.0} µs a valid transaction", self.chaincode_cpu_us()));
        }
        let client = self.for_each_valid(self.measurement.client_cpu_us);
        table.row("clients' processor", format!("{client:.0} µs a valid transaction"));
        let (used, idle) = (self.cores_used(), self.idle_cores());
        table.row("processors used", format!("{used:.2} by servers and clients, {idle:.2} idle"));
        table.row("servers' memory", format!("{:.0} MiB", self.measurement.server_resident_bytes as f64 / MIB));
        let disk = self.measurement.disk_bytes.1 as f64 / MIB;
        table.row(
            "servers' disk",
            format!("{disk:.0} MiB, {} bytes a valid transaction", grouped(self.disk_bytes_for_each().round() as u64)),
        );
        table.row("machine", process::machine());
        table.0
    }
}

const MIB: f64 = (1 << 20) as f64;

struct ReportTable(String);

impl ReportTable {
    fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "  {name:<20} {value}").expect("writing into a string does not fail");
    }
}

fn code_name(code: i32) -> String {
    TxValidationCode::try_from(code).map_or_else(|_| format!("code {code}"), |code| code.as_str_name().to_owned())
}

fn latency_text(times: &Histogram) -> String {
    let millis = |quantile| times.quantile_us(quantile) as f64 / 1e3;
    let max = times.max_us() as f64 / 1e3;
    format!("p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, max {max:.1} ms", millis(0.5), millis(0.95), millis(0.99))
}

fn quantiles(times: &Histogram) -> Value {
    let millis = |quantile| times.quantile_us(quantile) as f64 / 1e3;
    json!({
        "mean": rounded(times.mean_us() / 1e3),
        "p50": millis(0.5),
        "p95": millis(0.95),
        "p99": millis(0.99),
        "max": times.max_us() as f64 / 1e3,
    })
}

/// Three digits after the point: more would pretend a precision that no measurement has.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
