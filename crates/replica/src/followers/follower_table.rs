//! The primary's record of its followers: for each follower, the changes still to be sent, the last update that it has
//! acknowledged, and its lease.
//!
//! One lock protects the table; no function holds it across an await. Updates are numbered, and the number of an update
//! is its *position*. A logged change is sent with the next update; [`FollowerTable::position`] is the position of that
//! update.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotReceiver, OneshotSender, Sender, oneshot};
use base::rt::sync::Notify;
use base::rt::{CancellationToken, Instant};
use base::{Bytes, BytesMut, rt};

use super::work::WORK_ITEM_BYTES_MAX;
use crate::events;
use crate::fault::{Mutant, hold_up, mutant};
use crate::followers::FOLLOWERS_MAX;
use crate::followers::message::{Candidate, ToFollower};
use crate::followers::work::{NO_WORK, WorkItems};
use crate::lease::{FollowerId, LeaseGrantor};

/// Updates that may wait for one follower; one more and it is fenced.
pub const UPDATES_MAX: usize = 256;
/// Bytes of changes in one update; with more, the follower is fenced, and joins again.
pub const CHANGES_BYTES_MAX: usize = 96 << 20;
/// How long followers may take to report which records they have in use.
const IN_USE_TIMEOUT: Duration = Duration::from_millis(5);

/// Added to `lateness` for an update that is not acknowledged before the lease has ended; one acknowledged in time takes
/// 1 off.
const LATE_WEIGHT: u8 = 2;
/// A follower is fenced at this sum: after three late updates in a row, or when a third or more of its updates are late
/// for long. Each of them delayed a commit until the end of a lease.
const LATENESS_MAX: u8 = 3 * LATE_WEIGHT;

/// See [the module](self).
#[derive(Default)]
pub struct FollowerTable {
    /// Some follower may hold a lease. Without followers the data path reads nothing else.
    any: AtomicBool,
    state: Mutex<FollowerTableState>,
    /// An update was acknowledged, or a follower has left.
    progress: Notify,
    /// A follower has joined.
    pub joined: Notify,
}

#[derive(Default)]
struct FollowerTableState {
    members: BTreeMap<FollowerId, FollowerEntry>,
    grantor: LeaseGrantor,
    /// Followers that have left: when the last lease of each ends, and the lowest height it may read at until then.
    ended: Vec<(Instant, u64)>,
    /// The position of the last update.
    sequence: u64,
    /// The highest floor ever returned: nobody reads below it.
    floor: u64,
    next: u32,
    asked: u64,
}

struct FollowerEntry {
    /// The name by which a caller decides on trust: the one that the link proved, else one given at joining.
    name: Arc<str>,
    updates: Sender<Bytes>,
    /// Changes logged since the last update.
    pending: BytesMut,
    acked: u64,
    floor: u64,
    /// The time, by the follower's clock, at which it last asked for a lease, until that lease is granted.
    asked: Option<u64>,
    /// The pending question about records in use.
    question: Option<(u64, OneshotSender<Vec<bool>>)>,
    /// How often it delayed commits lately; see [`LATENESS_MAX`].
    lateness: u8,
    /// How busy it is, in percent.
    load: u8,
    work_items: WorkItems,
    /// Ends the link.
    stop: CancellationToken,
}

/// A follower's request for a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseRequest {
    follower: FollowerId,
    at: u64,
}

impl FollowerTableState {
    /// When the follower's lease ends, if it has a live one.
    fn live_until(&self, follower: FollowerId, now: Instant) -> Option<Instant> {
        self.grantor.ends(follower).filter(|ends| *ends > now)
    }

    /// Removes a follower that has left. Its lease still has to end.
    fn remove(&mut self, follower: FollowerId, now: Instant) {
        let Some(member) = self.members.remove(&follower) else { return };
        member.stop.cancel();
        let ends = self.grantor.fence(follower, now);
        if ends > now {
            self.ended.push((ends, member.floor));
        }
        events::Followers.add(-1);
        events::FollowersFenced.add(1);
    }
}

impl FollowerTable {
    fn state(&self) -> MutexGuard<'_, FollowerTableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is anybody to send changes to.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Assigns a number to a follower that is about to join.
    pub fn number(&self) -> FollowerId {
        let mut state = self.state();
        state.next += 1;
        FollowerId(state.next)
    }

    /// Adds a follower, which follows from here on; false when there are too many. It holds no lease yet.
    pub fn add(
        &self,
        follower: FollowerId,
        name: Arc<str>,
        updates: Sender<Bytes>,
        floor: u64,
        stop: CancellationToken,
    ) -> bool {
        let mut state = self.state();
        if state.members.len() >= FOLLOWERS_MAX {
            return false;
        }
        let (pending, asked, question) = (BytesMut::new(), None, None);
        let acked = state.sequence;
        let (load, pieces) = (NO_WORK, WorkItems::default());
        let lateness = 0;
        let member = FollowerEntry {
            name,
            updates,
            pending,
            acked,
            floor,
            asked,
            question,
            lateness,
            load,
            work_items: pieces,
            stop,
        };
        state.members.insert(follower, member);
        self.any.store(true, Ordering::Release);
        events::Followers.add(1);
        drop(state);
        self.joined.notify_one();
        true
    }

    /// Removes a follower: it gets no further lease.
    pub fn remove(&self, follower: FollowerId) {
        self.state().remove(follower, rt::now());
        self.progress.notify_waiters();
    }

    /// Removes all followers.
    pub fn remove_all(&self) {
        let now = rt::now();
        let mut state = self.state();
        for holder in state.members.keys().copied().collect::<Vec<_>>() {
            state.remove(holder, now);
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// The ids of all followers.
    pub fn ids(&self) -> Vec<FollowerId> {
        if self.any() { self.state().members.keys().copied().collect() } else { Vec::new() }
    }

    /// The number of followers.
    pub fn count(&self) -> usize {
        if self.any() { self.state().members.len() } else { 0 }
    }

    /// Logs changes for all followers, to be sent with the next update. `log` appends them in the state's encoding.
    pub fn log(&self, log: impl FnOnce(&mut BytesMut)) {
        if !self.any() {
            return;
        }
        let mut bytes = BytesMut::new();
        log(&mut bytes);
        let mut state = self.state();
        state.members.values_mut().for_each(|member| member.pending.extend_from_slice(&bytes));
    }

    /// As [`FollowerTable::log`], for one follower.
    pub fn log_for(&self, follower: FollowerId, log: impl FnOnce(&mut BytesMut)) {
        if let Some(member) = self.state().members.get_mut(&follower) {
            log(&mut member.pending);
        }
    }

    /// The position of the update that carries the changes logged so far; `None` if there is nobody to send it to.
    pub fn position(&self) -> Option<u64> {
        self.any().then(|| self.state().sequence + 1)
    }

    /// The pending requests for leases.
    pub fn lease_requests(&self) -> Vec<LeaseRequest> {
        let state = self.state();
        let asked = state.members.iter();
        asked.filter_map(|(holder, member)| Some(LeaseRequest { follower: *holder, at: member.asked? })).collect()
    }

    /// Sends all followers their logged changes and the granted leases; returns the position of this update.
    pub fn flush(&self, grants: &[LeaseRequest], notes_uses: bool) -> u64 {
        let now = rt::now();
        let mut guard = self.state();
        let state = &mut *guard;
        state.sequence += 1;
        let (sequence, oldest) = (state.sequence, state.floor);
        let mut gone = Vec::new();
        for (holder, member) in &mut state.members {
            let mut granted = 0;
            if let Some(asked) = grants.iter().find(|asked| asked.follower == *holder)
                && state.grantor.grant(*holder, now)
            {
                granted = asked.at;
                member.asked = member.asked.filter(|at| *at != asked.at);
            }
            let changes = member.pending.split().freeze();
            let is_short = changes.len() <= CHANGES_BYTES_MAX;
            let update = ToFollower::Update { sequence, granted, oldest, notes_uses, changes };
            if !is_short || member.updates.try_send(update.encode()).is_err() {
                gone.push(*holder);
            }
        }
        for holder in gone {
            state.remove(holder, now);
        }
        state.ended.retain(|(ends, _)| *ends > now);
        if state.members.is_empty() && state.ended.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        drop(guard);
        self.progress.notify_waiters();
        sequence
    }

    /// Step 6, when a block is applied: sends the logged changes, and waits until every follower has applied them or
    /// holds no lease. `notes_uses` says, when they are sent, whether followers are to note which records they use.
    pub async fn notify(&self, notes_uses: impl FnOnce() -> bool) {
        hold_up("state.followers.tell").await;
        let sequence = self.flush(&[], notes_uses());
        self.wait_acknowledged(sequence).await;
    }

    /// Takes a follower's acknowledgement of an update.
    pub fn acknowledge(&self, follower: FollowerId, sequence: u64, asked: u64, floor: u64, load: u8) {
        let mut state = self.state();
        let newest = state.sequence;
        if let Some(member) = state.members.get_mut(&follower) {
            member.acked = member.acked.max(sequence.min(newest));
            member.floor = member.floor.max(floor);
            member.asked = Some(asked);
            member.load = load;
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// Waits until every follower has acknowledged the update, or its lease has ended. A follower whose lease ends too
    /// often meanwhile is fenced: it may join again.
    pub async fn wait_acknowledged(&self, sequence: u64) {
        if mutant(Mutant::CountUnacknowledged) {
            return;
        }
        loop {
            let progress = self.progress.notified();
            let now = rt::now();
            let until = {
                let state = self.state();
                let behind = state.members.iter().filter(|(_, member)| member.acked < sequence);
                let leases = behind.filter_map(|(holder, _)| state.live_until(*holder, now));
                leases.chain(state.ended.iter().map(|(ends, _)| *ends).filter(|ends| *ends > now)).min()
            };
            let Some(until) = until else { return self.note_punctual(sequence) };
            // Whichever comes first; then check again.
            if rt::timeout(until.since(now), progress).await.is_err() {
                self.note_late(sequence, until);
            }
        }
    }

    /// Every follower with a lease has acknowledged the update.
    fn note_punctual(&self, sequence: u64) {
        for member in self.state().members.values_mut().filter(|member| member.acked >= sequence) {
            member.lateness = member.lateness.saturating_sub(1);
        }
    }

    /// The leases that end at this time ended without an acknowledgement.
    fn note_late(&self, sequence: u64, ended: Instant) {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut slow = Vec::new();
        for (holder, member) in &mut state.members {
            if member.acked < sequence && state.grantor.ends(*holder) == Some(ended) {
                member.lateness += LATE_WEIGHT;
                if member.lateness >= LATENESS_MAX {
                    slow.push(*holder);
                }
            }
        }
        for holder in slow {
            tracing::warn!(?holder, "a follower delays commits and is fenced; its compute node may be overloaded");
            state.remove(holder, rt::now());
        }
    }

    /// The position up to which every lease holder has acknowledged all updates.
    pub fn acknowledged_below(&self) -> u64 {
        let now = rt::now();
        let state = self.state();
        if state.ended.iter().any(|(ends, _)| *ends > now) {
            return 0;
        }
        let live = state.members.iter().filter(|(holder, _)| state.live_until(**holder, now).is_some());
        live.map(|(_, member)| member.acked).min().unwrap_or(u64::MAX)
    }

    /// The lowest height at which anybody may read: `own`, or that of a follower's view.
    pub fn floor(&self, own: u64) -> u64 {
        if !self.any() {
            return own;
        }
        let now = rt::now();
        let mut state = self.state();
        let live = state.members.iter().filter(|(holder, _)| state.live_until(**holder, now).is_some());
        let floors = live.map(|(_, member)| member.floor);
        let ended = state.ended.iter().filter(|(ends, _)| *ends > now).map(|(_, floor)| *floor);
        let floor = floors.chain(ended).fold(own, u64::min);
        state.floor = state.floor.max(floor);
        state.floor
    }

    /// Which of these records some follower has in use. A follower that does not answer at once counts as using none.
    pub async fn in_use(&self, candidates: &[Candidate]) -> Vec<bool> {
        let mut in_use = vec![false; candidates.len()];
        if !self.any() || candidates.is_empty() {
            return in_use;
        }
        let now = rt::now();
        let mut answers = Vec::new();
        {
            let mut guard = self.state();
            let state = &mut *guard;
            state.asked += 1;
            let number = state.asked;
            let question = ToFollower::InUseQuery { number, candidates: candidates.to_vec() }.encode();
            let holders: Vec<FollowerId> = state.members.keys().copied().collect();
            for holder in holders {
                if state.live_until(holder, now).is_none() {
                    continue;
                }
                let member = state.members.get_mut(&holder).expect("it is one of them");
                let (answer, answered) = oneshot();
                member.question = Some((number, answer));
                if member.updates.try_send(question.clone()).is_ok() {
                    answers.push(answered);
                }
            }
        }
        let until = now + IN_USE_TIMEOUT;
        for answered in answers {
            let wait = until.since(rt::now().min(until));
            if let Ok(Ok(used)) = rt::timeout(wait, answered).await {
                in_use.iter_mut().zip(used).for_each(|(in_use, used)| *in_use |= used);
            }
        }
        in_use
    }

    /// A work permit for an item at this height, at a trusted follower with at most this load ([`crate::followers::work`]).
    pub fn work_permit(
        self: &Arc<Self>,
        load_max: u8,
        height: u64,
        trusts: &dyn Fn(&str) -> bool,
    ) -> Option<WorkPermit> {
        if !self.any() {
            return None;
        }
        let now = rt::now();
        let mut guard = self.state();
        let state = &mut *guard;
        let is_fit = |holder: &FollowerId, member: &FollowerEntry| {
            member.load <= load_max
                && member.work_items.have_capacity(now)
                && trusts(&member.name)
                && state.live_until(*holder, now).is_some()
        };
        let fit = state.members.iter().filter(|(holder, member)| is_fit(holder, member));
        let (holder, _) = fit.min_by_key(|(_, member)| (member.work_items.count(), member.load))?;
        let holder = *holder;
        state.asked += 1;
        let (number, position) = (state.asked, state.sequence);
        let member = state.members.get_mut(&holder).expect("it is one of them");
        member.work_items.open(number, position, height);
        let name = Arc::clone(&member.name);
        Some(WorkPermit::new(Arc::clone(self), holder, name, number))
    }

    /// Sends a work item under its permit; `None` if the follower has left.
    pub(super) fn send_work(
        &self,
        holder: FollowerId,
        number: u64,
        piece: Bytes,
    ) -> Option<OneshotReceiver<Option<Bytes>>> {
        let mut state = self.state();
        let member = state.members.get_mut(&holder)?;
        let (answer, answered) = oneshot();
        let height = member.work_items.sent(number, answer)?;
        member.updates.try_send(ToFollower::Work { number, height, item: piece }.encode()).ok()?;
        Some(answered)
    }

    /// Takes a follower's answer to a work item.
    pub(super) fn work_done(&self, follower: FollowerId, number: u64, height: u64, answer: Bytes) {
        let mut state = self.state();
        let is_live = state.live_until(follower, rt::now()).is_some();
        let Some(member) = state.members.get_mut(&follower) else { return };
        let is_in_fold = is_live || mutant(Mutant::CountLapsed);
        member.work_items.done(number, height, answer, is_in_fold, member.acked);
    }

    pub(super) fn close_work(&self, follower: FollowerId, number: u64, has_failed: bool) {
        if let Some(member) = self.state().members.get_mut(&follower) {
            member.work_items.close(number, has_failed);
        }
    }

    /// Takes a follower's answer to a question.
    pub fn in_use_answered(&self, follower: FollowerId, number: u64, in_use: Vec<bool>) {
        let mut state = self.state();
        let Some(member) = state.members.get_mut(&follower) else { return };
        if let Some((_, answer)) = member.question.take_if(|(open, _)| *open == number) {
            // The caller may have stopped waiting.
            let _ = answer.send(in_use);
        }
    }
}

impl Drop for FollowerTable {
    fn drop(&mut self) {
        self.remove_all();
    }
}

/// A work permit at one follower, until it is dropped.
pub struct WorkPermit {
    followers: Arc<FollowerTable>,
    follower: FollowerId,
    name: Arc<str>,
    number: u64,
    has_failed: bool,
}

impl WorkPermit {
    pub(super) fn new(followers: Arc<FollowerTable>, follower: FollowerId, name: Arc<str>, number: u64) -> WorkPermit {
        WorkPermit { followers, follower, name, number, has_failed: false }
    }

    /// The follower's name: the one that its link proved, or else one that it has until it joins again.
    pub fn follower(&self) -> &Arc<str> {
        &self.name
    }

    /// Has the follower do a work item of at most [`WORK_ITEM_BYTES_MAX`] bytes, and waits that long for its answer.
    pub async fn work(mut self, item: Bytes, timeout: Duration) -> Option<Bytes> {
        assert!(item.len() <= WORK_ITEM_BYTES_MAX, "work items are bounded");
        let answer = match self.followers.send_work(self.follower, self.number, item) {
            Some(answer) => rt::timeout(timeout, answer).await.ok().and_then(Result::ok).flatten(),
            None => None,
        };
        self.has_failed = answer.is_none();
        if self.has_failed { &events::WorkItemsFailed } else { &events::WorkItemsDone }.add(1);
        answer
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.followers.close_work(self.follower, self.number, self.has_failed);
    }
}

#[cfg(test)]
mod tests {
    use base::rt::channel::bounded;
    use base::rt::simulation::Simulation;

    use super::*;
    use crate::lease::REUSE_AFTER;

    /// A follower that took leases and acknowledged late made every commit wait for the end of a lease, without limit.
    #[test]
    fn a_reader_that_keeps_commits_waiting_is_fenced() {
        for punctual_every in [0, 2, 4] {
            let fenced_after = Simulation::new(1)
                .time_max(Duration::from_secs(600))
                .run(move |_| async move {
                    let holders = FollowerTable::default();
                    let (updates, _told) = bounded(UPDATES_MAX);
                    let (holder, stop) = (holders.number(), CancellationToken::new());
                    assert!(holders.add(holder, "reader".into(), updates, 0, stop.clone()));
                    for commit in 1..100u64 {
                        // It gets its lease first, and acknowledges that update.
                        let known = holders.state().sequence;
                        holders.acknowledge(holder, known, commit, 0, 0);
                        let granted = holders.flush(&holders.lease_requests(), false);
                        holders.acknowledge(holder, granted, commit, 0, 0);
                        let sequence = holders.flush(&[], false);
                        if punctual_every > 0 && commit % punctual_every != 0 {
                            holders.acknowledge(holder, sequence, commit, 0, 0);
                        }
                        let begun = rt::now();
                        holders.wait_acknowledged(sequence).await;
                        let limit = REUSE_AFTER + Duration::from_millis(1);
                        assert!(begun.elapsed() <= limit, "no commit waits longer than a lease");
                        if stop.is_cancelled() {
                            return Some(commit);
                        }
                    }
                    None
                })
                .expect("the scenario completes")
                .value;
            match punctual_every {
                0 => assert_eq!(fenced_after, Some(3), "three in a row"),
                2 => assert!(fenced_after.is_some_and(|commits| commits <= 12), "half of them: {fenced_after:?}"),
                _ => assert_eq!(fenced_after, None, "now and then"),
            }
        }
    }
}
