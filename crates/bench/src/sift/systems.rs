//! The measured key-value stores, over shared memory, all without persistence.
//!
//! * `sift`: 2F+1 passive memory nodes and one coordinator.
//! * `sift-coded`: as `sift`, with erasure-coded memory blocks.
//! * `raft`: 2F+1 nodes of the Raft engine with a store on each, linked by messages over the same provider. Followers
//!   learn of a commit with the next entry, which saves a message.
//!
//! [`KvSystem::start`] starts a whole store in this process. The parts can also be started one by one, in separate processes
//! ([`super::child_processes`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::{self, CancellationToken};
use kv::raft_baseline::RaftKvStore as RaftStore;
use kv::{KvConfig as StoreOptions, KvStore as SiftStore, StoreGeometry};
use raft::RaftMember;
use rma::links::RmaTransport;
use rma::shm::ShmProvider;
use rma::{Credential, HostConfig, NodeId, Provider, Token};
use serde::{Deserialize, Serialize};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, RecoveredCoordinator,
    SiftGroup, SiftTimeouts, Standby,
};

use measurement::error::Error;

/// Bytes of the group's log.
pub(super) const GROUP_LOG_BYTES: u64 = 4 << 20;
/// How long the election of a leader may take.
const ELECTION_MAX: Duration = Duration::from_secs(20);
/// Head and key of an entry of the store's log.
const ENTRY_BYTES_BESIDE_VALUE: u64 = 40 + 16;
const GROUP: GroupId = GroupId(1);
const NAME: &str = "bench";

/// The kind of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SystemKind {
    /// Sift, whole copies.
    Sift,
    /// Sift, erasure-coded blocks.
    SiftErasureCoded,
    /// Raft.
    Raft,
}

impl SystemKind {
    /// All of them.
    pub const ALL: [SystemKind; 3] = [SystemKind::Sift, SystemKind::SiftErasureCoded, SystemKind::Raft];

    /// As figures call it.
    pub fn name(self) -> &'static str {
        match self {
            SystemKind::Sift => "sift",
            SystemKind::SiftErasureCoded => "sift-coded",
            SystemKind::Raft => "raft",
        }
    }
}

/// The size of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KvGeometry {
    /// Its kind.
    pub kind: SystemKind,
    /// Failures that it survives: F.
    pub failures: u32,
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Bytes of the store's log, for Sift.
    pub log_bytes: u64,
    /// Bytes of the coordinator's cache, for Sift.
    pub cache_bytes: usize,
}

impl KvGeometry {
    /// A shape with the default sizes of log and cache.
    pub fn new(kind: SystemKind, failures: u32, keys: u64, value_bytes: usize) -> KvGeometry {
        let (log_bytes, cache_bytes) = (StoreGeometry::default().log_bytes, StoreOptions::default().cache_bytes);
        KvGeometry { kind, failures, keys, value_bytes, log_bytes, cache_bytes }
    }

    /// Memory nodes, or nodes of Raft.
    pub fn nodes(&self) -> u32 {
        2 * self.failures + 1
    }

    fn sizes(&self) -> StoreGeometry {
        let block_bytes = (self.value_bytes as u64 + 80).next_multiple_of(64).max(1152);
        // A put waits while there are fewer free blocks than the unapplied entries may need: as many as a full log has entries.
        let entries = self.log_bytes / (self.value_bytes as u64 + ENTRY_BYTES_BESIDE_VALUE).next_multiple_of(64);
        let blocks = (self.keys + self.keys / 8 + entries).next_multiple_of(512);
        StoreGeometry { log_bytes: self.log_bytes, buckets: self.keys.next_power_of_two(), blocks, block_bytes }
    }

    fn layout(&self) -> Result<GroupLayout, kv::Error> {
        let data_shards = if self.kind == SystemKind::SiftErasureCoded { self.failures + 1 } else { 1 };
        Ok(GroupLayout { data_shards, ..self.sizes().group_layout(GROUP_LOG_BYTES)? })
    }

    /// The group whose memory nodes are at these addresses.
    ///
    /// # Errors
    /// The sizes are inconsistent.
    pub fn group(&self, addresses: &[String], token: &Token, timing: SiftTimeouts) -> Result<SiftGroup, Error> {
        let place = |address: &String| MemoryNodeAddress {
            address: address.clone(),
            name: NAME.to_owned(),
            token: token.clone(),
        };
        let layout = self.layout().map_err(part("starting Sift"))?;
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        Ok(SiftGroup { id: GROUP, layout, nodes: addresses.iter().map(place).collect(), provider, timing })
    }

    /// A memory node of such a group.
    ///
    /// # Errors
    /// There is not enough memory, or the address is in use.
    pub async fn memory(
        &self,
        group: &SiftGroup,
        node: u32,
        stop: &CancellationToken,
    ) -> Result<Arc<LogMemoryNode>, Error> {
        let place = &group.nodes[node as usize];
        let known = place.token.clone();
        let options = HostConfig { node: NodeId(node), tokens: Arc::new(move |_| Some(known.clone())) };
        let host = group.provider.host(&place.address, options).await;
        let host = host.map_err(|error| Error::Part { what: "a memory node", reason: error.to_string() })?;
        let groups = vec![GroupMemory { id: group.id, layout: group.layout }];
        let options = LogMemoryNodeConfig { host, groups, stop: stop.clone() };
        LogMemoryNode::start(options).await.map_err(part("a memory node"))
    }

    /// Opens the store that a coordinator serves.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn serve(&self, recovered: RecoveredCoordinator) -> Result<SiftStore, kv::Error> {
        SiftStore::take_over_recovered(recovered, self.sizes(), StoreOptions { cache_bytes: self.cache_bytes }).await
    }
}

/// An error of either kind of store.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

/// A store that runs. It ends when it is dropped.
#[derive(Clone)]
pub enum KvSystem {
    /// Sift's, and its memory nodes if they are in this process.
    Sift(SiftStore, Option<Arc<RunningMemoryNodes>>),
    /// The leader's, and all nodes of this process.
    Raft(RaftStore, Arc<Vec<RaftStore>>),
}

/// Memory nodes, which end when this does.
pub struct RunningMemoryNodes {
    _nodes: Vec<Arc<LogMemoryNode>>,
    stop: CancellationToken,
}

impl Drop for RunningMemoryNodes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(super) fn part<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Part { what, reason: error.to_string() }
}

impl KvSystem {
    /// Starts an empty one.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(shape: &KvGeometry) -> Result<KvSystem, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        match shape.kind {
            SystemKind::Sift | SystemKind::SiftErasureCoded => start_sift(shape, number).await,
            SystemKind::Raft => start_raft(shape, number).await,
        }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put(&self, key: &Bytes, value: &Bytes) -> Result<(), StoreError> {
        match self {
            KvSystem::Sift(store, _) => {
                store.put(key.clone(), value.clone()).await?;
                Ok(())
            }
            KvSystem::Raft(store, _) => {
                store.put(key, value).await?;
                Ok(())
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get(&self, key: &Bytes) -> Result<Option<Bytes>, StoreError> {
        match self {
            KvSystem::Sift(store, _) => Ok(store.get(key).await?.map(|found| found.value)),
            KvSystem::Raft(store, _) => Ok(store.get(key).await?.map(|found| found.value)),
        }
    }
}

/// Time-outs for a busy machine, which may send heartbeats late, where no other node is to take over.
pub fn relaxed_timing() -> SiftTimeouts {
    SiftTimeouts { lease: Duration::from_secs(5), ..SiftTimeouts::default() }
}

async fn start_sift(shape: &KvGeometry, number: u64) -> Result<KvSystem, Error> {
    let failed = part("starting Sift");
    let addresses: Vec<String> = (0..shape.nodes()).map(|node| format!("local:bench-sift-{number}-{node}")).collect();
    let (group, stop) = (shape.group(&addresses, &Token::random(), relaxed_timing())?, CancellationToken::new());
    let mut nodes = Vec::new();
    for node in 0..shape.nodes() {
        nodes.push(shape.memory(&group, node, &stop).await?);
    }
    sift::format(&group).await.map_err(&failed)?;
    let recovered = Standby::new(group, 1).map_err(&failed)?.take_over_without_waiting().await.map_err(&failed)?;
    let store = shape.serve(recovered).await.map_err(part("starting Sift"))?;
    Ok(KvSystem::Sift(store, Some(Arc::new(RunningMemoryNodes { _nodes: nodes, stop }))))
}

/// The members of a Raft group that listen at these addresses of the provider.
pub fn raft_members(scheme: &str, addresses: &[String]) -> Vec<RaftMember> {
    let member = |(id, address)| RaftMember { id, address: format!("{scheme}:{address}"), is_learner: false };
    (1..).zip(addresses).map(member).collect()
}

/// Registers a scheme whose addresses are those of the provider.
pub fn register_links(scheme: &str, token: &Token) {
    let credential = Credential { name: NAME.to_owned(), token: token.clone() };
    let known = token.clone();
    let links = RmaTransport::new(Arc::new(ShmProvider::default()), credential, Arc::new(move |_| Some(known.clone())));
    rt::net::register(scheme, Arc::new(links));
}

/// Starts a node of Raft.
///
/// # Errors
/// It cannot be started.
pub async fn raft_node(group: u64, id: u64, members: &[RaftMember]) -> Result<RaftStore, Error> {
    // A second until another node is elected; the first election takes as long.
    let timing = raft::RaftTimeouts { tick: Duration::from_millis(50), ..raft::RaftTimeouts::default() };
    let options =
        raft::RaftConfig { timing, is_commit_lazy: true, ..raft::RaftConfig::new(group, id, members.to_vec()) };
    RaftStore::start(options).await.map_err(part("starting Raft"))
}

/// Whether a node leads, and has applied all earlier entries.
pub async fn is_leader(store: &RaftStore) -> bool {
    let is_leading = store.raft().status().borrow().is_leading;
    is_leading && store.raft().barrier().await.is_ok()
}

async fn start_raft(shape: &KvGeometry, number: u64) -> Result<KvSystem, Error> {
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
            if is_leader(store).await {
                return Ok(KvSystem::Raft(store.clone(), Arc::new(stores)));
            }
        }
        if start.elapsed() > ELECTION_MAX {
            return Err(Error::Part { what: "starting Raft", reason: "no leader was elected".to_owned() });
        }
        rt::sleep(Duration::from_millis(10)).await;
    }
}
