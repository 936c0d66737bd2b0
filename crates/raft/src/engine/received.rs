//! Checks the messages of other members before the `raft` crate gets them. The `raft` crate assumes that every sender
//! runs the same crate, unmodified, and asserts the consequences of that assumption. The decoder
//! ([`super::super::codec`]) rejects a message that no node could send in any state; this module rejects a message that
//! cannot be meant for this node in its current state. A rejected message is ignored, as if it had been lost.
//!
//! Invariant: no message of a peer, whatever its content and whenever it arrives, makes an assertion of the crate fail. A peer
//! that lies can still do harm: Raft tolerates members that stop, not members that lie.

use base::rt;
use raft_rs::eraftpb::{Message, MessageType};

use super::{RaftEngine, StateMachine};
use crate::Error;
use crate::engine::snapshot_format::members_of;
use crate::fault::{Mutant, mutant};

/// How far ahead of this node's term another node's term may be. Terms grow by one an election.
const TERMS_AHEAD_MAX: u64 = 1 << 32;

impl<M: StateMachine> RaftEngine<M> {
    /// Handles a message of another member.
    pub(super) fn step(&mut self, message: Message) -> Result<(), Error> {
        let raft = &self.node.raft;
        match message.msg_type {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                // No node here asks for a vote that would break a lease.
                let is_mute = rt::now() < self.mute_until;
                if is_mute || !message.context.is_empty() {
                    return Ok(());
                }
            }
            // Ignored as if it had been lost: the leader sends it again, and by then there may be capacity.
            MessageType::MsgAppend if !message.entries.is_empty() && !self.machine.has_capacity() => return Ok(()),
            _ => {}
        }
        if let Some(reason) = self.rejection(&message)
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
        // Errors mean that a message has arrived too late; the crate has ignored it.
        let _ = self.node.step(message);
        Ok(())
    }

    /// Why a message cannot be meant for this node in its current state.
    fn rejection(&self, message: &Message) -> Option<&'static str> {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        let is_of_now = message.term >= raft.term;
        if message.term > raft.term.saturating_add(TERMS_AHEAD_MAX) {
            return Some("its term is further ahead than elections can have led");
        }
        match message.msg_type {
            MessageType::MsgAppendResponse if is_of_now && message.index > last => {
                Some("it confirms entries that this node's log does not have")
            }
            // A node that asks for votes has made its log durable before, and accepts no entries meanwhile.
            MessageType::MsgRequestVoteResponse if raft.raft_log.persisted < last => {
                Some("it answers a request that this node has not sent")
            }
            MessageType::MsgSnapshot => {
                let snapshot = message.get_snapshot();
                let state = snapshot.get_metadata().get_conf_state();
                let is_told = match members_of(snapshot.data.clone()) {
                    Ok((members, _)) => {
                        members.len() == state.voters.len() + state.learners.len()
                            && state.voters.iter().all(|id| members.get(id).is_some_and(|member| !member.is_learner))
                            && state.learners.iter().all(|id| members.get(id).is_some_and(|member| member.is_learner))
                    }
                    Err(_) => false,
                };
                (!is_told).then_some("the members in its snapshot differ from those in the snapshot's metadata")
            }
            _ => None,
        }
    }
}
