//! `heddle bench elastic`: what a peer's clients notice when its load rises to ten times as much and falls again.
//!
//! 1. Start a network of processes in a temporary directory, whose peer has one compute node under a quota. Find how many
//!    transactions a second that node carries: this is one node's load. Then start a manager whose limits are half of
//!    the quota to the whole of it, and four nodes.
//! 2. Offer 20 % of one node's load, then 200 %, then 20 % again ([`measurement::open_loop`]): a slow peer is not
//!    asked for less. Latencies count from the time at which a transaction was due.
//! 3. Meanwhile ask the launched nodes whether they follow their primary and what they have endorsed ([`scaling`]).
//! 4. Compare ([`sample`]): latencies with those of the calm time before the rise; the longest gap between commits while
//!    the peer grew and shrank, with as long a time at the same load when nothing changed. Several rounds; medians count.
//! 5. On another network, lose memory nodes ([`super::memory_lost`]).

mod manager;
mod sample;
mod scaling;

use base::rt::CancellationToken;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;

use self::sample::{P99_OVER_CALM, P99_WINDOW};
use self::scaling::{ElasticPeer, HIGH, LOW, NODES_MAX, Round};
use super::compute_pool::can_make_groups;
use super::figure::{FigureProgress, show};
use super::memory_lost::{self, LOST_SECONDS_MAX};
use crate::cli::flexchain::ElasticArguments;
use crate::failure::CommandError;

const SECOND_NODE_SECONDS_MAX: f64 = 2.0;
const P99_BACK_SECONDS_MAX: f64 = 8.0;
const PAUSE_MS_MAX: f64 = 20.0;

pub async fn run(arguments: &ElasticArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    if !can_make_groups() {
        return Err(CommandError::new(
            "no cgroup can be made here, so one compute node would have the whole machine: run it as root, or in a cgroup \
             that is delegated to you",
        ));
    }
    let progress = FigureProgress::new();
    let mut figure = Figure::new("elastic", "A peer whose load rises to ten times as much and falls again");
    figure.setting("cpu_percent", arguments.cpu_percent);
    figure.setting("nodes_max", NODES_MAX);
    let (rounds, mut failed) = scale(arguments, &mut figure, &progress, stop).await?;
    // A round without a second node took all of its time.
    let second_node = rounds.iter().map(|round| round.second_node_seconds.unwrap_or(arguments.high));
    let p99_back = rounds.iter().map(|round| round.sample.p99_back_seconds);
    let pause = rounds.iter().map(|round| round.sample.pause_ms());
    let bounded = |most| Some(RatioBound::AtMost(most));
    figure.ratio("second_node_seconds", median(second_node), bounded(SECOND_NODE_SECONDS_MAX));
    figure.ratio("p99_back_seconds", median(p99_back), bounded(P99_BACK_SECONDS_MAX));
    figure.ratio("pause_ms", median(pause), bounded(PAUSE_MS_MAX));
    if !arguments.common.quick {
        let lost = memory_lost::lose_both(&arguments.memory_lost(), &progress, stop).await?;
        lost.rows(&mut figure);
        failed += lost.failed;
        figure.ratio("memory_node_lost_seconds", lost.killed.lost_seconds, bounded(LOST_SECONDS_MAX));
    }
    figure.ratio("failed_requests", failed as f64, bounded(0.0));
    figure.note(format!(
        "One node's load: what one compute node with the largest quota carries. p99_back_seconds: until the p99 of {} s is at most \
         {P99_OVER_CALM} times the calm one.",
        P99_WINDOW.as_secs()
    ));
    drop(progress);
    show(&figure, &arguments.common.output)
}

/// The rounds, and how many transactions failed.
async fn scale(
    arguments: &ElasticArguments,
    figure: &mut Figure,
    progress: &FigureProgress,
    stop: &CancellationToken,
) -> Result<(Vec<Round>, u64), CommandError> {
    progress.report("starting a network of processes, and finding what one node carries");
    let mut peer = ElasticPeer::start(arguments, stop).await?;
    figure.setting("one_node_tps", peer.capacity);
    figure.setting("low_tps", LOW * peer.capacity);
    figure.setting("high_tps", HIGH * peer.capacity);
    figure.setting("workload", peer.workload().parameters());
    let mut rounds = Vec::new();
    let count = if arguments.common.quick { 1 } else { arguments.rounds };
    let mut failure = None;
    for number in 1..=count {
        progress.report(&format!("round {number} of {count}"));
        match peer.round(arguments, number, stop).await {
            Ok(round) => rounds.push(round),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    if failure.is_some() && !stop.is_cancelled() {
        eprintln!("the network's log ends with:\n{}", peer.log());
    }
    peer.end().await;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut failed = 0;
    for (number, round) in rounds.iter().enumerate() {
        let sample = &round.sample;
        let numbers = [
            ("second_node_seconds", round.second_node_seconds.unwrap_or(arguments.high)),
            ("nodes", round.nodes as f64),
            ("p99_calm_ms", sample.p99_calm_ms),
            ("p99_high_ms", sample.p99_high_ms),
            ("p99_back_seconds", sample.p99_back_seconds),
            ("gap_growing_ms", sample.gaps_up_ms[0]),
            ("gap_growing_at_seconds", sample.gap_growing_at_seconds),
            ("gap_high_ms", sample.gaps_up_ms[1]),
            ("gap_shrinking_ms", sample.gaps_down_ms[0]),
            ("gap_low_ms", sample.gaps_down_ms[1]),
            ("failed", sample.failed as f64),
        ];
        figure.row(&[("round", &(number + 1).to_string())], &numbers);
        failed += sample.failed;
        if let Some(error) = &round.last_error {
            figure.note(format!("The last failed transaction of round {}: {error}", number + 1));
        }
        let changes = round.changes.iter().map(|(at, done)| format!("{at:.2} s {done}")).collect::<Vec<_>>().join("; ");
        figure.note(format!("Round {}, since the load rose: {changes}", number + 1));
    }
    Ok((rounds, failed))
}
