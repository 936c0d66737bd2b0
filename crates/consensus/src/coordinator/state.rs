//! What a coordinator knows, and every change of it: a state machine without time, tasks or awaits of its own.
//!
//! A *ticket* numbers what is posted to all nodes alike. A node has acknowledged a ticket when the verb of that ticket and
//! all verbs posted to it before have completed; a ticket is committed when a majority of live nodes has acknowledged it.
//!
//! | part | what it has |
//! |---|---|
//! | [`member`] | a memory node and the verbs under way to it |
//! | [`leases`] | leases, nodes that are lost, the end |
//! | [`writing`] | appending, locks, direct writes |
//! | [`reading`] | reads |
//! | [`progress`] | completions, commits, applying, headers, room in the log |
//! | [`joining`] | a node that comes back |
//! | [`keeping`] | what a persistent node's disk has |

mod joining;
mod keeping;
mod leases;
mod member;
mod progress;
mod reading;
mod writing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use base::rt::{self, Instant};
use base::{Bytes, BytesMut};

use super::{Inheritance, LAG_MAX, Status, WAITING_MAX};
use crate::entry::{Kind, Write};
use crate::layout::{Cursor, Layout};
use crate::scan::placed_bytes;
use crate::shares::Shares;
use crate::{Error, Group, Term};
pub(super) use joining::{Copied, Copying, region_bytes};
use keeping::Journal;
pub(super) use keeping::Unkept;
pub(super) use member::{Member, Phase};
pub(super) use reading::Fetch;
pub(super) use writing::Holding;
pub(crate) use writing::is_whole;

/// Committed entries that wait to be applied before somebody who appends does it.
const APPLY_BATCH: usize = 32;
/// The same where verbs do not complete while they are posted, so that each is taken in later.
const APPLY_BATCH_ASYNCHRONOUS: usize = 4;
/// Bytes of committed entries that wait to be applied before somebody who appends does it: few, since everybody else waits meanwhile.
const APPLY_BATCH_BYTES: u64 = 16 << 10;
/// Bytes of entries' heads that are allocated at once.
const HEADS_BYTES: usize = 64 << 10;

/// One write or several.
pub(super) enum Writes {
    One(Write),
    Many(Vec<Write>),
}

impl Writes {
    pub(super) fn as_slice(&self) -> &[Write] {
        match self {
            Writes::One(write) => std::slice::from_ref(write),
            Writes::Many(writes) => writes,
        }
    }

    fn share(&self) -> Writes {
        match self {
            Writes::One(write) => Writes::One(write.clone()),
            Writes::Many(writes) => Writes::Many(writes.clone()),
        }
    }
}

/// What may be known of the state without its lock: as it was at some moment, which is all that whoever has the lock knows once he
/// has let it go.
#[derive(Default)]
pub(super) struct Published {
    /// The lease stands until then; 0 once the coordinator has ended.
    lease_until_ns: AtomicU64,
    /// A majority has everything up to this ticket. It only grows.
    committed: AtomicU64,
    /// Keepers, or all, have something to look at.
    changed: AtomicBool,
}

impl Published {
    /// Whether the lease stands.
    pub(super) fn is_leased(&self) -> bool {
        let until = self.lease_until_ns.load(Ordering::SeqCst);
        rt::now().nanos() < until
    }

    pub(super) fn is_committed(&self, ticket: u64) -> bool {
        self.committed.load(Ordering::Acquire) >= ticket
    }

    /// Whether something has changed since the last call.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) && self.changed.swap(false, Ordering::AcqRel)
    }
}

/// What came of an attempt.
pub(super) enum Step<T> {
    Done(T),
    /// Something is in the way: a lock, a copy, a full log.
    Blocked,
}

/// An entry that was posted.
pub(super) struct Posting {
    pub ticket: u64,
    pub index: u64,
    pub committed: bool,
}

/// An entry that is not applied.
struct Unapplied {
    ticket: u64,
    after: Cursor,
    /// Of the log.
    bytes: u64,
    kind: Kind,
    writes: Writes,
}

/// An entry whose place is in use.
struct Kept {
    after: Cursor,
    /// Bytes of the log, with what was skipped before it.
    bytes: u64,
    /// What it is made of, once a record stands in the log that is not trimmed.
    raw: Option<(u64, Vec<Bytes>)>,
}

/// Those to be woken when the lock is free.
#[must_use]
#[derive(Default)]
pub(super) struct Woken(Vec<Waker>);

impl Woken {
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// See the module's description.
pub(super) struct State {
    layout: Layout,
    /// How blocks are divided, in a coded group.
    shares: Option<Shares>,
    majority: usize,
    term: Term,
    lease: std::time::Duration,
    nodes: u32,
    /// The last entry of the takeover.
    adopted: u64,
    pub members: Vec<Member>,
    pub ticket: u64,
    committed: u64,
    committed_index: u64,
    /// The last entry.
    last: Cursor,
    pub applied: Cursor,
    unapplied: VecDeque<Unapplied>,
    /// Bytes of the log that those take.
    unapplied_bytes: u64,
    /// Entries behind what a majority's headers cover, oldest first.
    kept: VecDeque<Kept>,
    /// Before the first of those.
    kept_from: Cursor,
    used_bytes: u64,
    /// Nodes are told how far they are, so that there is room again.
    pub makes_room: bool,
    apply_batch: usize,
    /// Records that were not trimmed.
    records: VecDeque<u64>,
    /// One bit a block: a write that is not applied.
    locked: Vec<u64>,
    /// Writes to each region.
    heat: Vec<u32>,
    heads: BytesMut,
    blocked: Vec<Waker>,
    waiting: Vec<(u64, Waker)>,
    /// Bytes of memory that were copied to nodes that came back.
    copied_bytes: u64,
    /// Who is to be woken when something is to be kept by a node's disk.
    unkept: Vec<Option<Waker>>,
    /// When a node was lost, or this coordinator began without it.
    lost_at: Instant,
    ended: Option<Error>,
    pub published: Arc<Published>,
    next_read: usize,
}

impl State {
    pub(super) fn new(
        group: &Group,
        term: Term,
        inheritance: Inheritance,
        probed: &[usize],
        posted_at: Instant,
    ) -> State {
        let layout = group.layout;
        let Inheritance { end, kept, entries, inherited, made: _ } = inheritance;
        let synchronous = inherited.iter().all(|node| node.held.link.endpoint.profile().synchronous);
        let mut members: Vec<Member> = group.nodes.iter().map(|_| Member::lost()).collect();
        for node in inherited {
            let slot = node.held.link.slot;
            members[slot] = Member {
                phase: Phase::Live,
                journal: Journal::of(&node.held),
                held: Some(node.held),
                sequence: node.sequence,
                applied: kept.index,
                lease_at: probed.contains(&slot).then_some(posted_at),
                ..Member::lost()
            };
        }
        let mut state = State {
            layout,
            shares: Shares::of(&layout),
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
            kept: VecDeque::new(),
            kept_from: kept,
            used_bytes: 0,
            makes_room: true,
            apply_batch: if synchronous { APPLY_BATCH } else { APPLY_BATCH_ASYNCHRONOUS },
            records: VecDeque::new(),
            locked: vec![0; layout.blocks().div_ceil(64)],
            heat: vec![0; layout.address_bytes().div_ceil(region_bytes(&layout)) as usize],
            heads: BytesMut::new(),
            blocked: Vec::new(),
            waiting: Vec::new(),
            copied_bytes: 0,
            unkept: vec![None; group.nodes.len()],
            lost_at: posted_at,
            ended: None,
            published: Arc::default(),
            next_read: 0,
        };
        let mut position = kept.position;
        for placed in entries.into_iter().filter(|placed| placed.entry.index > kept.index) {
            if placed.entry.kind == Kind::Record {
                state.records.push_back(placed.entry.index);
            }
            let bytes = placed_bytes(position, &placed, &layout);
            position = placed.after.position;
            state.used_bytes += bytes;
            state.kept.push_back(Kept {
                after: placed.after,
                bytes,
                raw: Some((placed.offset, vec![placed.entry.raw])),
            });
        }
        assert!(state.used_bytes <= layout.log_bytes, "a takeover sees to that");
        state.publish_lease();
        state
    }

    pub(super) fn status(&self) -> Status {
        let live = self.live().filter(|member| member.votes).count();
        let lost = self.members.iter().filter(|member| member.phase == Phase::Lost).count();
        Status {
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

    fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.phase == Phase::Live)
    }

    fn flush(&mut self) {
        self.members.iter().for_each(Member::flush);
        self.tell_unkept();
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
