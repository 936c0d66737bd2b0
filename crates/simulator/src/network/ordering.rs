//! Several orderers of the channel: the engines that they order with, the memory nodes that one of these has its log on, which lose
//! all they hold in a crash, and what is seen of all this from outside.
//!
//! Who watches an orderer ([`watch`]) sees each block as soon as the orderer may show it, before a peer does. It must be the one that
//! every other orderer has shown at that number; and, but on Raft, whose own logs are what is durable there, it must be on the disks of
//! a majority of the orderers at that moment.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::Stop;
use base::rt::simulation::CLOCK_DRIFT_PPM_MAX;
use base::{BlockNumber, ErrorKind};
use chain::order::chain::Chain;
use chain::order::{Engines, SoloEngines};
use consensus::ordered::sift::{Neighbour, Sift, SiftOptions};
use consensus::ordered::{Journal, OrderedLog, Processor, Role};
use consensus::raft::{self, Member, RaftLog};
use consensus::{Error, Group, GroupId, GroupMemory, Layout, MemoryNode, MemoryNodeOptions, Place, Term, Timing};
use futures_util::future::select;
use identity::Hash;
use ledger::Block;
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};

use super::Network;
use super::nodes::Ended;
use crate::coverage::{FAILOVER_ON_RAFT, FAILOVER_ON_SIFT, GROUP_MADE_ANEW, MEMORY_NODE_BACK};
use crate::scenario::Ordering;

const GROUP: GroupId = GroupId(1);
const TOKEN: Token = Token::new([9; TOKEN_BYTES]);
/// Numbers of memory nodes, behind those of peers.
const FIRST_NUMBER: u32 = 1000;
/// A block is an entry, and an entry a quarter of the log at most. More would only take longer to simulate.
const LAYOUT: Layout =
    Layout { log_bytes: 512 << 10, direct_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shares: 1 };
/// How long a keeper may take to answer: some syncs of the slowest disks.
const DISK_MAX: Duration = Duration::from_millis(500);
const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(25),
    lease: Duration::from_millis(100),
    election_timeout: Duration::from_millis(120),
    attempt_max: Duration::from_millis(80),
    answer_max: Duration::from_millis(200),
    grace: Duration::from_millis(4),
    reconnect: Duration::from_millis(40),
    copy_bytes_per_second: Timing::UNLIMITED,
};
const RAFT_TIMING: raft::Timing = raft::Timing {
    tick: Duration::from_millis(10),
    heartbeat_ticks: 3,
    election_ticks: 12,
    drift_ppm_max: CLOCK_DRIFT_PPM_MAX as u32,
};
/// So few that orderers who were away get blocks from the logs of others.
const RAFT_LOG_BYTES: usize = 100_000;

/// What is known of the orderers from outside.
#[derive(Default)]
pub struct Orderers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The blocks that orderers have shown.
    shown: Vec<Hash>,
    running: BTreeMap<String, Arc<Chain>>,
    /// By orderer that does not run: how many blocks were on its disk when it ended.
    left: BTreeMap<String, u64>,
    /// Who has led in the greatest term.
    leader: Option<(Term, String)>,
    /// Whether a memory node has lost what it held, and whether whoever leads has noticed.
    lost: (bool, bool),
    counts: BTreeMap<&'static str, u64>,
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// How many of these orderers have a block on disk. A disk that fails does not say what is on it.
    fn on_disks(&self, orderers: &[String], number: u64, hash: Hash) -> usize {
        let has = |name: &&String| match self.running.get(*name) {
            None => self.left.get(*name).is_some_and(|durable| *durable > number),
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

impl Orderers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has happened, by the names of [`crate::coverage`].
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }
}

/// An orderer that runs. Whenever this is dropped, by a crash too, it is known what is on the orderer's disk then.
pub struct Up {
    network: Arc<Network>,
    name: String,
}

impl Up {
    pub fn new(network: &Arc<Network>, name: &str, chain: &Arc<Chain>) -> Up {
        network.orderers.lock().running.insert(name.to_owned(), Arc::clone(chain));
        Up { network: Arc::clone(network), name: name.to_owned() }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let mut orderers = self.network.orderers.lock();
        if let Some(chain) = orderers.running.remove(&self.name) {
            orderers.left.insert(self.name.clone(), chain.store().durable_height());
        }
    }
}

/// Watches an orderer for as long as it runs: what it may show, and whether it leads. See [the module](self).
pub async fn watch(network: Arc<Network>, name: String, chain: Arc<Chain>, engines: Arc<OrdererEngines>) {
    let (mut height, mut role) = (chain.durable(), chain.role());
    let mut shown = 0;
    loop {
        let now = *height.borrow_and_update();
        while shown < now {
            match chain.block(shown) {
                Ok(Some(bytes)) => match Block::parse(&bytes) {
                    Ok(block) => may_show(&network, &name, shown, block.hash()),
                    Err(error) => network.witness.accuse(format_args!("{name} shows block {shown}: {error}")),
                },
                Ok(None) => {
                    return network.witness.accuse(format_args!("{name} may show block {shown}, and does not have it"));
                }
                // The disk may fail; a later start looks again.
                Err(error) if error.kind() != ErrorKind::Corrupt => return,
                Err(error) => return network.witness.accuse(format_args!("{name}, block {shown}: {error}")),
            }
            shown += 1;
        }
        if let Role::Leading { term, next } = *role.borrow_and_update() {
            leads(&network, &name, term, next);
        }
        look_at_memory(&network, &engines);
        select(pin!(height.changed()), pin!(role.changed())).await;
        if chain.failure().is_some() {
            return;
        }
    }
}

/// An orderer may show a block.
fn may_show(network: &Network, name: &str, number: u64, hash: Hash) {
    let (mut orderers, all) = (network.orderers.lock(), network.scenario.orderers());
    let wrong = match orderers.shown.get(number as usize) {
        Some(before) if *before == hash => return,
        Some(_) => format!("{name} shows another block {number} than was shown before"),
        None if number as usize > orderers.shown.len() => {
            format!("{name} shows block {number}, and {} were shown", orderers.shown.len())
        }
        None => {
            orderers.shown.push(hash);
            // Each orderer was given the first block by its operator.
            if number == 0 || network.scenario.ordering == Ordering::Raft {
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
    network.witness.accuse(wrong);
}

fn leads(network: &Network, name: &str, term: Term, next: u64) {
    let mut orderers = network.orderers.lock();
    let before = orderers.leader.clone();
    if before.as_ref().is_some_and(|(last, _)| *last >= term) {
        return;
    }
    orderers.leader = Some((term, name.to_owned()));
    if let Some((last, leader)) = before {
        if leader != name {
            orderers.count(match network.scenario.ordering {
                Ordering::Raft => FAILOVER_ON_RAFT,
                _ => FAILOVER_ON_SIFT,
            });
        }
        if term.era() > last.era() {
            orderers.count(GROUP_MADE_ANEW);
        }
    }
    drop(orderers);
    if network.scenario.ordering.is_group() {
        network.witness.tell(format_args!("{name} leads in term {term} from block {next}"));
    }
}

/// Whether a group that had lost a memory node has all of them again.
fn look_at_memory(network: &Network, engines: &OrdererEngines) {
    let Some(status) = engines.sift.get().and_then(|sift| sift.status()) else { return };
    let mut orderers = network.orderers.lock();
    let (lost, noticed) = orderers.lost;
    let is_whole = status.live == network.scenario.logs().len();
    orderers.lost = match (lost, is_whole) {
        (true, true) if noticed => {
            orderers.count(MEMORY_NODE_BACK);
            (false, false)
        }
        (_, false) => (lost, lost),
        (_, true) => (lost, false),
    };
}

/// Takes as much from a group as it must do without: one orderer is cut off from the others and their memory, though not from peers
/// and clients, and F memory nodes go.
pub fn leave_a_majority(network: &Network, away: &str) {
    let (orderers, logs) = (network.scenario.orderers(), network.scenario.logs());
    for other in orderers.iter().filter(|other| *other != away).chain(&logs) {
        network.sim.cut(away, other);
    }
    let lost = &logs[..logs.len() / 2];
    lost.iter().for_each(|log| network.node(log).crash());
    network.witness.tell(format_args!("{away} is cut off from the other orderers, and {lost:?} are gone"));
}

/// What an orderer orders with.
pub struct OrdererEngines {
    network: Arc<Network>,
    /// The orderer's node.
    name: String,
    /// What it has on memory nodes, once that is open.
    sift: OnceLock<Arc<Sift>>,
}

impl OrdererEngines {
    pub fn new(network: &Arc<Network>, name: &str) -> Arc<OrdererEngines> {
        Arc::new(OrdererEngines { network: Arc::clone(network), name: name.to_owned(), sift: OnceLock::new() })
    }
}

#[async_trait]
impl Engines for OrdererEngines {
    async fn open(&self, channel: &str, journal: Arc<dyn Journal>) -> Result<Arc<dyn OrderedLog>, Error> {
        let names = self.network.scenario.orderers();
        let number = (1..).zip(&names).find_map(|(number, name)| (*name == self.name).then_some(number));
        let number = number.expect("an orderer's node");
        match self.network.scenario.ordering {
            Ordering::Solo => SoloEngines.open(channel, journal).await,
            Ordering::Raft => {
                let member = |(id, name): (u64, &String)| Member { id, address: format!("{name} raft"), learns: false };
                let options = raft::Options {
                    directory: Some("/raft".into()),
                    timing: RAFT_TIMING,
                    log_bytes: RAFT_LOG_BYTES / 4,
                    snapshot_after_bytes: RAFT_LOG_BYTES,
                    segment_bytes: Some(RAFT_LOG_BYTES as u64 / 2),
                    ..raft::Options::new(GROUP.0, number, (1..).zip(&names).map(member).collect())
                };
                Ok(Arc::new(RaftLog::open(options, journal).await?))
            }
            Ordering::Sift { .. } => {
                let place = |address| Place { address, name: "orderer".into(), token: TOKEN };
                let group = Group {
                    id: GROUP,
                    layout: LAYOUT,
                    nodes: self.network.scenario.logs().into_iter().map(place).collect(),
                    fabric: Arc::new(self.network.fabric.clone()),
                    timing: TIMING,
                };
                let keeper = |(number, name): (u64, &String)| Neighbour {
                    processor: Processor(number),
                    address: format!("{name} keeper"),
                };
                let sift = Sift::open(SiftOptions {
                    group,
                    me: Processor(number),
                    processors: (1..).zip(&names).map(keeper).collect(),
                    journal,
                    volatile: false,
                    disk_max: DISK_MAX,
                });
                let sift = Arc::new(sift.await?);
                Ok(Arc::clone(self.sift.get_or_init(|| sift)) as Arc<dyn OrderedLog>)
            }
        }
    }
}

/// The role of a memory node of the orderers.
pub async fn remember(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let number = network.scenario.logs().iter().position(|node| *node == name).unwrap_or_default();
    let options = HostOptions {
        node: NodeId(FIRST_NUMBER + number as u32),
        tokens: Arc::new(|asking| (asking == "orderer").then_some(TOKEN)),
    };
    let host = network.fabric.host(&name, options).await?;
    let groups = vec![GroupMemory { id: GROUP, layout: LAYOUT }];
    let node = MemoryNode::start(MemoryNodeOptions { host, groups, stop: Stop::new() }).await?;
    {
        // The first time, there was nothing to lose.
        let mut orderers = network.orderers.lock();
        orderers.lost = (orderers.leader.is_some(), false);
    }
    std::future::pending::<()>().await;
    drop(node);
    Err(Ended { kind: ErrorKind::Closed, reason: "nothing ends a memory node but a crash".to_owned() })
}
