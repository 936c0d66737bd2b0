//! The key-value stores that are measured, over shared memory, all volatile.
//!
//! * `sift`: 2F+1 passive memory nodes, one coordinator; `sift-coded`: the same with coded blocks.
//! * `raft`: 2F+1 nodes of the Raft engine with a store on each, linked by messages over the same provider. What follows
//!   learns of commits with the next entry, so that there are no more messages than must be.
//!
//! [`System::start`] has all of one in this process. Its parts can also be had one by one, for processes of their own
//! ([`super::processes`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::{self, Stop};
use consensus::kv::{Options as StoreOptions, Sizes, Store as SiftStore};
use consensus::raft::kv::Store as RaftStore;
use consensus::raft::{self, Member};
use consensus::{Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Standby, Timing, Unopened};
use rma::links::RmaLinks;
use rma::shm::Shm;
use rma::{Credential, Fabric, HostOptions, NodeId, Token};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Bytes of the group's log.
pub(super) const GROUP_LOG_BYTES: u64 = 4 << 20;
/// How long a leader may take to be there.
const ELECTION_MAX: Duration = Duration::from_secs(20);
/// Head and key of an entry of the store's log.
const ENTRY_BYTES_BESIDE_VALUE: u64 = 40 + 16;
const GROUP: GroupId = GroupId(1);
const NAME: &str = "bench";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// How large a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// What it is.
    pub kind: Kind,
    /// Failures that it survives: F.
    pub failures: u32,
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes of the store's log, of Sift.
    pub log_bytes: u64,
    /// Bytes of the coordinator's cache, of Sift.
    pub cache_bytes: usize,
}

impl Shape {
    /// With log and cache as they are unless somebody chooses others.
    pub fn new(kind: Kind, failures: u32, keys: u64, value_bytes: usize) -> Shape {
        let (log_bytes, cache_bytes) = (Sizes::default().log_bytes, StoreOptions::default().cache_bytes);
        Shape { kind, failures, keys, value_bytes, log_bytes, cache_bytes }
    }

    /// Memory nodes, or nodes of Raft.
    pub fn nodes(&self) -> u32 {
        2 * self.failures + 1
    }

    fn sizes(&self) -> Sizes {
        let block_bytes = (self.value_bytes as u64 + 80).next_multiple_of(64).max(1152);
        // A put waits while there are fewer free blocks than all that is not applied may need: as many as a full log has entries.
        let entries = self.log_bytes / (self.value_bytes as u64 + ENTRY_BYTES_BESIDE_VALUE).next_multiple_of(64);
        let blocks = (self.keys + self.keys / 8 + entries).next_multiple_of(512);
        Sizes { log_bytes: self.log_bytes, buckets: self.keys.next_power_of_two(), blocks, block_bytes }
    }

    fn layout(&self) -> Result<Layout, consensus::Error> {
        let data_shares = if self.kind == Kind::SiftCoded { self.failures + 1 } else { 1 };
        Ok(Layout { data_shares, ..self.sizes().group_layout(GROUP_LOG_BYTES)? })
    }

    /// The group whose memory nodes are at these addresses.
    ///
    /// # Errors
    /// Sizes that make no sense.
    pub fn group(&self, addresses: &[String], token: &Token, timing: Timing) -> Result<Group, Error> {
        let place = |address: &String| Place { address: address.clone(), name: NAME.to_owned(), token: token.clone() };
        let layout = self.layout().map_err(part("starting Sift"))?;
        let fabric: Arc<dyn Fabric> = Arc::new(Shm::default());
        Ok(Group { id: GROUP, layout, nodes: addresses.iter().map(place).collect(), fabric, timing })
    }

    /// A memory node of such a group.
    ///
    /// # Errors
    /// No memory, or the address is taken.
    pub async fn memory(&self, group: &Group, node: u32, stop: &Stop) -> Result<Arc<MemoryNode>, Error> {
        let place = &group.nodes[node as usize];
        let known = place.token.clone();
        let options = HostOptions { node: NodeId(node), tokens: Arc::new(move |_| Some(known.clone())) };
        let host = group.fabric.host(&place.address, options).await;
        let host = host.map_err(|error| Error::Part { what: "a memory node", reason: error.to_string() })?;
        let groups = vec![GroupMemory { id: group.id, layout: group.layout }];
        let options = MemoryNodeOptions { host, groups, stop: stop.clone() };
        MemoryNode::start(options).await.map_err(part("a memory node"))
    }

    /// The store that a coordinator serves.
    ///
    /// # Errors
    /// As the store says.
    pub async fn serve(&self, unopened: Unopened) -> Result<SiftStore, consensus::Error> {
        SiftStore::take_over_unopened(unopened, self.sizes(), StoreOptions { cache_bytes: self.cache_bytes }).await
    }
}

/// A store that runs. It ends when it is dropped.
#[derive(Clone)]
pub enum System {
    /// Sift's, and its memory nodes where they are in this process.
    Sift(SiftStore, Option<Arc<Memory>>),
    /// The leader's, and all nodes of this process.
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

pub(super) fn part(what: &'static str) -> impl Fn(consensus::Error) -> Error {
    move |error| Error::Part { what, reason: error.to_string() }
}

impl System {
    /// Starts one with nothing in it.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(shape: &Shape) -> Result<System, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        match shape.kind {
            Kind::Sift | Kind::SiftCoded => start_sift(shape, number).await,
            Kind::Raft => start_raft(shape, number).await,
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

/// A machine with much else to do is not always there when a heartbeat is due, and nobody is to take over.
pub fn patient() -> Timing {
    Timing { lease: Duration::from_secs(5), ..Timing::default() }
}

async fn start_sift(shape: &Shape, number: u64) -> Result<System, Error> {
    let failed = part("starting Sift");
    let addresses: Vec<String> = (0..shape.nodes()).map(|node| format!("local:bench-sift-{number}-{node}")).collect();
    let (group, stop) = (shape.group(&addresses, &Token::random(), patient())?, Stop::new());
    let mut nodes = Vec::new();
    for node in 0..shape.nodes() {
        nodes.push(shape.memory(&group, node, &stop).await?);
    }
    consensus::format(&group).await.map_err(&failed)?;
    let unopened = Standby::new(group, 1).map_err(&failed)?.take_over_unopened().await.map_err(&failed)?;
    let store = shape.serve(unopened).await.map_err(&failed)?;
    Ok(System::Sift(store, Some(Arc::new(Memory { _nodes: nodes, stop }))))
}

/// Where a node of Raft listens, at an address of the provider.
pub fn raft_members(scheme: &str, addresses: &[String]) -> Vec<Member> {
    let member = |(id, address)| Member { id, address: format!("{scheme}:{address}"), learns: false };
    (1..).zip(addresses).map(member).collect()
}

/// Has addresses of a scheme be those of the provider.
pub fn register_links(scheme: &str, token: &Token) {
    let credential = Credential { name: NAME.to_owned(), token: token.clone() };
    let known = token.clone();
    let links = RmaLinks::new(Arc::new(Shm::default()), credential, Arc::new(move |_| Some(known.clone())));
    rt::net::register(scheme, Arc::new(links));
}

/// A node of Raft.
///
/// # Errors
/// It cannot be started.
pub async fn raft_node(group: u64, id: u64, members: &[Member]) -> Result<RaftStore, Error> {
    // A second until somebody else is elected; also the first of all waits for that long.
    let timing = raft::Timing { tick: Duration::from_millis(50), ..raft::Timing::default() };
    let options = raft::Options { timing, is_commit_lazy: true, ..raft::Options::new(group, id, members.to_vec()) };
    RaftStore::start(options).await.map_err(part("starting Raft"))
}

/// Whether a node leads, and everything before is applied.
pub async fn leads(store: &RaftStore) -> bool {
    let is_leading = store.raft().role().borrow().is_leading;
    is_leading && store.raft().barrier().await.is_ok()
}

async fn start_raft(shape: &Shape, number: u64) -> Result<System, Error> {
    let scheme = format!("bench-raft-{number}");
    register_links(&scheme, &Token::random());
    let addresses: Vec<String> = (1..=shape.nodes()).map(|id| format!("local:{scheme}-{id}")).collect();
    let members = raft_members(&scheme, &addresses);
    let mut stores = Vec::new();
    for member in &members {
        stores.push(raft_node(number + 1, member.id, &members).await?);
    }
    let start = rt::now();
    loop {
        for store in &stores {
            if leads(store).await {
                return Ok(System::Raft(store.clone(), Arc::new(stores)));
            }
        }
        if start.elapsed() > ELECTION_MAX {
            return Err(Error::Part { what: "starting Raft", reason: "nobody was elected".to_owned() });
        }
        rt::sleep(Duration::from_millis(10)).await;
    }
}
