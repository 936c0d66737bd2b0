//! The storage loop: which storage processes of a pool run.
//!
//! The primary of a peer keeps the copies of its blocks and tables complete: it leaves out one that is lost, and builds
//! another at any storage node that answers (crate `storage_copies`). It cannot start a process, and this loop can.
//!
//! 1. A peer **lacks** a copy while fewer are complete than it wants, and none is being built. If it lacks one for
//!    [`StoragePolicy::lost_for`](crate::StoragePolicy::lost_for), a storage process that was stopped is started. A supervisor
//!    restarts a process that has failed sooner than that. A peer whose primary has not been heard for
//!    [`StoragePolicy::silent_for`](crate::StoragePolicy::silent_for) may be waiting for any node of its plan: it lacks one too.
//! 2. A process is **idle** while no peer has a copy there and no peer lacks one or builds one. After
//!    [`StoragePolicy::idle_for`](crate::StoragePolicy::idle_for) it is stopped, if every peer of the pool is heard just then: an
//!    unheard peer may have a copy at any process. Its files stay. A process that an operator has started is not idle.
//! 3. Between two answers of a primary, its last report holds. A busy primary misses answers, and the clock of a lacking copy must
//!    not start again at each miss.
//! 4. One process of the pool is started or stopped at a time.
//!
//! Invariant: no process is stopped at which a copy was seen. A copy that a primary begins to build there in the meantime is lost
//! with the process, which costs no data: a copy counts only once it is complete, and then its loss is as any other (step 1).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::action::Action;
use crate::compute::Decision;
use crate::fault::{Mutant, mutant};
use crate::settings::ManagerSettings;
use crate::view::{PeerView, PoolView, StorageCopy, StorageView};

/// The memory of the loop between two looks. That of a manager that starts is empty: what happened before is unknown.
#[derive(Clone, Default, Debug)]
pub(crate) struct StorageLoop {
    /// Since when each peer lacks a copy.
    lacking: BTreeMap<String, Duration>,
    /// Since when each peer has not been heard.
    silent: BTreeMap<String, Duration>,
    /// Since when each process is idle.
    idle: BTreeMap<String, Duration>,
    /// When the last change ended.
    changed: Duration,
}

impl StorageLoop {
    /// A change has ended, or failed.
    pub fn changed(&mut self, now: Duration) {
        self.changed = now;
    }

    /// Notes what is lacking and what is idle, and returns the next step with its peer, if it is time for one.
    pub fn step(&mut self, view: &PoolView, settings: &ManagerSettings, now: Duration) -> Option<(String, Decision)> {
        self.note(view, now);
        let policy = &settings.storage;
        let is_due = |since: &Duration, long: Duration| now.saturating_sub(*since) >= long;
        let lost_for = if mutant(Mutant::StartAtOnce) { Duration::ZERO } else { policy.lost_for };
        if !is_due(&self.changed, lost_for) {
            return None;
        }
        let lacking = self.lacking.iter().filter(|(_, since)| is_due(since, lost_for) && !mutant(Mutant::KeepStopped));
        let silent = self.silent.iter().filter(|(_, since)| is_due(since, policy.silent_for));
        let lacking = lacking.map(|(peer, _)| (peer, true));
        for (peer, is_lacking) in lacking.chain(silent.map(|(peer, _)| (peer, false))) {
            let Some(storage) = view.get(peer).and_then(|peer| peer.storage.as_ref()) else { continue };
            let Some(stopped) = storage.nodes.iter().find(|node| !node.runs) else { continue };
            let (seen, why) = match is_lacking {
                true => (
                    format!("{} of {} copies are complete, and none is being built", complete(storage), storage.wanted),
                    "its primary builds a copy where a storage node answers",
                ),
                false => (
                    "no primary says where its copies are".to_owned(),
                    "a candidate may need any storage node of the plan",
                ),
            };
            let action = Some(Action::StartStorage { node: stopped.name.clone() });
            return Some((peer.clone(), Decision { action, seen, why: why.to_owned() }));
        }
        let is_heard = |peer: &PeerView| peer.storage.as_ref().is_some_and(|storage| storage.heard);
        if !view.values().all(is_heard) && !mutant(Mutant::StopUnheard) {
            return None;
        }
        let (name, _) = self.idle.iter().find(|(_, since)| is_due(since, policy.idle_for))?;
        let (peer, _) =
            view.iter().find(|(_, peer)| peer.storage.as_ref().is_some_and(|storage| knows(storage, name)))?;
        let seen = format!("no peer has a copy at {name}");
        let why = format!("all copies have been complete without it for {} s", policy.idle_for.as_secs());
        Some((peer.clone(), Decision { action: Some(Action::StopStorage { node: name.clone() }), seen, why }))
    }

    /// Steps 1 to 3.
    fn note(&mut self, view: &PoolView, now: Duration) {
        let all = || view.iter().filter_map(|(name, peer)| Some((name, peer.storage.as_ref()?)));
        let is_lacking = |storage: &StorageView| lacks(storage) && (storage.heard || !mutant(Mutant::ForgetLacking));
        let lacking = all().filter(|(_, storage)| is_lacking(storage)).map(|(name, _)| name);
        keep_since(&mut self.lacking, lacking.collect(), now);
        keep_since(&mut self.silent, all().filter(|(_, storage)| !storage.heard).map(|(name, _)| name).collect(), now);
        let is_calm = all().all(|(_, storage)| complete(storage) >= wanted(storage) && !is_building(storage));
        let nodes = || all().flat_map(|(_, storage)| &storage.nodes);
        let has_copy = |name: &str| {
            let mut copies = nodes().filter(|node| node.name == name);
            copies.any(|node| node.copy != StorageCopy::None) && !mutant(Mutant::StopHolder)
        };
        let running = nodes().filter(|node| node.runs && !node.is_kept);
        let idle = running.filter(|node| is_calm && !has_copy(&node.name) && !mutant(Mutant::KeepIdle));
        keep_since(&mut self.idle, idle.map(|node| &node.name).collect(), now);
    }
}

/// Keeps since when each name has been among these.
fn keep_since(since: &mut BTreeMap<String, Duration>, names: BTreeSet<&String>, now: Duration) {
    since.retain(|name, _| names.contains(name));
    for name in names {
        since.entry(name.clone()).or_insert(now);
    }
}

fn knows(storage: &StorageView, name: &str) -> bool {
    storage.nodes.iter().any(|node| node.name == name)
}

fn complete(storage: &StorageView) -> usize {
    storage.nodes.iter().filter(|node| node.copy == StorageCopy::Complete).count()
}

fn is_building(storage: &StorageView) -> bool {
    storage.nodes.iter().any(|node| node.copy == StorageCopy::Building)
}

/// No peer can have more copies than nodes.
fn wanted(storage: &StorageView) -> usize {
    storage.wanted.min(storage.nodes.len())
}

fn lacks(storage: &StorageView) -> bool {
    complete(storage) < wanted(storage) && !is_building(storage)
}
