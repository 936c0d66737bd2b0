//! Figures on pushing functions down (TELEPORT, sections 4 and 7).
//!
//! What is measured is a process of its own ([`subject`]), which opens its executor before it has threads. Here processes are started in
//! turns, one for each way and round, and the medians of their numbers become rows and ratios. Between caller and executor lies the
//! link of the paper, 1.2 µs and 56 Gbit/s, unless a figure is asked for without it.

pub mod ablation;
pub mod breakdown;
pub mod contention;
pub mod false_sharing;
pub mod subject;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;

/// The variable by which the library imitates a link, and the paper's link.
const LINK_VARIABLE: &str = "HEDDLE_PUSHDOWN_LINK";
const LINK: &str = "1200,7000000000";
const LINK_LATENCY_US: f64 = 1.2;
const LINK_GBIT: f64 = 56.0;

/// Operations of each side under contention, of which a way takes some three seconds.
pub const OPERATIONS: u64 = 30_000_000;

/// How to measure any of the figures.
#[derive(Clone, Debug)]
pub struct TeleportConfig {
    /// Rounds, of which the medians count.
    pub rounds: usize,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Operations of each side under contention.
    pub operations: u64,
    /// Without the time of the paper's link. Not what the bounds are for.
    pub unshaped: bool,
    /// The program that runs [`subject::run`] when it is started with `teleport-process`.
    pub program: PathBuf,
}

/// Numbers of a subject, by name.
type Numbers = BTreeMap<String, f64>;

/// Measures ways in turns.
struct Turns<'a> {
    config: &'a TeleportConfig,
    stop: &'a CancellationToken,
    tell: &'a dyn Fn(&str),
}

impl Turns<'_> {
    /// The medians of each way's numbers. A way is the arguments of a subject.
    async fn medians(&self, ways: &[Vec<String>]) -> Result<Vec<Numbers>, Error> {
        let rounds = self.rounds(|_| ways.to_vec()).await?;
        Ok((0..ways.len()).map(|way| medians_of(rounds.iter().filter_map(|found| found.get(way)))).collect())
    }

    /// The numbers of each round's ways, which may differ from round to round.
    async fn rounds(&self, ways: impl Fn(usize) -> Vec<Vec<String>>) -> Result<Vec<Vec<Numbers>>, Error> {
        let mut rounds = Vec::new();
        for round in 1..=self.config.rounds {
            let mut found = Vec::new();
            for way in ways(round) {
                if self.stop.is_cancelled() {
                    return Err(Error::Interrupted);
                }
                (self.tell)(&format!("round {round} of {}: {}", self.config.rounds, way.join(" ")));
                found.push(self.run(&way).await?);
            }
            rounds.push(found);
        }
        Ok(rounds)
    }

    /// Runs a subject.
    async fn run(&self, arguments: &[String]) -> Result<Numbers, Error> {
        let mut command = Command::new(&self.config.program);
        command.arg("teleport-process").args(arguments).stdin(Stdio::null());
        match self.config.unshaped {
            true => command.env_remove(LINK_VARIABLE),
            false => command.env(LINK_VARIABLE, LINK),
        };
        let ended = tokio::task::spawn_blocking(move || command.output()).await.map_err(|error| part(&error))?;
        let ended = ended.map_err(|error| part(&error))?;
        if !ended.status.success() {
            let reason = String::from_utf8_lossy(&ended.stderr);
            return Err(part(&format!("{}: {}: {}", arguments.join(" "), ended.status, reason.trim())));
        }
        let text = String::from_utf8_lossy(&ended.stdout);
        let number = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().map(|line| number(line).ok_or_else(|| part(&format!("a subject printed {line:?}")))).collect()
    }
}

fn medians_of<'a>(rounds: impl Iterator<Item = &'a Numbers>) -> Numbers {
    let mut values: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (name, value) in rounds.flatten() {
        values.entry(name).or_default().push(*value);
    }
    values.into_iter().map(|(name, values)| (name.clone(), median(values))).collect()
}

fn part(error: &dyn std::fmt::Display) -> Error {
    Error::Part { what: "pushdown", reason: error.to_string() }
}

/// The number of a subject.
fn number(numbers: &Numbers, name: &str) -> Result<f64, Error> {
    numbers.get(name).copied().ok_or_else(|| part(&format!("a subject has no {name}")))
}

/// An empty figure with the settings that all have.
fn figure(name: &'static str, title: &str, config: &TeleportConfig) -> Figure {
    let mut figure = Figure::new(name, title);
    match config.unshaped {
        true => figure.setting("link", "none"),
        false => {
            figure.setting("link_latency_us", LINK_LATENCY_US);
            figure.setting("link_gbit_per_second", LINK_GBIT);
        }
    }
    figure.setting("rounds", config.rounds);
    figure.setting("data_bytes", config.data_bytes);
    figure
}

/// Only with the link of the paper does a bound count.
fn bound(config: &TeleportConfig, bound: RatioBound) -> Option<RatioBound> {
    (!config.unshaped).then_some(bound)
}

fn arguments(part: &str, settings: &[(&str, String)]) -> Vec<String> {
    std::iter::once(part.to_owned()).chain(settings.iter().map(|(name, value)| format!("{name}={value}"))).collect()
}
