//! The pool of a network of `heddle up --isolate`, as a manager sees and changes it.
//!
//! * A node is heard when it answers at its control socket, with its role and its load. Its quota is that of the cgroup
//!   that the process has made for itself, version 1 or 2.
//! * A node is launched by making its files and entering it among the added nodes ([`AddedNodes`]): the supervisor starts
//!   it, restarts it, and ends it when it is struck out. A file in its folder says that a manager launched it.
//! * Storage is that of the primary's report. A storage node stops when it is entered among the stopped ones
//!   ([`StoppedStorage`]), and runs again when it is struck out; the supervisor follows that too.
//! * Memory is that of the primary's report. The reads of storage are added up from the metrics of all nodes of the peer.
//!
//! Nothing here is done by the manager's process alone: processes and memory stay when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::durable::{self, FileAccess};
use cgroup::CpuGroup;
use futures_util::future::join_all;
use manager::{
    Action, DueIntent, MemoryView, NODES_MAX, NodeOrigin, NodeView, Outcome, PeerView, Pool, PoolView, StorageCopy,
    StorageNodeView, StorageView,
};
use node::added_nodes::AddedNodes;
use node::control::{
    ComputeReport, ControlError, ControlRequest, StorageReport, request_memory, request_node, request_storage,
};
use node::{Endpoints, ProcessRole, Ready};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;

use crate::command::stopped_storage::StoppedStorage;
use crate::failure::CommandError;
use crate::{instance, page};

/// Time limit for a node's answer: a node that takes longer is not heard this time.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How often a primary is asked for its peer's memory and storage.
const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// In the folder of a node that a manager launched.
const MARK: &str = "managed";
/// The counter of reads that remote memory could not answer.
const MISSES: &str = "heddle_state_storage_reads_total";
/// The load of a node that reports none, because it is of an earlier release.
const UNKNOWN_PERCENT: u8 = 50;

/// A node as it was last heard.
struct HeardNode {
    at: Instant,
    report: ComputeReport,
}

/// The pool of the network in a directory.
pub struct LocalPool {
    dir: PathBuf,
    runtime: Handle,
    has_quotas: bool,
    heard: BTreeMap<String, HeardNode>,
    /// The supervisor that was last seen, and the nodes of its plan.
    planned: (u32, BTreeSet<String>),
    memory: BTreeMap<String, (Instant, MemoryView)>,
    storage: BTreeMap<String, KnownStorage>,
}

/// Where the copies of a peer are, as far as this manager knows.
struct KnownStorage {
    /// When the primary was last asked, and whether it answered.
    at: Instant,
    heard: bool,
    /// `None`: none has answered yet, or the peer's storage has no copies.
    report: Option<StorageReport>,
}

/// An organisation's peer.
struct LocalPeer {
    organization: String,
    /// The name of its first compute node.
    first: String,
}

impl LocalPeer {
    fn new(organization: &str) -> LocalPeer {
        let organization = organization.to_owned();
        LocalPeer { first: format!("compute-{}", organization.to_ascii_lowercase()), organization }
    }

    fn key(&self) -> String {
        self.organization.to_ascii_lowercase()
    }

    fn node(&self, number: usize) -> String {
        if number == 1 { self.first.clone() } else { format!("{}-{number}", self.first) }
    }

    /// The number of one of its nodes.
    fn number(&self, node: &str) -> Option<usize> {
        match node.strip_prefix(&self.first)? {
            "" => Some(1),
            rest => rest.strip_prefix('-')?.parse().ok(),
        }
    }
}

impl LocalPool {
    /// The pool of the network in a directory, whether it runs or not.
    pub fn new(dir: &Path, runtime: Handle) -> LocalPool {
        let (heard, memory, storage) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        LocalPool {
            dir: dir.to_owned(),
            runtime,
            has_quotas: can_have_quotas(),
            heard,
            planned: Default::default(),
            memory,
            storage,
        }
    }

    fn folder(&self, node: &str) -> PathBuf {
        self.dir.join("nodes").join(node)
    }

    /// Everything as it is now; nothing if the network does not run as separate processes here.
    pub async fn look(&mut self) -> PoolView {
        let Ok(Some(endpoints)) = instance::running(&self.dir) else { return PoolView::new() };
        let Ok(added) = AddedNodes::load(&self.dir) else { return PoolView::new() };
        if self.planned.0 != endpoints.process {
            self.planned = (endpoints.process, BTreeSet::new());
        }
        let added: Vec<String> =
            added.nodes.iter().filter(|node| node.address.is_none()).map(|node| node.name()).collect();
        // A node that is struck out of the added ones may still run.
        let is_planned = |process: &&Ready| process.role == ProcessRole::Compute && !process.is_added;
        let planned = endpoints.processes.iter().filter(is_planned).map(|process| process.name.clone());
        self.planned.1.extend(planned);
        let names: Vec<String> = self.planned.1.iter().chain(&added).cloned().collect();
        self.heard.retain(|name, _| names.contains(name));
        self.hear(&names).await;
        let peers: Vec<LocalPeer> = endpoints.gateways.iter().map(|gateway| LocalPeer::new(&gateway.name)).collect();
        let mut view = PoolView::new();
        for peer in &peers {
            let of_peer: Vec<&String> = names.iter().filter(|name| peer.number(name).is_some()).collect();
            let nodes: Vec<NodeView> = of_peer.iter().map(|name| self.node(name, &added)).collect();
            let memory = self.memory(peer, &nodes).await;
            let storage = self.storage(peer, &nodes).await;
            let free = (2..=NODES_MAX).map(|number| peer.node(number)).find(|name| !self.folder(name).exists());
            let has_quotas = self.has_quotas;
            view.insert(peer.key(), PeerView { nodes, memory, storage, free_name: free, has_quotas });
        }
        view
    }

    async fn hear(&mut self, names: &[String]) {
        let folders = names.iter().map(|name| self.folder(name));
        let asking = folders.map(|folder| async move {
            tokio::time::timeout(ANSWER_MAX, request_node(&folder)).await.ok().and_then(Result::ok)
        });
        let reports = join_all(asking).await;
        for (name, report) in names.iter().zip(reports) {
            if let Some(report) = report {
                self.heard.insert(name.clone(), HeardNode { at: Instant::now(), report });
            }
        }
    }

    fn node(&self, name: &str, added: &[String]) -> NodeView {
        let heard = self.heard.get(name);
        let origin = match (added.iter().any(|other| other == name), self.folder(name).join(MARK).exists()) {
            (false, _) => NodeOrigin::Planned,
            (true, true) => NodeOrigin::Managed,
            (true, false) => NodeOrigin::Added,
        };
        let load = heard.and_then(|node| node.report.load);
        NodeView {
            name: name.to_owned(),
            origin,
            heard: heard.map(|node| node.at.elapsed()),
            role: heard.map(|node| node.report.role.clone()).unwrap_or_default(),
            busy_percent: load.map_or(UNKNOWN_PERCENT, |load| load.percent).into(),
            queued: load.map_or(0, |load| load.queued).into(),
            quota_percent: heard.and_then(|node| group(name, node.report.process)?.quota()).map(percent),
        }
    }

    /// The memory of a peer, at most as old as [`REPORT_PERIOD`]; `None` while no primary answers.
    async fn memory(&mut self, peer: &LocalPeer, nodes: &[NodeView]) -> Option<MemoryView> {
        if let Some((at, memory)) = self.memory.get(&peer.key())
            && at.elapsed() < REPORT_PERIOD
        {
            return Some(*memory);
        }
        let fresh = |node: &&NodeView| node.heard.is_some_and(|age| age < ANSWER_MAX);
        let (folder, request) = (self.folder(&primary(nodes)?.name), ControlRequest::Memory {});
        let report = tokio::time::timeout(ANSWER_MAX, request_memory(&folder, &request)).await.ok()?.ok()?;
        let pages = nodes.iter().filter(fresh).filter_map(|node| Ready::load(&self.folder(&node.name)));
        let pages: Vec<_> = pages.map(|ready| ready.metrics).collect();
        let counting = pages.into_iter().map(|address| {
            tokio::task::spawn_blocking(move || {
                Some(page::metric(&page::get(address, "/metrics").ok()?, MISSES)? as u64)
            })
        });
        let misses: Option<u64> = join_all(counting).await.into_iter().map(|misses| misses.ok().flatten()).sum();
        let given = report.nodes.iter().filter(|node| node.connected && !node.vacated).map(|node| node.free_bytes);
        let memory = MemoryView {
            budget_bytes: report.budget_bytes,
            leased_bytes: report.leased_bytes,
            used_bytes: report.used_bytes + report.waiting_bytes,
            available_bytes: report.leased_bytes + given.sum::<u64>(),
            misses: misses?,
        };
        self.memory.insert(peer.key(), (Instant::now(), memory));
        Some(memory)
    }

    /// The copies of a peer, at most as old as [`REPORT_PERIOD`]; `None` while no primary answers that has copies.
    async fn storage(&mut self, peer: &LocalPeer, nodes: &[NodeView]) -> Option<StorageView> {
        let stopped = StoppedStorage::load(&self.dir).ok()?;
        let key = peer.key();
        if self.storage.get(&key).is_none_or(|known| known.at.elapsed() >= REPORT_PERIOD) {
            let report = match primary(nodes) {
                Some(primary) => copies(&self.folder(&primary.name)).await,
                None => None,
            };
            // What was said last is kept, to know what a peer without a primary may need.
            let known = self.storage.remove(&key).and_then(|known| known.report);
            let heard = report.is_some();
            self.storage.insert(key.clone(), KnownStorage { at: Instant::now(), heard, report: report.or(known) });
        }
        let KnownStorage { heard, report, .. } = &self.storage[&key];
        let report = report.as_ref()?;
        let nodes = report.nodes.iter().map(|node| StorageNodeView {
            name: node.name.clone(),
            runs: !stopped.nodes.contains(&node.name),
            is_kept: stopped.kept.contains(&node.name),
            copy: match node.copy.as_str() {
                "complete" => StorageCopy::Complete,
                "none" => StorageCopy::None,
                _ => StorageCopy::Building,
            },
        });
        Some(StorageView { heard: *heard, wanted: report.wanted, nodes: nodes.collect() })
    }

    fn start_storage(&self, node: &str) -> Result<Outcome, String> {
        StoppedStorage::start(&self.dir, node, false).map_err(text)?;
        let is_ready = self.process(node).is_some();
        Ok(if is_ready { Outcome::Done } else { Outcome::Pending })
    }

    /// Stops a storage node, unless a peer has a copy there by now: the decision may be that of an earlier manager.
    fn stop_storage(&self, node: &str) -> Result<Outcome, String> {
        let stopped = StoppedStorage::load(&self.dir).map_err(text)?;
        if stopped.nodes.contains(node) {
            return Ok(if self.process(node).is_none() { Outcome::Done } else { Outcome::Pending });
        }
        let endpoints = Endpoints::load(&self.dir).map_err(|error| error.to_string())?;
        for peer in endpoints.gateways.iter().map(|gateway| LocalPeer::new(&gateway.name)) {
            let own = self
                .heard
                .iter()
                .filter(|(name, heard)| peer.number(name).is_some() && heard.at.elapsed() < ANSWER_MAX);
            // After a failover two may say so for a moment.
            let primaries = own.filter(|(_, heard)| is_primary(&heard.report.role)).map(|(name, _)| self.folder(name));
            let reports: Vec<_> = primaries.map(|folder| self.runtime.block_on(copies(&folder))).collect();
            for report in &reports {
                match report.as_ref().map(|report| report.copy(node)) {
                    Some("none") => {}
                    Some(copy) => {
                        return Ok(Outcome::Rejected(format!("{} has a {copy} copy at {node}", peer.organization)));
                    }
                    None => return Ok(Outcome::Rejected(unheard(&peer))),
                }
            }
            if reports.is_empty() {
                return Ok(Outcome::Rejected(unheard(&peer)));
            }
        }
        match StoppedStorage::stop(&self.dir, node).map_err(text)? {
            true => Ok(Outcome::Pending),
            false => Ok(Outcome::Rejected(format!("an operator has had {node} started"))),
        }
    }

    /// The process of a node, if it runs.
    fn process(&self, node: &str) -> Option<u32> {
        let folder = self.folder(node);
        let said = Ready::load(&folder).map(|ready| ready.process);
        let known = said.or_else(|| self.heard.get(node).map(|heard| heard.report.process));
        known.filter(|process| instance::runs_with(*process, &folder.join("node.toml")))
    }

    fn peer_of(&self, key: &str) -> Option<LocalPeer> {
        let endpoints = Endpoints::load(&self.dir).ok()?;
        endpoints.gateways.iter().map(|gateway| LocalPeer::new(&gateway.name)).find(|peer| peer.key() == key)
    }

    fn set_quota(&self, node: &str, percent: u32) -> Outcome {
        let group = self.process(node).and_then(|process| group(node, process));
        match group.map(|group| group.set_quota(Some(percent))) {
            Some(Ok(())) => Outcome::Done,
            Some(Err(error)) => Outcome::Ambiguous(error.to_string()),
            None => Outcome::Ambiguous(format!("{node} has no process with a cgroup of its own")),
        }
    }

    fn launch(&self, peer: &LocalPeer, node: &str) -> Result<Outcome, String> {
        let folder = self.folder(node);
        let added = AddedNodes::load(&self.dir).map_err(|error| error.to_string())?;
        if !added.nodes.iter().any(|added| added.name() == node) {
            // What an attempt before has left: nobody was told of it.
            remove_folder(&folder)?;
            let made = AddedNodes::add(&self.dir, &peer.organization, None).map_err(|error| error.to_string())?;
            if made.name != node {
                AddedNodes::remove(&self.dir, &made.name).map_err(|error| error.to_string())?;
                remove_folder(&made.folder)?;
                return Ok(Outcome::Rejected(format!("the next free node is {} and not {node}", made.name)));
            }
        }
        durable::write(&folder.join(MARK), b"", FileAccess::Owner).map_err(|error| error.to_string())?;
        let is_ready = self.process(node).is_some() && Ready::load(&folder).is_some();
        Ok(if is_ready { Outcome::Done } else { Outcome::Pending })
    }

    fn drain(&mut self, node: &str, force: bool) -> Result<Outcome, String> {
        let added = AddedNodes::load(&self.dir).map_err(|error| error.to_string())?;
        if added.nodes.iter().any(|added| added.name() == node) {
            AddedNodes::remove(&self.dir, node).map_err(|error| error.to_string())?;
            return Ok(Outcome::Pending);
        }
        let folder = self.folder(node);
        if let Some(process) = self.process(node) {
            if force && let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            return Ok(Outcome::Pending);
        }
        remove_group(node, &folder);
        remove_folder(&folder)?;
        self.heard.remove(node);
        Ok(Outcome::Done)
    }

    /// Has the primary set another budget.
    fn set_memory(&mut self, peer: &LocalPeer, bytes: u64) -> Outcome {
        self.memory.remove(&peer.key());
        let primary =
            self.heard.iter().find(|(name, heard)| peer.number(name).is_some() && is_primary(&heard.report.role));
        let Some((name, _)) = primary else { return Outcome::Ambiguous("the peer has no primary".to_owned()) };
        let folder = self.folder(name);
        match self.runtime.block_on(request_memory(&folder, &ControlRequest::SetMemory { bytes })) {
            Ok(_) => Outcome::Done,
            Err(ControlError::Rejected(reason)) => Outcome::Rejected(reason),
            Err(error) => Outcome::Ambiguous(error.to_string()),
        }
    }
}

impl Pool for LocalPool {
    fn observe(&mut self) -> PoolView {
        let runtime = self.runtime.clone();
        runtime.block_on(self.look())
    }

    fn execute(&mut self, due: &DueIntent) -> Outcome {
        let Some(peer) = self.peer_of(&due.peer) else { return Outcome::Ambiguous("the network is away".to_owned()) };
        let done = match &due.intent.action {
            Action::SetQuota { node, percent } => Ok(self.set_quota(node, *percent)),
            Action::Launch { node } => self.launch(&peer, node),
            Action::Drain { node } => self.drain(node, due.force),
            Action::SetMemory { bytes } => Ok(self.set_memory(&peer, *bytes)),
            Action::StartStorage { node } => self.start_storage(node),
            Action::StopStorage { node } => self.stop_storage(node),
        };
        done.unwrap_or_else(Outcome::Ambiguous)
    }
}

fn unheard(peer: &LocalPeer) -> String {
    format!("{} does not say where its copies are", peer.organization)
}

/// A node's own word that it commits for its peer.
fn is_primary(role: &str) -> bool {
    role == "primary" || role == "single"
}

/// The node of a peer that said so just now.
fn primary(nodes: &[NodeView]) -> Option<&NodeView> {
    nodes.iter().find(|node| is_primary(&node.role) && node.heard.is_some_and(|age| age < ANSWER_MAX))
}

/// Where the copies are, as the primary in a folder says.
async fn copies(folder: &Path) -> Option<StorageReport> {
    let asked = tokio::time::timeout(ANSWER_MAX, request_storage(folder, &ControlRequest::Storage {})).await;
    asked.ok()?.ok()
}

/// Whether this user can limit the processor time of processes.
pub fn can_have_quotas() -> bool {
    let group = CpuGroup::make(&format!("heddle-probe-{}", std::process::id()));
    group.map(|group| group.remove()).is_ok()
}

/// The group that a node's process has made for itself: never one that holds others too.
fn group(node: &str, process: u32) -> Option<CpuGroup> {
    let group = CpuGroup::around(process)?;
    let name = group.folder().file_name()?.to_str()?.to_owned();
    let own = name.strip_prefix("heddle-")?.strip_prefix(node)?;
    own.strip_prefix('-').is_some_and(|inode| u64::from_str_radix(inode, 16).is_ok()).then_some(group)
}

/// Removes the group of a node that was killed; one that ends in order does so itself.
fn remove_group(node: &str, folder: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(found) = std::fs::metadata(folder) else { return };
    // Making it again takes what is left.
    if let Ok(group) = CpuGroup::make(&format!("heddle-{node}-{:x}", found.ino())) {
        group.remove();
    }
}

fn text(failure: CommandError) -> String {
    failure.message().unwrap_or_default().to_owned()
}

fn percent(processors: f64) -> u32 {
    (processors * 100.0).round() as u32
}

fn remove_folder(folder: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_peer_are_known_by_their_names() {
        let peer = LocalPeer::new("Org1");
        assert_eq!((peer.node(1), peer.node(3)), ("compute-org1".to_owned(), "compute-org1-3".to_owned()));
        for number in [1, 2, 64] {
            assert_eq!(peer.number(&peer.node(number)), Some(number));
        }
        for other in ["compute-org10", "compute-org10-2", "compute-org2", "storage-org1", "compute-org1-x"] {
            assert_eq!(peer.number(other), None, "{other}");
        }
    }

    #[test]
    fn a_group_around_others_is_not_taken_for_a_nodes_own() {
        assert!(group("compute-org1", std::process::id()).is_none(), "this process is no node");
    }
}
