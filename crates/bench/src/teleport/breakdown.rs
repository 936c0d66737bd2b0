//! What a call costs, by its six parts (figures 19 and 20).
//!
//! 1. Empty functions are called with nothing, 64 MiB and 1 GiB of dirty or clean memory resident, while the executor looks for calls, and
//!    when it sleeps; and a typical one, which uses its argument on the stack, a thread-local variable, the allocator and formatted output.
//! 2. A function that writes one page in 64 of the resident memory is called, with pages synchronised on demand and eagerly: then all
//!    pages are sent home before the call and fetched again after it, as by the paper's strawman. The function's own work is a
//!    store a page.

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};

use super::{TeleportConfig, Turns, arguments, bound, figure, number};

const ON_DEMAND_OVER_EAGER_MAX: f64 = 0.09;
const CALL_US_MAX: f64 = 5.0;
const CALL_ASLEEP_US_MAX: f64 = 60.0;
const TYPICAL_CALL_US_MAX: f64 = 100.0;

/// The parts, as subjects name them.
const PARTS: [&str; 6] = ["pre_sync", "request", "set_up", "run", "response", "post_sync"];

/// Measures.
///
/// # Errors
/// The machine does not allow user page faults, a subject fails, or `stop` was stopped.
pub async fn run(config: &TeleportConfig, stop: &CancellationToken, tell: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = figure("teleport-fig20", "What a pushed-down call costs, by its parts", config);
    let largest = config.data_bytes;
    let mut ways = Vec::new();
    for (bytes, is_dirty) in [(0, true), (largest / 16, true), (largest / 16, false), (largest, true), (largest, false)]
    {
        for is_asleep in [false, true] {
            ways.push(("empty", bytes, is_dirty, is_asleep, false));
        }
    }
    ways.push(("typical", 0, true, false, false));
    ways.push(("touch", largest, true, false, false));
    ways.push(("touch", largest, true, false, true));
    let turns = Turns { config, stop, tell };
    let asked: Vec<Vec<String>> = ways
        .iter()
        .map(|(function, bytes, is_dirty, is_asleep, is_eager)| {
            arguments(
                "calls",
                &[
                    ("function", (*function).to_owned()),
                    ("resident", bytes.to_string()),
                    ("dirty", is_dirty.to_string()),
                    ("asleep", is_asleep.to_string()),
                    ("eager", is_eager.to_string()),
                ],
            )
        })
        .collect();
    let found = turns.medians(&asked).await?;
    let mut totals = Vec::new();
    for ((function, bytes, is_dirty, is_asleep, is_eager), numbers) in ways.iter().zip(&found) {
        let resident = format!("{} MiB {}", bytes >> 20, if *is_dirty { "dirty" } else { "clean" });
        let executor = if *is_asleep { "asleep" } else { "busy" };
        let way = if *is_eager { "eager" } else { "on demand" };
        let mut shown = vec![("total_us", number(numbers, "total")?)];
        for part in PARTS {
            shown.push((unit_of(part), number(numbers, part)?));
        }
        shown.push(("online_sync_us", number(numbers, "online_sync")?));
        figure.row(
            &[("function", function), ("resident", &resident), ("executor", executor), ("synchronised", way)],
            &shown,
        );
        totals.push(number(numbers, "total")?);
    }
    let total = |function: &str, bytes: u64, is_asleep: bool, is_eager: bool| {
        let is_it = |way: &&(&str, u64, bool, bool, bool)| {
            (way.0, way.1, way.2, way.3, way.4) == (function, bytes, true, is_asleep, is_eager)
        };
        ways.iter().zip(&totals).find(|(way, _)| is_it(way)).map_or(f64::NAN, |(_, total)| *total)
    };
    let at_most = |most| bound(config, RatioBound::AtMost(most));
    let ratio = total("touch", largest, false, false) / total("touch", largest, false, true);
    figure.ratio("on_demand_over_eager", ratio, at_most(ON_DEMAND_OVER_EAGER_MAX));
    figure.ratio("call_us", total("empty", largest, false, false), at_most(CALL_US_MAX));
    figure.ratio("call_asleep_us", total("empty", largest, true, false), at_most(CALL_ASLEEP_US_MAX));
    figure.ratio("typical_call_us", total("typical", 0, false, false), at_most(TYPICAL_CALL_US_MAX));
    Ok(figure)
}

fn unit_of(part: &str) -> &'static str {
    match part {
        "pre_sync" => "pre_sync_us",
        "request" => "request_us",
        "set_up" => "set_up_us",
        "run" => "run_us",
        "response" => "response_us",
        _ => "post_sync_us",
    }
}
