//! How long a peer's state is unavailable when its primary is killed.
//!
//! `cargo run --release -p heddle-state --example failover [-- KILLS]`
//!
//! 1. This process is a memory node and a storage node. Two other processes of the same program are compute nodes. The
//!    first one finds no primary, becomes the primary, and applies small blocks, each durable before it is applied.
//!    The other is a follower, which reads and checks what it reads.
//! 2. The primary is killed with SIGKILL. The follower notices that it gets no lease any more, starts an epoch, and
//!    takes over: it applies the blocks after the savepoint again, compares all keys with the blocks' writes, and
//!    makes the next block.
//! 3. A new compute node replaces the dead one, and the round repeats.
//!
//! The program prints the time from the kill until the next block is reported as applied: smallest, median, largest.
//! It fails if a block is missing that the dead primary had reported, if a key on the primary or on the follower
//! differs from what the blocks wrote, or if no compute node takes over.

#![allow(clippy::disallowed_methods, reason = "processes, their pipes and wall time are what this is about")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::rt::net::{self, GatherList, Link};
use base::rt::{self, CancellationToken, production};
use base::{BlockNumber, Bytes, Epoch, ErrorKind, TxId, Version};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig, ReadOnlySpace, ReadOnlySpaceConfig};
use replica::{FailoverTimeouts, FindPrimary, ReplicatedState as _};
use rma::links::RmaTransport;
use rma::shm::ShmProvider;
use rma::{Credential, HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use state::disaggregated::followers::FollowerEnvironment;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Disaggregated, DisaggregatedConfig, Follower, Snapshot, UpdateBatch, WorldState};
use storage::blocks::{BlockStoreConfig, Blocks, NO_PREVIOUS, NewBlock};
use storage::node::{
    RemoteBlocks, RemoteStateStore, RemoteStoreConfig, StorageNode, StorageNodeConfig, begin_epoch, newest_epoch,
};
use storage::tables::{FjallConfig, FjallEngine, RowBatch};
use storage::{DataDirectory, GroupSync, Materializer, StateStore};

const KILLS: usize = 11;
const CHANNEL: &str = "channel";
const NAMESPACE: &str = "cc";
const OWNER: &str = "peer";
const KEYS: u64 = 1_000;
const WRITES: u64 = 10;
const SECTION_BYTES: u64 = 1 << 20;
const BUDGET_BYTES: u64 = 16 << 20;
/// How long a node is without a lease before it takes over.
const LEASELESS_TIMEOUT: Duration = Duration::from_millis(100);
/// How long all steps between two kills may take together.
const WAIT_MAX: Duration = Duration::from_secs(30);
const TOKEN: Token = Token::new([7; TOKEN_BYTES]);

/// The writes of block `number`, from which every process knows the expected state.
fn writes(number: u64) -> impl Iterator<Item = (String, Version, Bytes)> {
    (0..WRITES).map(move |tx| {
        let key = format!("key{:04}", (number * WRITES + tx) % KEYS);
        let version = Version { block: number, tx: tx as u32 };
        let value = Bytes::from(format!("{key} as of {version}"));
        (key, version, value)
    })
}

/// The version of a key at a height.
fn expected(key: u64, height: u64) -> Option<Version> {
    let place = |block: u64| (block * WRITES..(block + 1) * WRITES).find(|place| place % KEYS == key);
    let block = (height.saturating_sub(KEYS / WRITES)..height).rev().find(|block| place(*block).is_some())?;
    Some(Version { block, tx: (place(block)? % WRITES) as u32 })
}

fn hash(number: u64) -> [u8; 32] {
    let mut hash = [1; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    hash
}

struct KeyRows;

impl Materializer for KeyRows {
    fn materialize(&self, number: BlockNumber, _: &GatherList, batch: &mut RowBatch) -> Result<(), storage::Error> {
        let mut all = writes(number.get());
        all.try_for_each(|(key, version, value)| batch.put(NAMESPACE, key.as_bytes(), version, Some(value)))
    }
}

fn socket(directory: &Path, name: &str) -> String {
    directory.join(name).with_extension("socket").display().to_string()
}

fn register_links() {
    let credential = Credential { name: OWNER.to_owned(), token: TOKEN };
    let links = RmaTransport::new(Arc::new(ShmProvider::default()), credential, Arc::new(|_| Some(TOKEN)));
    net::register("shm", Arc::new(links));
}

/// The directory with the addresses of the other processes.
struct ProcessEnvironment(PathBuf);

impl ProcessEnvironment {
    fn storage(&self) -> String {
        format!("shm:{}", socket(&self.0, "storage"))
    }

    fn primary(&self, epoch: Epoch) -> String {
        format!("shm:{}", socket(&self.0, &format!("primary{}", epoch.get())))
    }

    fn donors(&self) -> Vec<Donor> {
        vec![Donor { address: socket(&self.0, "memory"), token: TOKEN }]
    }

    fn remote(&self, epoch: Epoch) -> RemoteStoreConfig {
        RemoteStoreConfig { address: self.storage(), token: Bytes::new(), channel: CHANNEL.to_owned(), epoch }
    }
}

#[async_trait]
impl FindPrimary for ProcessEnvironment {
    async fn primary(&self) -> std::io::Result<Link> {
        let epoch = newest_epoch(&self.storage(), &Bytes::new(), CHANNEL).await;
        net::connect(&ProcessEnvironment::primary(self, epoch.map_err(std::io::Error::other)?)).await
    }
}

#[async_trait]
impl FollowerEnvironment for ProcessEnvironment {
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let lent = ReadOnlySpace::open(ReadOnlySpaceConfig {
            owner: OWNER.to_owned(),
            provider: Arc::new(ShmProvider::default()),
            donors: self.donors(),
            section_bytes: SECTION_BYTES,
            find_donor: Arc::new(|_| None),
        });
        Ok(Arc::new(lent.await.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(RemoteStateStore::open_read_only(self.remote(Epoch(0))).await?))
    }
}

/// Reports a line to the process that started this one.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{what}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Compares keys with the writes of the blocks below a snapshot's height. False if the snapshot cannot be read for now.
async fn check(snapshot: &dyn Snapshot, keys: impl Iterator<Item = u64>) -> bool {
    let height = snapshot.height();
    for key in keys {
        match snapshot.get(NAMESPACE, &format!("key{key:04}")).await {
            Ok(found) => {
                let version = found.as_ref().map(|found| found.version);
                assert_eq!(version, expected(key, height), "key {key} at height {height}");
                let value = version.map(|version| Bytes::from(format!("key{key:04} as of {version}")));
                assert_eq!(found.map(|found| found.value), value);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                return false;
            }
        }
    }
    true
}

/// Reads until there is no primary any more.
async fn follow(environment: &Arc<ProcessEnvironment>, settings: &DisaggregatedConfig) {
    let reader = Arc::new(Follower::start(Arc::clone(environment) as _, settings.clone()));
    let reading = {
        let reader = Arc::clone(&reader);
        rt::spawn(async move {
            let mut reads = 0u64;
            loop {
                if let Ok(view) = reader.view().await {
                    let keys = (0..32).map(|_| rt::random_below(KEYS)).collect::<Vec<_>>();
                    if check(&*view, keys.into_iter()).await {
                        reads += 1;
                        if reads == 8 {
                            say("reads");
                        }
                    }
                }
                rt::sleep(Duration::from_millis(2)).await;
            }
        })
        .abort_on_drop()
    };
    reader.orphaned(FailoverTimeouts { gone: LEASELESS_TIMEOUT, silent: LEASELESS_TIMEOUT }).await;
    drop(reading);
}

/// Acts as the primary until another node takes over.
async fn run_primary(
    environment: &Arc<ProcessEnvironment>,
    settings: &DisaggregatedConfig,
) -> Result<(), Box<dyn std::error::Error>> {
    let epoch = begin_epoch(&environment.storage(), &Bytes::new(), CHANNEL).await?;
    let blocks = RemoteBlocks::open(environment.remote(epoch)).await?;
    let rows = RemoteStateStore::open(environment.remote(epoch)).await?;
    let space = AddressSpace::open(AddressSpaceConfig {
        owner: OWNER.to_owned(),
        epoch,
        provider: Arc::new(ShmProvider::default()),
        donors: environment.donors(),
        section_bytes: SECTION_BYTES,
        budget_bytes: BUDGET_BYTES,
    });
    let state = Disaggregated::open(Arc::new(space.await?), Arc::new(rows), settings.clone()).await?;
    let state = Arc::new(state);
    let namespace: Arc<str> = NAMESPACE.into();
    let batch = |number: u64| {
        let mut batch = UpdateBatch::default();
        batch.set_block_hash(hash(number));
        for (key, version, value) in writes(number) {
            batch.put(&namespace, key.as_str().into(), Some(value), version);
        }
        batch
    };
    while state.height() < blocks.height() {
        state.apply(state.height(), batch(state.height())).await?;
    }
    assert!(check(&*state.snapshot(), 0..KEYS).await, "the primary answers");
    state.admit_followers().await;
    let mut listener = net::listen(&environment.primary(epoch)).await?;
    let serving = Arc::clone(&state);
    let _serving = rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            let state = Arc::clone(&serving);
            drop(rt::spawn(async move {
                // The follower finds out by itself why it ended.
                let _ = state.serve_follower(link).await;
            }));
        }
    })
    .abort_on_drop();
    loop {
        let number = state.height();
        let previous_hash = number.checked_sub(1).map_or(NO_PREVIOUS, hash);
        let parts = [Bytes::copy_from_slice(&number.to_le_bytes())];
        let transactions: &[(TxId, u8)] = &[];
        let number_of = BlockNumber(number);
        let block = NewBlock {
            number: number_of,
            header_hash: hash(number),
            previous_hash,
            epoch,
            parts: &parts,
            transactions,
        };
        blocks.append(block).await?;
        blocks.sync().await?;
        state.apply(number, batch(number)).await?;
        say(&format!("applied {number}"));
        if number.is_multiple_of(64) {
            state.persist().await?;
        }
        rt::sleep(Duration::from_millis(2)).await;
    }
}

/// A compute node.
fn compute(directory: &Path) {
    // It ends with the process that started it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    production::run(async {
        register_links();
        let around = Arc::new(ProcessEnvironment(directory.to_path_buf()));
        let settings = DisaggregatedConfig::default();
        loop {
            follow(&around, &settings).await;
            if let Err(error) = run_primary(&around, &settings).await {
                eprintln!("no longer, or not yet, the primary: {error}");
            }
        }
    });
}

/// A compute node as this process sees it.
struct Node {
    number: usize,
    child: Child,
}

static SAID: OnceLock<Sender<(usize, Instant, String)>> = OnceLock::new();

fn start(number: usize, directory: &Path) -> Node {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.arg("--compute").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a process");
    let out = child.stdout.take().expect("it has a pipe");
    let said = SAID.get().expect("it was set").clone();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if said.send((number, Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    Node { number, child }
}

/// The reports received from compute nodes.
#[derive(Default)]
struct ReportedEvents {
    /// The last block, and the number of the node that applied it.
    applied: Option<(usize, u64)>,
    reads: BTreeMap<usize, bool>,
}

impl ReportedEvents {
    fn hear(&mut self, number: usize, line: &str) {
        if let Some(block) = line.strip_prefix("applied ") {
            let block: u64 = block.parse().expect("a number");
            if let Some((_, before)) = self.applied {
                assert!(block > before, "block {block} after {before} was reported");
            }
            self.applied = Some((number, block));
        } else {
            self.reads.insert(number, true);
        }
    }

    /// Receives reports until `holds` returns true.
    fn until(&mut self, said: &Receiver<(usize, Instant, String)>, holds: impl Fn(&ReportedEvents) -> bool) -> Instant {
        let since = Instant::now();
        loop {
            match said.recv_timeout(WAIT_MAX.saturating_sub(since.elapsed())) {
                Ok((number, at, line)) => {
                    self.hear(number, &line);
                    if holds(self) {
                        return at;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("nobody goes on; last applied: {:?}", self.applied),
                Err(RecvTimeoutError::Disconnected) => unreachable!("this process holds a sender"),
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, directory] = &arguments[..]
        && flag == "--compute"
    {
        return compute(Path::new(directory));
    }
    let kills = arguments.first().map_or(KILLS, |kills| kills.parse().expect("KILLS is a number"));
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let (sender, said) = channel();
    SAID.set(sender).expect("it is set once");
    production::run(async {
        register_links();
        let shm = ShmProvider::default();
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = shm.host(&socket(at, "memory"), options).await.expect("a host");
        let stop = CancellationToken::new();
        let options = MemoryNodeConfig { host, budget_bytes: 4 * BUDGET_BYTES, section_bytes: SECTION_BYTES, stop };
        let _memory = MemoryNode::start(options).await.expect("a memory node");
        let tables = FjallEngine::open(&at.join("tables"), FjallConfig::default()).await.expect("tables");
        let storage = StorageNode::open(StorageNodeConfig {
            name: "storage".to_owned(),
            data: DataDirectory::open(&at.join("data")).await.expect("a data directory"),
            sync: GroupSync::new(),
            tables,
            materializer: Arc::new(KeyRows),
            token: Bytes::new(),
            blocks: BlockStoreConfig::default(),
        })
        .await
        .expect("a storage node");
        storage
            .serve(&ProcessEnvironment(at.to_path_buf()).storage(), &net::Parties::anyone())
            .await
            .expect("the socket is free");
        let begun = begin_epoch(&ProcessEnvironment(at.to_path_buf()).storage(), &Bytes::new(), CHANNEL).await;
        begun.expect("the storage node answers");
        let directory = at.to_path_buf();
        let times = rt::blocking(move || measure(kills, &directory, &said)).await;
        let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        println!("{kills} kills: next block after {least:.0?}, median {median:.0?}, at most {most:.0?}");
        storage.stop().await.expect("it stops in order");
    });
}

fn measure(kills: usize, directory: &Path, said: &Receiver<(usize, Instant, String)>) -> Vec<Duration> {
    let mut heard = ReportedEvents::default();
    let mut nodes: Vec<Node> = vec![start(0, directory)];
    heard.until(said, |heard| heard.applied.is_some());
    let mut times = Vec::new();
    for kill in 0..kills {
        let standby = kill + 1;
        nodes.push(start(standby, directory));
        heard.until(said, |heard| heard.reads.contains_key(&standby));
        // Wait for some more blocks, so that the primary is killed in the middle of its work.
        let from = heard.applied.expect("there are blocks").1;
        heard.until(said, |heard| heard.applied.is_some_and(|(_, block)| block > from + 20));
        let (primary, _) = heard.applied.expect("there are blocks");
        let at = nodes.iter().position(|node| node.number == primary).expect("it was not killed");
        let mut node = nodes.remove(at);
        let killed = Instant::now();
        node.child.kill().expect("it is ours");
        node.child.wait().expect("it ends");
        let next = heard.until(said, |heard| heard.applied.is_some_and(|(by, _)| by != primary));
        println!("kill {}: next block after {:.0?}", kill + 1, next - killed);
        times.push(next - killed);
    }
    for mut node in nodes {
        let _ = node.child.kill();
        let _ = node.child.wait();
    }
    times.sort();
    times
}
