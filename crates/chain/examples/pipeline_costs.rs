//! The cost of a transaction on the servers, phase by phase, compared with the signatures that it needs.
//!
//! The setting: three peers, one orderer, SmallBank, any one peer endorses, P-256 keys, everything in one process and
//! without gRPC. The work is done in rounds; the client's own work is not counted. A second orderer without peers measures
//! the cost of ordering alone. This cost is subtracted from the cost of ordering and committing together.
//!
//! ```text
//! cargo run --release -p heddle-chain --example pipeline_costs [transactions] [accounts] [per block]
//! ```

#[path = "../tests/chain/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::disk::Directory;
use base::rt::{self, production};
use chain::endorse::Endorse;
use chain::order::{Broadcast, Orderer, OrdererSetup, SoloEngines};
use chain::peer::Peer;
use identity::KeyKind;
use identity::issue::CertificateTerms;
use ledger::Code;
use ledger::config::EndorsementRule;
use storage::GroupSync;
use storage::tables::{FjallConfig, FjallEngine};
use support::*;

const PEERS: usize = 3;
const ROUND: usize = 2000;
const CALLERS: usize = 32;
/// Threads of [`production::run`].
const WORKERS: usize = 2;
const CALIBRATION: usize = 3000;

/// Processor time of this process so far, in microseconds.
fn processor_us() -> f64 {
    // Each thread has its own file; the process's own shows its main thread only.
    let mut total = 0.0;
    for task in std::fs::read_dir("/proc/self/task").expect("linux").flatten() {
        if let Ok(stat) = std::fs::read_to_string(task.path().join("schedstat")) {
            let run: f64 = stat.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0.0);
            total += run / 1000.0;
        }
    }
    total
}

/// Runs `work` on every item with a number of callers at once.
async fn each<T, R, F, Fut>(items: Vec<T>, work: F) -> Vec<R>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(T) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = R> + Send,
{
    let mut parts: Vec<Vec<T>> = (0..CALLERS).map(|_| Vec::new()).collect();
    for (index, item) in items.into_iter().enumerate() {
        parts[index % CALLERS].push(item);
    }
    let mut tasks = Vec::new();
    for part in parts {
        let work = work.clone();
        tasks.push(rt::spawn(async move {
            let mut done = Vec::with_capacity(part.len());
            for item in part {
                done.push(work(item).await);
            }
            done
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("callers run to their end"));
    }
    all
}

#[derive(Default)]
struct Costs {
    endorse: f64,
    order: f64,
    order_and_commit: f64,
    transactions: usize,
    valid: usize,
    wall: Duration,
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let transactions: usize = args.next().unwrap_or(20_000);
    let accounts: usize = args.next().unwrap_or(10_000);
    let per_block: u32 = args.next().unwrap_or(200) as u32;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async move {
        let root = Directory::open(scratch.path()).await.expect("it exists");
        run(&root, transactions, accounts, per_block).await;
    });
}

async fn run(root: &Directory, transactions: usize, accounts: usize, per_block: u32) {
    let consortium = Consortium::create(ConsortiumConfig {
        terms: CertificateTerms::starting_now(KeyKind::P256),
        organizations: PEERS,
        rule: EndorsementRule::Any,
        batch: batch(per_block),
    });
    let before = floor(&consortium).await;
    let main = orderer(&consortium, root).await;
    let alone = Orderer::open(OrdererSetup {
        watermarks: None,
        signer: consortium.orderer.clone(),
        directory: directory(root, "alone").await,
        sync: GroupSync::new(),
        engines: Arc::new(SoloEngines),
        settings: Default::default(),
    });
    let alone = alone.await.expect("the orderer opens");
    alone.join(&consortium.genesis).await.expect("the orderer joins");
    let mut peers = Vec::new();
    for index in 0..PEERS {
        let tables = root.path().join(format!("tables{index}"));
        let engine = FjallEngine::open(&tables, FjallConfig::default()).await.expect("the engine opens");
        let peer = Peer::open(peer_options(&consortium, root, index, engine).await).await.expect("the peer opens");
        peer.join(&consortium.genesis).await.expect("the peer joins");
        peers.push(peer);
    }
    let client = consortium.client();

    let creates = (0..accounts).map(|account| {
        let name = format!("c{account}");
        ("create_account", vec![name.clone(), name, "1000000".to_owned(), "1000000".to_owned()])
    });
    let mut setup = Costs::default();
    let creates: Vec<_> = creates.collect();
    for round in creates.chunks(ROUND) {
        one_round(&client, &peers, &main, &alone, round, &mut setup).await;
    }
    println!("{accounts} accounts created, {} valid", setup.valid);

    let mut costs = Costs::default();
    let mut done = 0;
    while done < transactions {
        let round: Vec<_> = (0..ROUND.min(transactions - done)).map(|_| smallbank(accounts)).collect();
        done += round.len();
        one_round(&client, &peers, &main, &alone, &round, &mut costs).await;
    }
    // Other programs may use the machine: the floor is measured before and after.
    let after = floor(&consortium).await;
    report(&costs, (before.0 + after.0) / 2.0, (before.1 + after.1) / 2.0);
    for peer in peers {
        peer.stop().await.expect("the peer stops");
    }
    main.stop().await;
    alone.stop().await;
}

/// The mix that Caliper's SmallBank uses.
fn smallbank(accounts: usize) -> (&'static str, Vec<String>) {
    let account = || format!("c{}", rt::random_below(accounts as u64));
    match rt::random_below(100) {
        0..5 => ("query", vec![account()]),
        5..25 => ("transact_savings", vec!["1".to_owned(), account()]),
        25..45 => ("deposit_checking", vec!["1".to_owned(), account()]),
        45..65 => ("write_check", vec!["1".to_owned(), account()]),
        65..85 => ("amalgamate", vec![account(), account()]),
        _ => ("send_payment", vec!["1".to_owned(), account(), account()]),
    }
}

async fn one_round(
    client: &Client,
    peers: &[Arc<Peer>],
    main: &Arc<Orderer>,
    alone: &Arc<Orderer>,
    calls: &[(&'static str, Vec<String>)],
    costs: &mut Costs,
) {
    let proposals: Vec<SignedTestProposal> = calls
        .iter()
        .map(|(function, args)| {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            client.proposal("smallbank", function, &args)
        })
        .collect();

    let begun = (rt::now(), processor_us());
    let endorsers: Vec<Arc<Peer>> = peers.to_vec();
    let work = proposals.into_iter().enumerate().collect();
    let endorsed = each(work, move |(index, proposal): (usize, SignedTestProposal)| {
        let peer = endorsers[index % endorsers.len()].clone();
        async move {
            let response = peer.process(proposal.bytes.clone()).await.expect("the proposal is in order");
            (proposal, response)
        }
    })
    .await;
    costs.endorse += processor_us() - begun.1;
    costs.wall += begun.0.elapsed();

    let good = endorsed.into_iter().filter(|(_, response)| response.endorsement.is_some());
    let (ids, envelopes): (Vec<_>, Vec<Bytes>) =
        good.map(|(proposal, response)| (proposal.tx_id.clone(), client.envelope(&proposal, &[response]))).unzip();

    let broadcast = |orderer: &Arc<Orderer>, envelopes: Vec<Bytes>| {
        let orderer = orderer.clone();
        each(envelopes, move |envelope| {
            let orderer = orderer.clone();
            async move { orderer.broadcast(CHANNEL, envelope).await.expect("the orderer takes it") }
        })
    };
    let count = envelopes.len();
    let begun = processor_us();
    let before = alone.channel(CHANNEL).expect("joined").height();
    broadcast(alone, envelopes.clone()).await;
    await_transactions(alone, before, count).await;
    costs.order += processor_us() - begun;

    let begun = (rt::now(), processor_us());
    broadcast(main, envelopes).await;
    let mut valid = 0;
    for peer in peers {
        let channel = peer.channel(CHANNEL).expect("joined");
        valid = 0;
        for id in &ids {
            valid += usize::from(channel.wait_committed(id).await.expect("the channel runs").code == Code::VALID);
        }
    }
    costs.order_and_commit += processor_us() - begun.1;
    costs.wall += begun.0.elapsed();
    costs.transactions += count;
    costs.valid += valid;
}

/// Waits until an orderer without peers has made this many transactions durable.
async fn await_transactions(orderer: &Orderer, from: u64, count: usize) {
    let chain = orderer.channel(CHANNEL).expect("joined");
    let mut durable = chain.deliverable();
    let (mut next, mut seen) = (from, 0);
    while seen < count {
        durable.wait_for(|height| *height > next).await.expect("the chain runs");
        let bytes = chain.block(next).expect("the log reads").expect("it is durable");
        seen += ledger::Block::parse(&bytes).expect("a block").len();
        next += 1;
    }
}

/// Microseconds of one verification and of one signature, with as many threads at it as the phases have: two threads
/// that share a core each get less of it.
async fn floor(consortium: &Consortium) -> (f64, f64) {
    let client = consortium.client();
    let msp = consortium.organizations[0].membership().expect("the organisation is in order");
    let identity = Arc::new(msp.identify(client.signer.serialized()).expect("its client is a member"));
    let message = Arc::new(vec![7; 1500]);
    let signature = client.signer.sign(&message);
    let begun = processor_us();
    let verifying = (0..WORKERS).map(|_| {
        let (identity, message, signature) = (identity.clone(), message.clone(), signature.clone());
        rt::spawn(async move {
            for _ in 0..CALIBRATION {
                identity.verify(&message, &signature).expect("just signed");
            }
        })
    });
    for task in verifying.collect::<Vec<_>>() {
        task.await.expect("it runs to its end");
    }
    let verified = processor_us();
    let signing = (0..WORKERS).map(|_| {
        let (client, message) = (client.clone(), message.clone());
        rt::spawn(async move {
            for _ in 0..CALIBRATION {
                std::hint::black_box(client.signer.sign(&message));
            }
        })
    });
    for task in signing.collect::<Vec<_>>() {
        task.await.expect("it runs to its end");
    }
    let count = (WORKERS * CALIBRATION) as f64;
    ((verified - begun) / count, (processor_us() - verified) / count)
}

fn report(costs: &Costs, verify: f64, sign: f64) {
    let count = costs.transactions as f64;
    let line = |name: &str, us: f64, floor: f64| {
        println!("{name:<28} {us:>8.1} {floor:>8.1} {:>8.1} {:>7.2}", us - floor, us / floor);
    };
    println!(
        "{} transactions, {} valid ({:.1} %), {:.0} tx/s of server wall time",
        costs.transactions,
        costs.valid,
        100.0 * costs.valid as f64 / count,
        count / costs.wall.as_secs_f64()
    );
    println!("verify {verify:.1} us, sign {sign:.1} us");
    println!("{:<28} {:>8} {:>8} {:>8} {:>7}", "processor us a transaction", "used", "floor", "above", "ratio");
    let (endorse, order) = (costs.endorse / count, costs.order / count);
    let commit = costs.order_and_commit / count - order;
    line("endorse (1 peer)", endorse, verify + sign);
    line("order", order, verify);
    line("validate and commit (3)", commit, PEERS as f64 * 2.0 * verify);
    line("all", endorse + order + commit, verify + sign + verify + PEERS as f64 * 2.0 * verify);
}
