//! Not tests: what a transaction costs, with clients in the same process.
//!
//! `cargo test --release -p heddle-node --test measure -- --ignored --nocapture`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{Client, Connection};
use node::Network;
use node::config::Config;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_a_transaction() {
    let accounts = 10_000u64;
    let (connections, in_flight) = (number("CONNECTIONS", 6), number("IN_FLIGHT", 400));
    let seconds = number("SECONDS", 10) as u64;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut config = Config::default();
    config.ports.gateway = 0;
    config.ports.orderer = 0;
    config.ports.metrics = 0;
    config.batch.timeout_ms = number("TIMEOUT_MS", 100) as u32;
    config.batch.messages = number("MESSAGES", 500) as u32;
    let running = Network::create(folder.path(), &config).await.expect("a network").run().await.expect("it runs");
    let mut clients = Vec::new();
    for index in 0..connections {
        let connection = Connection::connect(&running.gateway(index % 3)).await.expect("a gateway");
        clients.push(Client::new(connection, running.user(index % 3)));
    }
    let load: Vec<Bytes> = ["0", &accounts.to_string(), "1000000", "1000000"]
        .into_iter()
        .map(|arg| Bytes::copy_from_slice(arg.as_bytes()))
        .collect();
    let loaded = clients[0].transact("mychannel", "smallbank", "load", &load).await.expect("accounts");
    assert!(loaded.commit.is_valid());

    let (committed, invalid, failed) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let latency = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for index in 0..in_flight {
        let client = clients[index % connections].clone();
        let (committed, invalid, failed, stop, latency) =
            (committed.clone(), invalid.clone(), failed.clone(), stop.clone(), latency.clone());
        tasks.push(tokio::spawn(async move {
            while stop.load(Ordering::Relaxed) == 0 {
                let (to, from) = (base::rt::random_u64() % accounts, base::rt::random_u64() % accounts);
                let args: Vec<Bytes> = ["1", &to.to_string(), &from.to_string()]
                    .into_iter()
                    .map(|arg| Bytes::copy_from_slice(arg.as_bytes()))
                    .collect();
                let begin = Instant::now();
                match client.transact("mychannel", "smallbank", "send_payment", &args).await {
                    Ok(outcome) if outcome.commit.is_valid() => {
                        latency.fetch_add(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
                        committed.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(_) => {
                        invalid.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(status) => {
                        if failed.fetch_add(1, Ordering::Relaxed) == 0 {
                            println!("{status}");
                        }
                    }
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let take = || [&committed, &invalid, &failed, &latency].map(|counter| counter.load(Ordering::Relaxed));
    let (before, cpu_before, begin) = (take(), cpu(), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (after, cpu_after, wall) = (take(), cpu(), begin.elapsed().as_secs_f64());
    stop.store(1, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    let valid = (after[0] - before[0]) as f64;
    println!(
        "{connections} connections, {in_flight} in flight: {:.0} tx/s, {:.0} us CPU a transaction (clients included), \
         mean latency {:.1} ms, {} invalid, {} failed",
        valid / wall,
        (cpu_after - cpu_before) * 1e6 / valid,
        (after[3] - before[3]) as f64 / valid / 1000.0,
        after[1] - before[1],
        after[2] - before[2],
    );
    running.stop().await.expect("a stop without errors");
}

/// Seconds of CPU that this process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().expect("a number") + fields[12].parse::<f64>().expect("a number");
    ticks / 100.0
}
