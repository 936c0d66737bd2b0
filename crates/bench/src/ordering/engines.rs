//! The measured ordering engines, in this process, with log stores on disk.
//!
//! * `sift` (F = 1): three orderers, and three passive memory nodes over shared memory.
//! * `raft` (F = 1): three orderers, each with its own log.
//! * `solo`: one orderer, which tolerates no failure.
//!
//! In `sift` and `raft` the orderers are linked by messages over shared memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::disk::Directory;
use base::rt::{self, CancellationToken};
use ordered_log::raft::RaftLog;
use ordered_log::sift::{CpuNode, SiftConfig, SiftLog};
use ordered_log::solo::SoloLog;
use ordered_log::{CpuNodeId, Leadership, LogStore, OrderedLog, Term};
use raft::RaftMember;
use rma::links::RmaTransport;
use rma::shm::ShmProvider;
use rma::{Credential, HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
};
use tempfile::TempDir;

use super::log_store::BlockLogStore;
use measurement::error::Error;

const ORDERERS: u64 = 3;
const MEMORY_NODES: u32 = 3;
/// Bytes of the group's log, or after which a log on Raft is trimmed: the default of a network.
pub(super) const LOG_BYTES: u64 = 64 << 20;
const ENTRY_BYTES_MAX: usize = 16 << 20;
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// The kind of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// Passive memory nodes, and disks.
    Sift,
    /// Raft.
    Raft,
    /// One disk.
    Solo,
}

impl EngineKind {
    /// All of them.
    pub const ALL: [EngineKind; 3] = [EngineKind::Sift, EngineKind::Raft, EngineKind::Solo];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Sift => "sift",
            EngineKind::Raft => "raft",
            EngineKind::Solo => "solo",
        }
    }
}

/// A group that runs.
pub struct OrderingSystem {
    /// Each orderer's part.
    pub logs: Vec<Arc<dyn OrderedLog>>,
    memory: Vec<Arc<LogMemoryNode>>,
    stop: CancellationToken,
    _folder: Option<TempDir>,
}

/// What fails when a system cannot be started.
const STARTING: &str = "starting a group";

pub(super) fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Part { what, reason: error.to_string() }
}

impl OrderingSystem {
    /// A group that consists of one log.
    pub fn of(log: impl OrderedLog + 'static) -> OrderingSystem {
        OrderingSystem { logs: vec![Arc::new(log)], memory: Vec::new(), stop: CancellationToken::new(), _folder: None }
    }

    /// Starts a group with empty log stores.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(kind: EngineKind, folder: Option<&Path>) -> Result<OrderingSystem, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let scheme = format!("bench-ordering-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let made = match folder {
            Some(folder) => tempfile::tempdir_in(folder),
            None => tempfile::tempdir(),
        };
        let made = made.map_err(|error| Error::Part { what: "a temporary folder", reason: error.to_string() })?;
        let mut token = [0; TOKEN_BYTES];
        rt::fill_random(&mut token);
        let token = Token::new(token);
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        register(&scheme, &token);
        let mut system =
            OrderingSystem { logs: Vec::new(), memory: Vec::new(), stop: CancellationToken::new(), _folder: None };
        let layout = GroupLayout::of_log(LOG_BYTES);
        let place = |node: u32| MemoryNodeAddress {
            address: format!("local:{scheme}-{node}"),
            name: "bench".to_owned(),
            token: token.clone(),
        };
        let nodes = if kind == EngineKind::Sift { MEMORY_NODES } else { 0 };
        for node in 0..nodes {
            let known = token.clone();
            let options = HostConfig { node: NodeId(node), tokens: Arc::new(move |_| Some(known.clone())) };
            let host = provider.host(&place(node).address, options).await;
            let host = host.map_err(|error| Error::Part { what: "a memory node", reason: error.to_string() })?;
            let groups = vec![GroupMemory { id: GroupId(1), layout }];
            let options = LogMemoryNodeConfig { host, groups, stop: system.stop.clone() };
            system.memory.push(LogMemoryNode::start(options).await.map_err(failed(STARTING))?);
        }
        let orderers = if kind == EngineKind::Solo { 1 } else { ORDERERS };
        let address = |number: u64| format!("{scheme}:local:{scheme}-orderer-{number}");
        for number in 1..=orderers {
            let path = made.path().join(number.to_string());
            let directory = Directory::open(path.join("blocks")).await;
            let directory = directory.map_err(|error| Error::Part { what: "a folder", reason: error.to_string() })?;
            let journal: Arc<dyn LogStore> = Arc::new(BlockLogStore::open(directory).await.map_err(failed(STARTING))?);
            let log: Arc<dyn OrderedLog> = match kind {
                EngineKind::Solo => Arc::new(SoloLog::open(journal, ENTRY_BYTES_MAX).await.map_err(failed(STARTING))?),
                EngineKind::Sift => {
                    let group = SiftGroup {
                        id: GroupId(1),
                        layout,
                        nodes: (0..nodes).map(place).collect(),
                        provider: provider.clone(),
                        timing: SiftTimeouts::of_busy_machines(),
                    };
                    let neighbour = |number| CpuNode { id: CpuNodeId(number), address: address(number) };
                    let options = SiftConfig {
                        group,
                        me: CpuNodeId(number),
                        cpu_nodes: (1..=orderers).map(neighbour).collect(),
                        log_store: journal,
                        volatile: false,
                        disk_timeout: DISK_TIMEOUT,
                    };
                    Arc::new(SiftLog::open(options).await.map_err(failed(STARTING))?)
                }
                EngineKind::Raft => {
                    let member = |id| RaftMember { id, address: address(id), is_learner: false };
                    let options = raft::RaftConfig {
                        directory: Some(path.join("raft")),
                        timing: raft::RaftTimeouts::of_busy_machines(),
                        is_commit_lazy: true,
                        snapshot_after_bytes: LOG_BYTES as usize,
                        ..raft::RaftConfig::new(1, number, (1..=orderers).map(member).collect())
                    };
                    Arc::new(RaftLog::open(options, journal).await.map_err(failed(STARTING))?)
                }
            };
            system.logs.push(log);
        }
        system._folder = Some(made);
        Ok(system)
    }

    /// The leader, its term and its first position.
    ///
    /// # Errors
    /// There is no leader.
    pub async fn wait_for_leader(&self, timeout: Duration) -> Result<(usize, Term, u64), Error> {
        let start = rt::now();
        loop {
            for (which, log) in self.logs.iter().enumerate() {
                if let Leadership::Leading { term, .. } = *log.leadership().borrow() {
                    // All earlier entries of this term are committed.
                    return Ok((which, term, *log.deliverable().borrow()));
                }
            }
            if start.elapsed() > timeout {
                return Err(Error::Part { what: STARTING, reason: "nobody leads".to_owned() });
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends it.
    pub async fn stop(self) {
        for log in &self.logs {
            log.stop().await;
        }
        self.stop.cancel();
        drop(self.memory);
    }
}

fn register(scheme: &str, token: &Token) {
    let credential = Credential { name: "bench".to_owned(), token: token.clone() };
    let known = token.clone();
    let links = RmaTransport::new(Arc::new(ShmProvider::default()), credential, Arc::new(move |_| Some(known.clone())));
    rt::net::register(scheme, Arc::new(links));
}

/// A log that accepts entries and does nothing.
pub struct NoOpLog {
    role: WatchSender<Leadership>,
    committed: WatchSender<u64>,
}

impl NoOpLog {
    /// One that is the leader.
    pub fn leading() -> NoOpLog {
        NoOpLog { role: watch(Leadership::Leading { term: Term(1), next: 1 }).0, committed: watch(1).0 }
    }
}

#[async_trait]
impl OrderedLog for NoOpLog {
    fn leadership(&self) -> WatchReceiver<Leadership> {
        self.role.subscribe()
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        self.committed.subscribe()
    }

    async fn append(&self, _term: Term, position: u64, _entry: Bytes) -> Result<(), ordered_log::Error> {
        self.committed.send(position + 1);
        Ok(())
    }

    fn entry_bytes_max(&self) -> usize {
        usize::MAX
    }

    async fn ended(&self) -> ordered_log::Error {
        std::future::pending().await
    }

    async fn stop(&self) {}
}
