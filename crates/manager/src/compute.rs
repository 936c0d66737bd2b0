//! The compute loop: the next step of one peer, by the utilisation of its processors and by its queues.
//!
//! 1. Only nodes whose report is fresh count. The utilisation of the peer is the processor time of these nodes over the
//!    sum of their quotas (section 3.2 of the FlexChain paper: the average of all provisioned cores).
//! 2. The peer is **hot** if its utilisation is high, or if it is moderate and work queues. It is **cold** if its
//!    utilisation is low and nothing queues. Between the two nothing happens.
//! 3. A peer that has been hot for a while grows by one step: the busiest node gets a larger quota; if all nodes have the
//!    largest quota, another node is launched (section 6.2: more cores within a node first). If proposals wait, a larger quota
//!    is given at once, since it costs little; if many wait, a node is launched at once too. A queue grows only while more
//!    comes in than is done, so it will not go by itself.
//! 4. A peer that has been cold for a while shrinks by one step, if the rest would carry the present load at a utilisation
//!    well below hot: a launched node is drained, or else a quota is lowered.
//! 5. After a step the loop waits for its effect; it waits longer before it shrinks.
//!
//! Invariant: under a constant load no step is undone. A step down is taken only if it leaves the peer below the
//! utilisation at which a step up would be taken, less a margin.

use std::time::Duration;

use crate::action::Action;
use crate::fault::{Mutant, mutant};
use crate::record::PeerRecord;
use crate::settings::ManagerSettings;
use crate::view::{NodeOrigin, NodeView, PeerView};

/// A quota that stands for a node without one.
const WHOLE_PERCENT: u32 = 100;

/// A step that a loop takes, and its explanation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Decision {
    /// The action; `None` if the limits forbid it.
    pub action: Option<Action>,
    pub seen: String,
    pub why: String,
}

/// The load of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerLoad {
    /// Processor time in use, in percent of one processor.
    pub used: u64,
    /// The quotas of the nodes that were heard together.
    pub capacity: u64,
    /// Proposals and work items that wait, for each node.
    pub queue: u32,
    /// Nodes that were heard.
    pub nodes: usize,
}

impl PeerLoad {
    /// The load of the nodes that were heard in time; `None` if none was.
    pub fn of(view: &PeerView, record: &PeerRecord, settings: &ManagerSettings) -> Option<PeerLoad> {
        let nodes: Vec<&NodeView> = serving(view, record, settings).collect();
        let capacity: u64 = nodes.iter().map(|node| quota(node)).sum();
        let used = nodes.iter().map(|node| quota(node) * u64::from(node.busy_percent.min(100)) / 100).sum();
        let queued: u64 = nodes.iter().map(|node| u64::from(node.queued)).sum();
        let count = nodes.len() as u64;
        let queue = u32::try_from(queued.checked_div(count)?).unwrap_or(u32::MAX);
        (capacity > 0).then_some(PeerLoad { used, capacity, queue, nodes: nodes.len() })
    }

    /// The utilisation in percent.
    pub fn percent(&self) -> u32 {
        self.percent_of(self.capacity)
    }

    /// The utilisation if this were the capacity.
    fn percent_of(&self, capacity: u64) -> u32 {
        u32::try_from((self.used * 100).checked_div(capacity).unwrap_or(u64::MAX)).unwrap_or(u32::MAX)
    }

    fn seen(&self) -> String {
        format!("{} nodes use {} of {} %, {} waiting a node", self.nodes, self.used, self.capacity, self.queue)
    }
}

fn quota(node: &NodeView) -> u64 {
    u64::from(node.quota_percent.unwrap_or(WHOLE_PERCENT).max(1))
}

/// The nodes that were heard in time and serve.
fn serving<'a>(
    view: &'a PeerView,
    record: &'a PeerRecord,
    settings: &ManagerSettings,
) -> impl Iterator<Item = &'a NodeView> {
    let fresh_for = if mutant(Mutant::CountSilent) { Duration::MAX } else { settings.fresh_for };
    view.nodes.iter().filter(move |node| {
        let known = record.nodes.get(&node.name);
        let serves = known.map_or(node.origin != NodeOrigin::Managed, |known| !known.draining);
        serves && node.heard.is_some_and(|age| age <= fresh_for)
    })
}

/// The memory of the loop between two looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeLoop {
    hot_since: Option<Duration>,
    cold_since: Option<Duration>,
    /// When the last change ended.
    changed: Duration,
    /// When the limits were last reported.
    at_limit: Option<Duration>,
}

impl ComputeLoop {
    /// The loop of a manager that starts: what happened before is unknown, so it waits as after a change.
    pub fn new(now: Duration) -> ComputeLoop {
        ComputeLoop { hot_since: None, cold_since: None, changed: now, at_limit: None }
    }

    /// A change has ended: the loop waits for its effect.
    pub fn changed(&mut self, now: Duration) {
        (self.hot_since, self.cold_since, self.changed) = (None, None, now);
    }

    /// The next step, if it is time for one.
    pub fn step(
        &mut self,
        view: &PeerView,
        record: &PeerRecord,
        settings: &ManagerSettings,
        now: Duration,
    ) -> Option<Decision> {
        let policy = &settings.compute;
        let Some(load) = PeerLoad::of(view, record, settings) else {
            (self.hot_since, self.cold_since) = (None, None);
            return None;
        };
        let percent = load.percent();
        let queues = load.queue >= policy.queue_hot && percent >= policy.queueing_percent;
        let is_hot = percent >= policy.hot_percent || queues;
        let is_cold = match mutant(Mutant::NoHysteresis) {
            true => !is_hot,
            false => percent <= policy.cold_percent && load.queue <= policy.queue_cold,
        };
        self.hot_since = if is_hot { self.hot_since.or(Some(now)) } else { None };
        self.cold_since = if is_cold { self.cold_since.or(Some(now)) } else { None };
        let is_due = |since: Option<Duration>, long: Duration, pause: Duration| {
            let paused = now.saturating_sub(self.changed) < pause && !mutant(Mutant::NoCooldown);
            since.is_some_and(|since| now.saturating_sub(since) >= long) && !paused
        };
        let is_swamped = load.queue >= policy.queue_swamped || queues && smaller(view, record, settings).is_some();
        let hot_for = if is_swamped { Duration::ZERO } else { policy.hot_for };
        if is_due(self.hot_since, hot_for, policy.up_pause) {
            let why = match percent >= policy.hot_percent {
                true => format!("it is at {percent} %, and {} % is hot", policy.hot_percent),
                false => format!("{} wait for each node at {percent} %", load.queue),
            };
            return self.up(view, record, settings, &load, why, now);
        }
        if is_due(self.cold_since, policy.cold_for, policy.down_pause) {
            return down(view, record, settings, &load);
        }
        None
    }

    fn up(
        &mut self,
        view: &PeerView,
        record: &PeerRecord,
        settings: &ManagerSettings,
        load: &PeerLoad,
        why: String,
        now: Duration,
    ) -> Option<Decision> {
        let limits = &settings.limits;
        let decided = |action| Some(Decision { action, seen: load.seen(), why });
        let nodes_max = if mutant(Mutant::LaunchBeyondLimit) { usize::MAX } else { limits.nodes_max };
        let free = view.free_name.as_ref().filter(|_| nodes(view, record) < nodes_max);
        match (smaller(view, record, settings), free) {
            (Some((node, quota)), free) if !(mutant(Mutant::NodesFirst) && free.is_some()) => {
                let percent = quota.saturating_add(settings.compute.quota_step_percent).min(quota_max(settings));
                decided(Some(Action::SetQuota { node: node.name.clone(), percent }))
            }
            (_, Some(name)) => decided(Some(Action::Launch { node: name.clone() })),
            _ => {
                // Said once in a while, not with every look.
                let said = self.at_limit.is_some_and(|at| now.saturating_sub(at) < settings.memory.pause_max);
                self.at_limit = if said { self.at_limit } else { Some(now) };
                if said { None } else { decided(None) }
            }
        }
    }
}

fn quota_max(settings: &ManagerSettings) -> u32 {
    if mutant(Mutant::RaiseBeyondLimit) { u32::MAX } else { settings.limits.quota_max_percent }
}

/// The busiest node that may have a larger quota, and the quota that it has.
fn smaller<'a>(view: &'a PeerView, record: &'a PeerRecord, settings: &ManagerSettings) -> Option<(&'a NodeView, u32)> {
    serving(view, record, settings)
        .filter(|node| view.has_quotas && node.origin != NodeOrigin::Added)
        .filter_map(|node| Some((node, node.quota_percent?)))
        .filter(|(_, quota)| *quota < quota_max(settings))
        .max_by_key(|(node, _)| (node.busy_percent, std::cmp::Reverse(&node.name)))
}

/// Compute nodes of a peer that run or are launched.
pub(crate) fn nodes(view: &PeerView, record: &PeerRecord) -> usize {
    let unseen = record.nodes.keys().filter(|name| view.nodes.iter().all(|node| node.name != **name));
    view.nodes.len() + unseen.count()
}

/// The launched node that was launched last: the one with the highest number.
pub(crate) fn newest_managed(record: &PeerRecord) -> Option<&String> {
    let managed = record.nodes.iter().filter(|(_, node)| node.origin == NodeOrigin::Managed && !node.draining);
    managed.map(|(name, _)| name).max_by_key(|name| (name.len(), name.as_str()))
}

/// A step down, if what remains carries the load.
fn down(view: &PeerView, record: &PeerRecord, settings: &ManagerSettings, load: &PeerLoad) -> Option<Decision> {
    let (limits, policy) = (&settings.limits, &settings.compute);
    let left_max = policy.hot_percent.saturating_sub(policy.margin_percent);
    let fits = |less: u64| {
        let left = load.capacity.saturating_sub(less);
        left > 0 && (load.percent_of(left) <= left_max || mutant(Mutant::NoHysteresis))
    };
    let why = |less: u64| {
        let left = load.percent_of(load.capacity.saturating_sub(less));
        format!("it is at {} %, up to {} % is cold, and {left} % remain", load.percent(), policy.cold_percent)
    };
    let decided = |action, less| Some(Decision { action: Some(action), seen: load.seen(), why: why(less) });
    let drained = match mutant(Mutant::DrainPlanned) {
        true => record.nodes.keys().next_back(),
        false => newest_managed(record),
    };
    let drained = drained.and_then(|name| view.nodes.iter().find(|node| node.name == *name));
    if let Some(node) = drained.filter(|node| load.nodes > 1 && fits(quota(node))) {
        return decided(Action::Drain { node: node.name.clone() }, quota(node));
    }
    let larger = serving(view, record, settings)
        .filter(|node| view.has_quotas && node.origin != NodeOrigin::Added)
        .filter_map(|node| Some((node.busy_percent, node, node.quota_percent?)))
        .filter(|(.., quota)| *quota > limits.quota_min_percent)
        .min_by_key(|(busy, node, _)| (*busy, &node.name));
    let (_, node, quota) = larger?;
    let percent = quota.saturating_sub(policy.quota_step_percent).max(limits.quota_min_percent);
    let less = u64::from(quota - percent);
    if fits(less) { decided(Action::SetQuota { node: node.name.clone(), percent }, less) } else { None }
}
