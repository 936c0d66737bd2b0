use std::sync::atomic::AtomicBool;

use async_trait::async_trait;

use super::*;
use crate::outcome::TransactionStage;
use crate::progress::SilentObserver;
use crate::workload::smallbank::SmallBank;

/// A network in which every transaction takes a millisecond and ends with the result of `answer`.
struct Model<F> {
    answer: F,
    transactions: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
}

impl<F> Model<F> {
    fn new(answer: F) -> Arc<Model<F>> {
        let zero = || AtomicU64::new(0);
        Arc::new(Model { answer, transactions: zero(), in_flight: zero(), in_flight_max: zero() })
    }
}

fn valid(block: u64) -> Result<CommittedTransaction, RejectedTransaction> {
    Ok(CommittedTransaction { code: VALID, block, stages: [Duration::ZERO; 3] })
}

fn refused(status: &'static str) -> Result<CommittedTransaction, RejectedTransaction> {
    Err(RejectedTransaction { stage: TransactionStage::Submit, status, message: "full".to_owned() })
}

#[async_trait]
impl<F: Fn(u64, &ContractCall) -> Result<CommittedTransaction, RejectedTransaction> + Send + Sync + 'static>
    TransactionClient for Model<F>
{
    async fn transact(
        &self,
        _client: usize,
        _contract: &str,
        call: ContractCall,
    ) -> Result<CommittedTransaction, RejectedTransaction> {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_max.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        let number = self.transactions.fetch_add(1, Ordering::SeqCst);
        (self.answer)(number, &call)
    }
}

#[derive(Default)]
struct Fake {
    gone: AtomicBool,
}

impl Servers for Fake {
    fn usage(&self) -> std::io::Result<Usage> {
        match self.gone.load(Ordering::SeqCst) {
            true => Err(std::io::ErrorKind::NotFound.into()),
            false => Ok(Usage { cpu_us: 0, resident_bytes: 1 << 20 }),
        }
    }

    fn signatures_verified(&self) -> Option<u64> {
        None
    }

    fn disk_bytes(&self) -> u64 {
        7
    }
}

fn plan() -> DriverConfig {
    DriverConfig {
        clients: 20,
        seed: 1,
        load: true,
        warm_up: Duration::from_millis(50),
        window: Duration::from_millis(300),
    }
}

async fn drive(
    network: Arc<dyn TransactionClient>,
    servers: &Fake,
    stop: &CancellationToken,
) -> Result<Measurement, Error> {
    run(&plan(), Arc::new(SmallBank::default()), network, servers, &mut SilentObserver, stop).await
}

#[tokio::test]
async fn every_client_has_one_transaction_in_flight_and_all_are_counted() {
    let network = Model::new(|number, _: &ContractCall| match number % 10 {
        0 => Ok(CommittedTransaction { code: 11, block: number, stages: [Duration::ZERO; 3] }),
        1 => refused(REJECTED_BY_CONTRACT),
        _ => valid(number),
    });
    // Loading is retried when it fails, so that the ten calls of SmallBank take more than ten transactions.
    let measurement =
        drive(network.clone(), &Fake::default(), &CancellationToken::new()).await.expect("the model always answers");
    assert_eq!(network.in_flight_max.load(Ordering::SeqCst), 20);
    assert_eq!(network.in_flight.load(Ordering::SeqCst), 0);
    let tally = &measurement.tally;
    assert!(tally.valid() > 200, "{} transactions", tally.valid());
    let tenth = (tally.committed() + tally.rejected_by_contract()) / 10;
    assert!(tally.codes[&11].abs_diff(tenth) <= 20 && tally.rejected_by_contract().abs_diff(tenth) <= 20);
    assert_eq!(tally.latency.count(), tally.valid());
    assert!(measurement.elapsed >= Duration::from_millis(300) && measurement.elapsed < Duration::from_secs(3));
    assert_eq!((measurement.disk_bytes, measurement.server_resident_bytes), ((7, 7), 1 << 20));
}

#[tokio::test]
async fn clients_that_are_refused_wait_longer_each_time() {
    let network =
        Model::new(|_, call: &ContractCall| if call.function == "load" { valid(0) } else { refused("UNAVAILABLE") });
    let measurement =
        drive(network.clone(), &Fake::default(), &CancellationToken::new()).await.expect("refusals are counted");
    assert_eq!(measurement.tally.valid(), 0);
    assert!(measurement.tally.errors() < 20 * 20, "{} tries", measurement.tally.errors());
}

#[tokio::test]
async fn loading_that_keeps_failing_is_an_error_that_says_why() {
    let network = Model::new(|_, _: &ContractCall| refused("UNAVAILABLE"));
    let error = drive(network, &Fake::default(), &CancellationToken::new()).await.err().expect("nothing can be loaded");
    let message = error.to_string();
    assert!(message.contains("`load`") && message.contains("submit UNAVAILABLE: full"), "{message}");
}

#[tokio::test]
async fn a_run_ends_when_it_is_stopped_or_the_servers_are_gone() {
    let endless = DriverConfig { window: Duration::from_secs(3600), ..plan() };
    let workload = || Arc::new(SmallBank::default());
    let network = Model::new(|_, _: &ContractCall| valid(0));
    let (servers, stop) = (Fake::default(), CancellationToken::new());
    let mut silent = SilentObserver;
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
    };
    let (result, ()) = tokio::join!(run(&endless, workload(), network.clone(), &servers, &mut silent, &stop), stopping);
    assert!(matches!(result, Err(Error::Interrupted)));
    assert_eq!(Arc::strong_count(&network), 1, "no client is left");

    let stop = CancellationToken::new();
    let dying = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        servers.gone.store(true, Ordering::SeqCst);
    };
    let (result, ()) = tokio::join!(run(&endless, workload(), network.clone(), &servers, &mut silent, &stop), dying);
    assert!(matches!(result, Err(Error::ServerGone(_))));
}
