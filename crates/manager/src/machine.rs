//! The manager as a state machine. Its inputs are views of the pool and outcomes of actions, its outputs actions and events.
//!
//! 1. A manager starts on a [`ManagerRecord`]: it raises the incarnation, which is durable before anything else.
//! 2. It observes the pool ([`Manager::observe`]). It compares the processes of each peer with the record, and opens at most
//!    one [`Intent`] for compute and one for memory; for the pool, one for storage. In this order:
//!    - A launched node that is not in the record, or that has fallen silent, is drained.
//!    - A quota that a process lost in a restart is set again, and a quota outside of the limits is corrected.
//!    - A launched node beyond the peer's limit is drained.
//!    - Otherwise the loops decide ([`crate::compute`], [`crate::memory`], [`crate::storage`]).
//! 3. The record with the intent is stored. Only then is the action executed ([`Manager::due`]).
//! 4. The end of an action closes its intent ([`Manager::complete`]). A pending or ambiguous action is executed again, because
//!    it says the state to be reached. A launch that does not end in time becomes a drain, which is repeated until it
//!    succeeds. Every decision and every failure is a [`PoolEvent`] of the record.
//! 5. A manager that starts finds the open intents of its predecessor, and executes them again.
//!
//! Invariants, which `tests/manager` checks under faults:
//! * No action is executed before a durable record announces it, nor by a manager that is not the newest.
//! * No peer has more nodes or memory, and no node a larger quota, than its limits allow.
//! * Only compute nodes that a manager launched are drained. They are no candidates, so nothing here elects or deposes a primary.
//! * Once faults end, exactly the launched nodes of the record run, and each has the quota of the record.
//! * Without a fresh report of a peer nothing is decided for it.
//!
//! What it leaves to others: elections and leases (`replica`), restarting processes (their supervisor), and executing
//! actions (the [`Pool`](crate::Pool)).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::action::{Action, DueIntent, Intent, Outcome, ScalingLoop};
use crate::compute::{ComputeLoop, Decision, PeerLoad, newest_managed, nodes};
use crate::event::{self, PoolEvent};
use crate::fault::{Mutant, mutant};
use crate::memory::MemoryLoop;
use crate::record::{ManagerRecord, NodeRecord, PeerRecord};
use crate::settings::{ManagerSettings, NODES_MAX, PEERS_MAX};
use crate::storage::StorageLoop;
use crate::view::{NodeOrigin, NodeView, PeerView, PoolView};

/// What a manager remembers of a peer while it runs.
struct PeerLoops {
    compute: ComputeLoop,
    memory: MemoryLoop,
    /// When each launched node was last heard, or first missed.
    heard: BTreeMap<String, Duration>,
    /// The nodes of the plan that are known to be silent.
    silent: BTreeSet<String>,
}

/// The executions of an intent by this manager.
#[derive(Clone, Copy)]
struct Attempts {
    first: Duration,
    last: Duration,
}

/// A manager. Times are since any fixed moment of this process.
pub struct Manager {
    settings: ManagerSettings,
    record: ManagerRecord,
    loops: BTreeMap<String, PeerLoops>,
    /// Of all peers, since they may share storage processes.
    storage: StorageLoop,
    attempts: BTreeMap<u64, Attempts>,
    /// Whether the record differs from what was last stored.
    changed: bool,
}

impl Manager {
    /// Starts on the record of the manager before. The new record is to be stored before anything else.
    pub fn start(mut record: ManagerRecord, settings: ManagerSettings) -> Manager {
        record.incarnation = record.incarnation.saturating_add(1);
        let (loops, storage, attempts) = (BTreeMap::new(), StorageLoop::default(), BTreeMap::new());
        Manager { settings, record, loops, storage, attempts, changed: true }
    }

    /// What must be durable before the next action.
    pub fn record(&self) -> &ManagerRecord {
        &self.record
    }

    /// Its settings.
    pub fn settings(&self) -> &ManagerSettings {
        &self.settings
    }

    /// Whether the record differs from what was last stored.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// The record as it is now has been stored.
    pub fn stored(&mut self) {
        self.changed = false;
    }

    /// Looks at the pool, and opens intents.
    pub fn observe(&mut self, view: &PoolView, now: Duration, unix_ms: u64) {
        self.loops.retain(|peer, _| view.contains_key(peer));
        for (peer, view) in view.iter().take(PEERS_MAX) {
            self.observe_peer(peer, view, now, unix_ms);
        }
        self.observe_storage(view, now, unix_ms);
    }

    fn observe_storage(&mut self, view: &PoolView, now: Duration, unix_ms: u64) {
        let step = self.storage.step(view, &self.settings, now);
        if self.record.peers.values().any(|record| record.is_open(ScalingLoop::Storage)) {
            return;
        }
        let Some((peer, Decision { action: Some(action), seen, why })) = step else { return };
        let Some(record) = self.record.peers.get_mut(&peer) else { return };
        let done = action.to_string();
        record.open.push(Intent { number: self.record.next_intent, action });
        self.record.next_intent += 1;
        self.say(&peer, seen, done, why, unix_ms);
    }

    fn observe_peer(&mut self, peer: &str, view: &PeerView, now: Duration, unix_ms: u64) {
        let settings = self.settings;
        let record = self.record.peers.entry(peer.to_owned()).or_default();
        let loops = self.loops.entry(peer.to_owned()).or_insert_with(|| PeerLoops {
            compute: ComputeLoop::new(now),
            memory: MemoryLoop::new(&settings, now),
            heard: BTreeMap::new(),
            silent: BTreeSet::new(),
        });
        let before = record.nodes.clone();
        follow_plan(record, view);
        loops.listen(record, view, now);
        record.nodes.retain(|name, node| {
            let is_seen = view.nodes.iter().any(|seen| seen.name == *name);
            // A node of the plan that is being restarted is to get its quota back.
            is_seen || node.origin != NodeOrigin::Planned || loops.silent_for(name, now) < settings.silent_max
        });
        self.changed |= before != record.nodes;
        let mut decisions = Vec::new();
        if !record.is_open(ScalingLoop::Compute) {
            let repair = repair(record, loops, view, &settings, now);
            decisions.extend(repair.or_else(|| loops.compute.step(view, record, &settings, now)));
        }
        if let Some(memory) = &view.memory
            && !record.is_open(ScalingLoop::Memory)
        {
            decisions.extend(loops.memory.step(memory, &settings, now));
        }
        let mut said = loops.silence(view, &settings);
        for Decision { action, seen, why } in decisions {
            let done = match &action {
                Some(action) => action.to_string(),
                None => "nothing: the peer is at its limits".to_owned(),
            };
            if let Some(action) = action {
                announce(record, &action);
                record.open.push(Intent { number: self.record.next_intent, action });
                self.record.next_intent += 1;
            }
            said.push((seen, done, why));
        }
        for (seen, done, why) in said {
            self.say(peer, seen, done, why, unix_ms);
        }
    }

    /// The intents to execute now. The record must be stored.
    pub fn due(&self, now: Duration) -> Vec<DueIntent> {
        let mut due = Vec::new();
        for (peer, record) in &self.record.peers {
            for intent in &record.open {
                let attempts = self.attempts.get(&intent.number);
                if attempts.is_some_and(|done| now.saturating_sub(done.last) < self.settings.retry_pause) {
                    continue;
                }
                let force = match &intent.action {
                    Action::Drain { node } => {
                        let tried = attempts.map_or(Duration::ZERO, |done| now.saturating_sub(done.first));
                        tried >= self.settings.drain_max || self.is_silent(peer, node, now)
                    }
                    _ => false,
                };
                due.push(DueIntent { peer: peer.clone(), intent: intent.clone(), force });
            }
        }
        due
    }

    fn is_silent(&self, peer: &str, node: &str, now: Duration) -> bool {
        self.loops.get(peer).is_some_and(|loops| loops.silent_for(node, now) >= self.settings.silent_max)
    }

    /// The execution of an intent has ended. Ends of intents that are not open count for nothing.
    pub fn complete(&mut self, peer: &str, number: u64, outcome: Outcome, now: Duration, unix_ms: u64) {
        let settings = self.settings;
        let Some(record) = self.record.peers.get_mut(peer) else { return };
        let Some(at) = record.open.iter().position(|open| open.number == number) else { return };
        let action = record.open[at].action.clone();
        let attempts = self.attempts.entry(number).or_insert(Attempts { first: now, last: now });
        attempts.last = now;
        let tried = now.saturating_sub(attempts.first);
        let failed = match outcome {
            Outcome::Done => None,
            // A drain is executed until nothing is left: what it leaves would be paid for and used by nobody.
            Outcome::Rejected(reason) if matches!(action, Action::Drain { .. }) => {
                if tried.is_zero() {
                    let why = "it is tried until nothing is left".to_owned();
                    self.say(peer, reason, format!("not yet done: {action}"), why, unix_ms);
                }
                return;
            }
            Outcome::Pending | Outcome::Ambiguous(_) if matches!(action, Action::Drain { .. }) => return,
            Outcome::Rejected(reason) => Some(reason),
            Outcome::Pending | Outcome::Ambiguous(_) if tried < settings.launch_max => return,
            Outcome::Pending => Some(format!("not done after {} s", tried.as_secs())),
            Outcome::Ambiguous(reason) => Some(format!("{reason}, for {} s", tried.as_secs())),
        };
        self.attempts.remove(&number);
        record.open.remove(at);
        self.changed = true;
        let loops = self.loops.get_mut(peer);
        let seen = match &action {
            Action::Launch { node } if failed.is_some() => {
                // Whatever the attempt has left is cleared away.
                let drain = Action::Drain { node: node.clone() };
                announce(record, &drain);
                record.open.push(Intent { number: self.record.next_intent, action: drain });
                self.record.next_intent += 1;
                "it did not become ready"
            }
            Action::Drain { node } => {
                record.nodes.remove(node);
                "its process and its files are gone"
            }
            Action::Launch { .. } | Action::StartStorage { .. } if failed.is_none() => "it is ready",
            Action::StopStorage { .. } if failed.is_none() => "its process has ended",
            Action::SetQuota { node, percent } if failed.is_none() => {
                record.nodes.entry(node.clone()).and_modify(|node| node.quota_percent = Some(*percent));
                ""
            }
            _ => "",
        };
        match (action.scaling_loop(), loops) {
            (ScalingLoop::Storage, _) => self.storage.changed(now),
            (ScalingLoop::Compute, Some(loops)) => loops.compute.changed(now),
            (ScalingLoop::Memory, Some(loops)) if failed.is_none() => loops.memory.changed(),
            (ScalingLoop::Memory, Some(loops)) => loops.memory.rejected(now),
            (_, None) => {}
        }
        match failed {
            Some(reason) => {
                self.say(peer, reason, format!("gave up: {action}"), "it cannot be done".to_owned(), unix_ms)
            }
            None if !seen.is_empty() => {
                self.say(peer, seen.to_owned(), format!("done: {action}"), "it was begun".to_owned(), unix_ms);
            }
            None => {}
        }
    }

    fn say(&mut self, peer: &str, seen: String, done: String, why: String, unix_ms: u64) {
        let number = self.record.next_event;
        self.record.next_event += 1;
        let peer = peer.to_owned();
        event::append(&mut self.record.events, PoolEvent { number, unix_ms, peer, seen, done, why });
        self.changed = true;
    }
}

impl PeerLoops {
    /// Notes who was heard.
    fn listen(&mut self, record: &PeerRecord, view: &PeerView, now: Duration) {
        self.heard.retain(|name, _| record.nodes.contains_key(name));
        for name in record.nodes.keys() {
            let age = view.nodes.iter().find(|node| node.name == *name).and_then(|node| node.heard);
            let heard = age.map(|age| now.saturating_sub(age));
            let last = self.heard.entry(name.clone()).or_insert(heard.unwrap_or(now));
            *last = (*last).max(heard.unwrap_or_default());
        }
    }

    fn silent_for(&self, node: &str, now: Duration) -> Duration {
        self.heard.get(node).map_or(Duration::ZERO, |heard| now.saturating_sub(*heard))
    }

    /// Nodes of the plan that have fallen silent or are heard again: what is said about them.
    fn silence(&mut self, view: &PeerView, settings: &ManagerSettings) -> Vec<(String, String, String)> {
        let mut said = Vec::new();
        for node in view.nodes.iter().filter(|node| node.origin == NodeOrigin::Planned) {
            let is_silent = node.heard.is_some_and(|age| age >= settings.silent_max);
            let nothing = || "nothing".to_owned();
            if is_silent && self.silent.insert(node.name.clone()) {
                let why = "its supervisor restarts nodes of the plan, and the peer elects its primary".to_owned();
                said.push((format!("{} is silent", node.name), nothing(), why));
            } else if node.heard.is_some_and(|age| age <= settings.fresh_for) && self.silent.remove(&node.name) {
                said.push((format!("{} is heard again", node.name), nothing(), "it serves".to_owned()));
            }
        }
        said
    }
}

/// Enters the nodes of the plan.
fn follow_plan(record: &mut PeerRecord, view: &PeerView) {
    for node in view.nodes.iter().filter(|node| node.origin == NodeOrigin::Planned) {
        if record.nodes.len() < NODES_MAX {
            let planned = NodeRecord { origin: NodeOrigin::Planned, quota_percent: None, draining: false };
            record.nodes.entry(node.name.clone()).or_insert(planned);
        }
    }
}

/// What an intent changes in the record when it is opened.
fn announce(record: &mut PeerRecord, action: &Action) {
    let managed = NodeRecord { origin: NodeOrigin::Managed, quota_percent: None, draining: false };
    match action {
        Action::Launch { .. } if mutant(Mutant::ForgetLaunch) => {}
        Action::Launch { node } => {
            record.nodes.insert(node.clone(), managed);
        }
        Action::Drain { node } => record.nodes.entry(node.clone()).or_insert(managed).draining = true,
        Action::SetQuota { .. } | Action::SetMemory { .. } => {}
        Action::StartStorage { .. } | Action::StopStorage { .. } => {}
    }
}

/// The first thing of a peer that is not as the record or the limits say.
fn repair(
    record: &PeerRecord,
    loops: &PeerLoops,
    view: &PeerView,
    settings: &ManagerSettings,
    now: Duration,
) -> Option<Decision> {
    let limits = &settings.limits;
    let drain = |name: &str, seen: String, why: &str| {
        let action = Some(Action::Drain { node: name.to_owned() });
        Some(Decision { action, seen, why: why.to_owned() })
    };
    let managed = || view.nodes.iter().filter(|node| node.origin == NodeOrigin::Managed);
    let stray = managed().find(|node| record.nodes.get(&node.name).is_none_or(|known| known.draining));
    if let Some(stray) = stray.filter(|_| !mutant(Mutant::KeepStray)) {
        return drain(&stray.name, format!("{} runs", stray.name), "no record says that it should");
    }
    // Not if nobody is heard: then the manager may be the one that is cut off.
    let others = PeerLoad::of(view, record, settings).is_some();
    let silent = record
        .nodes
        .iter()
        .find(|(name, node)| node.origin == NodeOrigin::Managed && loops.silent_for(name, now) >= settings.silent_max);
    if let Some((name, _)) = silent.filter(|_| others && !mutant(Mutant::KeepSilent)) {
        let seen = format!("{name} has been silent for {} s", loops.silent_for(name, now).as_secs());
        return drain(name, seen, "a node that does not answer serves nobody");
    }
    if let Some(decision) = wrong_quota(record, view, settings) {
        return Some(decision);
    }
    let count = nodes(view, record);
    let beyond = newest_managed(record).filter(|_| count > limits.nodes_max && !mutant(Mutant::LaunchBeyondLimit));
    drain(beyond?, format!("{count} nodes"), "the peer may have fewer")
}

/// A quota that a restarted process does not have any more, or that is outside of the limits.
fn wrong_quota(record: &PeerRecord, view: &PeerView, settings: &ManagerSettings) -> Option<Decision> {
    let limits = &settings.limits;
    let max = if mutant(Mutant::RaiseBeyondLimit) { u32::MAX } else { limits.quota_max_percent };
    let owned = |node: &&NodeView| view.has_quotas && node.heard.is_some_and(|age| age <= settings.fresh_for);
    for node in view.nodes.iter().filter(owned) {
        let (Some(known), Some(quota)) = (record.nodes.get(&node.name), node.quota_percent) else { continue };
        let wanted = known.quota_percent.filter(|_| !mutant(Mutant::LoseQuota)).unwrap_or(quota);
        let wanted = wanted.clamp(limits.quota_min_percent, max);
        if wanted != quota {
            let why = match known.quota_percent == Some(wanted) {
                true => format!("it had {wanted} % and was restarted"),
                false => "the quota is outside of the peer's limits".to_owned(),
            };
            let action = Some(Action::SetQuota { node: node.name.clone(), percent: wanted });
            return Some(Decision { action, seen: format!("{} has {quota} %", node.name), why });
        }
    }
    None
}
