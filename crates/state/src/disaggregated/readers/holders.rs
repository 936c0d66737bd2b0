//! What the primary knows of its readers: what each has still to be told, what it has acknowledged, and its lease.
//!
//! Nothing here waits with the lock held. Positions count updates: a change that is logged now travels with the next update,
//! whose position is [`Holders::position`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotReceiver, OneshotSender, Sender, oneshot};
use base::rt::sync::Notify;
use base::rt::{self, Instant, Stop};
use base::{Bytes, BytesMut};

use super::super::evict::Candidate;
use super::super::fault::{Mutant, mutant};
use super::super::lease::{Grantor, HolderId};
use super::message::{Changes, ToReader};
use super::work::{NO_WORK, Pieces, Place};
use crate::events;

/// Updates that may wait for one reader; one more and it is fenced.
pub const UPDATES_MAX: usize = 256;
/// Bytes of changes of one update; more and the reader is fenced, and joins anew.
pub const CHANGES_BYTES_MAX: usize = 96 << 20;
/// How long readers may take to say what they have in use.
const IN_USE_MAX: Duration = Duration::from_millis(5);

/// What one update counts that is acknowledged after the reader's lease has ended, beside one for each that is acknowledged in time.
const LATE_WEIGHT: u8 = 2;
/// A reader is fenced at this sum: after three late updates in a row, or when a third of its updates and more are late for
/// long. Each of them kept a commit waiting for the end of a lease.
const LATENESS_MAX: u8 = 3 * LATE_WEIGHT;

/// See [the module](self).
#[derive(Default)]
pub struct Holders {
    /// Somebody may hold a lease. Without readers the data path looks at nothing else.
    any: AtomicBool,
    state: Mutex<State>,
    /// An update was acknowledged, or a reader has gone.
    progress: Notify,
    /// A reader has come.
    pub joined: Notify,
}

#[derive(Default)]
struct State {
    members: BTreeMap<HolderId, Member>,
    grantor: Grantor,
    /// Readers that have gone: when the last lease of each has ended, and what it may read until then.
    ended: Vec<(Instant, u64)>,
    /// The last update.
    sequence: u64,
    /// The highest floor that was ever given: nobody reads below it.
    floor: u64,
    next: u32,
    asked: u64,
}

struct Member {
    /// Whom the caller may trust or not: the name that its link proved, else that of its joining.
    name: Arc<str>,
    updates: Sender<Bytes>,
    /// Logged since the last update.
    pending: BytesMut,
    acked: u64,
    floor: u64,
    /// The reader's time at which it last asked for a lease, until that is granted.
    asked: Option<u64>,
    /// The question about records in use that is open.
    question: Option<(u64, OneshotSender<Vec<bool>>)>,
    /// How often it kept commits waiting of late; see [`LATENESS_MAX`].
    lateness: u8,
    /// How busy it is, in percent.
    load: u8,
    pieces: Pieces,
    /// Ends the link.
    stop: Stop,
}

/// A reader's lease that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    holder: HolderId,
    at: u64,
}

impl State {
    /// When the holder's lease has ended, if it has one that is live.
    fn live_until(&self, holder: HolderId, now: Instant) -> Option<Instant> {
        self.grantor.ends(holder).filter(|ends| *ends > now)
    }

    /// A reader has gone. Its lease is waited for.
    fn remove(&mut self, holder: HolderId, now: Instant) {
        let Some(member) = self.members.remove(&holder) else { return };
        member.stop.stop();
        let ends = self.grantor.fence(holder, now);
        if ends > now {
            self.ended.push((ends, member.floor));
        }
        events::Readers.add(-1);
        events::ReadersFenced.add(1);
    }
}

impl Holders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody is to be told of anything.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// A number for a reader that is to join.
    pub fn number(&self) -> HolderId {
        let mut state = self.state();
        state.next += 1;
        HolderId(state.next)
    }

    /// Adds a reader, which has to follow from here on; false when there are too many. It holds no lease yet.
    pub fn add(&self, holder: HolderId, name: Arc<str>, updates: Sender<Bytes>, floor: u64, stop: Stop) -> bool {
        let mut state = self.state();
        if state.members.len() >= super::READERS_MAX {
            return false;
        }
        let (pending, asked, question) = (BytesMut::new(), None, None);
        let acked = state.sequence;
        let (load, pieces) = (NO_WORK, Pieces::default());
        let lateness = 0;
        let member = Member { name, updates, pending, acked, floor, asked, question, lateness, load, pieces, stop };
        state.members.insert(holder, member);
        self.any.store(true, Ordering::Release);
        events::Readers.add(1);
        drop(state);
        self.joined.notify_one();
        true
    }

    /// Takes a reader out: it is given no further lease.
    pub fn remove(&self, holder: HolderId) {
        self.state().remove(holder, rt::now());
        self.progress.notify_waiters();
    }

    /// Takes all out.
    pub fn remove_all(&self) {
        let now = rt::now();
        let mut state = self.state();
        for holder in state.members.keys().copied().collect::<Vec<_>>() {
            state.remove(holder, now);
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// Who is there.
    pub fn ids(&self) -> Vec<HolderId> {
        if self.any() { self.state().members.keys().copied().collect() } else { Vec::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        if self.any() { self.state().members.len() } else { 0 }
    }

    /// Logs changes for all readers, to travel with the next update.
    pub fn log(&self, log: impl FnOnce(&mut Changes<'_>)) {
        if !self.any() {
            return;
        }
        let mut bytes = BytesMut::new();
        log(&mut Changes(&mut bytes));
        let mut state = self.state();
        state.members.values_mut().for_each(|member| member.pending.extend_from_slice(&bytes));
    }

    /// As [`Holders::log`], for one reader.
    pub fn log_for(&self, holder: HolderId, log: impl FnOnce(&mut Changes<'_>)) {
        if let Some(member) = self.state().members.get_mut(&holder) {
            log(&mut Changes(&mut member.pending));
        }
    }

    /// The position of the update with which a change travels that was logged by now; `None` where nobody is to be told.
    pub fn position(&self) -> Option<u64> {
        self.any().then(|| self.state().sequence + 1)
    }

    /// Who asks for a lease.
    pub fn asked(&self) -> Vec<Asked> {
        let state = self.state();
        let asked = state.members.iter();
        asked.filter_map(|(holder, member)| Some(Asked { holder: *holder, at: member.asked? })).collect()
    }

    /// Sends all readers what was logged for them, and the leases that are granted; gives the position of this update.
    pub fn flush(&self, grants: &[Asked], notes_uses: bool) -> u64 {
        let now = rt::now();
        let mut guard = self.state();
        let state = &mut *guard;
        state.sequence += 1;
        let (sequence, oldest) = (state.sequence, state.floor);
        let mut gone = Vec::new();
        for (holder, member) in &mut state.members {
            let mut granted = 0;
            if let Some(asked) = grants.iter().find(|asked| asked.holder == *holder)
                && state.grantor.grant(*holder, now)
            {
                granted = asked.at;
                member.asked = member.asked.filter(|at| *at != asked.at);
            }
            let changes = member.pending.split().freeze();
            let is_short = changes.len() <= CHANGES_BYTES_MAX;
            let update = ToReader::Update { sequence, granted, oldest, notes_uses, changes };
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

    /// A reader has acknowledged an update.
    pub fn acked(&self, holder: HolderId, sequence: u64, asked: u64, floor: u64, load: u8) {
        let mut state = self.state();
        let newest = state.sequence;
        if let Some(member) = state.members.get_mut(&holder) {
            member.acked = member.acked.max(sequence.min(newest));
            member.floor = member.floor.max(floor);
            member.asked = Some(asked);
            member.load = load;
        }
        drop(state);
        self.progress.notify_waiters();
    }

    /// Waits until every reader has acknowledged the update, or its lease has ended. A reader whose lease ends too often
    /// meanwhile is fenced: it may join anew.
    pub async fn told(&self, sequence: u64) {
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
            // Whichever comes first; then it is looked at again.
            if rt::timeout(until.since(now), progress).await.is_err() {
                self.note_late(sequence, until);
            }
        }
    }

    /// Every reader with a lease has acknowledged the update.
    fn note_punctual(&self, sequence: u64) {
        for member in self.state().members.values_mut().filter(|member| member.acked >= sequence) {
            member.lateness = member.lateness.saturating_sub(1);
        }
    }

    /// The leases that ended at this time were waited for in vain.
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
            tracing::warn!(?holder, "a reader keeps commits waiting and is fenced; its compute node may be overloaded");
            state.remove(holder, rt::now());
        }
    }

    /// Up to which update everybody who holds a lease has acknowledged.
    pub fn told_below(&self) -> u64 {
        let now = rt::now();
        let state = self.state();
        if state.ended.iter().any(|(ends, _)| *ends > now) {
            return 0;
        }
        let live = state.members.iter().filter(|(holder, _)| state.live_until(**holder, now).is_some());
        live.map(|(_, member)| member.acked).min().unwrap_or(u64::MAX)
    }

    /// The lowest height that anybody may read at: `own`, or that of a reader's view.
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

    /// Which of these records some reader has in use. One that does not say so at once has none.
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
            let question = ToReader::Ask { number, candidates: candidates.to_vec() }.encode();
            let holders: Vec<HolderId> = state.members.keys().copied().collect();
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
        let until = now + IN_USE_MAX;
        for answered in answers {
            let wait = until.since(rt::now().min(until));
            if let Ok(Ok(used)) = rt::timeout(wait, answered).await {
                in_use.iter_mut().zip(used).for_each(|(in_use, used)| *in_use |= used);
            }
        }
        in_use
    }

    /// Room for a piece of work at this height, at a trusted reader that is at most so busy ([`super::work`]).
    pub fn place(self: &Arc<Self>, load_max: u8, height: u64, trusts: &dyn Fn(&str) -> bool) -> Option<Place> {
        if !self.any() {
            return None;
        }
        let now = rt::now();
        let mut guard = self.state();
        let state = &mut *guard;
        let is_fit = |holder: &HolderId, member: &Member| {
            member.load <= load_max
                && member.pieces.have_room(now)
                && trusts(&member.name)
                && state.live_until(*holder, now).is_some()
        };
        let fit = state.members.iter().filter(|(holder, member)| is_fit(holder, member));
        let (holder, _) = fit.min_by_key(|(_, member)| (member.pieces.count(), member.load))?;
        let holder = *holder;
        state.asked += 1;
        let (number, position) = (state.asked, state.sequence);
        let member = state.members.get_mut(&holder).expect("it is one of them");
        member.pieces.open(number, position, height);
        let name = Arc::clone(&member.name);
        Some(Place::new(Arc::clone(self), holder, name, number))
    }

    /// Sends a piece that has a place; nothing where its reader has gone.
    pub(super) fn send_piece(
        &self,
        holder: HolderId,
        number: u64,
        piece: Bytes,
    ) -> Option<OneshotReceiver<Option<Bytes>>> {
        let mut state = self.state();
        let member = state.members.get_mut(&holder)?;
        let (answer, answered) = oneshot();
        let height = member.pieces.sent(number, answer)?;
        member.updates.try_send(ToReader::Work { number, height, piece }.encode()).ok()?;
        Some(answered)
    }

    /// A reader says what became of a piece.
    pub(super) fn piece_done(&self, holder: HolderId, number: u64, height: u64, answer: Bytes) {
        let mut state = self.state();
        let is_live = state.live_until(holder, rt::now()).is_some();
        let Some(member) = state.members.get_mut(&holder) else { return };
        let is_in_fold = is_live || mutant(Mutant::CountLapsed);
        member.pieces.done(number, height, answer, is_in_fold, member.acked);
    }

    pub(super) fn close_piece(&self, holder: HolderId, number: u64, has_failed: bool) {
        if let Some(member) = self.state().members.get_mut(&holder) {
            member.pieces.close(number, has_failed);
        }
    }

    /// A reader has answered a question.
    pub fn answered(&self, holder: HolderId, number: u64, in_use: Vec<bool>) {
        let mut state = self.state();
        let Some(member) = state.members.get_mut(&holder) else { return };
        if let Some((_, answer)) = member.question.take_if(|(open, _)| *open == number) {
            // Whoever asked may have gone on without it.
            let _ = answer.send(in_use);
        }
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.remove_all();
    }
}

#[cfg(test)]
mod tests {
    use base::rt::channel::bounded;
    use base::rt::simulation::Simulation;

    use super::super::super::lease::REUSE_AFTER;
    use super::*;

    /// A reader that took leases and acknowledged late made every commit wait for the end of a lease, for as long as it liked.
    #[test]
    fn a_reader_that_keeps_commits_waiting_is_fenced() {
        for punctual_every in [0, 2, 4] {
            let fenced_after = Simulation::new(1)
                .time_max(Duration::from_secs(600))
                .run(move |_| async move {
                    let holders = Holders::default();
                    let (updates, _told) = bounded(UPDATES_MAX);
                    let (holder, stop) = (holders.number(), Stop::new());
                    assert!(holders.add(holder, "reader".into(), updates, 0, stop.clone()));
                    for commit in 1..100u64 {
                        // It has its lease first, and acknowledges that update.
                        let known = holders.state().sequence;
                        holders.acked(holder, known, commit, 0, 0);
                        let granted = holders.flush(&holders.asked(), false);
                        holders.acked(holder, granted, commit, 0, 0);
                        let sequence = holders.flush(&[], false);
                        if punctual_every > 0 && commit % punctual_every != 0 {
                            holders.acked(holder, sequence, commit, 0, 0);
                        }
                        let begun = rt::now();
                        holders.told(sequence).await;
                        let limit = REUSE_AFTER + Duration::from_millis(1);
                        assert!(begun.elapsed() <= limit, "no commit waits longer than a lease");
                        if stop.is_stopped() {
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
