//! The open-loop driver: transactions start at given times, however long earlier ones take.
//!
//! Two systems see the same offered load only in this way: a closed-loop client that is answered sooner offers more.
//!
//! 1. Transaction `i` of a step of the load starts `i / rate` after the step does, as the next call of client
//!    `i % clients`. The time at which it is due is what latencies count from.
//! 2. [`run`] offers a constant load. What starts within the window counts, with its outcome, whenever that comes. What
//!    starts in the warm-up does not. [`run_steps`] changes the rate from step to step, and reports each transaction.
//! 3. A transaction that cannot start in time, because the machine is busy or too many are in flight, makes the measurement
//!    fail: the load would not be the offered one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::outcome::{CommittedTransaction, RejectedTransaction, TransactionClient, TransactionStage};
use crate::tally::VALID;
use crate::workload::{CallGenerator, Workload, client_random};

/// How late a transaction may start, usually.
pub const LATE_MAX: Duration = Duration::from_secs(1);
/// Transactions in flight, at most.
const IN_FLIGHT_MAX: usize = 20_000;
/// How long to wait for the last outcomes.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub struct OfferedLoad {
    /// Transactions a second.
    pub rate: u64,
    /// Clients, whose calls take turns.
    pub clients: usize,
    /// Determines the calls.
    pub seed: u64,
    /// How long transactions start before they count.
    pub warm_up: Duration,
    /// How long transactions start that count.
    pub window: Duration,
    /// How late a transaction may start.
    pub late_max: Duration,
}

/// The outcomes of the transactions that started within the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OfferedOutcomes {
    /// All of them.
    pub offered: u64,
    /// In a block, and valid.
    pub valid: u64,
    /// In a block, and invalid.
    pub invalid: u64,
    /// Answered `ABORTED` by Submit.
    pub aborted: u64,
    /// Rejected in another way.
    pub failed: u64,
}

impl OfferedOutcomes {
    fn count(&mut self, outcome: &Result<CommittedTransaction, RejectedTransaction>) {
        self.offered += 1;
        match outcome {
            Ok(committed) if committed.code == VALID => self.valid += 1,
            Ok(_) => self.invalid += 1,
            Err(RejectedTransaction { stage: TransactionStage::Submit, status: "ABORTED", .. }) => self.aborted += 1,
            Err(_) => self.failed += 1,
        }
    }
}

/// A part of a load that changes: this rate for so long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadStep {
    /// Transactions a second.
    pub rate: f64,
    /// How long they start at this rate.
    pub length: Duration,
}

/// Who offers a load that changes.
#[derive(Clone, Copy, Debug)]
pub struct StepClients {
    /// Clients, whose calls take turns.
    pub clients: usize,
    /// Determines the calls.
    pub seed: u64,
    /// How late a transaction may start.
    pub late_max: Duration,
}

/// A transaction of a load that changes.
#[derive(Clone, Debug)]
pub struct OfferedTransaction {
    /// When it was to start.
    pub due: Instant,
    /// When its outcome was known.
    pub ended: Instant,
    /// The outcome.
    pub outcome: Result<CommittedTransaction, RejectedTransaction>,
}

impl OfferedTransaction {
    /// Whether it is in a block, and valid.
    pub fn is_valid(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|committed| committed.code == VALID)
    }

    /// From the time at which it was due.
    pub fn latency(&self) -> Duration {
        self.ended.saturating_duration_since(self.due)
    }
}

/// Offers the load, and returns the outcomes when all have come.
///
/// # Errors
/// [`Error::Interrupted`]; [`Error::Part`] if the rate was not kept, or outcomes did not come.
pub async fn run(
    load: OfferedLoad,
    workload: &dyn Workload,
    network: Arc<dyn TransactionClient>,
    stop: &CancellationToken,
) -> Result<OfferedOutcomes, Error> {
    assert!(load.rate > 0, "something is offered");
    let began = Instant::now();
    let due = (0u64..).map(|number| Duration::from_nanos(number.saturating_mul(1_000_000_000) / load.rate));
    let due = due.take_while(|due| *due < load.warm_up + load.window);
    let clients = StepClients { clients: load.clients, seed: load.seed, late_max: load.late_max };
    let mut outcomes = OfferedOutcomes::default();
    offer(began, due, clients, workload, network, stop, |transaction| {
        if transaction.due >= began + load.warm_up {
            outcomes.count(&transaction.outcome);
        }
    })
    .await?;
    Ok(outcomes)
}

/// Offers a load that changes from step to step, and returns all transactions when all have ended, in the order in which
/// they ended. Steps without a pause follow one another from `began` on.
///
/// # Errors
/// As [`run`].
pub async fn run_steps(
    steps: &[LoadStep],
    began: Instant,
    clients: StepClients,
    workload: &dyn Workload,
    network: Arc<dyn TransactionClient>,
    stop: &CancellationToken,
) -> Result<Vec<OfferedTransaction>, Error> {
    let mut start = Duration::ZERO;
    let mut due = Vec::new();
    for LoadStep { rate, length } in steps {
        assert!(*rate > 0.0, "something is offered");
        let within = (0u32..).map(|number| Duration::from_secs_f64(f64::from(number) / rate));
        due.extend(within.take_while(|due| due < length).map(|due| start + due));
        start += *length;
    }
    let mut transactions = Vec::with_capacity(due.len());
    offer(began, due.into_iter(), clients, workload, network, stop, |transaction| transactions.push(transaction))
        .await?;
    Ok(transactions)
}

/// Starts a transaction at each of these times after `began`, and passes each on when it has ended.
async fn offer(
    began: Instant,
    due: impl Iterator<Item = Duration>,
    from: StepClients,
    workload: &dyn Workload,
    network: Arc<dyn TransactionClient>,
    stop: &CancellationToken,
    mut note: impl FnMut(OfferedTransaction),
) -> Result<(), Error> {
    assert!(from.clients > 0, "somebody offers it");
    let late = |reason: String| Error::Part { what: "the offered load", reason };
    let generator = |client| workload.generator(client, client_random(from.seed, client));
    let mut clients: Vec<Box<dyn CallGenerator>> = (0..from.clients).map(generator).collect();
    let contract = workload.contract();
    let mut running: JoinSet<OfferedTransaction> = JoinSet::new();
    let lost =
        |error: tokio::task::JoinError| Error::Part { what: "a client of the offered load", reason: error.to_string() };
    for (number, due) in due.enumerate() {
        let due_at = began + due;
        tokio::time::sleep_until(due_at.into()).await;
        while let Some(ended) = running.try_join_next() {
            note(ended.map_err(lost)?);
        }
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let behind = due_at.elapsed();
        if behind > from.late_max || running.len() >= IN_FLIGHT_MAX {
            let behind = behind.as_millis();
            let reason =
                format!("transactions start {behind} ms late, with {} in flight; offer fewer a second", running.len());
            return Err(late(reason));
        }
        let client = number % from.clients;
        let (call, network) = (clients[client].next(), Arc::clone(&network));
        running.spawn(async move {
            let outcome = network.transact(client, contract, call).await;
            OfferedTransaction { due: due_at, ended: Instant::now(), outcome }
        });
    }
    let drained = tokio::time::timeout(DRAIN_MAX, async {
        while let Some(ended) = running.join_next().await {
            note(ended.map_err(lost)?);
        }
        Ok(())
    });
    drained.await.unwrap_or_else(|_| Err(late(format!("outcomes did not come within {} s", DRAIN_MAX.as_secs()))))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::workload::ContractCall;
    use crate::workload::smallbank::SmallBank;

    /// Answers in turn: valid, invalid, aborted by Submit, rejected.
    struct InTurn(AtomicU64);

    #[async_trait]
    impl TransactionClient for InTurn {
        async fn transact(
            &self,
            _client: usize,
            _contract: &str,
            _call: ContractCall,
        ) -> Result<CommittedTransaction, RejectedTransaction> {
            let rejected = |stage| RejectedTransaction { stage, status: "ABORTED", message: String::new() };
            match self.0.fetch_add(1, Ordering::Relaxed) % 4 {
                0 => Ok(CommittedTransaction { code: VALID, block: 1, stages: Default::default() }),
                1 => Ok(CommittedTransaction { code: 11, block: 1, stages: Default::default() }),
                2 => Err(rejected(TransactionStage::Submit)),
                _ => Err(rejected(TransactionStage::Endorse)),
            }
        }
    }

    #[tokio::test]
    async fn what_starts_in_the_window_counts_once_by_its_outcome() {
        let load = OfferedLoad {
            rate: 4_000,
            clients: 7,
            seed: 1,
            warm_up: Duration::from_millis(10),
            window: Duration::from_millis(100),
            late_max: Duration::from_secs(60),
        };
        let network = Arc::new(InTurn(AtomicU64::new(0)));
        let workload = SmallBank { accounts: 100, ..SmallBank::default() };
        let outcomes = run(load, &workload, network.clone(), &CancellationToken::new()).await;
        let hundred = OfferedOutcomes { offered: 400, valid: 100, invalid: 100, aborted: 100, failed: 100 };
        assert_eq!(outcomes.expect("it may start as late as it has to"), hundred);
        assert_eq!(network.0.load(Ordering::Relaxed), 440, "the warm-up was offered too");
    }

    #[tokio::test]
    async fn a_load_that_changes_offers_each_step_at_its_rate() {
        let steps = [(1_000.0, 100), (100.0, 50), (2_000.0, 20)];
        let steps = steps.map(|(rate, ms)| LoadStep { rate, length: Duration::from_millis(ms) });
        let network = Arc::new(InTurn(AtomicU64::new(0)));
        let workload = SmallBank { accounts: 100, ..SmallBank::default() };
        let clients = StepClients { clients: 3, seed: 1, late_max: Duration::from_secs(60) };
        let began = Instant::now();
        let offered = run_steps(&steps, began, clients, &workload, network, &CancellationToken::new()).await;
        let offered = offered.expect("it may start as late as it has to");
        let within = |from, to| {
            let due = |ms| began + Duration::from_millis(ms);
            offered.iter().filter(|transaction| (due(from)..due(to)).contains(&transaction.due)).count()
        };
        assert_eq!([within(0, 100), within(100, 150), within(150, 170), offered.len()], [100, 5, 40, 145]);
        assert!(offered.iter().all(|transaction| transaction.ended >= transaction.due));
        assert_eq!(
            offered.iter().filter(|transaction| transaction.is_valid()).count(),
            37,
            "every fourth, from the first"
        );
    }
}
