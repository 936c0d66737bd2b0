//! The configuration of a Raft node: its limits and time-outs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::membership::RaftMember;

/// Proposals that are not answered yet.
pub const WAITING_MAX: usize = 4096;
/// Reads behind a barrier, and changes of members, that are not answered yet.
pub const REQUESTS_MAX: usize = 1024;
/// For how many election time-outs a node that hands over lets others go first.
pub(crate) const TRANSFER_ELECTIONS: u32 = 4;
/// Other events that are queued for the engine: messages, links, syncs.
pub(crate) const EVENTS_MAX: usize = 4096;
/// Bytes of one proposal.
pub const PROPOSAL_BYTES_MAX: usize = 64 << 20;

/// Times of a group; the same at all its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaftTimeouts {
    /// The unit of all others.
    pub tick: Duration,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: u32,
    /// Ticks without a heartbeat after which a node stands for election, plus up to as many again at random.
    pub election_ticks: u32,
}

impl Default for RaftTimeouts {
    fn default() -> RaftTimeouts {
        RaftTimeouts { tick: Duration::from_millis(10), heartbeat_ticks: 3, election_ticks: 20 }
    }
}

impl RaftTimeouts {
    /// For busy machines, such as those of orderers: another member leads within a second or so.
    pub fn of_busy_machines() -> RaftTimeouts {
        RaftTimeouts { tick: Duration::from_millis(25), ..RaftTimeouts::default() }
    }

    /// How long after sending heartbeats that a majority answered no other leader is elected. See the module.
    pub(super) fn lease(&self) -> Duration {
        base::lease::held(self.tick * (self.election_ticks - 1))
    }

    fn check(&self) -> Result<(), Error> {
        let is_good = !self.tick.is_zero()
            && self.heartbeat_ticks > 0
            && self.election_ticks > 2 * self.heartbeat_ticks
            && self.election_ticks <= 10_000;
        is_good.then_some(()).ok_or_else(|| {
            Error::Invalid("the Raft timing is invalid: an election time-out must exceed two heartbeats".into())
        })
    }
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct RaftConfig {
    /// The group.
    pub group: u64,
    /// This node's number in it.
    pub node: u64,
    /// The address at which this node listens. Other nodes connect to the address that the group's member list has.
    pub listen: String,
    /// The directory of its log; without one nothing is durable.
    pub directory: Option<PathBuf>,
    /// The founding members of the group, this node included and the same at each of them; used if the directory is blank.
    /// Empty for a node that is added to an existing group.
    pub founders: Vec<RaftMember>,
    /// Addresses of members, by number, that override those in the group's log, for members that have moved since.
    pub addresses: BTreeMap<u64, String>,
    /// Times.
    pub timing: RaftTimeouts,
    /// Followers may learn of a commit with the next entry instead of at once, which saves messages.
    pub is_commit_lazy: bool,
    /// The most bytes of uncommitted entries.
    pub uncommitted_bytes_max: usize,
    /// Bytes of applied entries that are kept in memory for members that lag.
    pub log_bytes: usize,
    /// Bytes of entries after which the log on disk is replaced by a snapshot.
    pub snapshot_after_bytes: usize,
    /// Bytes of the log's segments on disk; `None` for the default.
    pub segment_bytes: Option<u64>,
    /// The most bytes of a snapshot that this node accepts.
    pub snapshot_bytes_max: usize,
}

impl RaftConfig {
    /// For a node that founds a group or resumes in it, with sizes and times that suit most groups.
    pub fn new(group: u64, node: u64, founders: Vec<RaftMember>) -> RaftConfig {
        let listen = founders.iter().find(|member| member.id == node).map(|member| member.address.clone());
        RaftConfig {
            group,
            node,
            listen: listen.unwrap_or_default(),
            directory: None,
            founders,
            addresses: BTreeMap::new(),
            timing: RaftTimeouts::default(),
            is_commit_lazy: false,
            uncommitted_bytes_max: 64 << 20,
            log_bytes: 32 << 20,
            snapshot_after_bytes: 256 << 20,
            segment_bytes: None,
            snapshot_bytes_max: 4 << 30,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.timing.check()?;
        if self.group == 0 || self.node == 0 || self.founders.iter().any(|member| member.id == 0) {
            return Err(Error::Invalid("the numbers of Raft groups and nodes start at 1".into()));
        }
        if self.founders.len() > crate::codec::MEMBERS_MAX {
            return Err(Error::Invalid(format!("a Raft group has at most {} members", crate::codec::MEMBERS_MAX)));
        }
        let ids: std::collections::BTreeSet<u64> = self.founders.iter().map(|member| member.id).collect();
        if ids.len() < self.founders.len() {
            return Err(Error::Invalid("two founders of a Raft group have the same number".into()));
        }
        if !self.founders.is_empty() && self.founders.iter().all(|member| member.is_learner) {
            return Err(Error::Invalid("a Raft group needs at least one founder with a vote".into()));
        }
        Ok(())
    }
}
