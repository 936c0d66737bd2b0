//! The primary's record of its followers: for each follower, the changes still to be sent, the last update that it has
//! acknowledged, and its lease.
//!
//! One lock protects the table; no function holds it across an await. Updates are numbered, and the number of an update
//! is its *position*. A logged change is sent with the next update; [`FollowerTable::position`] is the position of that
//! update.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotSender, Sender, oneshot};
use base::rt::net::GatherList;
use base::rt::sync::Notify;
use base::rt::{CancellationToken, Instant};
use base::{BytesMut, rt};

use super::pending_changes::{PendingChanges, SharedChanges};
use crate::events;
use crate::fault::{Mutant, hold_up, mutant};
use crate::followers::message::{Announcement, Candidate, ToFollower};
use crate::followers::work::{NO_WORK, WorkItems};
use crate::followers::{FOLLOWERS_MAX, SILENT_HEARTBEATS_MAX};
use crate::lease::{FIRST_LEASE, FIRST_LEASES_FOR, FollowerId, LEASE, LeaseGrantor};
use crate::load::{LoadReport, ReportedNode};

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
/// for long. Each of them delayed a commit until the end of a lease. The shorter leases of one that has just joined do not
/// count.
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
pub(super) struct FollowerTableState {
    pub(super) members: BTreeMap<FollowerId, FollowerEntry>,
    grantor: LeaseGrantor,
    /// Changes logged since the last update.
    shared: SharedChanges,
    /// The updates for whose acknowledgements somebody waits.
    awaited: Vec<AwaitedUpdate>,
    /// Followers that have left: when the last lease of each ends, and the lowest height it may read at until then.
    ended: Vec<(Instant, u64)>,
    /// The position of the last update.
    pub(super) sequence: u64,
    /// The highest floor ever returned: nobody reads below it.
    floor: u64,
    next: u32,
    pub(super) asked: u64,
}

/// An update, and the followers whose leases keep its block from being shown.
struct AwaitedUpdate {
    sequence: u64,
    behind: BTreeSet<FollowerId>,
}

pub(super) struct FollowerEntry {
    /// The name by which a caller decides on trust: the one that the link proved, else one given at joining.
    pub(super) name: Arc<str>,
    /// The version of the protocol on its link.
    pub(super) version: u32,
    pub(super) updates: Sender<GatherList>,
    /// Changes logged since the last update.
    pending: PendingChanges,
    pub(super) acked: u64,
    floor: u64,
    /// The time of its first acknowledgement; until then, the time of its joining.
    began: Instant,
    /// The time, by the follower's clock, at which it last asked for a lease, until that lease is granted.
    asked: Option<u64>,
    /// The pending question about records in use.
    question: Option<(u64, OneshotSender<Vec<bool>>)>,
    /// How often it delayed commits lately; see [`LATENESS_MAX`].
    lateness: u8,
    /// How busy it is; [`NO_WORK`] percent if it takes no work.
    pub(super) load: LoadReport,
    /// When that was reported; `None` before its first acknowledgement.
    heard: Option<Instant>,
    /// Heartbeats since its last acknowledgement.
    silent: u32,
    /// What it says about itself.
    pub(super) announced: Announcement,
    pub(super) work_items: WorkItems,
    /// Ends the link.
    stop: CancellationToken,
}

impl FollowerEntry {
    /// The length of the lease that it gets now.
    fn lease(&self, now: Instant) -> Duration {
        if now.since(self.began.min(now)) < FIRST_LEASES_FOR { FIRST_LEASE } else { LEASE }
    }
}

/// A follower's request for a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseRequest {
    follower: FollowerId,
    at: u64,
}

impl FollowerTableState {
    /// When the follower's lease ends, if it has a live one.
    pub(super) fn live_until(&self, follower: FollowerId, now: Instant) -> Option<Instant> {
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

    /// The followers that hold a lease and have not acknowledged the update.
    fn behind(&self, sequence: u64, now: Instant) -> impl Iterator<Item = (FollowerId, Instant)> + '_ {
        let behind = self.members.iter().filter(move |(_, member)| member.acked < sequence);
        behind.filter_map(move |(follower, _)| Some((*follower, self.live_until(*follower, now)?)))
    }

    /// Notes that a follower has acknowledged everything up to an update. Returns whether somebody waits for just that.
    fn note_acknowledged(&mut self, follower: FollowerId, acked: u64) -> bool {
        let mut is_last = false;
        for awaited in self.awaited.iter_mut().filter(|awaited| awaited.sequence <= acked) {
            is_last |= awaited.behind.remove(&follower) && awaited.behind.is_empty();
        }
        is_last
    }
}

impl FollowerTable {
    pub(super) fn state(&self) -> MutexGuard<'_, FollowerTableState> {
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
        version: u32,
        updates: Sender<GatherList>,
        floor: u64,
        stop: CancellationToken,
    ) -> bool {
        let mut state = self.state();
        if state.members.len() >= FOLLOWERS_MAX {
            return false;
        }
        let member = FollowerEntry {
            name,
            version,
            updates,
            pending: state.shared.joined_here(),
            acked: state.sequence,
            floor,
            began: rt::now(),
            asked: None,
            question: None,
            lateness: 0,
            load: LoadReport { percent: NO_WORK, queued: 0 },
            heard: None,
            silent: 0,
            announced: Announcement::default(),
            work_items: WorkItems::default(),
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

    /// Removes a follower that has left: it has said that it answers nothing any more, so its lease counts no longer.
    pub fn leave(&self, follower: FollowerId) {
        let mut state = self.state();
        // Before it is removed, so that nothing is left to wait for.
        state.grantor.fence(follower, rt::now());
        state.remove(follower, rt::now());
        drop(state);
        events::FollowersLeft.add(1);
        self.progress.notify_waiters();
    }

    /// Takes what a follower says about itself. A node has one session: an earlier one of the same name, whose link has
    /// ended unnoticed, is over.
    pub fn announce(&self, follower: FollowerId, announced: Announcement) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(member) = state.members.get_mut(&follower) else { return };
        member.announced = announced;
        let name = Arc::clone(&member.name);
        let earlier = state.members.range(..follower).filter(|(_, member)| member.name == name);
        let earlier: Vec<FollowerId> = earlier.map(|(earlier, _)| *earlier).collect();
        earlier.iter().for_each(|earlier| state.remove(*earlier, rt::now()));
        drop(guard);
        if !earlier.is_empty() {
            self.progress.notify_waiters();
        }
    }

    /// The followers, as they have reported themselves. One that has acknowledged nothing yet is left out: it cannot
    /// answer.
    pub fn reported(&self) -> Vec<ReportedNode> {
        let now = rt::now();
        let state = self.state();
        let reported = state.members.values().filter_map(|member| {
            Some(ReportedNode {
                name: Arc::clone(&member.name),
                addresses: member.announced.addresses.clone(),
                load: LoadReport { percent: member.load.percent.min(100), ..member.load },
                age: now.since(member.heard?.min(now)),
                is_draining: member.announced.is_draining,
            })
        });
        reported.collect()
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
        state.shared.extend(&bytes);
        state.members.values_mut().for_each(|member| member.pending.extend(&bytes));
    }

    /// As [`FollowerTable::log`], for one follower.
    pub fn log_for(&self, follower: FollowerId, log: impl FnOnce(&mut BytesMut)) {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(member) = state.members.get_mut(&follower) {
            log(member.pending.own(&state.shared));
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
        let shared = state.shared.take();
        let mut gone = Vec::new();
        for (holder, member) in &mut state.members {
            let mut granted = 0;
            // Both are in the order of the followers' numbers.
            if let Ok(place) = grants.binary_search_by_key(holder, |asked| asked.follower)
                && let Some(from) = state.grantor.grant(*holder, grants[place].at, member.lease(now), now)
            {
                granted = from;
                member.asked = member.asked.filter(|at| *at != grants[place].at);
            }
            let changes = member.pending.take(&shared);
            let is_short = changes.len() <= CHANGES_BYTES_MAX;
            let update = ToFollower::update(sequence, granted, oldest, notes_uses, changes);
            if !is_short || member.updates.try_send(update).is_err() {
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

    /// Counts a heartbeat, and fences the followers that have left too many of them unanswered: their processes have
    /// ended or are suspended. One that joins is given the time that its catching up takes.
    pub fn count_heartbeat(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut silent = Vec::new();
        for (follower, member) in state.members.iter_mut().filter(|(_, member)| member.heard.is_some()) {
            member.silent += 1;
            if member.silent > SILENT_HEARTBEATS_MAX && !mutant(Mutant::KeepSilent) {
                silent.push((*follower, Arc::clone(&member.name)));
            }
        }
        for (follower, name) in &silent {
            tracing::warn!(
                follower = &**name,
                "a compute node of this peer is silent and is fenced; it may join again"
            );
            state.remove(*follower, rt::now());
        }
        drop(guard);
        if !silent.is_empty() {
            self.progress.notify_waiters();
        }
    }

    /// Step 6, when a block is applied: sends the logged changes, and waits until every follower has applied them or
    /// holds no lease. `notes_uses` says, when they are sent, whether followers are to note which records they use.
    pub async fn notify(&self, notes_uses: impl FnOnce() -> bool) {
        hold_up("state.followers.tell").await;
        let sequence = self.flush(&[], notes_uses());
        self.wait_acknowledged(sequence).await;
    }

    /// Takes a follower's acknowledgement of an update.
    pub fn acknowledge(&self, follower: FollowerId, sequence: u64, asked: u64, floor: u64, load: LoadReport) {
        let mut state = self.state();
        let newest = state.sequence;
        let Some(member) = state.members.get_mut(&follower) else { return };
        member.acked = member.acked.max(sequence.min(newest));
        member.floor = member.floor.max(floor);
        member.asked = Some(asked);
        member.load = load;
        let now = rt::now();
        if member.heard.replace(now).is_none() {
            // It has caught up, which may have taken long.
            member.began = now;
        }
        member.silent = 0;
        let acked = member.acked;
        let is_last = state.note_acknowledged(follower, acked);
        drop(state);
        // Nobody is woken by any other acknowledgement, so that a block costs its primary one wake-up, not one for each
        // follower.
        if is_last {
            self.progress.notify_waiters();
        }
    }

    /// Waits until every follower has acknowledged the update, or its lease has ended. A follower whose lease ends too
    /// often meanwhile is fenced: it may join again.
    pub async fn wait_acknowledged(&self, sequence: u64) {
        if mutant(Mutant::CountUnacknowledged) {
            return;
        }
        let _awaiting = self.await_update(sequence);
        loop {
            let progress = self.progress.notified();
            let now = rt::now();
            let until = {
                let mut state = self.state();
                let behind: BTreeMap<FollowerId, Instant> = state.behind(sequence, now).collect();
                let ended = state.ended.iter().map(|(ends, _)| *ends).filter(|ends| *ends > now);
                let until = behind.values().copied().chain(ended).min();
                if let Some(awaited) = state.awaited.iter_mut().find(|awaited| awaited.sequence == sequence) {
                    awaited.behind = behind.into_keys().collect();
                }
                until
            };
            let Some(until) = until else { return self.note_punctual(sequence) };
            // Whichever comes first; then check again.
            if rt::timeout(until.since(now), progress).await.is_err() {
                self.note_late(sequence, until);
            }
        }
    }

    /// Has the acknowledgement that completes those of an update wake the caller that waits, until the value is dropped.
    fn await_update(&self, sequence: u64) -> AwaitingUpdate<'_> {
        self.state().awaited.push(AwaitedUpdate { sequence, behind: BTreeSet::new() });
        AwaitingUpdate { followers: self, sequence }
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
            // If it was short, it was granted then.
            let is_whole = member.lease(ended - base::lease::waited(FIRST_LEASE)) == LEASE;
            if member.acked < sequence && state.grantor.ends(*holder) == Some(ended) && is_whole {
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
                if member.updates.try_send(question.clone().into()).is_ok() {
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

/// See [`FollowerTable::await_update`].
struct AwaitingUpdate<'a> {
    followers: &'a FollowerTable,
    sequence: u64,
}

impl Drop for AwaitingUpdate<'_> {
    fn drop(&mut self) {
        let mut state = self.followers.state();
        if let Some(place) = state.awaited.iter().position(|awaited| awaited.sequence == self.sequence) {
            state.awaited.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::rt::channel::{Receiver, bounded};
    use base::rt::simulation::Simulation;

    use super::*;
    use crate::lease::REUSE_AFTER;

    /// When a lease is asked for, by the clock of a process that has run for a while.
    const ASKED: u64 = 1_000_000_000;

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
                    assert!(holders.add(holder, "reader".into(), 3, updates, 0, stop.clone()));
                    let commit = async |commit: u64, is_punctual: bool| {
                        // It gets its lease first, and acknowledges that update.
                        let known = holders.state().sequence;
                        holders.acknowledge(holder, known, ASKED + commit, 0, LoadReport::default());
                        let granted = holders.flush(&holders.lease_requests(), false);
                        holders.acknowledge(holder, granted, ASKED + commit, 0, LoadReport::default());
                        let sequence = holders.flush(&[], false);
                        if is_punctual {
                            holders.acknowledge(holder, sequence, ASKED + commit, 0, LoadReport::default());
                        }
                        let begun = rt::now();
                        holders.wait_acknowledged(sequence).await;
                        begun.elapsed()
                    };
                    // When it has just joined, a commit waits for it only briefly, and it is given time.
                    let joined = rt::now();
                    while joined.elapsed() < FIRST_LEASES_FOR - 2 * FIRST_LEASE {
                        let waited = commit(0, false).await;
                        assert!((FIRST_LEASE..FIRST_LEASE + Duration::from_millis(1)).contains(&waited), "{waited:?}");
                        assert!(!stop.is_cancelled());
                    }
                    rt::sleep(FIRST_LEASES_FOR - joined.elapsed()).await;
                    for number in 1..100u64 {
                        let waited = commit(number, punctual_every > 0 && number % punctual_every != 0).await;
                        let limit = REUSE_AFTER + Duration::from_millis(1);
                        assert!(waited <= limit, "no commit waits longer than a lease");
                        if stop.is_cancelled() {
                            return Some(number);
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

    #[test]
    fn a_node_that_joins_again_ends_its_earlier_session() {
        let run = Simulation::new(1).run(|_| async {
            let (table, followers) = with_followers(2);
            table.announce(followers[1].0, Announcement::default());
            assert!(followers[0].2.is_cancelled() && table.ids() == [followers[1].0], "both have one name");
            assert_eq!(table.acknowledged_below(), 0, "the lease of the earlier session is waited for");
        });
        run.expect("the scenario completes");
    }

    /// A follower, what was sent to it, and what ends its link.
    type TestFollower = (FollowerId, Receiver<GatherList>, CancellationToken);

    /// A table with followers that hold leases and have acknowledged everything, and what was sent to each.
    fn with_followers(count: usize) -> (Arc<FollowerTable>, Vec<TestFollower>) {
        let table = Arc::new(FollowerTable::default());
        let join = |_| {
            let (updates, sent) = bounded(UPDATES_MAX);
            let (follower, stop) = (table.number(), CancellationToken::new());
            assert!(table.add(follower, "node".into(), 3, updates, 0, stop.clone()));
            (follower, sent, stop)
        };
        let followers: Vec<_> = (0..count).map(join).collect();
        followers.iter().for_each(|(follower, ..)| table.acknowledge(*follower, 0, ASKED, 0, LoadReport::default()));
        table.flush(&table.lease_requests(), false);
        (table, followers)
    }

    /// FlexChain's answer to every invalidation, for as many nodes as a peer may have: the primary, which waits for a
    /// block, is woken once, by the last of them, and the changes are kept once.
    #[test]
    fn the_last_of_sixty_three_followers_wakes_the_primary_and_no_other_does() {
        let run = Simulation::new(1).run(|_| async {
            let (table, mut followers) = with_followers(FOLLOWERS_MAX);
            assert!(!table.add(table.number(), "one more".into(), 3, bounded(1).0, 0, CancellationToken::new()));
            for (_, sent, _) in &mut followers {
                sent.recv().await.expect("the update that granted the lease");
            }
            table.log(|bytes| bytes.extend_from_slice(&[7; 10_000]));
            let waiting = Arc::clone(&table);
            let waiting = rt::spawn(async move { waiting.notify(|| false).await });
            let mut changes = Vec::new();
            for (_, sent, _) in &mut followers {
                let update = sent.recv().await.expect("it was sent");
                changes.push(update.as_slice()[1].as_ptr() as usize);
            }
            assert!(changes.iter().all(|bytes| *bytes == changes[0]), "the followers share the bytes");
            let mut woken = 0;
            for (follower, ..) in &followers {
                assert!(!waiting.is_finished());
                let progress = table.progress.notified();
                table.acknowledge(*follower, u64::MAX, ASKED + 1, 0, LoadReport::default());
                woken += u32::from(rt::timeout(Duration::from_nanos(1), progress).await.is_ok());
            }
            assert_eq!(woken, 1);
            waiting.await.expect("it has ended");
        });
        run.expect("the scenario completes");
    }

    #[test]
    fn a_follower_that_leaves_holds_nobody_up_and_one_that_is_silent_is_fenced() {
        let run = Simulation::new(1).run(|_| async {
            let (table, followers) = with_followers(3);
            let (left, silent, awake) = (&followers[0], &followers[1], &followers[2]);
            let begun = rt::now();
            table.leave(left.0);
            assert!(left.2.is_cancelled() && table.ids() == [silent.0, awake.0]);
            let sequence = table.flush(&[], false);
            for (follower, ..) in [silent, awake] {
                table.acknowledge(*follower, sequence, ASKED + 1, 0, LoadReport::default());
            }
            table.wait_acknowledged(sequence).await;
            assert!(begun.elapsed() < Duration::from_millis(1), "its lease had not ended, and nobody waited");
            assert!(table.acknowledged_below() >= sequence, "nor do buffers");
            for _ in 0..=SILENT_HEARTBEATS_MAX {
                assert!(!silent.2.is_cancelled());
                table.count_heartbeat();
                let load = LoadReport { percent: 30, queued: 2 };
                table.acknowledge(awake.0, sequence, ASKED + 2, 0, load);
            }
            assert!(silent.2.is_cancelled() && !awake.2.is_cancelled());
            rt::sleep(Duration::from_millis(5)).await;
            let reported = table.reported();
            let [node] = &reported[..] else { panic!("one is left: {reported:?}") };
            assert_eq!(node.load, LoadReport { percent: 30, queued: 2 });
            assert!((Duration::from_millis(5)..Duration::from_millis(6)).contains(&node.age), "{:?}", node.age);
        });
        run.expect("the scenario completes");
    }

    #[test]
    fn a_primary_that_keeps_silent_followers_is_noticed() {
        crate::fault::plant(Mutant::KeepSilent);
        let kept = Simulation::new(1).run(|_| async {
            let (table, followers) = with_followers(1);
            (0..=SILENT_HEARTBEATS_MAX).for_each(|_| table.count_heartbeat());
            !followers[0].2.is_cancelled()
        });
        crate::fault::plant(Mutant::None);
        assert!(kept.expect("the scenario completes").value, "the test above would fail");
    }
}
