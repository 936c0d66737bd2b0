//! Figure 12: the coordinator is killed, its logs full, and another processor takes over.
//!
//! 1. Memory nodes and processors are processes of their own; each processor has clients, which go on wherever it serves: those of
//!    the killed one end with it.
//! 2. Under a read-heavy load throughput is measured. Then no room is made in the group's log any more
//!    ([`Coordinator::make_no_room`](consensus::Coordinator::make_no_room)) and everybody puts: the group's log fills up, nothing of the
//!    store's is applied any more, and that fills up behind. With both full the process is killed (SIGKILL). Otherwise they never are:
//!    what is put is applied as fast.
//! 3. The other processor notices by missing heartbeats, is elected, takes the memory over, then the store, and serves. Its clients are
//!    read-heavy from then on.
//! 4. A third one is started to stand by, and the second is killed; and so on.
//!
//! Heartbeats are as in the paper's section 6.5: one look every 7 ms, three without a change. The time-out is that of two
//! looks, which chance prolongs by up to a half, so that the third look decides.

use std::time::Duration;

use base::rt::{self, Stop};
use consensus::Timing;

use super::processes::{Child, Family, Program, Role, Said, Task, Times, now_ns};
use super::systems::{GROUP_LOG_BYTES, Kind, Shape};
use super::timeline::Timeline;
use super::{READ_HEAVY, THETA, median};
use crate::error::Error;
use crate::figure::{Bound, Curves, Figure};
use crate::progress::{Measuring, Tell};

const HEARTBEAT_MS: u64 = 7;
const ELECTION_MS: u64 = 14;
const DETECTED_MS_MAX: f64 = 35.0;
const HALF_RECOVERED_MS_MAX: f64 = 150.0;
const RECOVERED_MS_MAX: f64 = 1000.0;
/// In how long a window half of the throughput is to be reached, and all of it.
const HALF_WINDOW_MS: u64 = 20;
const WHOLE_WINDOW_MS: u64 = 100;
/// Windows vary; so much of the throughput counts as all of it.
const WHOLE: f64 = 0.97;
/// What stands for a throughput that was not reached while anybody looked.
const NEVER_MS: f64 = 60_000.0;
/// Processors that stand in for one that lost its lease have greater numbers than this.
const SUBSTITUTES: u64 = 1_000;
/// Intervals of the plot.
const INTERVAL_MS: u64 = 20;
/// What the plot shows before a kill.
const LEAD_NS: u64 = 500_000_000;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes of the store's log.
    pub log_bytes: u64,
    /// Of a hundred pairs, how many the coordinator's cache has room for.
    pub cache_percent: u64,
    /// How long a coordinator may serve after a heartbeat.
    pub lease_ms: u64,
    /// Times that a coordinator is killed, of which the median counts.
    pub kills: u64,
    /// Seconds before a kill that count, and after it.
    pub seconds: f64,
}

/// One kill, in milliseconds from it.
struct Kill {
    detected: f64,
    elected: f64,
    taken_over: f64,
    serves: f64,
    half: f64,
    whole: f64,
    before: f64,
    after: f64,
    full: Full,
    recovered: u64,
}

/// Bytes in use of the store's log, and of the group's.
#[derive(Clone, Copy)]
struct Full {
    used_bytes: u64,
    group_used_bytes: u64,
}

/// Runs it.
///
/// # Errors
/// A process cannot be started or fails, or somebody stopped the run.
pub fn run<'a>(program: &'a Program, options: &'a Options, stop: &'a Stop, tell: Tell<'a>) -> Measuring<'a> {
    Box::pin(run_all(program, options, stop, tell))
}

async fn run_all(program: &Program, options: &Options, stop: &Stop, tell: Tell<'_>) -> Result<Figure, Error> {
    let cache_bytes = super::cache_bytes(options.keys, options.value_bytes, options.cache_percent);
    let shape = Shape {
        cache_bytes,
        log_bytes: options.log_bytes,
        ..Shape::new(Kind::Sift, 1, options.keys, options.value_bytes)
    };
    let times = Times {
        heartbeat_ms: HEARTBEAT_MS,
        lease_ms: options.lease_ms,
        election_ms: ELECTION_MS,
        copy_bytes_per_second: Timing::UNLIMITED,
    };
    let family = Family::new(program, shape, times)?;
    tell("starting three memory nodes and a processor");
    let _memory = family.start_memory(stop).await?;
    let mut serving = family.start(Role::Processor(1), stop).await?;
    serving.until(stop, |heard| heard.serves).await?;
    tell("putting all keys");
    serving.ask(Task::Fill, stop).await?;

    let mut figure =
        Figure::new("sift-fig12", "Sift, figure 12: the coordinator is killed, its logs full, read-heavy load");
    figure.setting("keys", options.keys);
    figure.setting("value_bytes", options.value_bytes as u64);
    figure.setting("log_bytes", options.log_bytes);
    figure.setting("group_log_bytes", GROUP_LOG_BYTES);
    figure.setting("cache_percent", options.cache_percent);
    figure.setting("heartbeat_ms", HEARTBEAT_MS);
    figure.setting("election_ms", ELECTION_MS);
    figure.setting("lease_ms", options.lease_ms);
    figure.setting("kills", options.kills);
    figure.setting("clients", program.clients);
    figure.setting("theta", THETA);

    let (mut kills, mut ended) = (Vec::new(), 0);
    for number in 1..=options.kills {
        tell(&format!("kill {number} of {}", options.kills));
        let mut next = family.start(Role::Processor(number + 1), stop).await?;
        let outcome = kill(&family, &mut figure, number, &mut serving, &mut next, options, stop).await?;
        ended += serving.heard().ended;
        kills.push(outcome);
        serving = next;
    }
    for (number, kill) in (1..).zip(&kills) {
        let number: u64 = number;
        let numbers = [
            ("detected_ms", kill.detected),
            ("elected_ms", kill.elected),
            ("taken_over_ms", kill.taken_over),
            ("serves_ms", kill.serves),
            ("half_recovered_ms", kill.half),
            ("recovered_ms", kill.whole),
            ("ops_per_second_before", kill.before),
            ("ops_per_second_after", kill.after),
            ("log_used_bytes", kill.full.used_bytes as f64),
            ("group_log_used_bytes", kill.full.group_used_bytes as f64),
            ("entries_recovered", kill.recovered as f64),
        ];
        figure.row(&[("kill", &number.to_string())], &numbers);
    }
    let of = |number: fn(&Kill) -> f64| median(kills.iter().map(number).collect());
    let most = |number: fn(&Kill) -> f64| kills.iter().map(number).fold(0.0, f64::max);
    figure.ratio("detected_ms", of(|kill| kill.detected), Some(Bound::AtMost(DETECTED_MS_MAX)));
    figure.ratio("serves_ms", of(|kill| kill.serves), None);
    figure.ratio("half_recovered_ms", of(|kill| kill.half), Some(Bound::AtMost(HALF_RECOVERED_MS_MAX)));
    figure.ratio("recovered_ms", of(|kill| kill.whole), Some(Bound::AtMost(RECOVERED_MS_MAX)));
    figure.ratio("half_recovered_ms_max", most(|kill| kill.half), None);
    figure.ratio("recovered_ms_max", most(|kill| kill.whole), None);
    let least = |bytes: fn(&Full) -> u64| kills.iter().map(|kill| bytes(&kill.full)).min().unwrap_or_default() as f64;
    figure.ratio("log_full_min", least(|full| full.used_bytes) / options.log_bytes as f64, None);
    figure.ratio("group_log_full_min", least(|full| full.group_used_bytes) / GROUP_LOG_BYTES as f64, None);
    figure.curves(Curves { x: "milliseconds", x_log: false, y: "ops_per_second" });
    figure.note(format!(
        "half: the end of the first {HALF_WINDOW_MS} ms with half of the throughput before; recovered: of the first \
         {WHOLE_WINDOW_MS} ms with {:.0} % of it; {NEVER_MS:.0}: not reached. Both are counted from the kill, which is at {} ms \
         in the plot",
        WHOLE * 100.0,
        LEAD_NS / 1_000_000
    ));
    figure.note(
        "before a kill no room is made in the group's log, so that it fills up, and the store's log behind it: nothing else fills \
         them, since what is put is applied as fast",
    );
    figure.note("clients are tasks of the processor that serves; those of the killed one end with it");
    if ended > 0 {
        figure
            .note(format!("coordinators lost their lease {ended} times before they were killed, and took over again"));
    }
    Ok(figure)
}

/// What of the logs is in use when they are full; none when it does not serve any more.
async fn full(serving: &Child, next: &Child, stop: &Stop) -> Result<Option<Full>, Error> {
    loop {
        serving.heard().check()?;
        match serving.answer() {
            Some(Said::Full { used_bytes, group_used_bytes }) => {
                return Ok(Some(Full { used_bytes, group_used_bytes }));
            }
            Some(_) => return Err(Error::Part { what: "a coordinator", reason: "it says something else".to_owned() }),
            None if next.is_serving() => return Ok(None),
            None if stop.is_stopped() => return Err(Error::Interrupted),
            None => rt::sleep(Duration::from_micros(500)).await,
        }
    }
}

/// Kills whoever serves, with its log full.
async fn kill(
    family: &Family,
    figure: &mut Figure,
    number: u64,
    serving: &mut Child,
    next: &mut Child,
    options: &Options,
    stop: &Stop,
) -> Result<Kill, Error> {
    let span = Duration::from_secs_f64(options.seconds);
    let load = Task::Load { puts_of_100: READ_HEAVY.puts_of_100 };
    serving.tell(load)?;
    next.tell(load)?;
    let (from, loaded_until, full) = loop {
        rt::sleep(span).await;
        let from = now_ns();
        rt::sleep(span).await;
        let loaded_until = now_ns();
        serving.tell(Task::FillLog)?;
        if let Some(full) = full(serving, next, stop).await? {
            break (from, loaded_until, full);
        }
        // The other one has taken over for want of heartbeats, and has load already: it is the one to be killed.
        std::mem::swap(serving, next);
        *next = family.start(Role::Processor(SUBSTITUTES + number), stop).await?;
        next.tell(load)?;
    };
    let killed = serving.kill();
    // Of this takeover: on a busy machine the coordinator may lose its lease again while it is watched.
    let takeover = next.until(stop, |heard| heard.serves).await?;
    // It noticed before it served.
    rt::sleep(span).await;
    let until = now_ns();

    let mut timeline = Timeline::default();
    timeline.add(&serving.heard().counts);
    timeline.add(&next.heard().counts);
    let before = timeline.rate(from, loaded_until).ops_per_second;
    let since = |at: u64| at.saturating_sub(killed) as f64 / 1e6;
    let label = number.to_string();
    for one in timeline.intervals(killed - LEAD_NS, until, INTERVAL_MS) {
        let numbers = [
            ("milliseconds", one.from_ms),
            ("ops_per_second", one.ops_per_second),
            ("reads_per_second", one.reads_per_second),
        ];
        figure.row(&[("kill", &label)], &numbers);
    }
    let reached = |window, share| timeline.reached_ms(killed, until, window, before * share).unwrap_or(NEVER_MS);
    Ok(Kill {
        detected: takeover.detected_ns.map_or(NEVER_MS, since),
        elected: takeover.elected_ns.map_or(NEVER_MS, since),
        taken_over: takeover.taken_over_ns.map_or(NEVER_MS, since),
        serves: since(takeover.serves_ns),
        half: reached(HALF_WINDOW_MS, 0.5),
        whole: reached(WHOLE_WINDOW_MS, WHOLE),
        before,
        after: timeline.rate(until - (options.seconds * 5e8) as u64, until).ops_per_second,
        full,
        recovered: takeover.recovered,
    })
}
