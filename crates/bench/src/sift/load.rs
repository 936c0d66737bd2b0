//! The clients of a store: tasks of this process, each with one operation in flight.

use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::{self, CancellationToken};

use super::systems::KvSystem;
use measurement::error::Error;
use measurement::process;
use measurement::random::Random;
use measurement::zipf::Zipf;

/// Operations after which a client yields: with verbs that complete at once it would never wait.
const TURN: u64 = 64;
/// The same while all keys are put; each put takes longer, and heartbeats must not be late.
const FILL_TURN: u64 = 8;
/// Failures in a row that end a client.
const FAILURES_MAX: u64 = 5_000;

/// A mix of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationMix {
    /// Its name in figures.
    pub name: &'static str,
    /// How many of a hundred operations are puts.
    pub puts_of_100: u64,
}

/// The paper's loads.
pub const MIXES: [OperationMix; 4] = [
    OperationMix { name: "write-only", puts_of_100: 100 },
    OperationMix { name: "mixed", puts_of_100: 50 },
    OperationMix { name: "read-heavy", puts_of_100: 10 },
    OperationMix { name: "read-only", puts_of_100: 0 },
];

/// How a store is loaded.
#[derive(Clone, Debug)]
pub struct KvLoad {
    /// Clients.
    pub clients: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How keys are chosen: popular keys are scattered.
    pub zipf: Zipf,
    /// Keys.
    pub keys: u64,
    /// Operations a second of all clients together; without a value, as many as possible.
    pub pace: Option<f64>,
    /// Fixes the choice of keys.
    pub seed: u64,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOutcome {
    /// Operations a second.
    pub rate: f64,
    /// Processor time of an operation, of this process, clients included, in microseconds.
    pub cpu_us: f64,
    /// Latencies in nanoseconds, ascending; one operation in sixteen is measured.
    pub nanos: Vec<u32>,
    /// Operations that failed; they were retried.
    pub failed: u64,
}

impl LoadOutcome {
    /// The time within which this many of a thousand were answered, in microseconds.
    pub fn quantile_us(&self, thousandths: usize) -> f64 {
        let at = self.nanos.len().saturating_sub(1) * thousandths / 1000;
        self.nanos.get(at).map_or(0.0, |nanos| f64::from(*nanos) / 1e3)
    }
}

/// The key of a number.
pub(super) fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:012}"))
}

/// Puts all keys once, each into the store that serves at that moment.
///
/// # Errors
/// The store keeps rejecting, or the run was stopped.
pub async fn fill(
    system: impl Fn() -> Option<KvSystem> + Clone + Send + Sync + 'static,
    load: &KvLoad,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut clients = Vec::new();
    for client in 0..load.clients {
        let (system, load, stop) = (system.clone(), load.clone(), stop.clone());
        clients.push(rt::spawn(async move {
            let value = Bytes::from(vec![b'v'; load.value_bytes]);
            for number in (client..load.keys).step_by(load.clients as usize) {
                if stop.is_cancelled() {
                    return Err(Error::Interrupted);
                }
                let (key, mut failures) = (key(number), 0);
                loop {
                    let outcome = match system() {
                        Some(system) => system.put(&key, &value).await,
                        None => Err(kv::Error::Closed.into()),
                    };
                    match outcome {
                        Ok(()) => break,
                        Err(error) if failures == FAILURES_MAX => {
                            return Err(Error::Part { what: "putting all keys", reason: error.to_string() });
                        }
                        Err(_) => rt::sleep(Duration::from_millis(1)).await,
                    }
                    failures += 1;
                }
                if (number / load.clients).is_multiple_of(FILL_TURN) {
                    rt::yield_now().await;
                }
            }
            Ok(())
        }));
    }
    for client in clients {
        client.await.map_err(|_| Error::Interrupted)??;
    }
    Ok(())
}

/// Puts a key, or gets it if `value` is `None`, until that succeeds; returns the number of failures.
async fn again(system: &KvSystem, key: &Bytes, value: Option<&Bytes>) -> Result<u64, Error> {
    let mut failures = 0;
    loop {
        let outcome = match value {
            Some(value) => system.put(key, value).await,
            None => system.get(key).await.map(drop),
        };
        match outcome {
            Ok(()) => return Ok(failures),
            Err(error) if failures == FAILURES_MAX => {
                return Err(Error::Part { what: "an operation", reason: error.to_string() });
            }
            Err(_) => rt::sleep(Duration::from_millis(1)).await,
        }
        failures += 1;
    }
}

/// Loads a store for a while.
///
/// # Errors
/// As [`fill`]; [`Error::Proc`].
pub async fn run(
    system: &KvSystem,
    load: &KvLoad,
    mix: OperationMix,
    seconds: f64,
    stop: &CancellationToken,
) -> Result<LoadOutcome, Error> {
    let before = process::usage(None).map_err(Error::Proc)?;
    let (start, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut clients = Vec::new();
    for client in 0..load.clients {
        let (system, load, stop) = (system.clone(), load.clone(), stop.clone());
        clients.push(rt::spawn(async move { operate(client, &system, &load, mix, (start, limit), &stop).await }));
    }
    let (mut done, mut outcome) = (0, LoadOutcome::default());
    for client in clients {
        let (count, failed, mut nanos) = client.await.map_err(|_| Error::Interrupted)??;
        (done, outcome.failed) = (done + count, outcome.failed + failed);
        outcome.nanos.append(&mut nanos);
    }
    let elapsed = start.elapsed().as_secs_f64();
    let after = process::usage(None).map_err(Error::Proc)?;
    outcome.nanos.sort_unstable();
    outcome.rate = done as f64 / elapsed;
    outcome.cpu_us = (after.cpu_us - before.cpu_us) as f64 / done.max(1) as f64;
    Ok(outcome)
}

async fn operate(
    client: u64,
    system: &KvSystem,
    load: &KvLoad,
    mix: OperationMix,
    (start, limit): (Instant, Duration),
    stop: &CancellationToken,
) -> Result<(u64, u64, Vec<u32>), Error> {
    let mut random = Random::new(load.seed ^ (client + 1) << 32);
    let value = Bytes::from(vec![b'w'; load.value_bytes]);
    let every = load.pace.map(|pace| Duration::from_secs_f64(load.clients as f64 / pace));
    let mut due = every.map(|every| every.mul_f64(random.unit())).unwrap_or_default();
    let (mut done, mut failed, mut nanos) = (0_u64, 0, Vec::new());
    loop {
        if let Some(every) = every {
            // A late operation starts at once; timers are only precise enough to sleep until about the due time.
            while start.elapsed() < due && start.elapsed() < limit {
                match due.saturating_sub(start.elapsed()) > Duration::from_millis(2) {
                    true => rt::sleep(Duration::from_millis(1)).await,
                    false => rt::yield_now().await,
                }
            }
            due += every;
        } else if done % TURN == TURN - 1 {
            rt::yield_now().await;
        }
        if start.elapsed() >= limit {
            return Ok((done, failed, nanos));
        }
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let key = key(scattered(load.zipf.draw(&mut random), load.keys));
        let is_put = random.below(100) < mix.puts_of_100;
        let begun = (done % 16 == 0).then(Instant::now);
        failed += again(system, &key, is_put.then_some(&value)).await?;
        done += 1;
        nanos.extend(begun.map(|begun| u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX)));
    }
}

/// A permutation of the numbers below the count.
pub(super) fn scattered(number: u64, count: u64) -> u64 {
    // A prime that divides no number of keys in use.
    (u128::from(number) * 2_147_483_647 % u128::from(count)) as u64
}
