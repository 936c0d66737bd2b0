//! The open-loop driver: transactions start at a fixed rate, however long earlier ones take.
//!
//! Two systems see the same offered load only in this way: a closed-loop client that is answered sooner offers more.
//!
//! 1. Transaction `i` starts at `i / rate`, as the next call of client `i % clients`.
//! 2. What starts within the window counts, with its outcome, whenever that comes. What starts in the warm-up does not.
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
    assert!(load.rate > 0 && load.clients > 0, "something is offered");
    let late = |reason: String| Error::Part { what: "the offered load", reason };
    let generator = |client| workload.generator(client, client_random(load.seed, client));
    let mut clients: Vec<Box<dyn CallGenerator>> = (0..load.clients).map(generator).collect();
    let contract = workload.contract();
    let mut running = JoinSet::new();
    let mut outcomes = OfferedOutcomes::default();
    let began = Instant::now();
    for number in 0u64.. {
        let due = Duration::from_nanos(number.saturating_mul(1_000_000_000) / load.rate);
        if due >= load.warm_up + load.window {
            break;
        }
        tokio::time::sleep_until((began + due).into()).await;
        while let Some(ended) = running.try_join_next() {
            note(&mut outcomes, ended)?;
        }
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let behind = began.elapsed().saturating_sub(due);
        if behind > load.late_max || running.len() >= IN_FLIGHT_MAX {
            let behind = behind.as_millis();
            let reason =
                format!("transactions start {behind} ms late, with {} in flight; offer fewer a second", running.len());
            return Err(late(reason));
        }
        let client = (number % load.clients as u64) as usize;
        let (call, network) = (clients[client].next(), Arc::clone(&network));
        let counts = due >= load.warm_up;
        running.spawn(async move { (counts, network.transact(client, contract, call).await) });
    }
    let drained = tokio::time::timeout(DRAIN_MAX, async {
        while let Some(ended) = running.join_next().await {
            note(&mut outcomes, ended)?;
        }
        Ok(())
    });
    drained.await.unwrap_or_else(|_| Err(late(format!("outcomes did not come within {} s", DRAIN_MAX.as_secs()))))?;
    Ok(outcomes)
}

type EndedTransaction = (bool, Result<CommittedTransaction, RejectedTransaction>);

fn note(outcomes: &mut OfferedOutcomes, ended: Result<EndedTransaction, tokio::task::JoinError>) -> Result<(), Error> {
    let (counts, outcome) =
        ended.map_err(|error| Error::Part { what: "a client of the offered load", reason: error.to_string() })?;
    if counts {
        outcomes.count(&outcome);
    }
    Ok(())
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
}
