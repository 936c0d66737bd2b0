//! Tests that no acknowledged write is lost when the servers are killed under load.
//!
//! Each round loads a network with unique writes, kills it (SIGKILL) at an arbitrary moment and starts it again. Then
//! it looks for every transaction whose commit was reported to a client: every peer must have it, valid, in the same
//! block, with the value that was written. `HEDDLE_KILL_ROUNDS` sets the number of rounds; `HEDDLE_KILL_SEED` repeats
//! the moments of an earlier run.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Network, run, text};
use base::Bytes;
use gateway::client::GatewayClient;
use tokio::sync::Mutex;

const CLIENTS: usize = 48;
const ROUNDS: usize = 4;

/// A write that was acknowledged to a client.
#[derive(Clone)]
struct Acknowledged {
    key: String,
    value: Bytes,
    tx_id: String,
    block: u64,
}

/// The milliseconds that a seed adds to a round.
fn drawn(seed: u64, round: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, round).hash(&mut hasher);
    hasher.finish() % 1_500
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_saw_committed_survives_kill_9() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("HEDDLE_KILL_ROUNDS").map_or(ROUNDS, |rounds| rounds as usize);
    let seed = number("HEDDLE_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("HEDDLE_KILL_SEED={seed}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let shown = dir.display().to_string();
    let mut acknowledged: Vec<Acknowledged> = Vec::new();
    let mut network = Network::start(&dir, &["--orgs", "3"]);
    for round in 0..rounds {
        let load = Load::start(&network, round).await;
        tokio::time::sleep(Duration::from_millis(600 + drawn(seed, round))).await;
        network.kill();
        let told = load.end().await;
        assert!(!told.is_empty(), "round {round}: nothing was committed before the kill");
        acknowledged.extend(told);

        if round % 2 == 0 {
            // The data after a crash is consistent before anything is repaired.
            let output = run(&["ledger", "verify", "--dir", &shown]);
            assert!(output.status.success(), "round {round}, HEDDLE_KILL_SEED={seed}: {}", text(&output));
        }
        network = Network::start(&dir, &[]);
        network.settle().await;
        for organization in 1..=3 {
            let client = network.client(organization).await;
            for write in &acknowledged {
                check(&client, &network.endpoints.channel, write).await.unwrap_or_else(|error| {
                    panic!("round {round}, HEDDLE_KILL_SEED={seed}, org{organization}: {error}")
                });
            }
        }
    }
    let height = network.settle().await;
    network.down();

    let output = run(&["ledger", "verify", "--dir", &shown]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for organization in 1..=3 {
        let whole = format!("state of {} keys after {height} blocks", keys(&text));
        let line = text.lines().find(|line| line.starts_with(&format!("Org{organization} "))).unwrap_or_default();
        assert!(line.contains(&format!("{height} blocks")) && line.ends_with(&whole), "{text}");
    }
    println!("{} acknowledged writes survived {rounds} kills", acknowledged.len());
}

/// The number of keys in the first peer's state.
fn keys(verified: &str) -> u64 {
    let rest = verified.split("state of ").nth(1).unwrap_or_default();
    rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

async fn check(client: &GatewayClient, channel: &str, write: &Acknowledged) -> Result<(), String> {
    let Acknowledged { key, value, tx_id, block } = write;
    let status = client.commit_status(channel, tx_id).await.map_err(|status| format!("{tx_id}: {status}"))?;
    if !status.is_valid() || status.block != *block {
        return Err(format!("{tx_id} was valid in block {block} and is {} in {}", status.code, status.block));
    }
    let proposal = client.proposal(channel, "ycsb", "read", &[Bytes::from(key.clone())]).sign();
    let found = client.evaluate(&proposal).await.map_err(|status| format!("{key}: {status}"))?;
    if found != value { Err(format!("{key} holds {found:?}, not {value:?}")) } else { Ok(()) }
}

/// Clients that write, each to its own keys.
struct Load {
    told: Arc<Mutex<Vec<Acknowledged>>>,
    stop: Arc<AtomicBool>,
    clients: tokio::task::JoinSet<()>,
}

impl Load {
    async fn start(network: &Network, round: usize) -> Load {
        let told = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = tokio::task::JoinSet::new();
        let mut gateways = Vec::new();
        for organization in 1..=network.endpoints.gateways.len() {
            gateways.push(network.client(organization).await);
        }
        for number in 0..CLIENTS {
            let client = gateways[number % gateways.len()].with_deadline(Some(Duration::from_secs(5)));
            let channel = network.endpoints.channel.clone();
            let (told, stop) = (Arc::clone(&told), Arc::clone(&stop));
            clients.spawn(async move {
                for sequence in 0.. {
                    let key = format!("round{round}client{number}write{sequence}");
                    let value = Bytes::from(format!("value of {key}"));
                    let args = [Bytes::from(key.clone()), value.clone()];
                    match client.transact(&channel, "ycsb", "update", &args).await {
                        Ok(committed) if committed.commit.is_valid() => {
                            let (tx_id, block) = (committed.tx_id, committed.commit.block);
                            told.lock().await.push(Acknowledged { key, value, tx_id, block });
                        }
                        Ok(committed) => panic!("blind writes of unique keys are valid: {committed:?}"),
                        // Ambiguous: it may or may not be committed, and was not acknowledged.
                        Err(_) if stop.load(Ordering::Relaxed) => return,
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        Load { told, stop, clients }
    }

    async fn end(mut self) -> Vec<Acknowledged> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client does not panic");
        }
        std::mem::take(&mut *self.told.lock().await)
    }
}
