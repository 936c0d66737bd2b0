//! Two sides that write the same words now and then (figures 21 and 22).
//!
//! The reading and the computing thread of figure 6, with memory that both write: at each operation, which is a random access beyond
//! the processor's caches, a thread writes a shared word with a given probability. Both do the same number of operations; the time is that of
//! the slower one.
//!
//! - *local*: both threads are the process's own.
//! - *coherent*, *weak*, *off*: the reading thread is pushed down, with that mode.
//!
//! In the same run one fault of each side is measured, on pages that the other side has and does not want, as is the latency of a
//! message beside the link's own.

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{CurvePlot, Figure, RatioBound};

use super::{Numbers, TeleportConfig, Turns, arguments, bound, figure, number};

/// Contended accesses of a million operations.
const RATES: [u64; 5] = [1, 10, 100, 1_000, 10_000];
const WAYS: [&str; 3] = ["local", "coherent", "weak"];

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
    let way = |way: &str, rate: u64| {
        let settings = [("way", way.to_owned()), ("rate", rate.to_string()), ("bytes", config.data_bytes.to_string())];
        arguments("contention", &settings)
    };
    let mut subjects: Vec<(&str, u64)> = WAYS.iter().flat_map(|way| RATES.map(|rate| (*way, rate))).collect();
    subjects.extend([("coherent", 0), ("off", 0)]);
    let mut asked: Vec<Vec<String>> = subjects.iter().map(|(name, rate)| way(name, *rate)).collect();
    asked.push(arguments("faults", &[]));
    let mut found = Turns { config, stop, tell }.medians(&asked).await?;
    let faults = found.pop().unwrap_or_default();
    let of = |name: &str, rate: u64| {
        let place = subjects.iter().position(|subject| *subject == (name, rate));
        place.and_then(|place| found.get(place)).ok_or_else(|| super::part(&"a way is missing"))
    };
    for (name, rate) in &subjects {
        let numbers = of(name, *rate)?;
        let percent = *rate as f64 / 10_000.0;
        let shown = [
            ("percent", percent),
            ("seconds", number(numbers, "seconds")?),
            ("messages", number(numbers, "messages")?),
        ];
        figure.row(&[("way", name)], &shown);
    }
    let y = if which == ContentionFigure::Time { "seconds" } else { "messages" };
    figure.curves(CurvePlot { x: "percent", x_log: true, y });
    let at_most = |most| bound(config, RatioBound::AtMost(most));
    let time = |numbers: &Numbers| number(numbers, "seconds");
    let (low, high) = (of("coherent", RATES[0])?, of("coherent", RATES[4])?);
    let contended = number(high, "contended")? - number(low, "contended")?;
    let added_us = (time(high)? - time(low)?) * 1e6 / contended;
    let (at_caller, at_executor) = (number(&faults, "caller_us")?, number(&faults, "executor_us")?);
    figure.row(&[("way", "one fault of the caller")], &[("us", at_caller)]);
    figure.row(&[("way", "one fault of the executor")], &[("us", at_executor)]);
    figure.row(&[("way", "time that a contended access adds")], &[("us", added_us)]);
    let (message, raw) = (number(&faults, "message_us")?, number(&faults, "raw_us")?);
    figure.row(&[("way", "one message")], &[("us", message)]);
    figure.row(&[("way", "one message of the link alone")], &[("us", raw)]);
    let weak = time(of("weak", RATES[4])?)? / time(of("weak", RATES[0])?)?;
    figure.ratio(
        "contended_access_over_faults",
        added_us / (at_caller + at_executor),
        at_most(CONTENDED_ACCESS_OVER_FAULTS_MAX),
    );
    figure.ratio("weak_flat", weak, at_most(WEAK_FLAT_MAX));
    let unshared = time(of("coherent", 0)?)? / time(of("off", 0)?)?;
    figure.ratio("coherent_over_off_unshared", unshared, at_most(COHERENT_OVER_OFF_UNSHARED_MAX));
    // Without a link there is nothing to compare with.
    if raw > 0.0 {
        figure.ratio("message_over_raw", message / raw, at_most(MESSAGE_OVER_RAW_MAX));
    }
    figure.ratio("default_over_weak_at_1_percent", time(high)? / time(of("weak", RATES[4])?)?, None);
    figure.note("The paper's default over weak ordering at 1 %: 1.8.");
    Ok(figure)
}
