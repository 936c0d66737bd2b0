//! Groups of orderers for the channel: their ordering engines, the memory nodes of the Sift engine, which lose their contents
//! in a crash, and the observation of the orderers from outside.
//!
//! [`observe_orderer`] sees each block as soon as an orderer may show it, before a peer sees it. The block must equal the block
//! that every other orderer has shown at that number. It must also be on the disks of a majority of the orderers at that
//! moment; the exception is Raft, where the engine's own logs are the durable copies.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::CancellationToken;
use base::{BlockNumber, ErrorKind};
use chain::order::orderer_channel::OrdererChannel;
use chain::order::{OrderingEngines, SoloEngines};
use futures_util::future::select;
use identity::Hash;
use ledger::Block;
use ordered_log::raft::RaftLog;
use ordered_log::sift::{CpuNode, SiftConfig, SiftLog};
use ordered_log::{CpuNodeId, Error, Leadership, LogStore, OrderedLog, Term};
use raft::RaftMember;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
};

use super::Network;
use super::nodes::Ended;
use crate::client::wait_until;
use crate::coverage::{FAILOVER_ON_RAFT, FAILOVER_ON_SIFT, GROUP_REFORMATTED, MEMORY_NODE_READMITTED};
use crate::scenario::OrderingEngine;
use crate::seed::HEALTHY_MAX;

const GROUP: GroupId = GroupId(1);
const TOKEN: Token = Token::new([9; TOKEN_BYTES]);
/// First number of the memory nodes, above those of peers.
const FIRST_NUMBER: u32 = 1000;
/// A block is an entry, and an entry is at most a quarter of the log. A larger log would only take longer to simulate.
const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 512 << 10, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 };
/// How long an acceptor may take to answer: some syncs of the slowest disks.
const DISK_TIMEOUT: Duration = Duration::from_millis(500);
const TIMING: SiftTimeouts = SiftTimeouts {
    heartbeat: Duration::from_millis(25),
    lease: Duration::from_millis(100),
    election_timeout: Duration::from_millis(120),
    attempt_max: Duration::from_millis(80),
    answer_max: Duration::from_millis(200),
    grace: Duration::from_millis(4),
    reconnect: Duration::from_millis(40),
    copy_bytes_per_second: SiftTimeouts::UNLIMITED,
};
const RAFT_TIMING: raft::RaftTimeouts =
    raft::RaftTimeouts { tick: Duration::from_millis(10), heartbeat_ticks: 3, election_ticks: 12 };
/// So small that orderers that were away get blocks from the log stores of others.
const RAFT_LOG_BYTES: usize = 100_000;

/// The observations of the orderers from outside.
#[derive(Default)]
pub struct OrdererObservations(Mutex<OrdererObservationsInner>);

#[derive(Default)]
struct OrdererObservationsInner {
    /// The blocks that orderers have shown.
    visible: Vec<Hash>,
    running: BTreeMap<String, Arc<OrdererChannel>>,
    /// By orderer: its newest engine on memory nodes.
    sifts: BTreeMap<String, Weak<SiftLog>>,
    /// By orderer that does not run: the number of blocks that were on its disk when it ended.
    durable_heights: BTreeMap<String, u64>,
    /// The leader of the greatest term.
    leader: Option<(Term, String)>,
    /// Whether a memory node has lost its contents, and whether the leader has noticed.
    lost: (bool, bool),
    counts: BTreeMap<&'static str, u64>,
}

impl OrdererObservationsInner {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// How many of these orderers have a block on disk. A disk that fails does not say what is on it.
    fn on_disks(&self, orderers: &[String], number: u64, hash: Hash) -> usize {
        let has = |name: &&String| match self.running.get(*name) {
            None => self.durable_heights.get(*name).is_some_and(|durable| *durable > number),
            Some(chain) => {
                let store = chain.store();
                let is_other = || match store.read(BlockNumber(number)) {
                    Ok(Some(bytes)) => Block::parse(&bytes).map_or(true, |block| block.hash() != hash),
                    Ok(None) => true,
                    Err(_) => false,
                };
                store.durable_height() > number && !is_other()
            }
        };
        orderers.iter().filter(has).count()
    }
}

impl OrdererObservations {
    fn lock(&self) -> MutexGuard<'_, OrdererObservationsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events that have occurred, by the names of [`crate::coverage`].
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }
}

/// An orderer that runs. When this is dropped, also by a crash, it records the blocks that are on the orderer's disk then.
pub struct RunningOrderer {
    network: Arc<Network>,
    name: String,
}

impl RunningOrderer {
    /// Records that the orderer `name` runs with the log `chain`.
    pub fn new(network: &Arc<Network>, name: &str, chain: &Arc<OrdererChannel>) -> RunningOrderer {
        network.orderers.lock().running.insert(name.to_owned(), Arc::clone(chain));
        RunningOrderer { network: Arc::clone(network), name: name.to_owned() }
    }
}

impl Drop for RunningOrderer {
    fn drop(&mut self) {
        let mut orderers = self.network.orderers.lock();
        if let Some(chain) = orderers.running.remove(&self.name) {
            orderers.durable_heights.insert(self.name.clone(), chain.store().durable_height());
        }
    }
}

/// Watches an orderer as long as it runs: the blocks that it may show, and whether it leads. See [the module](self).
pub async fn observe_orderer(
    network: Arc<Network>,
    name: String,
    chain: Arc<OrdererChannel>,
    engines: Arc<OrdererEngines>,
) {
    let (mut height, mut role) = (chain.deliverable(), chain.role());
    let mut shown = 0;
    loop {
        let now = *height.borrow_and_update();
        while shown < now {
            match chain.block(shown) {
                Ok(Some(bytes)) => match Block::parse(&bytes) {
                    Ok(block) => check_deliverable(&network, &name, shown, block.hash()),
                    Err(error) => {
                        network.recorder.report_violation(format_args!("{name} shows block {shown}: {error}"))
                    }
                },
                Ok(None) => {
                    return network
                        .recorder
                        .report_violation(format_args!("{name} may show block {shown}, and does not have it"));
                }
                // The disk may fail; a later start checks again.
                Err(error) if error.kind() != ErrorKind::Corrupt => return,
                Err(error) => return network.recorder.report_violation(format_args!("{name}, block {shown}: {error}")),
            }
            shown += 1;
        }
        if let Leadership::Leading { term, next } = *role.borrow_and_update() {
            record_leader(&network, &name, term, next);
        }
        record_memory_recovery(&network, &engines);
        select(pin!(height.changed()), pin!(role.changed())).await;
        if chain.failure().is_some() {
            return;
        }
    }
}

/// An orderer may show a block.
fn check_deliverable(network: &Network, name: &str, number: u64, hash: Hash) {
    let (mut orderers, all) = (network.orderers.lock(), network.scenario.orderers());
    let wrong = match orderers.visible.get(number as usize) {
        Some(before) if *before == hash => return,
        Some(_) => format!("{name} shows another block {number} than was shown before"),
        None if number as usize > orderers.visible.len() => {
            format!("{name} shows block {number}, and {} were shown", orderers.visible.len())
        }
        None => {
            orderers.visible.push(hash);
            // Each orderer was given the first block by its operator.
            if number == 0 || network.scenario.ordering == OrderingEngine::Raft {
                return;
            }
            let (on_disks, needed) = (orderers.on_disks(&all, number, hash), all.len() / 2 + 1);
            if on_disks >= needed {
                return;
            }
            format!("{name} shows block {number}, which {on_disks} of {} orderers have on disk", all.len())
        }
    };
    drop(orderers);
    network.recorder.report_violation(wrong);
}

fn record_leader(network: &Network, name: &str, term: Term, next: u64) {
    let mut orderers = network.orderers.lock();
    let before = orderers.leader.clone();
    if before.as_ref().is_some_and(|(last, _)| *last >= term) {
        return;
    }
    orderers.leader = Some((term, name.to_owned()));
    if let Some((last, leader)) = before {
        if leader != name {
            orderers.count(match network.scenario.ordering {
                OrderingEngine::Raft => FAILOVER_ON_RAFT,
                _ => FAILOVER_ON_SIFT,
            });
        }
        if term.generation() > last.generation() {
            orderers.count(GROUP_REFORMATTED);
        }
    }
    drop(orderers);
    if network.scenario.ordering.is_group() {
        network.recorder.log(format_args!("{name} leads in term {term} from block {next}"));
    }
}

/// Records whether a group that had lost a memory node has all of them again.
fn record_memory_recovery(network: &Network, engines: &OrdererEngines) {
    let Some(status) = engines.sift.get().and_then(|sift| sift.status()) else { return };
    let mut orderers = network.orderers.lock();
    let (lost, noticed) = orderers.lost;
    let is_whole = status.live == network.scenario.logs().len();
    orderers.lost = match (lost, is_whole) {
        (true, true) if noticed => {
            orderers.count(MEMORY_NODE_READMITTED);
            (false, false)
        }
        (_, false) => (lost, lost),
        (_, true) => (lost, false),
    };
}

/// Waits until every memory node of a group has a complete copy again: before that, the group need not survive the loss of
/// as many as [`isolate_minority`] takes.
///
/// # Errors
/// If that takes too long.
pub async fn wait_until_whole(network: &Network) -> Result<(), String> {
    let logs = network.scenario.logs().len();
    let status = || {
        let orderers = network.orderers.lock();
        let running = orderers.sifts.values().filter_map(Weak::upgrade);
        running.filter_map(|sift| sift.status()).max_by_key(|status| status.term)
    };
    let is_whole = || logs == 0 || status().is_some_and(|status| status.live == logs);
    match wait_until(HEALTHY_MAX, is_whole).await {
        true => Ok(()),
        false => {
            Err(format!("the memory nodes of the orderers were not whole again within {HEALTHY_MAX:?}: {:?}", status()))
        }
    }
}

/// Takes away as much of a group as it must tolerate: one orderer is cut off from the others and their memory, but not from
/// peers and clients, and F memory nodes stop.
pub fn isolate_minority(network: &Network, away: &str) {
    let (orderers, logs) = (network.scenario.orderers(), network.scenario.logs());
    for other in orderers.iter().filter(|other| *other != away).chain(&logs) {
        network.sim.cut(away, other);
    }
    let lost = &logs[..logs.len() / 2];
    lost.iter().for_each(|log| network.node(log).crash());
    network.recorder.log(format_args!("{away} is cut off from the other orderers, and {lost:?} are gone"));
}

/// The ordering engines of an orderer.
pub struct OrdererEngines {
    network: Arc<Network>,
    /// The orderer's node.
    name: String,
    /// Its engine on memory nodes, once it is open.
    sift: OnceLock<Arc<SiftLog>>,
}

impl OrdererEngines {
    /// The engines of the orderer on the node `name`.
    pub fn new(network: &Arc<Network>, name: &str) -> Arc<OrdererEngines> {
        Arc::new(OrdererEngines { network: Arc::clone(network), name: name.to_owned(), sift: OnceLock::new() })
    }
}

#[async_trait]
impl OrderingEngines for OrdererEngines {
    async fn open(&self, channel: &str, log_store: Arc<dyn LogStore>) -> Result<Arc<dyn OrderedLog>, Error> {
        let names = self.network.scenario.orderers();
        let number = (1..).zip(&names).find_map(|(number, name)| (*name == self.name).then_some(number));
        let number = number.expect("an orderer's node");
        match self.network.scenario.ordering {
            OrderingEngine::Solo => SoloEngines.open(channel, log_store).await,
            OrderingEngine::Raft => {
                let member =
                    |(id, name): (u64, &String)| RaftMember { id, address: format!("{name} raft"), is_learner: false };
                let options = raft::RaftConfig {
                    directory: Some("/raft".into()),
                    timing: RAFT_TIMING,
                    log_bytes: RAFT_LOG_BYTES / 4,
                    snapshot_after_bytes: RAFT_LOG_BYTES,
                    segment_bytes: Some(RAFT_LOG_BYTES as u64 / 2),
                    ..raft::RaftConfig::new(GROUP.0, number, (1..).zip(&names).map(member).collect())
                };
                Ok(Arc::new(RaftLog::open(options, log_store).await?))
            }
            OrderingEngine::Sift { .. } => {
                let place = |address| MemoryNodeAddress { address, name: "orderer".into(), token: TOKEN };
                let group = SiftGroup {
                    id: GROUP,
                    layout: LAYOUT,
                    nodes: self.network.scenario.logs().into_iter().map(place).collect(),
                    provider: Arc::new(self.network.provider.clone()),
                    timing: TIMING,
                };
                let acceptor = |(number, name): (u64, &String)| CpuNode {
                    id: CpuNodeId(number),
                    address: format!("{name} keeper"),
                };
                let sift = SiftLog::open(SiftConfig {
                    group,
                    me: CpuNodeId(number),
                    cpu_nodes: (1..).zip(&names).map(acceptor).collect(),
                    log_store,
                    volatile: false,
                    disk_timeout: DISK_TIMEOUT,
                });
                let sift = Arc::new(sift.await?);
                self.network.orderers.lock().sifts.insert(self.name.clone(), Arc::downgrade(&sift));
                Ok(Arc::clone(self.sift.get_or_init(|| sift)) as Arc<dyn OrderedLog>)
            }
        }
    }
}

/// The role of a memory node of the orderers.
pub async fn run_log_memory_node(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let number = network.scenario.logs().iter().position(|node| *node == name).unwrap_or_default();
    let options = HostConfig {
        node: NodeId(FIRST_NUMBER + number as u32),
        tokens: Arc::new(|asking| (asking == "orderer").then_some(TOKEN)),
    };
    let host = network.provider.host(&name, options).await?;
    let groups = vec![GroupMemory { id: GROUP, layout: LAYOUT }];
    let node = LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() }).await?;
    {
        // The first time, there was nothing to lose.
        let mut orderers = network.orderers.lock();
        orderers.lost = (orderers.leader.is_some(), false);
    }
    std::future::pending::<()>().await;
    drop(node);
    Err(Ended { kind: ErrorKind::Closed, reason: "nothing ends a memory node but a crash".to_owned() })
}
