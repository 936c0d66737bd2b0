//! The groups that are measured, each with F = 1 in this process and its journals on disk.
//!
//! * `sift`: three orderers and three passive memory nodes over shared memory. `raft`: three orderers with logs of their own. Both link
//!   orderers by messages over shared memory. `solo`: one orderer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::disk::Directory;
use base::rt::{self, Stop};
use consensus::ordered::sift::{Neighbour, Sift, SiftOptions};
use consensus::ordered::solo::Solo;
use consensus::ordered::{Journal, OrderedLog, Processor, Role};
use consensus::raft::{self, Member, RaftLog};
use consensus::{Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Term, Timing};
use rma::links::RmaLinks;
use rma::shm::Shm;
use rma::{Credential, Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};
use tempfile::TempDir;

use super::journal::Blocks;
use crate::error::Error;

const ORDERERS: u64 = 3;
const MEMORY_NODES: u32 = 3;
/// Bytes of the group's log, or after which a log on Raft is cut, as a network has them unless it is told otherwise.
pub(super) const LOG_BYTES: u64 = 64 << 20;
const ENTRY_BYTES_MAX: usize = 16 << 20;
const DISK_MAX: Duration = Duration::from_secs(10);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Passive memory nodes, and disks.
    Sift,
    /// Raft.
    Raft,
    /// One disk.
    Solo,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Sift, Kind::Raft, Kind::Solo];

    /// As figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sift => "sift",
            Kind::Raft => "raft",
            Kind::Solo => "solo",
        }
    }
}

/// A group that runs.
pub struct System {
    /// Each orderer's part.
    pub logs: Vec<Arc<dyn OrderedLog>>,
    memory: Vec<Arc<MemoryNode>>,
    stop: Stop,
    _folder: Option<TempDir>,
}

pub(super) fn failed(what: &'static str) -> impl Fn(consensus::Error) -> Error {
    move |error| Error::Part { what, reason: error.to_string() }
}

impl System {
    /// One log, of which this is all.
    pub fn of(log: impl OrderedLog + 'static) -> System {
        System { logs: vec![Arc::new(log)], memory: Vec::new(), stop: Stop::new(), _folder: None }
    }

    /// Starts a group with nothing in its journals.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(kind: Kind, folder: Option<&Path>) -> Result<System, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let scheme = format!("bench-ordering-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let made = match folder {
            Some(folder) => tempfile::tempdir_in(folder),
            None => tempfile::tempdir(),
        };
        let made = made.map_err(|error| Error::Part { what: "a temporary folder", reason: error.to_string() })?;
        let starting = failed("starting a group");
        let mut token = [0; TOKEN_BYTES];
        rt::fill_random(&mut token);
        let token = Token::new(token);
        let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
        register(&scheme, &token);
        let mut system = System { logs: Vec::new(), memory: Vec::new(), stop: Stop::new(), _folder: None };
        let layout = Layout::of_log(LOG_BYTES);
        let place = |node: u32| Place {
            address: format!("local:{scheme}-{node}"),
            name: "bench".to_owned(),
            token: token.clone(),
        };
        let nodes = if kind == Kind::Sift { MEMORY_NODES } else { 0 };
        for node in 0..nodes {
            let known = token.clone();
            let options = HostOptions { node: NodeId(node), tokens: Arc::new(move |_| Some(known.clone())) };
            let host = fabric.host(&place(node).address, options).await;
            let host = host.map_err(|error| Error::Part { what: "a memory node", reason: error.to_string() })?;
            let groups = vec![GroupMemory { id: GroupId(1), layout }];
            let options = MemoryNodeOptions { host, groups, stop: system.stop.clone() };
            system.memory.push(MemoryNode::start(options).await.map_err(&starting)?);
        }
        let orderers = if kind == Kind::Solo { 1 } else { ORDERERS };
        let address = |number: u64| format!("{scheme}:local:{scheme}-orderer-{number}");
        for number in 1..=orderers {
            let path = made.path().join(number.to_string());
            let directory = Directory::open(path.join("blocks")).await;
            let directory = directory.map_err(|error| Error::Part { what: "a folder", reason: error.to_string() })?;
            let journal: Arc<dyn Journal> = Arc::new(Blocks::open(directory).await.map_err(&starting)?);
            let log: Arc<dyn OrderedLog> = match kind {
                Kind::Solo => Arc::new(Solo::open(journal, ENTRY_BYTES_MAX).await.map_err(&starting)?),
                Kind::Sift => {
                    let group = Group {
                        id: GroupId(1),
                        layout,
                        nodes: (0..nodes).map(place).collect(),
                        fabric: fabric.clone(),
                        timing: Timing::of_busy_machines(),
                    };
                    let neighbour = |number| Neighbour { processor: Processor(number), address: address(number) };
                    let options = SiftOptions {
                        group,
                        me: Processor(number),
                        processors: (1..=orderers).map(neighbour).collect(),
                        journal,
                        volatile: false,
                        disk_max: DISK_MAX,
                    };
                    Arc::new(Sift::open(options).await.map_err(&starting)?)
                }
                Kind::Raft => {
                    let member = |id| Member { id, address: address(id), learns: false };
                    let options = raft::Options {
                        directory: Some(path.join("raft")),
                        timing: raft::Timing::of_busy_machines(),
                        is_commit_lazy: true,
                        snapshot_after_bytes: LOG_BYTES as usize,
                        ..raft::Options::new(1, number, (1..=orderers).map(member).collect())
                    };
                    Arc::new(RaftLog::open(options, journal).await.map_err(&starting)?)
                }
            };
            system.logs.push(log);
        }
        system._folder = Some(made);
        Ok(system)
    }

    /// Who leads, in which term and from where.
    ///
    /// # Errors
    /// Nobody does.
    pub async fn leads(&self, patience: Duration) -> Result<(usize, Term, u64), Error> {
        let start = rt::now();
        loop {
            for (which, log) in self.logs.iter().enumerate() {
                if let Role::Leading { term, .. } = *log.role().borrow() {
                    // What was appended before in this term is safe.
                    return Ok((which, term, *log.safe().borrow()));
                }
            }
            if start.elapsed() > patience {
                return Err(Error::Part { what: "starting a group", reason: "nobody leads".to_owned() });
            }
            rt::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends it.
    pub async fn stop(self) {
        for log in &self.logs {
            log.stop().await;
        }
        self.stop.stop();
        drop(self.memory);
    }
}

fn register(scheme: &str, token: &Token) {
    let credential = Credential { name: "bench".to_owned(), token: token.clone() };
    let known = token.clone();
    let links = RmaLinks::new(Arc::new(Shm::default()), credential, Arc::new(move |_| Some(known.clone())));
    rt::net::register(scheme, Arc::new(links));
}

/// What takes entries and does nothing.
pub struct Nothing {
    role: WatchSender<Role>,
    safe: WatchSender<u64>,
}

impl Nothing {
    /// One that leads.
    pub fn leading() -> Nothing {
        Nothing { role: watch(Role::Leading { term: Term(1), next: 1 }).0, safe: watch(1).0 }
    }
}

#[async_trait]
impl OrderedLog for Nothing {
    fn role(&self) -> WatchReceiver<Role> {
        self.role.subscribe()
    }

    fn safe(&self) -> WatchReceiver<u64> {
        self.safe.subscribe()
    }

    async fn append(&self, _term: Term, position: u64, _entry: Bytes) -> Result<(), consensus::Error> {
        self.safe.send(position + 1);
        Ok(())
    }

    fn entry_bytes_max(&self) -> usize {
        usize::MAX
    }

    async fn ended(&self) -> consensus::Error {
        std::future::pending().await
    }

    async fn stop(&self) {}
}
