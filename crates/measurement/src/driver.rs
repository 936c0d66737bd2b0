//! Runs a closed-loop load against a network: a number of clients, each with one transaction in flight.
//!
//! 1. **Load**: the driver writes the workload's data, [`LOADS_IN_FLIGHT`] transactions at a time, and retries failed
//!    ones.
//! 2. **Warm up**: all clients run, but their transactions are not counted.
//! 3. **Measure**: every transaction that ends within the window is counted, even if it started before. The driver
//!    reads processor time, memory and disk usage at both ends of the window.
//! 4. **Drain**: the clients get [`DRAIN_MAX`] to finish their transactions in flight.
//!
//! If the network rejects a transaction, its client backs off, longer after each rejection, so that the load does not
//! deepen an overload. If a network commits nothing for [`STALL_MAX`], the run ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::{Backoff, CancellationToken};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinSet;

use super::progress::{Phase, ProgressObserver};
use crate::error::Error;
use crate::outcome::{CommittedTransaction, REJECTED_BY_CONTRACT, RejectedTransaction, TransactionClient};
use crate::process::{self, Usage};
use crate::progress::MeasurementFuture;
use crate::tally::{Tally, VALID};
use crate::workload::{ContractCall, Workload, client_random};

/// Loading transactions in flight at once.
pub const LOADS_IN_FLIGHT: usize = 8;
/// The most attempts of one loading transaction.
pub const LOAD_ATTEMPTS_MAX: u32 = 5;
/// How long clients may take to finish after the window.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// A run in which nothing commits for this long has failed.
pub const STALL_MAX: Duration = Duration::from_secs(20);
/// Most clients of one run.
pub const CLIENTS_MAX: usize = 10_000;

const TICK: Duration = Duration::from_millis(250);
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How to run a workload.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Clients with one transaction in flight each.
    pub clients: usize,
    /// Fixes every client's sequence of calls.
    pub seed: u64,
    /// Whether to load the data first.
    pub load: bool,
    /// How long to run before measuring.
    pub warm_up: Duration,
    /// How long to measure.
    pub window: Duration,
}

/// The servers, seen from outside.
pub trait Servers: Send + Sync {
    /// Processor time and resident memory of all of them.
    ///
    /// # Errors
    /// They are gone.
    fn usage(&self) -> std::io::Result<Usage>;

    /// Processor time of the chaincodes that they call, in microseconds; it is not part of theirs.
    ///
    /// # Errors
    /// They are gone.
    fn chaincode_cpu_us(&self) -> std::io::Result<u64> {
        Ok(0)
    }

    /// How many signatures they have verified since they started; `None` if they do not report it.
    fn signatures_verified(&self) -> Option<u64>;

    /// Bytes that they keep on disk.
    fn disk_bytes(&self) -> u64;
}

/// The measurement of a run.
#[derive(Clone)]
pub struct Measurement {
    /// Transactions that ended in the window.
    pub tally: Tally,
    /// How long the window was.
    pub elapsed: Duration,
    /// Processor time that the servers spent in the window, in microseconds.
    pub server_cpu_us: u64,
    /// The same of the chaincodes outside of the servers.
    pub chaincode_cpu_us: u64,
    /// Processor time that the clients spent in the window, in microseconds.
    pub client_cpu_us: u64,
    /// Idle time in the window, in microseconds, over all cores of this machine.
    pub idle_us: u64,
    /// The servers' largest resident memory seen in the window.
    pub server_resident_bytes: u64,
    /// Signatures that the servers verified in the window; `None` if they do not report it.
    pub signatures_verified: Option<u64>,
    /// The servers' bytes on disk after loading, and when the window ended.
    pub disk_bytes: (u64, u64),
    /// How long loading took; `None` when nothing was loaded.
    pub load: Option<Duration>,
}

/// Runs a workload as planned.
///
/// # Errors
/// Loading fails, the servers are gone, nothing commits for [`STALL_MAX`], or `stop` is stopped ([`Error::Interrupted`]).
/// In each case all clients have ended on return.
pub fn run<'a>(
    plan: &'a DriverConfig,
    workload: Arc<dyn Workload>,
    network: Arc<dyn TransactionClient>,
    servers: &'a dyn Servers,
    observer: &'a mut dyn ProgressObserver,
    stop: &'a CancellationToken,
) -> MeasurementFuture<'a, Measurement> {
    Box::pin(run_clients(plan, workload, network, servers, observer, stop))
}

async fn run_clients(
    plan: &DriverConfig,
    workload: Arc<dyn Workload>,
    network: Arc<dyn TransactionClient>,
    servers: &dyn Servers,
    observer: &mut dyn ProgressObserver,
    stop: &CancellationToken,
) -> Result<Measurement, Error> {
    assert!((1..=CLIENTS_MAX).contains(&plan.clients), "the number of clients is checked where it is given");
    let load = if plan.load {
        let start = Instant::now();
        let loading = load(workload.as_ref(), network.as_ref(), observer);
        stop.run_until_cancelled(loading).await.unwrap_or(Err(Error::Interrupted))?;
        Some(start.elapsed())
    } else {
        None
    };
    let disk_before = servers.disk_bytes();

    let board = Arc::new(OutcomeRecorder::default());
    let clients_stop = CancellationToken::new();
    let mut clients = JoinSet::new();
    for client in 0..plan.clients {
        let generator = workload.generator(client, client_random(plan.seed, client));
        let client = DriverClient {
            number: client,
            contract: workload.contract(),
            network: Arc::clone(&network),
            board: Arc::clone(&board),
            stop: clients_stop.clone(),
        };
        clients.spawn(client.run(generator));
    }
    let measured = measure(plan, &board, servers, observer, stop).await;

    observer.begin(Phase::Drain, 1);
    clients_stop.cancel();
    let drained = async { while clients.join_next().await.is_some() {} };
    // After an interruption or failure, transactions in flight are not awaited.
    let drain_timeout = if measured.is_ok() { DRAIN_MAX } else { Duration::ZERO };
    let _ = tokio::time::timeout(drain_timeout, stop.run_until_cancelled(drained)).await;
    clients.shutdown().await;

    let mut measurement = measured?;
    measurement.load = load;
    measurement.disk_bytes.0 = disk_before;
    Ok(measurement)
}

async fn load(
    workload: &dyn Workload,
    network: &dyn TransactionClient,
    observer: &mut dyn ProgressObserver,
) -> Result<(), Error> {
    let calls = workload.load();
    let total = calls.len() as u64;
    observer.begin(Phase::Load, total);
    let mut waiting = calls.into_iter().enumerate();
    let mut in_flight = FuturesUnordered::new();
    let mut done = 0;
    loop {
        while in_flight.len() < LOADS_IN_FLIGHT
            && let Some((number, call)) = waiting.next()
        {
            in_flight.push(load_one(workload.contract(), network, number, call));
        }
        match in_flight.next().await {
            None => return Ok(()),
            Some(loaded) => loaded?,
        }
        done += 1;
        observer.progress(done, done);
    }
}

async fn load_one(
    contract: &str,
    network: &dyn TransactionClient,
    number: usize,
    call: ContractCall,
) -> Result<(), Error> {
    let mut reason = String::new();
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    for _ in 0..LOAD_ATTEMPTS_MAX {
        match network.transact(number, contract, call.clone()).await {
            Ok(CommittedTransaction { code: VALID, .. }) => return Ok(()),
            Ok(CommittedTransaction { code, .. }) => reason = format!("validation code {code}"),
            Err(RejectedTransaction { stage, status, message }) => {
                reason = format!("{} {status}: {message}", stage.name())
            }
        }
        backoff.wait().await;
    }
    Err(Error::Load { contract: contract.to_owned(), function: call.function, reason })
}

async fn measure(
    plan: &DriverConfig,
    board: &OutcomeRecorder,
    servers: &dyn Servers,
    observer: &mut dyn ProgressObserver,
    stop: &CancellationToken,
) -> Result<Measurement, Error> {
    let mut watch = RunMonitor { board, servers, stop, seen: 0, seen_at: Instant::now(), resident_bytes: 0 };
    watch.pass(Phase::WarmUp, plan.warm_up, observer).await?;

    let verified_before = servers.signatures_verified();
    let server_before = servers.usage().map_err(Error::ServerGone)?;
    let chaincode_before = servers.chaincode_cpu_us().map_err(Error::ServerGone)?;
    let client_before = process::usage(None).map_err(Error::Proc)?;
    let idle_before = process::idle_us().map_err(Error::Proc)?;
    let start = Instant::now();
    board.open(start);
    watch.resident_bytes = server_before.resident_bytes;
    let passed = watch.pass(Phase::Measure, plan.window, observer).await;
    let (tally, elapsed) = board.close();
    passed?;
    let idle_after = process::idle_us().map_err(Error::Proc)?;
    let server_after = servers.usage().map_err(Error::ServerGone)?;
    let chaincode_after = servers.chaincode_cpu_us().map_err(Error::ServerGone)?;
    let client_after = process::usage(None).map_err(Error::Proc)?;
    let verified_after = servers.signatures_verified();
    Ok(Measurement {
        tally,
        elapsed,
        server_cpu_us: server_after.cpu_us.saturating_sub(server_before.cpu_us),
        chaincode_cpu_us: chaincode_after.saturating_sub(chaincode_before),
        client_cpu_us: client_after.cpu_us.saturating_sub(client_before.cpu_us),
        idle_us: idle_after.saturating_sub(idle_before),
        server_resident_bytes: watch.resident_bytes.max(server_after.resident_bytes),
        signatures_verified: verified_before.zip(verified_after).map(|(before, after)| after.saturating_sub(before)),
        disk_bytes: (0, servers.disk_bytes()),
        load: None,
    })
}

/// Watches a run while time passes.
struct RunMonitor<'a> {
    board: &'a OutcomeRecorder,
    servers: &'a dyn Servers,
    stop: &'a CancellationToken,
    seen: u64,
    seen_at: Instant,
    resident_bytes: u64,
}

impl RunMonitor<'_> {
    async fn pass(
        &mut self,
        phase: Phase,
        duration: Duration,
        observer: &mut dyn ProgressObserver,
    ) -> Result<(), Error> {
        let start = Instant::now();
        observer.begin(phase, millis(duration));
        while let Some(left) = duration.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            let tick = tokio::time::sleep(left.min(TICK));
            self.stop.run_until_cancelled(tick).await.ok_or(Error::Interrupted)?;
            let usage = self.servers.usage().map_err(Error::ServerGone)?;
            self.resident_bytes = self.resident_bytes.max(usage.resident_bytes);
            let ended = self.board.ended.load(Ordering::Relaxed);
            if ended != self.seen {
                (self.seen, self.seen_at) = (ended, Instant::now());
            } else if self.seen_at.elapsed() > STALL_MAX {
                return Err(Error::Stalled { seconds: STALL_MAX.as_secs(), last: self.board.last_rejection() });
            }
            observer.progress(millis(start.elapsed().min(duration)), self.board.valid.load(Ordering::Relaxed));
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Where clients record their outcomes.
#[derive(Default)]
struct OutcomeRecorder {
    /// The tally and when it started, while the window is open.
    window: Mutex<Option<(Instant, Tally)>>,
    /// Transactions in blocks since the run started.
    ended: AtomicU64,
    /// Valid ones.
    valid: AtomicU64,
    last_rejection: Mutex<String>,
}

impl OutcomeRecorder {
    fn open(&self, now: Instant) {
        *self.lock() = Some((now, Tally::default()));
    }

    fn close(&self) -> (Tally, Duration) {
        let (start, tally) = self.lock().take().expect("the window was opened");
        (tally, start.elapsed())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Tally)>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_rejection(&self) -> String {
        self.last_rejection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, started: Instant, outcome: Result<CommittedTransaction, RejectedTransaction>) {
        let latency = started.elapsed();
        match &outcome {
            Ok(committed) => {
                self.ended.fetch_add(1, Ordering::Relaxed);
                self.valid.fetch_add(u64::from(committed.code == VALID), Ordering::Relaxed);
            }
            Err(refused) => {
                let text = format!("{} {}: {}", refused.stage.name(), refused.status, refused.message);
                *self.last_rejection.lock().unwrap_or_else(PoisonError::into_inner) = text;
            }
        }
        if let Some((start, tally)) = self.lock().as_mut() {
            tally.record(start.elapsed(), latency, outcome);
        }
    }
}

struct DriverClient {
    number: usize,
    contract: &'static str,
    network: Arc<dyn TransactionClient>,
    board: Arc<OutcomeRecorder>,
    stop: CancellationToken,
}

impl DriverClient {
    async fn run(self, mut generator: Box<dyn crate::workload::CallGenerator>) {
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        while !self.stop.is_cancelled() {
            let call = generator.next();
            let started = Instant::now();
            let outcome = self.network.transact(self.number, self.contract, call).await;
            let refused = outcome.as_ref().is_err_and(|refused| refused.status != REJECTED_BY_CONTRACT);
            self.board.record(started, outcome);
            if refused {
                self.stop.run_until_cancelled(backoff.wait()).await;
            } else {
                backoff.reset();
            }
        }
    }
}

#[cfg(test)]
mod tests;
