//! What a coordinator knows, and every change of it: a state machine without time, tasks or awaits of its own.
//!
//! A *ticket* numbers what is posted to all nodes alike. A node has acknowledged a ticket when the verb of that ticket and
//! all verbs posted to it before have completed; a ticket is committed when a majority of live nodes has acknowledged it.

use std::collections::VecDeque;
use std::future::Future as _;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use base::rt::{self, Instant};
use base::{Bytes, BytesMut};
use rma::{Completion, PARTS_MAX};

use super::{Inheritance, LAG_MAX, Status, WAITING_MAX};
use crate::entry::{Kind, Write, encode_head, entry_bytes, padded};
use crate::layout::{Cursor, Header, Layout};
use crate::link::Held;
use crate::scan::placed_bytes;
use crate::{Error, Group, Term};

/// Committed entries that wait to be applied before somebody who appends does it.
const APPLY_BATCH: usize = 32;
/// The same where verbs do not complete while they are posted, so that each is taken in later.
const APPLY_BATCH_ASYNCHRONOUS: usize = 4;
/// Bytes of entries' heads that are allocated at once.
const HEADS_BYTES: usize = 64 << 10;
/// Bytes of the largest region, the unit of copying to a node that comes back.
const REGION_BYTES_MAX: u64 = 64 << 10;
/// Regions that a small memory is divided into.
const REGIONS: u64 = 64;

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

/// Where a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Lost,
    Joining,
    Live,
}

/// A memory node.
pub(super) struct Member {
    pub phase: Phase,
    pub held: Option<Held>,
    posted: VecDeque<Posted>,
    /// Verbs up to this ticket have completed.
    pub acked: u64,
    /// Of the last header.
    sequence: u64,
    header_posted: bool,
    /// What the last header that has arrived says is applied.
    applied: u64,
    lease_at: Option<Instant>,
    /// It is known to have its vote.
    votes: bool,
    /// The regions that are copied, of a joining node.
    copied: Vec<bool>,
    /// Blocks that are being copied to it.
    copying: Range<usize>,
    /// Reads that were given up on it.
    slow: u32,
}

struct Posted {
    ticket: u64,
    header: Option<u64>,
    completion: Completion<()>,
}

/// An entry that is not applied.
struct Unapplied {
    ticket: u64,
    after: Cursor,
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
    /// Entries behind what a majority's headers cover, oldest first.
    kept: VecDeque<Kept>,
    /// Before the first of those.
    kept_from: Cursor,
    used_bytes: u64,
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
    ended: Option<Error>,
    changed: bool,
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
        let Inheritance { end, kept, entries, inherited } = inheritance;
        let synchronous = inherited.iter().all(|node| node.held.link.endpoint.profile().synchronous);
        let mut members: Vec<Member> = group.nodes.iter().map(|_| Member::lost()).collect();
        for node in inherited {
            let slot = node.held.link.slot;
            members[slot] = Member {
                phase: Phase::Live,
                held: Some(node.held),
                sequence: node.sequence,
                applied: kept.index,
                lease_at: probed.contains(&slot).then_some(posted_at),
                ..Member::lost()
            };
        }
        let mut state = State {
            layout,
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
            kept: VecDeque::new(),
            kept_from: kept,
            used_bytes: 0,
            apply_batch: if synchronous { APPLY_BATCH } else { APPLY_BATCH_ASYNCHRONOUS },
            records: VecDeque::new(),
            locked: vec![0; layout.blocks().div_ceil(64)],
            heat: vec![0; layout.address_bytes().div_ceil(region_bytes(&layout)) as usize],
            heads: BytesMut::new(),
            blocked: Vec::new(),
            waiting: Vec::new(),
            ended: None,
            changed: false,
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
        }
    }
}

/// Bytes of a region of a layout.
pub(super) fn region_bytes(layout: &Layout) -> u64 {
    // Powers of two, so that a region is made of whole blocks.
    let small = (layout.address_bytes() / REGIONS).next_power_of_two();
    small.min(REGION_BYTES_MAX).max(layout.block_bytes)
}

impl Member {
    fn lost() -> Member {
        Member {
            phase: Phase::Lost,
            held: None,
            posted: VecDeque::new(),
            acked: 0,
            sequence: 0,
            header_posted: false,
            applied: 0,
            lease_at: None,
            votes: false,
            copied: Vec::new(),
            copying: 0..0,
            slow: 0,
        }
    }

    fn is_held_by(&self, held: &Held) -> bool {
        self.held.as_ref().is_some_and(|own| Arc::ptr_eq(&own.link, &held.link))
    }

    /// Posts a verb; an error if it has failed already.
    fn post(&mut self, at: u64, parts: &[Bytes], ticket: u64, header: Option<u64>) -> Result<(), rma::Error> {
        let Some(held) = &self.held else { return Ok(()) };
        let completion = held.write(at, parts);
        let completion = match self.posted.is_empty() {
            false => completion,
            true => match completion.now() {
                Ok(Ok(())) => {
                    self.complete(ticket, header);
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(completion) => completion,
            },
        };
        if self.posted.len() >= LAG_MAX {
            return Err(rma::Error::Busy);
        }
        self.posted.push_back(Posted { ticket, header, completion });
        Ok(())
    }

    fn complete(&mut self, ticket: u64, header: Option<u64>) {
        self.acked = ticket;
        if let Some(applied) = header {
            self.header_posted = false;
            self.applied = applied;
        }
    }

    fn flush(&self) {
        if let Some(held) = &self.held
            && !self.posted.is_empty()
        {
            held.link.endpoint.flush();
        }
    }
}

/// Leases and ends.
impl State {
    pub(super) fn ended(&self) -> Option<Error> {
        self.ended.clone()
    }

    pub(super) fn end(&mut self, error: Error) {
        if self.ended.is_none() {
            tracing::info!(term = %self.term, %error, "a coordinator ends");
            self.ended = Some(error);
            self.changed = true;
            let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker);
            waiting.chain(std::mem::take(&mut self.blocked)).for_each(Waker::wake);
        }
    }

    /// Whether the keepers have something to look at, and whether the coordinator has ended.
    pub(super) fn take_changed(&mut self) -> (bool, bool) {
        (std::mem::take(&mut self.changed), self.ended.is_some())
    }

    fn check_open(&self) -> Result<(), Error> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Whether the coordinator may answer now; it ends when its lease has run out.
    pub(super) fn check_lease(&mut self) -> Result<(), Error> {
        self.check_open()?;
        let mut leases: Vec<Instant> = self
            .members
            .iter()
            .filter(|member| member.phase == Phase::Live)
            .filter_map(|member| member.lease_at)
            .collect();
        leases.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        let stands = leases.get(self.majority - 1).is_some_and(|at| rt::now() < *at + self.lease);
        if !stands {
            self.end(Error::LeaseLost(self.term));
        }
        self.check_open()
    }

    /// A node's probe has succeeded that was posted at a time.
    pub(super) fn renew(&mut self, held: &Held, posted_at: Instant) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.lease_at = Some(posted_at);
            member.slow = member.slow.saturating_sub(1);
        }
    }

    /// A node's verb has failed.
    pub(super) fn lose(&mut self, held: &Held, error: &rma::Error) {
        if self.members[held.link.slot].is_held_by(held) {
            self.lose_slot(held.link.slot, error);
        }
    }

    fn lose_slot(&mut self, slot: usize, error: &rma::Error) {
        if *error == rma::Error::Revoked {
            // Nobody revokes it but a newer coordinator, or we ourselves, who have let go of it before.
            self.end(Error::Fenced(self.term));
        }
        tracing::debug!(slot, %error, "a memory node is lost");
        self.members[slot] = Member::lost();
        self.changed = true;
        self.wake_blocked();
    }

    pub(super) fn note_slow(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.slow = (member.slow + 8).min(64);
        }
    }

    /// A node's heartbeat has not completed within the lease.
    pub(super) fn note_silent(&mut self, held: &Held, patience: std::time::Duration) {
        self.note_slow(held);
        let member = &self.members[held.link.slot];
        if member.is_held_by(held) && member.lease_at.is_none_or(|at| at.elapsed() >= patience) {
            self.lose_slot(held.link.slot, &rma::Error::Ambiguous("the node says nothing"));
        }
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

/// Reads and writes.
impl State {
    fn blocks(&self, address: u64, bytes: u64) -> Range<usize> {
        let block = self.layout.block_bytes;
        (address / block) as usize..(address + bytes).div_ceil(block) as usize
    }

    fn check_range(&self, address: u64, bytes: u64, within: Range<u64>) -> Result<(), Error> {
        match address.checked_add(bytes) {
            Some(until) if address >= within.start && until <= within.end => Ok(()),
            _ => Err(Error::Invalid(format!("bytes {address} to {address} + {bytes} do not lie within {within:?}"))),
        }
    }

    fn is_locked(&self, mut blocks: Range<usize>) -> bool {
        blocks.any(|block| self.locked[block / 64] & (1 << (block % 64)) != 0)
    }

    fn is_copying(&self, blocks: &Range<usize>) -> bool {
        self.members.iter().any(|member| blocks.start < member.copying.end && member.copying.start < blocks.end)
    }

    /// Posts to every node that takes part, those only that `takes` says; flushes.
    fn post_all(&mut self, at: u64, parts: &[Bytes], ticket: u64, takes: impl Fn(&Member) -> bool) {
        for slot in 0..self.members.len() {
            let member = &mut self.members[slot];
            if member.phase != Phase::Lost
                && takes(member)
                && let Err(error) = member.post(at, parts, ticket, None)
            {
                self.lose_slot(slot, &error);
            }
        }
    }

    fn flush(&self) {
        self.members.iter().for_each(Member::flush);
    }

    /// Appends an entry.
    pub(super) fn append(&mut self, writes: &Writes, kind: Kind) -> Result<Step<Posting>, Error> {
        self.check_open()?;
        let slice = writes.as_slice();
        if kind == Kind::Writes {
            for write in slice {
                let bytes = write.bytes.len() as u64;
                self.check_range(write.address, bytes, self.layout.direct_bytes..self.layout.address_bytes())?;
            }
            let conflicts = |write: &Write| {
                let blocks = self.blocks(write.address, write.bytes.len() as u64);
                self.is_copying(&blocks) || self.is_locked(blocks)
            };
            if slice.iter().any(conflicts) {
                return Ok(Step::Blocked);
            }
        }
        let length = padded(entry_bytes(slice));
        let (log, position) = (self.layout.log_bytes, self.last.position);
        let (offset, skipped) = if position + length <= log { (position, 0) } else { (0, log - position) };
        if self.used_bytes + skipped + length > log {
            return Ok(Step::Blocked);
        }
        // Nothing has failed so far, and nothing will.
        for write in slice.iter().filter(|_| kind == Kind::Writes) {
            for block in self.blocks(write.address, write.bytes.len() as u64) {
                self.locked[block / 64] |= 1 << (block % 64);
            }
        }
        if self.heads.capacity() < 512 {
            self.heads = BytesMut::with_capacity(HEADS_BYTES);
        }
        let index = self.last.index + 1;
        let chain = encode_head(index, self.term, self.last.chain, kind, slice, &mut self.heads);
        let mut parts: [Bytes; PARTS_MAX] = Default::default();
        parts[0] = self.heads.split().freeze();
        for (part, write) in parts[1..].iter_mut().zip(slice) {
            *part = write.bytes.clone();
        }
        let parts = &parts[..=slice.len()];
        self.last = Cursor { index, position: offset + length, chain };
        self.used_bytes += skipped + length;
        self.ticket += 1;
        let ticket = self.ticket;
        self.post_all(self.layout.log_at(offset), parts, ticket, |_| true);
        self.flush();
        if kind == Kind::Record {
            self.records.push_back(index);
        }
        let raw = (!self.records.is_empty()).then(|| (offset, parts.to_vec()));
        self.kept.push_back(Kept { after: self.last, bytes: skipped + length, raw });
        self.unapplied.push_back(Unapplied { ticket, after: self.last, kind, writes: writes.share() });
        self.commit();
        if self.unapplied.len() >= self.apply_batch {
            self.apply();
        }
        if self.used_bytes > log / 2 {
            self.apply();
            self.post_headers();
            self.reclaim();
        }
        Ok(Step::Done(Posting { ticket, index, committed: self.committed >= ticket }))
    }

    /// Writes without the log.
    pub(super) fn write_direct(&mut self, address: u64, bytes: &Bytes) -> Result<Step<u64>, Error> {
        self.check_open()?;
        self.check_range(address, bytes.len() as u64, 0..self.layout.direct_bytes)?;
        let blocks = self.blocks(address, bytes.len() as u64);
        if self.is_copying(&blocks) {
            return Ok(Step::Blocked);
        }
        self.ticket += 1;
        self.post_memory(address, bytes, self.ticket);
        self.flush();
        self.commit();
        Ok(Step::Done(self.ticket))
    }

    /// Posts bytes to live nodes, and to those that have a copy of the region already.
    fn post_memory(&mut self, address: u64, bytes: &Bytes, ticket: u64) {
        let region = region_bytes(&self.layout);
        let regions = (address / region) as usize..(address + bytes.len() as u64).div_ceil(region) as usize;
        regions.clone().for_each(|region| self.heat[region] = self.heat[region].saturating_add(1));
        let at = self.layout.memory_at(address);
        self.post_all(at, std::slice::from_ref(bytes), ticket, |member| {
            member.phase == Phase::Live || regions.clone().any(|region| member.copied[region])
        });
    }

    /// Posts a read to a live node.
    pub(super) fn read(&mut self, address: u64, length: usize) -> Result<Step<(Held, Completion<BytesMut>)>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, 0..self.layout.address_bytes())?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(Step::Blocked);
        }
        let count = self.members.len();
        self.next_read = (self.next_read + 1) % count;
        let slots = (0..count).map(|step| (self.next_read + step) % count);
        let live = slots.filter(|slot| self.members[*slot].phase == Phase::Live);
        // The one that is least behind.
        let best = live.min_by_key(|slot| self.members[*slot].posted.len() / 8 + self.members[*slot].slow as usize);
        let Some(held) = best.and_then(|slot| self.members[slot].held.clone()) else { return Ok(Step::Blocked) };
        let read = held.read(self.layout.memory_at(address), length);
        held.link.endpoint.flush();
        Ok(Step::Done((held, read)))
    }

    /// Posts a read to every live node.
    pub(super) fn read_each(&mut self, address: u64, length: usize) -> Result<Step<Vec<Completion<BytesMut>>>, Error> {
        self.check_lease()?;
        self.check_range(address, length as u64, 0..self.layout.address_bytes())?;
        if self.is_locked(self.blocks(address, length as u64)) {
            return Ok(Step::Blocked);
        }
        let live = self.members.iter().filter(|member| member.phase == Phase::Live);
        let held: Vec<&Held> = live.filter_map(|member| member.held.as_ref()).collect();
        let reads = held.iter().map(|held| held.read(self.layout.memory_at(address), length)).collect();
        held.iter().for_each(|held| held.link.endpoint.flush());
        Ok(Step::Done(reads))
    }

    pub(super) fn trim(&mut self, index: u64) {
        while self.records.front().is_some_and(|record| *record <= index) {
            self.records.pop_front();
        }
        self.post_headers();
        self.reclaim();
        self.wake_blocked();
    }
}

/// Progress.
impl State {
    /// Takes in what has completed, applies what is committed, and makes room; `cx` is woken for more.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>) -> Woken {
        let woken = self.take_in(cx);
        self.apply();
        if self.used_bytes > self.layout.log_bytes / 2 {
            self.post_headers();
        }
        self.reclaim();
        woken
    }

    /// Takes in what has completed; `cx` is woken for more. Whoever waits for a commit does no more than this.
    pub(super) fn take_in(&mut self, cx: &mut Context<'_>) -> Woken {
        let mut progress = false;
        for slot in 0..self.members.len() {
            loop {
                let member = &mut self.members[slot];
                let Some(front) = member.posted.front_mut() else { break };
                match Pin::new(&mut front.completion).poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(())) => {
                        let Posted { ticket, header, .. } = member.posted.pop_front().expect("it was just polled");
                        member.complete(ticket, header);
                        progress = true;
                    }
                    Poll::Ready(Err(error)) => {
                        self.lose_slot(slot, &error);
                        progress = true;
                        break;
                    }
                }
            }
        }
        let mut woken = Woken::default();
        if progress {
            self.commit();
            let committed = self.committed;
            let mut first: Option<usize> = None;
            let mut at = 0;
            while at < self.waiting.len() {
                if self.waiting[at].0 <= committed {
                    woken.0.push(self.waiting.swap_remove(at).1);
                    continue;
                }
                if first.is_none_or(|first| self.waiting[at].0 < self.waiting[first].0) {
                    first = Some(at);
                }
                at += 1;
            }
            // Whoever polled last may not poll again: one of those that remain takes the completions over.
            if let Some(first) = first.filter(|first| *first < self.waiting.len()) {
                woken.0.push(self.waiting.swap_remove(first).1);
            }
            woken.0.append(&mut self.blocked);
        }
        woken
    }

    /// What a majority of all nodes have reached, all of them live; 0 when there are not so many.
    fn common(&self, reached: impl Fn(&Member) -> u64) -> u64 {
        let mut all = [0; crate::group::NODES_MAX];
        let mut live = 0;
        for member in self.live() {
            all[live] = reached(member);
            live += 1;
        }
        if live < self.majority {
            return 0;
        }
        all[..live].sort_unstable_by_key(|value| std::cmp::Reverse(*value));
        all[self.majority - 1]
    }

    fn commit(&mut self) {
        self.committed = self.committed.max(self.common(|member| member.acked));
    }

    pub(super) fn poll_committed(&mut self, ticket: u64, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        if self.committed >= ticket {
            return Poll::Ready(Ok(()));
        }
        if self.ended.is_some() {
            // It was posted, and may be found by the next takeover.
            return Poll::Ready(Err(Error::Ambiguous));
        }
        self.waiting.push((ticket, cx.waker().clone()));
        Poll::Pending
    }

    /// Applies what is committed: posts it to the nodes' memory and unlocks its blocks.
    fn apply(&mut self) {
        let mut applied = false;
        while self.unapplied.front().is_some_and(|entry| entry.ticket <= self.committed) && self.ended.is_none() {
            let entry = self.unapplied.pop_front().expect("it was just seen");
            if entry.kind == Kind::Writes {
                for write in entry.writes.as_slice() {
                    self.post_memory(write.address, &write.bytes, self.ticket);
                    for block in self.blocks(write.address, write.bytes.len() as u64) {
                        self.locked[block / 64] &= !(1 << (block % 64));
                    }
                }
            }
            self.applied = entry.after;
            self.committed_index = entry.after.index;
            applied = true;
        }
        if applied {
            self.flush();
            self.wake_blocked();
        }
    }

    /// Up to here the log is no more needed by a node that has all of it applied.
    fn watermark(&self) -> Cursor {
        let Some(record) = self.records.front().filter(|record| **record <= self.applied.index) else {
            return self.applied;
        };
        let before = record - 1;
        match before.checked_sub(self.kept_from.index) {
            Some(0) | None => self.kept_from,
            Some(distance) => self.kept[distance as usize - 1].after,
        }
    }

    fn header(&self, sequence: u64, applied: Cursor) -> Header {
        Header { sequence, term: self.term, adopted: self.adopted, applied, nodes: self.nodes }
    }

    /// Tells the nodes how far they are.
    fn post_headers(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let watermark = self.watermark();
        for slot in 0..self.members.len() {
            let member = &self.members[slot];
            if member.phase == Phase::Live && !member.header_posted && member.applied < watermark.index {
                self.post_header(slot, watermark, self.ticket);
            }
        }
        self.flush();
    }

    fn post_header(&mut self, slot: usize, watermark: Cursor, ticket: u64) {
        let sequence = self.members[slot].sequence + 1;
        let header = self.header(sequence, watermark);
        let member = &mut self.members[slot];
        member.sequence = sequence;
        member.header_posted = true;
        let bytes = Bytes::copy_from_slice(&header.encode());
        if let Err(error) = member.post(header.at(), &[bytes], ticket, Some(watermark.index)) {
            self.lose_slot(slot, &error);
        }
    }

    /// Makes room of what a majority's headers cover.
    fn reclaim(&mut self) {
        let covered = self.common(|member| member.applied);
        let mut freed = false;
        while let Some(kept) = self.kept.front().filter(|kept| kept.after.index <= covered) {
            self.used_bytes -= kept.bytes;
            self.kept_from = kept.after;
            self.kept.pop_front();
            freed = true;
        }
        if freed {
            self.wake_blocked();
        }
    }

    fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.phase == Phase::Live)
    }

    /// Applies what can be, and tells the nodes.
    pub(super) fn apply_all(&mut self) {
        self.apply();
        self.post_headers();
        self.reclaim();
    }

    pub(super) fn is_settled(&self) -> bool {
        let watermark = self.watermark().index;
        self.unapplied.is_empty() && self.live().all(|member| member.applied >= watermark)
    }
}

/// A node that comes back.
impl State {
    /// Regions, those first that are written least.
    pub(super) fn regions(&self) -> Vec<usize> {
        let mut regions: Vec<usize> = (0..self.heat.len()).collect();
        regions.sort_by_key(|region| self.heat[*region]);
        regions
    }

    /// From here on a node gets new entries.
    pub(super) fn join(&mut self, held: &Held, sequence: u64) -> Result<u64, Error> {
        self.check_open()?;
        let slot = held.link.slot;
        assert!(self.members[slot].phase == Phase::Lost, "a node has one keeper");
        let copied = vec![false; self.heat.len()];
        self.members[slot] =
            Member { phase: Phase::Joining, held: Some(held.clone()), sequence, copied, ..Member::lost() };
        let watermark = self.watermark().index;
        let records = self.kept.iter().filter(|kept| kept.after.index > watermark);
        let records: Vec<(u64, Vec<Bytes>)> = records.filter_map(|kept| kept.raw.clone()).collect();
        for (offset, parts) in records {
            let at = self.layout.log_at(offset);
            if let Err(error) = self.members[slot].post(at, &parts, self.ticket, None) {
                self.lose_slot(slot, &error);
                break;
            }
        }
        Ok(self.last.index)
    }

    fn joining(&mut self, held: &Held) -> Result<&mut Member, Error> {
        self.check_open()?;
        let member = &mut self.members[held.link.slot];
        match member.phase == Phase::Joining && member.is_held_by(held) {
            true => Ok(member),
            false => Err(Error::NoAnswer { address: String::new(), reason: "the node was lost again".to_owned() }),
        }
    }

    /// Begins to copy a region: posts the read of it, and keeps writers away from it.
    pub(super) fn begin_copy(
        &mut self,
        held: &Held,
        region: usize,
    ) -> Result<Step<(Held, Completion<BytesMut>)>, Error> {
        self.joining(held)?;
        let bytes = region_bytes(&self.layout);
        let from = region as u64 * bytes;
        let length = bytes.min(self.layout.address_bytes() - from);
        let blocks = self.blocks(from, length);
        if self.is_locked(blocks.clone()) || self.members[held.link.slot].posted.len() >= LAG_MAX / 4 {
            return Ok(Step::Blocked);
        }
        let source = self.live().filter(|member| member.held.is_some());
        let Some(source) = source.min_by_key(|member| member.posted.len() + member.slow as usize) else {
            return Ok(Step::Blocked);
        };
        let source = source.held.clone().expect("it was filtered for one");
        let read = source.read(self.layout.memory_at(from), length as usize);
        source.link.endpoint.flush();
        self.joining(held)?.copying = blocks;
        Ok(Step::Done((source, read)))
    }

    /// Posts a region that was read; from here on the node gets what is written to it.
    pub(super) fn end_copy(&mut self, held: &Held, region: usize, bytes: Option<Bytes>) -> Result<(), Error> {
        let ticket = self.ticket;
        let at = self.layout.memory_at(region as u64 * region_bytes(&self.layout));
        let member = self.joining(held)?;
        member.copying = 0..0;
        if let Some(bytes) = bytes {
            member.copied[region] = true;
            if let Err(error) = member.post(at, &[bytes], ticket, None) {
                self.lose_slot(held.link.slot, &error);
            }
        }
        self.flush();
        self.wake_blocked();
        self.joining(held).map(drop)
    }

    /// Posts the header of a node that has everything; gives the ticket that it is to acknowledge.
    pub(super) fn complete_join(&mut self, held: &Held, from: u64) -> Result<Step<u64>, Error> {
        self.joining(held)?;
        if self.applied.index < from {
            return Ok(Step::Blocked);
        }
        assert!(self.members[held.link.slot].copied.iter().all(|copied| *copied), "all regions are copied");
        self.ticket += 1;
        let watermark = self.watermark();
        self.post_header(held.link.slot, watermark, self.ticket);
        self.flush();
        self.joining(held)?;
        Ok(Step::Done(self.ticket))
    }

    /// Whether a joining node has acknowledged a ticket.
    pub(super) fn has_acked(&mut self, held: &Held, ticket: u64) -> Result<Step<()>, Error> {
        let member = self.joining(held)?;
        Ok(if member.acked >= ticket { Step::Done(()) } else { Step::Blocked })
    }

    /// From here on the node counts.
    pub(super) fn admit(&mut self, held: &Held) -> Result<(), Error> {
        let member = self.joining(held)?;
        member.phase = Phase::Live;
        member.votes = true;
        member.copied = Vec::new();
        self.changed = true;
        Ok(())
    }

    pub(super) fn lacks_vote(&self, held: &Held) -> bool {
        let member = &self.members[held.link.slot];
        member.phase == Phase::Live && member.is_held_by(held) && !member.votes
    }

    pub(super) fn note_vote(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.is_held_by(held) {
            member.votes = true;
        }
    }

    pub(super) fn give_up_join(&mut self, held: &Held) {
        let member = &mut self.members[held.link.slot];
        if member.phase == Phase::Joining && member.is_held_by(held) {
            *member = Member::lost();
            self.wake_blocked();
        }
    }

    /// The live nodes other than one.
    pub(super) fn others(&self, slot: usize) -> Vec<Held> {
        let live = self.live().filter_map(|member| member.held.clone());
        live.filter(|held| held.link.slot != slot).collect()
    }
}
