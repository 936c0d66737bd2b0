//! Membership: applies changes of the members, and opens the links to them.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use base::rt;
use raft_rs::eraftpb::{ConfChange, ConfChangeType, Entry};

use super::{PendingAnswer, RaftEngine, RequestWaiter};
use crate::codec::MEMBERS_MAX;
use crate::engine::snapshot_format::address_of;
use crate::fault::{Mutant, mutant};
use crate::{Error, MemberHealth, MembershipChange, MembershipReport, RaftMember, StateMachine, codec, links};

impl<M: StateMachine> RaftEngine<M> {
    pub(super) fn change(&mut self, change: MembershipChange, asker: RequestWaiter) {
        if !self.is_leader() {
            asker.answer(Err(self.not_leading()));
            return;
        }
        let invalid = match &change {
            MembershipChange::Learn(member) if self.members.get(&member.id).is_some_and(|known| !known.is_learner) => {
                Some("a member that has a vote keeps it until it is removed")
            }
            MembershipChange::Learn(member) | MembershipChange::Vote(member) => {
                let is_new = !self.members.contains_key(&member.id);
                (is_new && self.members.len() >= MEMBERS_MAX)
                    .then_some("the group has the largest number of members already")
            }
            MembershipChange::Remove(id) if *id == self.node.raft.id => Some("a leader does not remove itself"),
            MembershipChange::Remove(_) => None,
        };
        if let Some(reason) = invalid {
            asker.answer(Err(Error::Invalid(reason.to_owned())));
            return;
        }
        if let MembershipChange::Remove(id) = &change
            && let Err(error) = self.check_removal(*id)
        {
            asker.answer(Err(error));
            return;
        }
        let mut wanted = ConfChange::default();
        let (kind, id, address) = match change {
            MembershipChange::Learn(member) => (ConfChangeType::AddLearnerNode, member.id, member.address),
            MembershipChange::Vote(member) => (ConfChangeType::AddNode, member.id, member.address),
            MembershipChange::Remove(id) => (ConfChangeType::RemoveNode, id, String::new()),
        };
        wanted.set_change_type(kind);
        wanted.node_id = id;
        wanted.context = address.into_bytes().into();
        let (before, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
        if self.node.raft.has_pending_conf() || self.node.propose_conf_change(Vec::new(), wanted).is_err() {
            asker.answer(Err(Error::Busy));
            return;
        }
        if mutant(Mutant::AnswerChange) {
            asker.answer(Ok(()));
            return;
        }
        self.pending.push_back((before + 1, term, PendingAnswer::Changed(asker)));
    }

    /// Whether the voters that are left without a member would be enough to continue, by what this leader has heard from them.
    fn check_removal(&self, id: u64) -> Result<(), Error> {
        if self.members.get(&id).is_none_or(|member| member.is_learner) {
            return Ok(());
        }
        let left: Vec<u64> = self
            .members
            .values()
            .filter(|member| !member.is_learner && member.id != id)
            .map(|member| member.id)
            .collect();
        let patience = self.options.timing.tick * self.options.timing.election_ticks;
        let is_up = |other: &&u64| {
            **other == self.options.node || self.heard.get(other).is_some_and(|heard| heard.elapsed() < patience)
        };
        let (up, needed) = (left.iter().filter(is_up).count(), left.len() / 2 + 1);
        if up < needed {
            return Err(Error::WouldStall { up, left: left.len(), needed });
        }
        Ok(())
    }

    pub(super) fn report(&self) -> MembershipReport {
        let raft = &self.node.raft;
        let (leads, last) = (self.is_leader(), raft.raft_log.last_index());
        let members = self.shared.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let standing = |member: RaftMember| {
            let is_self = member.id == self.options.node;
            let matched = raft.prs().get(member.id).map_or(0, |progress| progress.matched);
            let heard = if is_self { Some(rt::now()) } else { self.heard.get(&member.id).copied() };
            MemberHealth { behind: leads.then(|| last.saturating_sub(matched)), heard: heard.filter(|_| leads), member }
        };
        MembershipReport { status: *self.shared.role.borrow(), members: members.into_iter().map(standing).collect() }
    }

    pub(super) fn apply_change(&mut self, entry: &Entry) -> Result<(), Error> {
        let change = codec::change(&entry.data)?;
        let state = self
            .node
            .apply_conf_change(&change)
            .map_err(|_| Error::Corrupt("a change of members of a Raft group cannot be applied"))?;
        self.node.raft.mut_store().members = state;
        let id = change.node_id;
        match change.get_change_type() {
            ConfChangeType::RemoveNode => {
                if id == self.options.node {
                    // An earlier leader may have started this removal: even the current leader leaves then.
                    return Err(Error::Removed);
                }
                self.members.remove(&id);
                self.learned_addresses.remove(&id);
            }
            kind => {
                let learns = kind == ConfChangeType::AddLearnerNode;
                let address = address_of(&change.context)?;
                self.members.insert(id, RaftMember { id, address, is_learner: learns });
            }
        }
        // A round that a majority of the earlier members answered proves nothing now.
        self.shared.lease_until.store(0, Ordering::SeqCst);
        for round in self.rounds.drain(..) {
            round.waiting.into_iter().for_each(|asker| asker.answer(Err(Error::Busy)));
        }
        self.reconnect();
        Ok(())
    }

    /// A member with its current address.
    pub(super) fn found(&self, member: &RaftMember) -> RaftMember {
        let address = self.options.addresses.get(&member.id).unwrap_or(&member.address);
        RaftMember { address: address.clone(), ..member.clone() }
    }

    /// Opens links to all members, and to nodes that seem to be members, and closes all others.
    pub(super) fn reconnect(&mut self) {
        self.learned_addresses.retain(|id, _| !self.members.contains_key(id));
        let members: Vec<RaftMember> = self.members.values().map(|member| self.found(member)).collect();
        let addresses = members.iter().map(|member| (member.id, member.address.clone()));
        let met = self.learned_addresses.iter().map(|(id, address)| (*id, address.clone()));
        let others: BTreeMap<u64, String> = addresses.chain(met).filter(|(id, _)| *id != self.options.node).collect();
        self.connectors.retain(|id, _| others.contains_key(id));
        self.links.retain(|id, _| self.connectors.contains_key(id));
        for (id, address) in others {
            if self.connectors.contains_key(&id) {
                continue;
            }
            let (ends, pause) = (self.endpoints(id), self.options.timing.tick * self.options.timing.heartbeat_ticks);
            let connecting = links::connect(address, ends, self.events.clone(), pause, self.stop.clone());
            self.connectors.insert(id, rt::spawn(connecting).abort_on_drop());
        }
        *self.shared.members.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }
}
