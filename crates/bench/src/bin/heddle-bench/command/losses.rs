//! What clients notice when a process of their peer freezes or dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use measurement::workload::ycsb::Ycsb;
use rustix::process::{Pid, Signal, kill_process};

use super::failover::{FailoverLoad, VALUE_BYTES};
use super::measure::{OwnNetwork, measure};
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

/// The part of the throughput that counts as back.
const RECOVERED: f64 = 0.9;
/// The time with which the time after a loss is compared.
pub(super) const BEFORE: Duration = Duration::from_secs(5);
/// How long a loss is watched.
pub(super) const HELD: Duration = Duration::from_secs(12);
/// The steps in which the first second of full throughput is looked for.
const STEP: Duration = Duration::from_millis(50);

/// What the loss of a process cost.
pub(super) struct LossSample {
    /// How it was lost.
    pub(super) what: &'static str,
    /// The throughput of the time before.
    tps_before: f64,
    /// Until the throughput was back; the whole time if it never was.
    pub(super) lost_seconds: f64,
    /// The throughput of the last seconds that were watched.
    tps_after: f64,
    /// The longest time without a commit.
    pub(super) pause_ms: f64,
    /// The longest transaction.
    slowest_ms: f64,
}

impl LossSample {
    /// The numbers of a row.
    pub(super) fn numbers(&self) -> [(&'static str, f64); 5] {
        let LossSample { tps_before, lost_seconds, tps_after, pause_ms, slowest_ms, .. } = *self;
        [
            ("tps_before", tps_before),
            ("lost_seconds", lost_seconds),
            ("tps_after", tps_after),
            ("pause_ms", pause_ms),
            ("slowest_ms", slowest_ms),
        ]
    }
}

/// Loads records, and starts clients that read and update them, [`BEFORE`] ago when this returns.
pub(super) async fn start_load(
    network: &OwnNetwork,
    clients: u64,
    records: u64,
    stop: &CancellationToken,
) -> Result<FailoverLoad, CommandError> {
    let data = Ycsb { records, value_bytes: VALUE_BYTES as usize, ..Ycsb::default() };
    let loading = BenchRunArguments { orgs: 1, ..BenchRunArguments::window(clients, 1.0) };
    measure(&loading, Arc::new(data.clone()), &network.dir(), network.endpoints(), &[], stop).await?;
    let load = FailoverLoad::start(network, clients as usize, &data).await?;
    tokio::time::sleep(BEFORE).await;
    Ok(load)
}

/// Sends a process a signal.
pub(super) fn send(process: u32, signal: Signal) -> Result<(), CommandError> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| CommandError::new("a process has no number"))?;
    kill_process(process, signal).map_err(CommandError::new)
}

/// Loses a process by a signal, after [`BEFORE`], and watches for [`HELD`]. It counts as lost until the first second whose commits
/// reach [`RECOVERED`] of the throughput before.
pub(super) async fn lose(
    what: &'static str,
    process: u32,
    signal: Signal,
    load: &FailoverLoad,
) -> Result<LossSample, CommandError> {
    tokio::time::sleep(BEFORE).await;
    let lost = Instant::now();
    send(process, signal)?;
    tokio::time::sleep(HELD).await;
    let tps_before = load.committed_between(lost - BEFORE, lost) / BEFORE.as_secs_f64();
    let second = Duration::from_secs(1);
    let starts = (0..).map(|step| STEP * step).take_while(|start| *start + second <= HELD);
    let is_back =
        |start: &Duration| load.committed_between(lost + *start, lost + *start + second) >= RECOVERED * tps_before;
    let lost_seconds = starts.into_iter().find(is_back).unwrap_or(HELD).as_secs_f64();
    let late = lost + HELD - BEFORE;
    let spans: Vec<(Instant, Instant)> = load.spans_since(lost);
    let slowest = spans.iter().map(|(began, ended)| *ended - *began).max().unwrap_or(HELD);
    let mut ends: Vec<Instant> = spans.into_iter().map(|(_, ended)| ended).collect();
    ends.extend([lost, lost + HELD]);
    ends.sort_unstable();
    let pause = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(HELD);
    Ok(LossSample {
        what,
        tps_before,
        lost_seconds,
        tps_after: load.committed_between(late, lost + HELD) / BEFORE.as_secs_f64(),
        pause_ms: pause.as_secs_f64() * 1e3,
        slowest_ms: slowest.as_secs_f64() * 1e3,
    })
}
