//! Two sides that write the same words now and then (figures 21 and 22).
//!
//! The reading and the computing thread of figure 6, with memory that both write: at each operation, which is a random access beyond
//! the processor's caches, a thread writes a shared word with a given probability. Both do the same number of operations; the time is that of
//! the slower one.
//!
//! - *local*: both threads are the process's own.
//! - *coherent*, *weak*, *off*: the reading thread is pushed down, with that mode.
//!
//! A round is one process that measures all ways in turn, those that are compared twice, every other round in the reverse order, and one that measures a fault of each
//! side and a message ([`messages`](super::subject)). What is compared was measured in the same round; the median of the rounds counts.

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};
use measurement::interval::median;

use super::{Numbers, TeleportConfig, Turns, arguments, bound, figure, number};

/// Contended accesses of a million operations.
const RATES: [u64; 5] = [1, 10, 100, 1_000, 10_000];
const LOWEST: u64 = RATES[0];
const HIGHEST: u64 = RATES[RATES.len() - 1];
/// The ways that are measured at each rate.
const NAMES: [&str; 3] = ["local", "coherent", "weak"];
/// The ways that are measured without shared writes.
const NAMES_UNSHARED: [&str; 2] = ["coherent", "off"];

const CONTENDED_ACCESS_OVER_FAULTS_MAX: f64 = 1.5;
const WEAK_FLAT_MAX: f64 = 1.1;
const COHERENT_OVER_OFF_UNSHARED_MAX: f64 = 1.05;
const MESSAGE_OVER_RAW_MAX: f64 = 1.33;

/// What both figures show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentionFigure {
    /// Figure 21.
    Time,
    /// Figure 22.
    Messages,
}

/// A way, and its contended accesses of a million operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) per_million: u64,
}

impl Way {
    /// All of them.
    fn all() -> Vec<Way> {
        let contended = NAMES.into_iter().flat_map(|name| RATES.map(|per_million| Way { name, per_million }));
        contended.chain(NAMES_UNSHARED.map(|name| Way { name, per_million: 0 })).collect()
    }

    /// The name by which a subject gets it.
    fn label(self) -> String {
        format!("{}-{}", self.name, self.per_million)
    }

    /// The way with this label.
    pub(super) fn of_label(label: &str) -> Option<Way> {
        Way::all().into_iter().find(|way| way.label() == label)
    }

    /// The name of one of its numbers.
    pub(super) fn number(self, what: &str) -> String {
        format!("{}.{what}", self.label())
    }
}

/// Ways of nearly the same time that are compared.
const COMPARED: [[Way; 2]; 2] = [
    [Way { name: "weak", per_million: LOWEST }, Way { name: "weak", per_million: HIGHEST }],
    [Way { name: "coherent", per_million: 0 }, Way { name: "off", per_million: 0 }],
];

/// The ways in the order of a round. Those of [`COMPARED`] come twice, there and back: what drifts within a process, such as the processors'
/// frequency, favours neither.
fn in_order() -> Vec<Way> {
    let others = Way::all().into_iter().filter(|way| !COMPARED.as_flattened().contains(way));
    others.chain(COMPARED.into_iter().flat_map(|[one, other]| [one, other, other, one])).collect()
}

/// The numbers of all rounds.
struct Rounds(Vec<Numbers>);

impl Rounds {
    /// Of each round, what is computed from its numbers.
    fn each(&self, of: impl Fn(&Numbers) -> Result<f64, Error>) -> Result<Vec<f64>, Error> {
        self.0.iter().map(of).collect()
    }

    fn median(&self, of: impl Fn(&Numbers) -> Result<f64, Error>) -> Result<f64, Error> {
        self.each(of).map(median)
    }
}

fn seconds(numbers: &Numbers, name: &'static str, per_million: u64) -> Result<f64, Error> {
    number(numbers, &Way { name, per_million }.number("seconds"))
}

/// The time that a contended access adds, in microseconds: from the lowest rate to the highest.
fn added_us(numbers: &Numbers) -> Result<f64, Error> {
    let accesses = |per_million| number(numbers, &Way { name: "coherent", per_million }.number("accesses"));
    let time = seconds(numbers, "coherent", HIGHEST)? - seconds(numbers, "coherent", LOWEST)?;
    Ok(time * 1e6 / (accesses(HIGHEST)? - accesses(LOWEST)?))
}

/// Measures.
///
/// # Errors
/// The machine does not allow user page faults, a subject fails, or `stop` was stopped.
pub async fn run(
    which: ContentionFigure,
    config: &TeleportConfig,
    stop: &CancellationToken,
    tell: &dyn Fn(&str),
) -> Result<Figure, Error> {
    let mut figure = match which {
        ContentionFigure::Time => figure("teleport-fig21", "Time of two sides over their contention", config),
        ContentionFigure::Messages => figure("teleport-fig22", "Messages of two sides over their contention", config),
    };
    figure.setting("operations", config.operations);
    let rounds = measure(config, Turns { config, stop, tell }).await?;
    for way in Way::all() {
        let median_of = |what: &str| rounds.median(|numbers| number(numbers, &way.number(what)));
        let percent = way.per_million as f64 / 10_000.0;
        let shown = [("percent", percent), ("seconds", median_of("seconds")?), ("messages", median_of("messages")?)];
        figure.row(&[("way", way.name)], &shown);
    }
    let y = if which == ContentionFigure::Time { "seconds" } else { "messages" };
    figure.curves(CurvePlot { x: "percent", x_log: true, y });
    let is_linked = rounds.median(|numbers| number(numbers, "link_us"))? > 0.0;
    for (way, name) in [
        ("one fault of the caller", "caller_us"),
        ("one fault of the executor", "executor_us"),
        ("one message", "message_us"),
        ("one message of the link alone", "raw_us"),
    ] {
        figure.row(&[("way", way)], &[("us", rounds.median(|numbers| number(numbers, name))?)]);
    }
    figure.row(&[("way", "time that a contended access adds")], &[("us", rounds.median(added_us)?)]);
    let mut ratio = |name, most: Option<f64>, values: Vec<f64>| {
        let (lowest, highest) = values
            .iter()
            .fold((f64::MAX, f64::MIN), |(lowest, highest), value| (value.min(lowest), value.max(highest)));
        figure.row(&[("way", &format!("{name} of the rounds"))], &[("lowest", lowest), ("highest", highest)]);
        figure.ratio(name, median(values), most.and_then(|most| bound(config, RatioBound::AtMost(most))));
    };
    let over_faults = rounds
        .each(|numbers| Ok(added_us(numbers)? / (number(numbers, "caller_us")? + number(numbers, "executor_us")?)))?;
    ratio("contended_access_over_faults", Some(CONTENDED_ACCESS_OVER_FAULTS_MAX), over_faults);
    let flat = |numbers: &Numbers| Ok(seconds(numbers, "weak", HIGHEST)? / seconds(numbers, "weak", LOWEST)?);
    ratio("weak_flat", Some(WEAK_FLAT_MAX), rounds.each(flat)?);
    let unshared = |numbers: &Numbers| Ok(seconds(numbers, "coherent", 0)? / seconds(numbers, "off", 0)?);
    ratio("coherent_over_off_unshared", Some(COHERENT_OVER_OFF_UNSHARED_MAX), rounds.each(unshared)?);
    // Without a link there is nothing to compare with.
    if is_linked {
        let over_raw = |numbers: &Numbers| Ok(number(numbers, "message_us")? / number(numbers, "raw_us")?);
        ratio("message_over_raw", Some(MESSAGE_OVER_RAW_MAX), rounds.each(over_raw)?);
    }
    let over_weak = |numbers: &Numbers| Ok(seconds(numbers, "coherent", HIGHEST)? / seconds(numbers, "weak", HIGHEST)?);
    ratio("default_over_weak_at_1_percent", None, rounds.each(over_weak)?);
    figure
        .note("The paper's default over weak ordering at 1 %: 1.8; its message over the raw latency: 1.6 over 1.2 µs.");
    Ok(figure)
}

async fn measure(config: &TeleportConfig, turns: Turns<'_>) -> Result<Rounds, Error> {
    let asked = |round: usize| {
        let mut ways = in_order();
        if round.is_multiple_of(2) {
            ways.reverse();
        }
        let labels: Vec<String> = ways.into_iter().map(Way::label).collect();
        let (bytes, operations) = (config.data_bytes.to_string(), config.operations.to_string());
        let settings = [("bytes", bytes), ("operations", operations), ("ways", labels.join(","))];
        vec![arguments("contention", &settings), arguments("messages", &[])]
    };
    let rounds = turns.rounds(asked).await?;
    Ok(Rounds(rounds.into_iter().map(|found| found.into_iter().flatten().collect()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_finds_each_way_by_its_label() {
        for way in Way::all() {
            assert_eq!(Way::of_label(&way.label()), Some(way));
        }
        assert_eq!(Way::of_label("weak-2"), None);
    }

    #[test]
    fn a_round_measures_each_way() {
        let order = in_order();
        assert!(Way::all().iter().all(|way| order.contains(way)));
        assert_eq!(order.len(), Way::all().len() + COMPARED.as_flattened().len());
    }
}
