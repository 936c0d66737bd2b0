//! Clients that write, each to its own keys, and record the acknowledged writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{GatewayClient, GrpcConnection};
use node::Endpoints;

use super::{Network, patiently, run, text};

/// How long clients may go without a commit: longer than a loaded machine takes to restart any process.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
const CALL_DEADLINE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// A write that was acknowledged to a client.
#[derive(Clone)]
pub struct Acknowledged {
    pub key: String,
    pub value: Bytes,
    pub tx_id: String,
    pub block: u64,
}

/// Connects to the gateway of organisation `number`, at its current address in `endpoints.json`.
pub async fn connect(dir: &Path, number: usize) -> Option<(GatewayClient, String)> {
    let endpoints = Endpoints::load(dir).ok()?;
    let (target, user) = (endpoints.target(dir, number).ok()?, endpoints.user(dir, number).ok()?);
    let connection = tokio::time::timeout(CALL_DEADLINE, GrpcConnection::connect(&target)).await.ok()?.ok()?;
    Some((GatewayClient::new(connection, user).with_deadline(Some(CALL_DEADLINE)), endpoints.channel))
}

/// Checks that a write is there as it was acknowledged.
pub async fn check(client: &GatewayClient, channel: &str, write: &Acknowledged) -> Result<(), String> {
    let Acknowledged { key, value, tx_id, block } = write;
    let status = patiently(async || client.commit_status(channel, tx_id).await).await;
    let status = status.map_err(|status| format!("{tx_id}: {status}"))?;
    if !status.is_valid() || status.block != *block {
        return Err(format!("{tx_id} was valid in block {block} and is {} in {}", status.code, status.block));
    }
    let proposal = client.proposal(channel, "ycsb", "read", &[Bytes::from(key.clone())]).sign();
    let found = patiently(async || client.evaluate(&proposal).await).await;
    let found = found.map_err(|status| format!("{key}: {status}"))?;
    if found != value { Err(format!("{key} holds {found:?}, not {value:?}")) } else { Ok(()) }
}

/// Clients at work. After an error they reconnect by themselves, to their gateway's current address.
pub struct Load {
    told: Arc<Mutex<Vec<Acknowledged>>>,
    count: Arc<AtomicUsize>,
    /// The last error of a client.
    failed: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    clients: tokio::task::JoinSet<()>,
}

impl Load {
    pub fn start(dir: &Path, organizations: usize, clients: usize) -> Load {
        let mut load = Load {
            told: Arc::default(),
            count: Arc::default(),
            failed: Arc::default(),
            stop: Arc::default(),
            clients: tokio::task::JoinSet::new(),
        };
        for number in 0..clients {
            let (dir, organization) = (dir.to_path_buf(), 1 + number % organizations);
            let (told, count, stop) = (load.told.clone(), load.count.clone(), load.stop.clone());
            load.clients.spawn(write(dir, organization, number, told, count, load.failed.clone(), stop));
        }
        load
    }

    /// Waits until this many more writes have committed.
    pub async fn progress(&self, more: usize, what: &str) {
        let (start, wanted) = (Instant::now(), self.count.load(Ordering::Relaxed) + more);
        while self.count.load(Ordering::Relaxed) < wanted {
            let failed = || self.failed.lock().expect("no holder panics").clone().unwrap_or_default();
            assert!(start.elapsed() < PROGRESS_TIMEOUT, "{what}: nothing is committed any more; {}", failed());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The last request that failed.
    pub fn failure(&self) -> Option<String> {
        self.failed.lock().expect("no holder panics").clone()
    }

    pub async fn end(mut self) -> Vec<Acknowledged> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client does not panic");
        }
        std::mem::take(&mut *self.told.lock().expect("no holder panics"))
    }
}

async fn write(
    dir: PathBuf,
    organization: usize,
    number: usize,
    told: Arc<Mutex<Vec<Acknowledged>>>,
    count: Arc<AtomicUsize>,
    failed: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
) {
    let mut connected = None;
    for sequence in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (client, channel) = match connected.take() {
            Some(connected) => connected,
            None => match connect(&dir, organization).await {
                Some(connected) => connected,
                None => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let key = format!("client{number}write{sequence}");
        let value = Bytes::from(format!("value of {key}"));
        match client.transact(&channel, "ycsb", "update", &[Bytes::from(key.clone()), value.clone()]).await {
            Ok(committed) if committed.commit.is_valid() => {
                let (tx_id, block) = (committed.tx_id, committed.commit.block);
                told.lock().expect("no holder panics").push(Acknowledged { key, value, tx_id, block });
                count.fetch_add(1, Ordering::Relaxed);
                connected = Some((client, channel));
            }
            Ok(committed) => panic!("blind writes of unique keys are valid: {committed:?}"),
            // Committed or not, it was not acknowledged.
            Err(error) => {
                *failed.lock().expect("no holder panics") = Some(error.to_string());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Ends an idle network: each of its organisations has all acknowledged writes, and its ledgers are consistent.
pub async fn end_with_all(network: Network, dir: &Path, organizations: usize, told: &[Acknowledged]) {
    network.settle().await;
    for organization in 1..=organizations {
        let (client, channel) = connect(dir, organization).await.expect("its gateway is ready");
        for write in told {
            check(&client, &channel, write).await.unwrap_or_else(|error| panic!("org{organization}: {error}"));
        }
    }
    network.settle().await;
    network.down();
    let verify = run(&["ledger", "verify", "--dir", &dir.display().to_string()]);
    assert!(verify.status.success(), "{}", text(&verify));
    println!("{} acknowledged writes survived", told.len());
}
