//! Compares two networks that are measured in turn: the requested one and its baseline.
//!
//! The baseline decides which statistic is compared with the bound:
//!
//! * The monolithic form: the median of the ratios.
//! * The native contract, an older build, or the same network with other settings: the mean and its confidence
//!   interval, because the expected difference is smaller than the spread between runs. A bound that demands a gain is
//!   met if the mean meets it. A bound that forbids a loss is violated only if the whole interval lies beyond it.

use serde_json::{Map, Value, json};

use std::path::Path;

use super::{BenchmarkReport, ReportTable, rounded};
use crate::error::Error;
use crate::figure::RatioBound;
use crate::interval::{ConfidenceInterval, median};

/// The baseline of a network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Baseline {
    /// The monolithic form; the bound is for processor time of a transaction.
    Monolithic(Option<RatioBound>),
    /// The same network run by an older build; the bound is for throughput.
    Before(RatioBound),
    /// The same network, whose orderers cut blocks at the channel's limits alone; the bound is for throughput.
    Timer(Option<RatioBound>),
    /// The same network, where the library verifies every signature.
    Library(Option<LibraryBound>),
    /// The same network, whose peers run the contract themselves, without a chaincode.
    Native(NativeBounds),
}

/// The bounds of a network whose peers call a chaincode, compared with one whose peers run the contract themselves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NativeBounds {
    /// For throughput.
    pub tps: RatioBound,
    /// For the servers' processor time of a transaction: the difference in microseconds, without the chaincode's own.
    pub added_cpu_us: RatioBound,
}

/// The name of the difference in processor time.
const ADDED_CPU_US: &str = "added_cpu_us";

/// The bound of a network compared with one where the library verifies every signature.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LibraryBound {
    /// For throughput.
    Tps(RatioBound),
    /// For the median latency.
    P50(RatioBound),
}

impl Baseline {
    /// Its name in tables and rows.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Monolithic(_) => "monolithic",
            Baseline::Before(_) => "before",
            Baseline::Timer(_) => "timer",
            Baseline::Library(_) => "library",
            Baseline::Native(_) => "native",
        }
    }

    /// The name of the ratio of `what` in tables and JSON.
    fn ratio(self, what: &str) -> String {
        let asked = if matches!(self, Baseline::Native(_)) { "ccaas_" } else { "" };
        format!("{asked}{what}_over_{}", self.name())
    }

    /// Whether throughput is compared, by its mean; otherwise processor time, by its median.
    fn compares_throughput(self) -> bool {
        !matches!(self, Baseline::Monolithic(_))
    }

    /// The bound of processor time for the monolithic form, otherwise that of throughput.
    fn bound(self) -> Option<RatioBound> {
        match self {
            Baseline::Before(bound) | Baseline::Library(Some(LibraryBound::Tps(bound))) => Some(bound),
            Baseline::Monolithic(bound) | Baseline::Timer(bound) => bound,
            Baseline::Native(bounds) => Some(bounds.tps),
            Baseline::Library(_) => None,
        }
    }

    fn p50_bound(self) -> Option<RatioBound> {
        match self {
            Baseline::Library(Some(LibraryBound::P50(bound))) => Some(bound),
            _ => None,
        }
    }
}

/// Pairs of measurements, reduced to the reported values.
pub struct ReportPairs {
    baseline: Baseline,
    /// The baseline's report of the pair that is shown.
    compared: BenchmarkReport,
    /// For each pair in the order measured: processor time of a transaction over the baseline's.
    cpu: Vec<f64>,
    /// The same for throughput.
    tps: Vec<f64>,
    /// The same for the median latency.
    p50: Vec<f64>,
    /// Processor time of a transaction less the baseline's, in microseconds.
    added_cpu_us: Vec<f64>,
}

impl ReportPairs {
    /// Takes pairs of reports, requested network and baseline. Returns the former of the pair with the median ratio: of
    /// processor time, or of throughput if that is compared. Of an even number of pairs it is the higher one of the middle.
    ///
    /// # Panics
    /// If there is no pair.
    pub fn new(pairs: Vec<(BenchmarkReport, BenchmarkReport)>, baseline: Baseline) -> (BenchmarkReport, ReportPairs) {
        let (cpu, tps): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(asked, compared)| (cpu_ratio(asked, compared), tps_ratio(asked, compared))).unzip();
        let decisive = if baseline.compares_throughput() { &tps } else { &cpu };
        let p50 = pairs.iter().map(|(asked, compared)| asked.p50_ms() / compared.p50_ms()).collect();
        let added = |(asked, compared): &(BenchmarkReport, _)| added_cpu_us(asked, compared);
        let added_cpu_us = pairs.iter().map(added).collect();
        let middle = order(decisive)[pairs.len() / 2];
        let (asked, compared) = pairs.into_iter().nth(middle).expect("there is a pair");
        (asked, ReportPairs { baseline, compared, cpu, tps, p50, added_cpu_us })
    }

    /// One pair in a line, to be shown as soon as it is measured.
    pub fn line(asked: &BenchmarkReport, compared: &BenchmarkReport, baseline: Baseline) -> String {
        let name = baseline.name();
        let cpu = format!(
            "{:.0} µs a valid transaction, {name} {:.0} µs: {:.3}",
            asked.server_cpu_us(),
            compared.server_cpu_us(),
            cpu_ratio(asked, compared)
        );
        if !baseline.compares_throughput() {
            return cpu;
        }
        format!(
            "{:.0} a second, {name} {:.0}: {:.3}; {cpu}",
            asked.valid_tps(),
            compared.valid_tps(),
            tps_ratio(asked, compared)
        )
    }

    /// The lines below the table of the pair that is shown.
    pub fn to_table(&self) -> String {
        let mut table = ReportTable(String::new());
        let cost = format!("{:.0} µs a valid transaction", self.compared.server_cpu_us());
        let (name, bound) = (self.baseline.name(), self.baseline.bound());
        if self.baseline.compares_throughput() {
            let (tps, cpu) = (ConfidenceInterval::of_ratios(&self.tps), ConfidenceInterval::of_ratios(&self.cpu));
            table.row(&format!("  {name}"), format!("{:.0} a second, {cost}", self.compared.valid_tps()));
            let bound = bound.map_or_else(String::new, |bound| verdict(bound, tps.keeps(bound)));
            table.row(
                &format!("  {}", self.baseline.ratio("tps")),
                format!("{}{bound}", interval_text(&tps, self.tps.len())),
            );
            table.row(&format!("  {}", self.baseline.ratio("cpu")), interval_text(&cpu, self.cpu.len()));
            let p50 = ConfidenceInterval::of_ratios(&self.p50);
            let bound = self.baseline.p50_bound();
            let bound = bound.map_or_else(String::new, |bound| verdict(bound, p50.keeps(bound)));
            let name = self.baseline.ratio("p50");
            table.row(&format!("  {name}"), format!("{}{bound}", interval_text(&p50, self.p50.len())));
            if let Baseline::Native(bounds) = self.baseline {
                let added = ConfidenceInterval::of_differences(&self.added_cpu_us);
                let verdict = verdict(bounds.added_cpu_us, added.keeps(bounds.added_cpu_us));
                let (text, median) =
                    (interval_text(&added, self.added_cpu_us.len()), median(self.added_cpu_us.iter().copied()));
                table.row(&format!("  {ADDED_CPU_US}"), format!("{text}, median {median:.1}{verdict}"));
            }
        } else {
            let ratio = median(self.cpu.iter().copied());
            let ratios: Vec<String> = self.cpu.iter().map(|ratio| format!("{ratio:.3}")).collect();
            let bound = bound.map_or_else(String::new, |bound| verdict(bound, bound.is_kept_by(ratio)));
            table.row(&format!("  {name}"), cost);
            table.row(&format!("  over {name}"), format!("{ratio:.3}, the median of {}{bound}", ratios.join(", ")));
        }
        table.0
    }

    pub(super) fn add_to(&self, json: &mut Value) {
        let mut row = self.compared.to_json()["rows"][0].take();
        row["name"] = self.baseline.name().into();
        json["rows"].as_array_mut().expect("a report has rows").push(row);
        let (name, bound) = (self.baseline.name(), self.baseline.bound());
        let bounded = if self.baseline.compares_throughput() {
            let [tps, cpu, p50] = ["tps", "cpu", "p50"].map(|what| self.baseline.ratio(what));
            let mut intervals = Map::new();
            for (ratio, values) in [(&tps, &self.tps), (&cpu, &self.cpu), (&p50, &self.p50)] {
                let interval = ConfidenceInterval::of_ratios(values);
                json["ratios"][ratio] = rounded(interval.mean).into();
                intervals.insert(ratio.clone(), ends_json(&interval));
            }
            let mut ratios = vec![(&*tps, &self.tps), (&*cpu, &self.cpu), (&*p50, &self.p50)];
            if let Baseline::Native(bounds) = self.baseline {
                let added = ConfidenceInterval::of_differences(&self.added_cpu_us);
                json["ratios"][ADDED_CPU_US] = rounded(added.mean).into();
                json["bounds"][ADDED_CPU_US] = bounds.added_cpu_us.text().into();
                intervals.insert(ADDED_CPU_US.to_owned(), ends_json(&added));
                ratios.push((ADDED_CPU_US, &self.added_cpu_us));
            }
            json["intervals"] = intervals.into();
            json["medians"] = ratios
                .iter()
                .map(|(name, values)| ((*name).to_owned(), Value::from(rounded(median(values.iter().copied())))))
                .collect();
            let pair = |number: usize| -> Map<String, Value> {
                ratios.iter().map(|(name, values)| ((*name).to_owned(), rounded(values[number]).into())).collect()
            };
            json["pairs"] = (0..self.tps.len()).map(|number| Value::from(pair(number))).collect();
            if let Some(bound) = self.baseline.p50_bound() {
                json["bounds"][&p50] = bound.text().into();
            }
            tps
        } else {
            let ratio = format!("server_cpu_over_{name}");
            json["ratios"][&ratio] = rounded(median(self.cpu.iter().copied())).into();
            json["pairs"] = self.cpu.iter().copied().map(rounded).collect();
            ratio
        };
        if let Some(bound) = bound {
            json["bounds"][bounded] = bound.text().into();
        }
    }
}

impl BenchmarkReport {
    /// Writes the JSON, with the pairs if there are any.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_json(&self, pairs: Option<&ReportPairs>, path: &Path) -> Result<(), Error> {
        let mut json = self.to_json();
        if let Some(pairs) = pairs {
            pairs.add_to(&mut json);
        }
        let mut text = serde_json::to_string_pretty(&json).expect("a report is always JSON");
        text.push('\n');
        std::fs::write(path, text)
            .map_err(|error| Error::Write { path: path.display().to_string(), reason: error.to_string() })
    }
}

fn cpu_ratio(asked: &BenchmarkReport, compared: &BenchmarkReport) -> f64 {
    asked.server_cpu_us() / compared.server_cpu_us()
}

fn tps_ratio(asked: &BenchmarkReport, compared: &BenchmarkReport) -> f64 {
    asked.valid_tps() / compared.valid_tps()
}

fn added_cpu_us(asked: &BenchmarkReport, compared: &BenchmarkReport) -> f64 {
    asked.server_cpu_us() - compared.server_cpu_us()
}

fn ends_json(interval: &ConfidenceInterval) -> Value {
    interval.ends.map_or(Value::Null, |(low, high)| json!([rounded(low), rounded(high)]))
}

fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*one].total_cmp(&values[*other]));
    order
}

fn verdict(bound: RatioBound, is_kept: bool) -> String {
    format!("; bound {}: {}", bound.text(), if is_kept { "kept" } else { "not kept" })
}

fn interval_text(interval: &ConfidenceInterval, pairs: usize) -> String {
    let mean = interval.mean;
    match interval.ends {
        Some((low, high)) => format!("{mean:.3}, 95 % interval {low:.3} to {high:.3}, of {pairs} pairs"),
        None => format!("{mean:.3}, of one pair, which has no interval"),
    }
}
