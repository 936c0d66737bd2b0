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
//!    [`StoragePolicy::idle_for`](crate::StoragePolicy::idle_for) it is stopped. Its files stay.
//! 3. Whether a process is idle is known only if every peer of the pool was heard: a peer that was not may have a copy anywhere. A
//!    process that an operator has started is not idle.
//! 4. One process of the pool is started or stopped at a time.
//!
//! Invariant: no process is stopped at which a copy was seen. A copy that a primary begins to build there in the meantime is lost
//! with the process, which costs no data: a copy counts only once it is complete, and then its loss is as any other (step 1).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::action::Action;
use crate::compute::Decision;
use crate::fault::{Mutant, mutant};
use crate::settings::ManagerSettings;
use crate::view::{PoolView, StorageCopy, StorageView};

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
        for (peer, _) in lacking.chain(silent) {
            let Some(storage) = view.get(peer).and_then(|peer| peer.storage.as_ref()) else { continue };
            let Some(stopped) = storage.nodes.iter().find(|node| !node.runs) else { continue };
            let seen = match storage.heard {
                true => {
                    format!("{} of {} copies are complete, and none is being built", complete(storage), storage.wanted)
                }
                false => "no primary says where its copies are".to_owned(),
            };
            let action = Some(Action::StartStorage { node: stopped.name.clone() });
            let why = match storage.heard {
                true => "its primary builds a copy where a storage node answers",
                false => "a candidate may need any storage node of the plan",
            };
            let why = why.to_owned();
            return Some((peer.clone(), Decision { action, seen, why }));
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
        let heard = || all().filter(|(_, storage)| storage.heard);
        let silent: Vec<&String> = all().filter(|(_, storage)| !storage.heard).map(|(name, _)| name).collect();
        self.silent.retain(|name, _| silent.contains(&name));
        for name in silent {
            self.silent.entry(name.clone()).or_insert(now);
        }
        let lacking: Vec<&String> = heard().filter(|(_, storage)| lacks(storage)).map(|(name, _)| name).collect();
        self.lacking.retain(|name, _| lacking.contains(&name));
        for name in lacking {
            self.lacking.entry(name.clone()).or_insert(now);
        }
        let is_known = heard().count() == view.len() || mutant(Mutant::StopUnheard);
        let is_calm = heard().all(|(_, storage)| complete(storage) >= wanted(storage) && !is_building(storage));
        let has_copy = |name: &str| {
            let mut copies = heard().flat_map(|(_, storage)| &storage.nodes).filter(|node| node.name == name);
            copies.any(|node| node.copy != StorageCopy::None) && !mutant(Mutant::StopHolder)
        };
        let running = heard().flat_map(|(_, storage)| &storage.nodes).filter(|node| node.runs && !node.is_kept);
        let idle = running.filter(|node| is_known && is_calm && !has_copy(&node.name) && !mutant(Mutant::KeepIdle));
        let idle: Vec<&String> = idle.map(|node| &node.name).collect();
        self.idle.retain(|name, _| idle.contains(&name));
        for name in idle {
            self.idle.entry(name.clone()).or_insert(now);
        }
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
