//! Messages of other members, before the crate gets them. The crate takes a message for one that a node of its own kind has sent, and
//! asserts what follows from that. What a message may say whatever the state is checked when it is decoded ([`super::super::codec`]);
//! what it may say to this node as it is now is checked here. What is refused is ignored, as if it had been lost.
//!
//! Invariant: no message of a peer, whatever it says and whenever it comes, reaches an assertion. A peer that lies can still do harm: Raft
//! survives members that stop, not members that lie.

use base::rt;
use raft::eraftpb::{Message, MessageType};

use super::snapshots::members_of;
use super::{Engine, Machine};
use crate::Error;
use crate::raft::fault::{Mutant, mutant};

/// How far ahead of this node's term another's may be. Terms grow by one an election.
const TERMS_AHEAD_MAX: u64 = 1 << 32;

impl<M: Machine> Engine<M> {
    /// A message of another member.
    pub(super) fn step(&mut self, message: Message) -> Result<(), Error> {
        let raft = &self.node.raft;
        match message.msg_type {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                // A vote that would break a lease is asked for by nobody here.
                let is_mute = rt::now() < self.mute_until;
                if is_mute || !message.context.is_empty() {
                    return Ok(());
                }
            }
            // As if it had been lost: it comes again, when there is room.
            MessageType::MsgAppend if !message.entries.is_empty() && !self.machine.has_room() => return Ok(()),
            _ => {}
        }
        if let Some(reason) = self.refusal(&message)
            && !mutant(Mutant::TakeAnything)
        {
            tracing::debug!(node = self.options.node, from = message.from, reason, "a Raft message is refused");
            return Ok(());
        }
        if message.msg_type == MessageType::MsgHeartbeat
            && message.term >= raft.term
            && message.commit > raft.raft_log.last_index()
        {
            return Err(Error::Corrupt("this node's Raft log has lost entries that it had confirmed"));
        }
        // Errors are of messages that have come too late; the crate has ignored them.
        let _ = self.node.step(message);
        Ok(())
    }

    /// Why a message cannot be meant for this node as it is.
    fn refusal(&self, message: &Message) -> Option<&'static str> {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        let is_of_now = message.term >= raft.term;
        if message.term > raft.term.saturating_add(TERMS_AHEAD_MAX) {
            return Some("its term is far ahead of all that there can have been");
        }
        match message.msg_type {
            MessageType::MsgAppendResponse if is_of_now && message.index > last => {
                Some("it confirms entries that this node's log does not have")
            }
            // Whoever asks for votes has made its log durable before, and takes no entries meanwhile.
            MessageType::MsgRequestVoteResponse if raft.raft_log.persisted < last => {
                Some("it answers what this node has not asked")
            }
            MessageType::MsgSnapshot => {
                let snapshot = message.get_snapshot();
                let state = snapshot.get_metadata().get_conf_state();
                let is_told = match members_of(snapshot.data.clone()) {
                    Ok((members, _)) => {
                        members.len() == state.voters.len() + state.learners.len()
                            && state.voters.iter().all(|id| members.get(id).is_some_and(|member| !member.learns))
                            && state.learners.iter().all(|id| members.get(id).is_some_and(|member| member.learns))
                    }
                    Err(_) => false,
                };
                (!is_told).then_some("its snapshot tells of other members than it names")
            }
            _ => None,
        }
    }
}
