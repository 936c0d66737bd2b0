//! The key-value stores that are measured, each with F = 1 in this process, over shared memory, all volatile.
//!
//! * `sift`: three passive memory nodes, one coordinator; `sift-coded`: the same with coded blocks.
//! * `raft`: three nodes of the Raft engine with a store on each, linked by messages over the same provider. What follows
//!   learns of commits with the next entry, so that there are no more messages than must be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::{self, Stop};
use consensus::kv::{Options as StoreOptions, Sizes, Store as SiftStore};
use consensus::raft::kv::Store as RaftStore;
use consensus::raft::{self, Member};
use consensus::{Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Standby, Timing};
use rma::links::RmaLinks;
use rma::shm::Shm;
use rma::{Credential, Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};

use crate::error::Error;

const NODES: u32 = 3;
/// Bytes of the group's log.
const GROUP_LOG_BYTES: u64 = 4 << 20;
/// How long a leader may take to be there.
const ELECTION_MAX: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Sift, whole copies.
    Sift,
    /// Sift, coded blocks.
    SiftCoded,
    /// Raft.
    Raft,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Sift, Kind::SiftCoded, Kind::Raft];

    /// As figures call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sift => "sift",
            Kind::SiftCoded => "sift-coded",
            Kind::Raft => "raft",
        }
    }
}

/// A store that runs. It ends when it is dropped.
#[derive(Clone)]
pub enum System {
    /// Sift's, and its memory nodes.
    Sift(SiftStore, Arc<Memory>),
    /// The leader's, and all nodes.
    Raft(RaftStore, Arc<Vec<RaftStore>>),
}

/// Memory nodes, which end when this does.
pub struct Memory {
    _nodes: Vec<Arc<MemoryNode>>,
    stop: Stop,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

fn part(what: &'static str) -> impl Fn(consensus::Error) -> Error {
    move |error| Error::Part { what, reason: error.to_string() }
}

impl System {
    /// Starts one with nothing in it.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(kind: Kind, keys: u64, value_bytes: usize) -> Result<System, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        match kind {
            Kind::Sift | Kind::SiftCoded => start_sift(kind == Kind::SiftCoded, number, keys, value_bytes).await,
            Kind::Raft => start_raft(number).await,
        }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// As the store says.
    pub async fn put(&self, key: &Bytes, value: &Bytes) -> Result<(), consensus::Error> {
        match self {
            System::Sift(store, _) => store.put(key.clone(), value.clone()).await.map(drop),
            System::Raft(store, _) => store.put(key, value).await.map(drop),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As the store says.
    pub async fn get(&self, key: &Bytes) -> Result<Option<Bytes>, consensus::Error> {
        match self {
            System::Sift(store, _) => Ok(store.get(key).await?.map(|found| found.value)),
            System::Raft(store, _) => Ok(store.get(key).await?.map(|found| found.value)),
        }
    }
}

fn token() -> Token {
    let mut secret = [0; TOKEN_BYTES];
    rt::fill_random(&mut secret);
    Token::new(secret)
}

async fn start_sift(is_coded: bool, number: u64, keys: u64, value_bytes: usize) -> Result<System, Error> {
    let failed = part("starting Sift");
    let block_bytes = (value_bytes as u64 + 80).next_multiple_of(64).max(1152);
    let blocks = (keys + keys / 8).next_multiple_of(512);
    let sizes = Sizes { buckets: keys.next_power_of_two(), blocks, block_bytes, ..Sizes::default() };
    let data_shares = if is_coded { NODES / 2 + 1 } else { 1 };
    let layout = Layout { data_shares, ..sizes.group_layout(GROUP_LOG_BYTES).map_err(&failed)? };
    let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
    let (id, token, stop) = (GroupId(1), token(), Stop::new());
    let place = |node| Place {
        address: format!("local:bench-sift-{number}-{node}"),
        name: "bench".to_owned(),
        token: token.clone(),
    };
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let known = token.clone();
        let options = HostOptions { node: NodeId(node), tokens: Arc::new(move |_| Some(known.clone())) };
        let host = fabric.host(&place(node).address, options).await;
        let host = host.map_err(|error| Error::Part { what: "a memory node", reason: error.to_string() })?;
        let groups = vec![GroupMemory { id, layout }];
        let options = MemoryNodeOptions { host, groups, stop: stop.clone() };
        nodes.push(MemoryNode::start(options).await.map_err(&failed)?);
    }
    // A machine with much else to do is not always there when a heartbeat is due; Raft has as much time.
    let timing = Timing { lease: Duration::from_millis(500), ..Timing::default() };
    let group = Group { id, layout, nodes: (0..NODES).map(place).collect(), fabric, timing };
    consensus::format(&group).await.map_err(&failed)?;
    let coordinator = Standby::new(group, 1).map_err(&failed)?.take_over().await.map_err(&failed)?;
    let store = SiftStore::take_over(coordinator, sizes, StoreOptions::default()).await.map_err(&failed)?;
    Ok(System::Sift(store, Arc::new(Memory { _nodes: nodes, stop })))
}

async fn start_raft(number: u64) -> Result<System, Error> {
    let failed = part("starting Raft");
    let (scheme, token) = (format!("bench-raft-{number}"), token());
    let credential = Credential { name: "bench".to_owned(), token: token.clone() };
    let links = RmaLinks::new(Arc::new(Shm::default()), credential, Arc::new(move |_| Some(token.clone())));
    rt::net::register(&scheme, Arc::new(links));
    let member = |id| Member { id, address: format!("{scheme}:local:{scheme}-{id}"), learns: false };
    let members: Vec<Member> = (1..=u64::from(NODES)).map(member).collect();
    let timing = raft::Timing { tick: Duration::from_millis(25), ..raft::Timing::default() };
    let mut stores = Vec::new();
    for member in &members {
        let options = raft::Options {
            timing,
            is_commit_lazy: true,
            ..raft::Options::new(number + 1, member.id, members.clone())
        };
        stores.push(RaftStore::start(options).await.map_err(&failed)?);
    }
    let start = rt::now();
    loop {
        for store in &stores {
            if store.raft().role().borrow().is_leading && store.raft().barrier().await.is_ok() {
                return Ok(System::Raft(store.clone(), Arc::new(stores)));
            }
        }
        if start.elapsed() > ELECTION_MAX {
            return Err(Error::Part { what: "starting Raft", reason: "nobody was elected".to_owned() });
        }
        rt::sleep(Duration::from_millis(10)).await;
    }
}
