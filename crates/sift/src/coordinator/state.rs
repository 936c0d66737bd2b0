//! The state of a coordinator, and every change of it: a state machine without time, tasks or awaits of its own.
//!
//! A *ticket* is the sequence number of a verb that is posted to all nodes alike. A node has acknowledged a ticket when
//! the verb of that ticket and all verbs posted to the node before it have completed and, at a persistent node, are on
//! its disk. A ticket is committed when the live nodes that have acknowledged it are a majority of all nodes.
//!
//! | module | contents |
//! |---|---|
//! | [`member`] | a memory node and the outstanding verbs to it |
//! | [`leases`] | leases, lost nodes, the end of the coordinator |
//! | [`writing`] | appending, locks, unlogged writes |
//! | [`reading`] | reads |
//! | [`progress`] | completions, commits, applying, headers, freeing log space |
//! | [`joining`] | re-admission of a node |
//! | [`persistence`] | verbs that are on the disk of a persistent node |

mod joining;
mod leases;
mod member;
mod persistence;
mod progress;
mod reading;
mod writing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use base::rt::{self, Instant};
use base::{Bytes, BytesMut};

use super::{CoordinatorStatus, PENDING_VERBS_MAX, RecoveredState, WAITING_MAX};
use crate::entry::{EntryKind, MemoryWrite};
use crate::layout::{GroupLayout, LogCursor};
use crate::scan::located_bytes;
use crate::shards::Shards;
use crate::{Error, SiftGroup, Term};
pub(super) use joining::{CopiedRegion, RegionCopy, region_bytes};
pub(super) use member::{MemberState, NodePhase};
use persistence::PersistTracker;
pub(super) use persistence::UnpersistedWrites;
pub(super) use reading::ShardRead;
pub(super) use writing::Holding;
pub(crate) use writing::covers_whole_blocks;

/// Committed entries that may wait before an appending caller applies them.
const APPLY_BATCH: usize = 32;
/// The same limit where verbs do not complete while they are posted, so that each completion is processed later.
const APPLY_BATCH_ASYNCHRONOUS: usize = 4;
/// Bytes of committed entries that may wait before an appending caller applies them: few, since all other callers wait
/// meanwhile.
const APPLY_BATCH_BYTES: u64 = 16 << 10;
/// Bytes that are allocated at once for the heads of entries.
const HEADS_BYTES: usize = 64 << 10;

/// One write or several.
pub(super) enum EntryWrites {
    One(MemoryWrite),
    Many(Vec<MemoryWrite>),
}

impl EntryWrites {
    pub(super) fn as_slice(&self) -> &[MemoryWrite] {
        match self {
            EntryWrites::One(write) => std::slice::from_ref(write),
            EntryWrites::Many(writes) => writes,
        }
    }

    fn clone_shared(&self) -> EntryWrites {
        match self {
            EntryWrites::One(write) => EntryWrites::One(write.clone()),
            EntryWrites::Many(writes) => EntryWrites::Many(writes.clone()),
        }
    }
}

/// The part of the state that can be read without its lock. A value is as it was at some moment, which is all that the
/// holder of the lock knows too after releasing it.
#[derive(Default)]
pub(super) struct PublishedProgress {
    /// The end of the lease; 0 once the coordinator has ended.
    lease_until_ns: AtomicU64,
    /// A majority has everything up to this ticket. It only grows.
    committed: AtomicU64,
    /// The state has changed for a node's background task, or for all.
    changed: AtomicBool,
}

impl PublishedProgress {
    /// Whether the lease stands.
    #[inline]
    pub(super) fn is_leased(&self) -> bool {
        let until = self.lease_until_ns.load(Ordering::SeqCst);
        rt::now().nanos() < until
    }

    #[inline]
    pub(super) fn is_committed(&self, sequence: u64) -> bool {
        self.committed.load(Ordering::Acquire) >= sequence
    }

    /// Whether something has changed since the last call.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) && self.changed.swap(false, Ordering::AcqRel)
    }
}

/// The outcome of an attempt.
pub(super) enum StepOutcome<T> {
    Done(T),
    /// Blocked by a lock, a copy or a full log.
    Blocked,
}

/// An entry that was posted.
pub(super) struct AppendedEntry {
    pub sequence: u64,
    pub index: u64,
    pub committed: bool,
}

/// An entry that is not applied yet.
struct UnappliedEntry {
    sequence: u64,
    after: LogCursor,
    /// Bytes of the log.
    bytes: u64,
    kind: EntryKind,
    writes: EntryWrites,
}

/// An entry whose log space is still in use.
struct RetainedEntry {
    after: LogCursor,
    /// Bytes of the log, including the bytes skipped before the entry.
    bytes: u64,
    /// Its offset and bytes, kept while the log has a record that is not trimmed.
    raw: Option<(u64, Vec<Bytes>)>,
}

/// Tasks to wake after the lock is released.
#[must_use]
#[derive(Default)]
pub(super) struct WakeList(Vec<Waker>);

impl WakeList {
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// See the module's description.
pub(super) struct CoordinatorState {
    layout: GroupLayout,
    /// How blocks are divided into shards, in an erasure-coded group.
    shards: Option<Shards>,
    majority: usize,
    term: Term,
    lease: std::time::Duration,
    nodes: u32,
    /// The last entry of the takeover.
    adopted: u64,
    pub members: Vec<MemberState>,
    pub ticket: u64,
    committed: u64,
    committed_index: u64,
    /// The last entry.
    last: LogCursor,
    pub applied: LogCursor,
    unapplied: VecDeque<UnappliedEntry>,
    /// Bytes of the log that the unapplied entries take.
    unapplied_bytes: u64,
    /// Entries that the headers of a majority do not cover, oldest first.
    retained: VecDeque<RetainedEntry>,
    /// The position before the first of them.
    retained_from: LogCursor,
    used_bytes: u64,
    /// Headers are posted, so that log space becomes free again.
    pub reclaims_log: bool,
    apply_batch: usize,
    /// The indexes of records that were not trimmed.
    records: VecDeque<u64>,
    /// One bit per block: set while a write to the block is not applied.
    locked: Vec<u64>,
    /// The number of writes to each region.
    write_counts: Vec<u32>,
    head_buffer: BytesMut,
    blocked: Vec<Waker>,
    waiting: Vec<(u64, Waker)>,
    /// Bytes of memory that were copied to re-admitted nodes.
    copied_bytes: u64,
    /// Tasks to wake when there are writes for a node's disk.
    persisters: Vec<Option<Waker>>,
    /// When a node was last lost, or this coordinator started without it.
    lost_at: Instant,
    ended: Option<Error>,
    pub published: Arc<PublishedProgress>,
    next_read: usize,
}

impl CoordinatorState {
    pub(super) fn new(
        group: &SiftGroup,
        term: Term,
        inheritance: RecoveredState,
        probed: &[usize],
        posted_at: Instant,
    ) -> CoordinatorState {
        let layout = group.layout;
        let RecoveredState { end, log_start: kept, entries, nodes: inherited, format_term: _ } = inheritance;
        let synchronous = inherited.iter().all(|node| node.node.link.endpoint.profile().synchronous);
        let mut members: Vec<MemberState> = group.nodes.iter().map(|_| MemberState::lost()).collect();
        for node in inherited {
            let slot = node.node.link.slot;
            members[slot] = MemberState {
                phase: NodePhase::Live,
                persist_tracker: PersistTracker::new(&node.node),
                node: Some(node.node),
                sequence: node.sequence,
                applied: kept.index,
                lease_at: probed.contains(&slot).then_some(posted_at),
                ..MemberState::lost()
            };
        }
        let mut state = CoordinatorState {
            layout,
            shards: Shards::new(&layout),
            majority: group.majority(),
            term,
            lease: group.timing.lease,
            nodes: group.nodes.len() as u32,
            adopted: end.index,
            members,
            ticket: 0,
            committed: 0,
            committed_index: end.index,
            last: end,
            applied: end,
            unapplied: VecDeque::new(),
            unapplied_bytes: 0,
            retained: VecDeque::new(),
            retained_from: kept,
            used_bytes: 0,
            reclaims_log: true,
            apply_batch: if synchronous { APPLY_BATCH } else { APPLY_BATCH_ASYNCHRONOUS },
            records: VecDeque::new(),
            locked: vec![0; layout.blocks().div_ceil(64)],
            write_counts: vec![0; layout.address_bytes().div_ceil(region_bytes(&layout)) as usize],
            head_buffer: BytesMut::new(),
            blocked: Vec::new(),
            waiting: Vec::new(),
            copied_bytes: 0,
            persisters: vec![None; group.nodes.len()],
            lost_at: posted_at,
            ended: None,
            published: Arc::default(),
            next_read: 0,
        };
        let mut position = kept.position;
        for placed in entries.into_iter().filter(|placed| placed.entry.index > kept.index) {
            if placed.entry.kind == EntryKind::Record {
                state.records.push_back(placed.entry.index);
            }
            let bytes = located_bytes(position, &placed, &layout);
            position = placed.after.position;
            state.used_bytes += bytes;
            state.retained.push_back(RetainedEntry {
                after: placed.after,
                bytes,
                raw: Some((placed.offset, vec![placed.entry.raw])),
            });
        }
        assert!(state.used_bytes <= layout.log_bytes, "a takeover sees to that");
        state.publish_lease();
        state
    }

    pub(super) fn status(&self) -> CoordinatorStatus {
        let live = self.live().filter(|member| member.has_vote).count();
        let lost = self.members.iter().filter(|member| member.phase == NodePhase::Lost).count();
        CoordinatorStatus {
            term: self.term,
            live,
            joining: self.members.len() - live - lost,
            lost,
            spare: live.saturating_sub(self.majority),
            committed: self.committed_index,
            applied: self.applied.index,
            log_used_bytes: self.used_bytes,
            copied_bytes: self.copied_bytes,
        }
    }

    fn live(&self) -> impl Iterator<Item = &MemberState> {
        self.members.iter().filter(|member| member.phase == NodePhase::Live)
    }

    fn flush(&mut self) {
        self.members.iter().for_each(MemberState::flush);
        self.wake_persisters();
    }

    fn wake_blocked(&mut self) {
        std::mem::take(&mut self.blocked).into_iter().for_each(Waker::wake);
    }

    /// Registers a caller that is blocked.
    pub(super) fn wait(&mut self, cx: &Context<'_>) -> Result<(), Error> {
        self.check_open()?;
        if self.blocked.len() >= WAITING_MAX {
            return Err(Error::Busy);
        }
        self.blocked.push(cx.waker().clone());
        Ok(())
    }
}
