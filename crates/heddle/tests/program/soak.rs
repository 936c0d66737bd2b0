//! Loads a network of processes for minutes. Any process may be killed at any time, memory is added and removed
//! meanwhile, and at the end every acknowledged write must be there. `cargo xtask soak` runs this test; otherwise it is
//! skipped.
//!
//! 1. There are two organisations, with a separate process for every role and one to three compute nodes per peer. In
//!    some runs there is less remote memory than the data needs. If there are several compute nodes, followers verify
//!    signatures for their primary.
//! 2. Clients run YCSB (some on records of their own, some on shared records), SmallBank and assets, and keep the
//!    acknowledged results.
//! 3. The network is elastic: its manager gives peers quotas, compute nodes and memory, and takes them back.
//! 4. A seed chooses the disturbances. A process, a peer's primary or the manager is killed, or is paused for longer than a
//!    lease. All processes, including the supervisor, are killed and started again. A peer's budget is changed with
//!    `heddle peer memory`. After each disturbance, clients must make progress.
//! 5. Now and then nothing is disturbed while a surge and a calm have the manager launch and drain compute nodes: no
//!    request may fail then, and no process may hold more than in the calm before ([`scaling`]).
//! 6. At the end every acknowledged transaction must have the validation code and the block that its client was told.
//!    Every record, the sum of the money, and the history of every asset must agree with the clients' results. Both
//!    peers must serve the same state. `heddle ledger verify` replays each ledger, one transaction after the other, and
//!    compares the result with the stored state; the replayed state must also equal the state that the peers served
//!    before. No process and no cgroup may be left.
//!
//! The seed repeats the disturbances, but not the whole run: the timing of processes and clients varies.

mod scaling;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::simulation::Prng;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use gateway::client::{GatewayClient, GrpcStatus};
use node::control::request_node;
use node::{Endpoints, Ready};
use rustix::process::Signal;

use self::scaling::{Leaks, Scaled};
use crate::support::load::connect;
use crate::support::processes::send;
use crate::support::{Network, run, text};

const ORGANIZATIONS: usize = 2;
/// One in three runs YCSB on its own records, one on shared records, one SmallBank.
const CLIENTS: usize = 12;
/// Records per client; together they exceed most budgets.
const RECORDS: u64 = 500;
const RECORD_BYTES: u64 = 12_000;
const SHARED_RECORDS: u64 = 50;
const CUSTOMERS: u64 = 200;
const BALANCE: i64 = 10_000;
/// Budgets of a peer, in MiB; a section has one MiB.
const BUDGETS: [u64; 7] = [2, 3, 4, 8, 12, 24, 32];
/// How long clients may go without a commit, including restarts of everything.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);
const SOME: usize = 20;
/// Most standstills outlast a lease, some also the other nodes' time-outs.
const STANDSTILL: Range<Duration> = Duration::from_millis(60)..Duration::from_millis(2_500);
const PAUSE: Duration = Duration::from_millis(30);
const ASKED_AT_ONCE: usize = 16;
/// The pause of a client after each transaction when it is calm.
const CALM_PAUSE: Duration = Duration::from_millis(400);
/// Disturbances between two times without any, in which peers are scaled.
const DISTURBANCES: usize = 25;
/// A soak of this length must have seen both.
const LONG_MINUTES: f64 = 8.0;
/// By these words a gateway says that the contract has rejected a proposal.
const CONTRACT_REJECTION: &str = "chaincode response";

/// Quotas that are small beside the machine: a node is to be busy before the machine is, or nothing is gained by another node.
const ELASTIC: [&str; 5] = ["--elastic", "--quota-min", "20", "--quota-max", "40"];
const CONFIG: &str = "\
[network]
organizations = [\"Org1\", \"Org2\"]
[batch]
timeout_ms = 50
[pool]
section_bytes = 1048576
memory_bytes = 32505856
peer_bytes = 16777216
metadata_cache_bytes = 262144
data_cache_bytes = 1048576
offload = \"always\"
";

/// The results that clients were told.
#[derive(Default)]
struct Told {
    /// The block of each valid transaction.
    valid: BTreeMap<String, u64>,
    /// The possible values of each client's own records.
    records: BTreeMap<String, Record>,
    /// Transactions that changed each asset, in order.
    assets: BTreeMap<String, Vec<String>>,
}

/// A record that one client writes.
#[derive(Default)]
struct Record {
    /// The last acknowledged value.
    told: Option<Bytes>,
    /// Unacknowledged values, which may have been committed at any time.
    tried: Vec<Bytes>,
}

struct Load {
    told: Arc<Mutex<Told>>,
    count: Arc<AtomicUsize>,
    pace: Arc<Pace>,
    stop: Arc<AtomicBool>,
    clients: tokio::task::JoinSet<()>,
}

/// How busy the clients are, and what failed.
#[derive(Default)]
struct Pace {
    is_calm: AtomicBool,
    /// When requests failed and what they were answered, without those that a contract rejected.
    failures: Mutex<Vec<(Instant, String)>>,
}

/// One client at work.
struct Worker {
    dir: PathBuf,
    number: usize,
    rng: Prng,
    told: Arc<Mutex<Told>>,
    pace: Arc<Pace>,
    connected: Option<(GatewayClient, String)>,
}

impl Worker {
    /// Has a transaction committed: its ID, and whether it is valid. `None` if the outcome is unknown.
    async fn transact(&mut self, contract: &str, function: &str, call: &[Bytes]) -> Option<(String, bool)> {
        if self.connected.is_none() {
            self.connected = connect(&self.dir, 1 + self.number % ORGANIZATIONS).await;
        }
        let Some((client, channel)) = &self.connected else {
            tokio::time::sleep(PAUSE).await;
            return None;
        };
        match client.transact(channel, contract, function, call).await {
            Ok(committed) => {
                let is_valid = committed.commit.is_valid();
                if is_valid {
                    let mut told = self.told.lock().expect("no holder panics");
                    told.valid.insert(committed.tx_id.clone(), committed.commit.block);
                }
                Some((committed.tx_id, is_valid))
            }
            Err(status) => {
                if !is_rejected_by_contract(&status) {
                    let failed = format!("client {}: {contract} {function}: {status}", self.number);
                    self.pace.failures.lock().expect("no holder panics").push((Instant::now(), failed));
                }
                // Committed or not; its gateway may be another process by now.
                self.connected = None;
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    fn value(&mut self) -> Bytes {
        let length = 1 + self.rng.below(RECORD_BYTES) as usize;
        let mut value = format!("{:016x}", self.rng.number()).repeat(length / 16 + 1);
        value.truncate(length);
        value.into()
    }

    async fn own_record(&mut self) -> bool {
        let key = format!("own{:02}_{:04}", self.number, self.rng.below(RECORDS));
        let value = self.value();
        let told = Arc::clone(&self.told);
        let record = |note: &dyn Fn(&mut Record)| {
            note(told.lock().expect("no holder panics").records.entry(key.clone()).or_default());
        };
        record(&|record| record.tried.push(value.clone()));
        let committed = self.transact("ycsb", "update", &[Bytes::from(key.clone()), value.clone()]).await;
        if let Some((tx_id, is_valid)) = &committed {
            assert!(is_valid, "a blind write cannot conflict: {tx_id}");
            record(&|record| {
                record.tried.retain(|tried| *tried != value);
                record.told = Some(value.clone());
            });
        }
        committed.is_some()
    }

    async fn shared_record(&mut self) -> bool {
        let key = Bytes::from(format!("shared{:04}", self.rng.below(SHARED_RECORDS)));
        let function = if self.rng.one_in(2) { "update" } else { "readModifyWrite" };
        let value = self.value();
        self.transact("ycsb", function, &[key, value]).await.is_some()
    }

    async fn payment(&mut self) -> bool {
        let customer = |rng: &mut Prng| Bytes::from(rng.below(CUSTOMERS).to_string());
        let (one, other) = (customer(&mut self.rng), customer(&mut self.rng));
        if self.rng.one_in(5) {
            return self.transact("smallbank", "amalgamate", &[one, other]).await.is_some();
        }
        let amount = Bytes::from((1 + self.rng.below(100)).to_string());
        self.transact("smallbank", "send_payment", &[amount, one, other]).await.is_some()
    }

    /// Transfers one of its own assets.
    async fn asset(&mut self) -> bool {
        let id = format!("asset{:02}", self.number);
        let color = [id.clone(), "red".into(), "1".into(), "nobody".into(), "1".into()].map(Bytes::from);
        let made = self.told.lock().expect("no holder panics").assets.contains_key(&id);
        let told = match made {
            false => self.transact("basic", "CreateAsset", &color).await,
            true => {
                let owner = Bytes::from(format!("owner{}", self.rng.number()));
                self.transact("basic", "TransferAsset", &[Bytes::from(id.clone()), owner]).await
            }
        };
        if let Some((tx_id, true)) = told {
            self.told.lock().expect("no holder panics").assets.entry(id).or_default().push(tx_id);
            return true;
        }
        false
    }

    async fn work(mut self, count: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let committed = match self.number % 3 {
                _ if self.rng.one_in(20) => self.asset().await,
                0 => self.own_record().await,
                1 => self.shared_record().await,
                _ => self.payment().await,
            };
            count.fetch_add(usize::from(committed), Ordering::Relaxed);
            if self.pace.is_calm.load(Ordering::Relaxed) {
                tokio::time::sleep(CALM_PAUSE).await;
            }
        }
    }
}

fn is_rejected_by_contract(status: &GrpcStatus) -> bool {
    let messages = status.details.iter().map(|detail| &detail.message).chain([&status.message]);
    messages.into_iter().any(|message| message.contains(CONTRACT_REJECTION))
}

impl Load {
    fn start(dir: &Path, rng: &mut Prng) -> Load {
        let mut load = Load {
            told: Arc::default(),
            count: Arc::default(),
            pace: Arc::default(),
            stop: Arc::default(),
            clients: tokio::task::JoinSet::new(),
        };
        for number in 0..CLIENTS {
            let rng = Prng::new(rng.number());
            let told = load.told.clone();
            let pace = load.pace.clone();
            let worker = Worker { dir: dir.to_path_buf(), number, rng, told, pace, connected: None };
            load.clients.spawn(worker.work(load.count.clone(), load.stop.clone()));
        }
        load
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Has clients pause after each transaction, or no longer.
    fn calm(&self, is_calm: bool) {
        self.pace.is_calm.store(is_calm, Ordering::Relaxed);
    }

    /// What failed so far.
    fn failures(&self) -> Vec<(Instant, String)> {
        self.pace.failures.lock().expect("no holder panics").clone()
    }

    /// Waits until clients make progress.
    async fn progress(&self, what: &str) {
        let (start, wanted) = (Instant::now(), self.count() + SOME);
        while self.count() < wanted {
            assert!(start.elapsed() < PROGRESS_TIMEOUT, "{what}: nothing is committed any more");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn end(mut self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client does not panic");
        }
        std::mem::take(&mut *self.told.lock().expect("no holder panics"))
    }
}

/// How often each disturbance happened.
#[derive(Default, Debug)]
struct Done {
    kills: BTreeMap<String, usize>,
    standstills: BTreeMap<String, usize>,
    all_killed: usize,
    raised: usize,
    lowered: usize,
    /// Budgets that could not be set because the peer, or a memory node, was unreachable.
    refused: usize,
}

/// Changes a peer's budget, and describes the result.
fn change_budget(dir: &Path, rng: &mut Prng, done: &mut Done, budgets: &mut [u64]) -> String {
    let organization = rng.index(ORGANIZATIONS);
    let wanted = *rng.pick(&BUDGETS);
    let (name, size) = (format!("org{}", organization + 1), format!("{wanted}MiB"));
    let dir = dir.display().to_string();
    let mut arguments = vec!["peer", "memory", &name, "--set", &size, "--dir", &dir];
    if rng.one_in(2) {
        arguments.push("--no-wait");
    }
    let output = run(&arguments);
    let said = text(&output);
    if output.status.success() {
        // The manager may have changed it since.
        assert!(said.contains(" sections"), "{said}");
        match wanted > budgets[organization] {
            true => done.raised += 1,
            false => done.lowered += 1,
        }
        budgets[organization] = wanted;
        return format!("{name} has {size}");
    }
    let is_away = [
        "does not answer",
        "not open yet",
        "more than the memory nodes have",
        "is not running",
        "is a reader",
        "is its primary",
    ];
    assert!(is_away.iter().any(|part| said.contains(part)), "heddle {}: {said}", arguments.join(" "));
    done.refused += 1;
    // It may have been set before the peer ended: then the restarted peer reports it.
    format!("{name} does not take {size}: {}", said.lines().last().unwrap_or_default())
}

/// The process of a peer's primary, if there are several compute nodes and one of them reports to be it.
async fn primary(dir: &Path, organization: usize, known: &[Ready]) -> Option<Ready> {
    let own = format!("compute-org{organization}");
    for process in known.iter().filter(|process| process.name.starts_with(&own)) {
        let folder = dir.join("nodes").join(&process.name);
        if request_node(&folder).await.is_ok_and(|report| report.role == "primary" && report.process == process.process)
        {
            return Some(process.clone());
        }
    }
    None
}

/// A process to be disturbed, and its name: the manager in one of six cases, else a primary in one of two.
async fn victim(dir: &Path, rng: &mut Prng) -> (String, u32) {
    let known = Endpoints::load(dir).expect("the network has said where it is").processes;
    let (any, organization) = (rng.pick(&known).clone(), 1 + rng.index(ORGANIZATIONS));
    let (is_manager, is_any) = (rng.one_in(6), rng.one_in(2));
    if let Some(process) = scaling::manager_process(dir).filter(|_| is_manager) {
        return ("manager".to_owned(), process);
    }
    let chosen = if is_any { any } else { primary(dir, organization, &known).await.unwrap_or(any) };
    (chosen.name, chosen.process)
}

async fn evaluate(
    client: &GatewayClient,
    channel: &str,
    contract: &str,
    function: &str,
    call: &[Bytes],
) -> Result<Bytes, String> {
    let proposal = client.proposal(channel, contract, function, call).sign();
    client.evaluate(&proposal).await.map_err(|status| format!("{contract} {function}: {status}"))
}

/// Every record that clients may have written, as one peer serves it; `None` if it was never written.
async fn served(dir: &Path, organization: usize) -> BTreeMap<String, Option<Bytes>> {
    let (client, channel) = &connect(dir, organization).await.expect("its gateway is ready");
    let own = (0..CLIENTS).flat_map(|client| (0..RECORDS).map(move |record| format!("own{client:02}_{record:04}")));
    let shared = (0..SHARED_RECORDS).map(|record| format!("shared{record:04}"));
    let records = own.chain(shared).map(|key| ("ycsb", "read", key));
    let customers = (0..CUSTOMERS).map(|customer| ("smallbank", "balance", customer.to_string()));
    let assets = (0..CLIENTS).map(|client| ("basic", "ReadAsset", format!("asset{client:02}")));
    let asking = records.chain(customers).chain(assets).map(|(contract, function, key)| async move {
        let answer = evaluate(client, channel, contract, function, &[Bytes::from(key.clone())]).await;
        let answer = match answer {
            Ok(answer) => Some(answer),
            Err(error) if error.contains("does not exist") || error.contains("no record") => None,
            Err(error) => panic!("org{organization}: {error}"),
        };
        (format!("{contract} {key}"), answer)
    });
    stream::iter(asking).buffer_unordered(ASKED_AT_ONCE).collect().await
}

/// Checks one peer against everything that clients were told.
async fn check(dir: &Path, organization: usize, told: &Told) {
    let (client, channel) = &connect(dir, organization).await.expect("its gateway is ready");
    let transactions: Vec<_> = told.valid.iter().collect();
    for some in transactions.chunks(ASKED_AT_ONCE) {
        join_all(some.iter().map(|(tx_id, block)| async move {
            let status = client.commit_status(channel, tx_id).await;
            let status = status.unwrap_or_else(|error| panic!("org{organization}: {tx_id}: {error}"));
            assert!(status.is_valid() && status.block == **block, "org{organization}: {tx_id} of {block}: {status:?}");
        }))
        .await;
    }
    for (id, changes) in &told.assets {
        let history = evaluate(client, channel, "basic", "GetAssetHistory", &[Bytes::from(id.clone())]).await;
        let history: Vec<serde_json::Value> =
            serde_json::from_slice(&history.unwrap_or_else(|error| panic!("org{organization}: {error}")))
                .expect("JSON");
        let known: Vec<&str> = history.iter().rev().filter_map(|change| change["txId"].as_str()).collect();
        // Unacknowledged changes may be among them.
        let mut rest = known.iter();
        let lost = changes.iter().find(|tx_id| !rest.any(|known| known == tx_id));
        assert!(lost.is_none(), "org{organization}: the history of {id} lacks {lost:?}: {known:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes minutes: cargo xtask soak"]
async fn everything_is_there_after_kills_and_changes_of_memory() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<f64>().ok());
    let minutes = number("HEDDLE_SOAK_MINUTES").unwrap_or(1.0);
    let seed = number("HEDDLE_SOAK_SEED").map_or_else(base::rt::random_u64, |seed| seed as u64) % 1_000_000_007;
    println!("soak: {minutes} minutes, seed {seed}; again with: cargo xtask soak --minutes {minutes} --seed {seed}");
    let mut rng = Prng::new(seed);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let config = dir.with_extension("toml");
    let drawn = 1 + rng.below(3);
    let nodes = number("HEDDLE_SOAK_COMPUTE_NODES").map_or(drawn, |nodes| nodes as u64);
    // With two copies the manager stops a storage node that has none, and starts it when a copy is lost.
    let copies = 1 + rng.below(2);
    let storage = if copies == 2 { "storage_copies = 2\nstorage_nodes = 3\n" } else { "" };
    println!("soak: {nodes} compute nodes a peer, {copies} copies of its storage");
    std::fs::write(&config, format!("{CONFIG}compute_nodes = {nodes}\n{storage}")).expect("it can be written");
    let mut network = Network::start(&dir, &[&ELASTIC[..], &["--config", &config.display().to_string()]].concat());
    {
        let client = network.client(1).await;
        let call = ["0".to_owned(), CUSTOMERS.to_string(), BALANCE.to_string(), BALANCE.to_string()].map(Bytes::from);
        let loaded = client.transact(&network.endpoints.channel, "smallbank", "load", &call).await;
        assert!(loaded.expect("it is committed").commit.is_valid());
    }
    scaling::prepare(&dir).await;
    let load = Load::start(&dir, &mut rng);
    load.progress("at first").await;
    let (mut scaled, mut leaks, mut disturbances) = (Scaled::default(), Leaks::default(), 0);
    let (start, mut done, mut budgets) = (Instant::now(), Done::default(), [16; ORGANIZATIONS]);
    while start.elapsed().as_secs_f64() < 60.0 * minutes {
        tokio::time::sleep(rng.duration(&(Duration::from_millis(200)..Duration::from_secs(4)))).await;
        let what = match rng.below(20) {
            0..=8 => {
                let (name, process) = victim(&dir, &mut rng).await;
                send(process, Signal::KILL);
                *done.kills.entry(name.clone()).or_default() += 1;
                format!("{name} is killed")
            }
            10..=13 => {
                let ((name, process), time) = (victim(&dir, &mut rng).await, rng.duration(&STANDSTILL));
                send(process, Signal::STOP);
                tokio::time::sleep(time).await;
                send(process, Signal::CONT);
                *done.standstills.entry(name.clone()).or_default() += 1;
                format!("{name} stood still for {} ms", time.as_millis())
            }
            9 => {
                let all = Endpoints::load(&dir).expect("the network has said where it is").processes;
                network.kill();
                all.iter().for_each(|process| send(process.process, Signal::KILL));
                network = Network::start(&dir, &ELASTIC);
                done.all_killed += 1;
                "everything is killed and started again".to_owned()
            }
            _ => change_budget(&dir, &mut rng, &mut done, &mut budgets),
        };
        println!("soak: {:>4.0} s, {} committed; {what}", start.elapsed().as_secs_f64(), load.count());
        load.progress(&format!("seed {seed}: {what}")).await;
        leaks.note_groups(&dir);
        disturbances += 1;
        if disturbances % DISTURBANCES == 0 {
            scaling::scale(&dir, &load, &mut scaled, seed).await;
            leaks.compare(&dir, network.endpoints.process, seed);
            load.calm(false);
        }
    }
    println!("soak: {scaled:?}");
    let has_scaled = scaled.launched > 0 && scaled.drained > 0;
    assert!(has_scaled || minutes < LONG_MINUTES, "seed {seed}: no peer was scaled: {scaled:?}");
    let count = load.count();
    let told = load.end().await;
    println!("soak: {count} committed, {done:?}");
    let height = network.settle().await;
    let mut peers = Vec::new();
    for organization in 1..=ORGANIZATIONS {
        println!("soak: org{organization} at height {height}: {} transactions are looked for", told.valid.len());
        check(&dir, organization, &told).await;
        peers.push(served(&dir, organization).await);
    }
    assert!(peers.windows(2).all(|peers| peers[0] == peers[1]), "seed {seed}: the peers serve different states");
    for (key, record) in &told.records {
        let found = peers[0].get(&format!("ycsb {key}")).cloned().flatten();
        let is_right = found == record.told || found.as_ref().is_some_and(|found| record.tried.contains(found));
        assert!(is_right, "seed {seed}: {key} holds what its client did not write last");
    }
    let money: i64 = peers[0]
        .iter()
        .filter(|(key, _)| key.starts_with("smallbank "))
        .map(|(key, value)| {
            let text = String::from_utf8_lossy(value.as_ref().expect("every customer was loaded")).into_owned();
            text.trim_matches('"').parse::<i64>().unwrap_or_else(|_| panic!("{key}: {text}"))
        })
        .sum();
    assert_eq!(money, 2 * BALANCE * CUSTOMERS as i64, "seed {seed}: money was made or lost");
    for organization in 1..=ORGANIZATIONS {
        for what in ["nodes", "memory"] {
            let shown = run(&["peer", what, &format!("org{organization}"), "--dir", &dir.display().to_string()]);
            println!("{}", text(&shown));
        }
    }
    leaks.note_groups(&dir);
    network.down();
    leaks.nothing_left(&dir, seed);
    let verify = run(&["ledger", "verify", "--dir", &dir.display().to_string()]);
    println!("{}", text(&verify));
    assert!(verify.status.success(), "seed {seed}: {}", text(&verify));
    // The monolithic form serves the tables that were just found equal to the ledger's result.
    let network = Network::start(&dir, &["--monolithic"]);
    network.settle().await;
    for (organization, before) in (1..=ORGANIZATIONS).zip(&peers) {
        let replayed = served(&dir, organization).await;
        let differs = before.iter().find(|(key, value)| replayed.get(*key) != Some(value)).map(|(key, _)| key);
        assert!(differs.is_none(), "seed {seed}: org{organization} served another {differs:?} than its ledger leaves");
    }
    network.down();
    println!("soak: everything is there after {minutes} minutes of seed {seed}");
}
