//! The closed loop: so many clients, each with one transaction in flight.
//!
//! 1. **Load**: the workload's data, [`LOADS_IN_FLIGHT`] transactions at a time, each tried again when it fails.
//! 2. **Warm up**: all clients run, nothing counts.
//! 3. **Measure**: what ends within the window counts, whenever it began; processor time, memory and disk are read at its
//!    two ends.
//! 4. **Drain**: clients finish what they have in flight, for [`DRAIN_MAX`] at most.
//!
//! Invariant: a client that the network refuses waits before it tries again, longer each time, so that an overloaded
//! network is not driven further into overload. A network that commits nothing for [`STALL_MAX`] ends the run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::Stop;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::outcome::{BY_CONTRACT, Committed, Refused, Submit};
use crate::process::{self, Usage};
use crate::progress::Measuring;
use crate::tally::{Tally, VALID};
use crate::workload::{Call, Workload, client_random};

/// Loading transactions in flight at once.
pub const LOADS_IN_FLIGHT: usize = 8;
/// How often one loading transaction is tried.
pub const LOAD_ATTEMPTS_MAX: u32 = 5;
/// How long clients may take to finish after the window.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// A run in which nothing commits for so long has failed.
pub const STALL_MAX: Duration = Duration::from_secs(20);
/// Most clients of one run.
pub const CLIENTS_MAX: usize = 10_000;

const TICK: Duration = Duration::from_millis(250);
const BACK_OFF_MIN: Duration = Duration::from_millis(5);
const BACK_OFF_MAX: Duration = Duration::from_millis(500);

/// How to run a workload.
#[derive(Clone, Debug)]
pub struct Plan {
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

    /// How many signatures they have verified since they started; `None` when they do not tell.
    fn signatures_verified(&self) -> Option<u64>;

    /// Bytes that they keep on disk.
    fn disk_bytes(&self) -> u64;
}

/// What the driver is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Load,
    WarmUp,
    Measure,
    Drain,
}

/// Told how a run goes on.
pub trait Observer: Send {
    /// A phase begins; it has so many steps (loading transactions, or milliseconds).
    fn begin(&mut self, phase: Phase, steps: u64);
    /// The phase has come so far; so many valid transactions ended since the run began.
    fn progress(&mut self, steps: u64, valid: u64);
}

/// An observer that says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn begin(&mut self, _: Phase, _: u64) {}
    fn progress(&mut self, _: u64, _: u64) {}
}

/// What a run measured.
#[derive(Clone)]
pub struct Measurement {
    /// Transactions that ended in the window.
    pub tally: Tally,
    /// How long the window was.
    pub elapsed: Duration,
    /// Processor time that the servers spent in the window, in microseconds.
    pub server_cpu_us: u64,
    /// Processor time that the clients spent in the window, in microseconds.
    pub client_cpu_us: u64,
    /// Processor time that nobody spent in the window, in microseconds, over all processors of this machine.
    pub idle_us: u64,
    /// The servers' largest resident memory seen in the window.
    pub server_resident_bytes: u64,
    /// Signatures that the servers verified in the window; `None` when they do not tell.
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
    plan: &'a Plan,
    workload: Arc<dyn Workload>,
    network: Arc<dyn Submit>,
    servers: &'a dyn Servers,
    observer: &'a mut dyn Observer,
    stop: &'a Stop,
) -> Measuring<'a, Measurement> {
    Box::pin(run_clients(plan, workload, network, servers, observer, stop))
}

async fn run_clients(
    plan: &Plan,
    workload: Arc<dyn Workload>,
    network: Arc<dyn Submit>,
    servers: &dyn Servers,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Measurement, Error> {
    assert!((1..=CLIENTS_MAX).contains(&plan.clients), "the number of clients is checked where it is given");
    let load = if plan.load {
        let start = Instant::now();
        let loading = load(workload.as_ref(), network.as_ref(), observer);
        stop.or_stopped(loading).await.unwrap_or(Err(Error::Interrupted))?;
        Some(start.elapsed())
    } else {
        None
    };
    let disk_before = servers.disk_bytes();

    let board = Arc::new(Board::default());
    let clients_stop = Stop::new();
    let mut clients = JoinSet::new();
    for client in 0..plan.clients {
        let generator = workload.generator(client, client_random(plan.seed, client));
        let client = Client {
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
    clients_stop.stop();
    let drained = async { while clients.join_next().await.is_some() {} };
    // Interrupted or failed: nobody waits for what is still in flight.
    let patience = if measured.is_ok() { DRAIN_MAX } else { Duration::ZERO };
    let _ = tokio::time::timeout(patience, stop.or_stopped(drained)).await;
    clients.shutdown().await;

    let mut measurement = measured?;
    measurement.load = load;
    measurement.disk_bytes.0 = disk_before;
    Ok(measurement)
}

async fn load(workload: &dyn Workload, network: &dyn Submit, observer: &mut dyn Observer) -> Result<(), Error> {
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

async fn load_one(contract: &str, network: &dyn Submit, number: usize, call: Call) -> Result<(), Error> {
    let mut reason = String::new();
    let mut back_off = BackOff::default();
    for _ in 0..LOAD_ATTEMPTS_MAX {
        match network.transact(number, contract, call.clone()).await {
            Ok(Committed { code: VALID, .. }) => return Ok(()),
            Ok(Committed { code, .. }) => reason = format!("validation code {code}"),
            Err(Refused { stage, status, message }) => reason = format!("{} {status}: {message}", stage.name()),
        }
        back_off.wait().await;
    }
    Err(Error::Load { contract: contract.to_owned(), function: call.function, reason })
}

async fn measure(
    plan: &Plan,
    board: &Board,
    servers: &dyn Servers,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Measurement, Error> {
    let mut watch = Watch { board, servers, stop, seen: 0, seen_at: Instant::now(), resident_bytes: 0 };
    watch.pass(Phase::WarmUp, plan.warm_up, observer).await?;

    let verified_before = servers.signatures_verified();
    let server_before = servers.usage().map_err(Error::ServerGone)?;
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
    let client_after = process::usage(None).map_err(Error::Proc)?;
    let verified_after = servers.signatures_verified();
    Ok(Measurement {
        tally,
        elapsed,
        server_cpu_us: server_after.cpu_us.saturating_sub(server_before.cpu_us),
        client_cpu_us: client_after.cpu_us.saturating_sub(client_before.cpu_us),
        idle_us: idle_after.saturating_sub(idle_before),
        server_resident_bytes: watch.resident_bytes.max(server_after.resident_bytes),
        signatures_verified: verified_before.zip(verified_after).map(|(before, after)| after.saturating_sub(before)),
        disk_bytes: (0, servers.disk_bytes()),
        load: None,
    })
}

/// Looks after a run while time passes.
struct Watch<'a> {
    board: &'a Board,
    servers: &'a dyn Servers,
    stop: &'a Stop,
    seen: u64,
    seen_at: Instant,
    resident_bytes: u64,
}

impl Watch<'_> {
    async fn pass(&mut self, phase: Phase, duration: Duration, observer: &mut dyn Observer) -> Result<(), Error> {
        let start = Instant::now();
        observer.begin(phase, millis(duration));
        while let Some(left) = duration.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            let tick = tokio::time::sleep(left.min(TICK));
            self.stop.or_stopped(tick).await.ok_or(Error::Interrupted)?;
            let usage = self.servers.usage().map_err(Error::ServerGone)?;
            self.resident_bytes = self.resident_bytes.max(usage.resident_bytes);
            let ended = self.board.ended.load(Ordering::Relaxed);
            if ended != self.seen {
                (self.seen, self.seen_at) = (ended, Instant::now());
            } else if self.seen_at.elapsed() > STALL_MAX {
                return Err(Error::Stalled { seconds: STALL_MAX.as_secs(), last: self.board.last_refusal() });
            }
            observer.progress(millis(start.elapsed().min(duration)), self.board.valid.load(Ordering::Relaxed));
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Where clients write down what happened.
#[derive(Default)]
struct Board {
    /// The tally and when it began, while the window is open.
    window: Mutex<Option<(Instant, Tally)>>,
    /// Transactions in blocks since the run began.
    ended: AtomicU64,
    /// Valid ones.
    valid: AtomicU64,
    last_refusal: Mutex<String>,
}

impl Board {
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

    fn last_refusal(&self) -> String {
        self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, started: Instant, outcome: Result<Committed, Refused>) {
        let latency = started.elapsed();
        match &outcome {
            Ok(committed) => {
                self.ended.fetch_add(1, Ordering::Relaxed);
                self.valid.fetch_add(u64::from(committed.code == VALID), Ordering::Relaxed);
            }
            Err(refused) => {
                let text = format!("{} {}: {}", refused.stage.name(), refused.status, refused.message);
                *self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner) = text;
            }
        }
        if let Some((start, tally)) = self.lock().as_mut() {
            tally.record(start.elapsed(), latency, outcome);
        }
    }
}

struct Client {
    number: usize,
    contract: &'static str,
    network: Arc<dyn Submit>,
    board: Arc<Board>,
    stop: Stop,
}

impl Client {
    async fn run(self, mut generator: Box<dyn crate::workload::Generator>) {
        let mut back_off = BackOff::default();
        while !self.stop.is_stopped() {
            let call = generator.next();
            let started = Instant::now();
            let outcome = self.network.transact(self.number, self.contract, call).await;
            let refused = outcome.as_ref().is_err_and(|refused| refused.status != BY_CONTRACT);
            self.board.record(started, outcome);
            if refused {
                self.stop.or_stopped(back_off.wait()).await;
            } else {
                back_off = BackOff::default();
            }
        }
    }
}

struct BackOff(Duration);

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff(BACK_OFF_MIN)
    }
}

impl BackOff {
    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACK_OFF_MAX);
    }
}

#[cfg(test)]
mod tests;
