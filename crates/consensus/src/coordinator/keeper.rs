//! What a coordinator does by itself: heartbeats, applying, and taking memory nodes back (steps 2, 4 and 5 at the head of
//! [`super`]).

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use base::Bytes;
use base::rt::{self, Instant, Task};

use super::state::{Copied, Copying, Phase, Unkept, region_bytes};
use super::{Shared, lock};
use crate::fault::crash_point;
use crate::layout::{ADMITTED_AT, Cursor, HEADS_BYTES, Header, LOG_UNIT_BYTES};
use crate::link::{Held, Link, NotFenced, Reign};
use crate::quorum::gather;
use crate::scan::{self, Log};
use crate::{Error, Term, Timing};

/// Regions that are copied without letting others run.
const REGIONS_IN_A_ROW_MAX: usize = 16;

/// Takes in completions that nobody else awaits, applies, and sees to the lease, until the coordinator ends.
pub(super) async fn drive(shared: Arc<Shared>) {
    while !shared.stop.is_stopped() {
        let mut tick = pin!(rt::sleep(shared.group.timing.heartbeat));
        std::future::poll_fn(|cx| {
            let woken = lock(&shared.state).advance(cx);
            woken.wake();
            match shared.stop.is_stopped() {
                true => Poll::Ready(()),
                false => tick.as_mut().poll(cx),
            }
        })
        .await;
        {
            let mut state = lock(&shared.state);
            state.apply_all();
            // It ends when its lease has run out; its callers learn that from the state.
            let _ = state.check_lease();
        }
        shared.tell_changed();
    }
}

/// Keeps one node: its heartbeat while it lives, its return when it was lost.
pub(super) async fn keep(shared: Arc<Shared>, slot: usize) {
    let mut voting: Option<Task<()>> = None;
    while !shared.stop.is_stopped() {
        let held = {
            let state = lock(&shared.state);
            let member = &state.members[slot];
            member.held.clone().filter(|_| member.phase == Phase::Live)
        };
        let timing = &shared.group.timing;
        match held {
            Some(held) => {
                let start = rt::now();
                beat(&shared, &held).await;
                if lock(&shared.state).lacks_vote(&held) && voting.as_ref().is_none_or(Task::is_finished) {
                    let (shared, held) = (Arc::clone(&shared), held.clone());
                    voting = Some(rt::spawn(async move {
                        if let Err(error) = see_to_vote(&shared, &held).await {
                            tracing::debug!(slot, %error, "a memory node has no vote yet");
                        }
                    }));
                }
                let rest = timing.heartbeat.saturating_sub(start.elapsed());
                // A node that is lost meanwhile is noticed at once.
                let _ = rt::timeout(rest, shared.stop.or_stopped(shared.changed[slot].notified())).await;
            }
            None if !shared.is_whole.load(Ordering::Acquire) => {
                let _ = rt::timeout(timing.reconnect, shared.stop.or_stopped(shared.changed[slot].notified())).await;
            }
            None => match shared.stop.or_stopped(readmit(&shared, slot)).await {
                Some(Ok(())) => tracing::info!(slot, term = %shared.term, "a memory node is back"),
                Some(Err(error)) => {
                    tracing::debug!(slot, %error, "a memory node does not come back yet");
                    let _ = rt::timeout(timing.reconnect, shared.stop.stopped()).await;
                }
                None => return,
            },
        }
        shared.tell_changed();
    }
}

/// Has a persistent node keep what is posted to it, all that has come together at a time, until the coordinator ends.
pub(super) async fn see_to_disk(shared: Arc<Shared>, slot: usize) {
    loop {
        let unkept = std::future::poll_fn(|cx| lock(&shared.state).poll_unkept(slot, cx));
        if shared.stop.or_stopped(unkept).await.is_none() {
            return;
        }
        // Whoever is about to post does so first: a sync costs the same for one and for many.
        rt::yield_now().await;
        let unkept = lock(&shared.state).take_unkept(slot);
        let Some(Unkept { held, writes, until }) = unkept else { continue };
        crash_point("consensus.keep.sending").await;
        match shared.stop.or_stopped(held.keep(&shared.group, false, writes)).await {
            Some(Ok(())) => {
                let woken = lock(&shared.state).note_kept(&held, until);
                woken.wake();
            }
            Some(Err(error)) => lock(&shared.state).lose(&held, &error),
            None => return,
        }
        shared.tell_changed();
    }
}

/// One heartbeat, and the probe on which the lease stands.
async fn beat(shared: &Shared, held: &Held) {
    let posted_at = rt::now();
    let beat = held.link.beat(shared.node, posted_at.nanos());
    let probe = held.read(0, rma::WORD_BYTES);
    held.link.endpoint.flush();
    let both = async {
        beat.await?;
        probe.await
    };
    // Longer than the lease it is of no use; the node is slow then. One that says nothing at all for long is lost.
    match rt::timeout(shared.group.timing.lease, both).await {
        Ok(Ok(_)) => lock(&shared.state).renew(held, posted_at),
        Ok(Err(error)) => lock(&shared.state).lose(held, &error),
        Err(rt::Elapsed) => lock(&shared.state).note_silent(held, shared.group.timing.answer_max),
    }
}

/// Step 5 at the head of [`super`].
async fn readmit(shared: &Arc<Shared>, slot: usize) -> Result<(), Error> {
    let group = &*shared.group;
    let link = Link::connect(group, slot).await?;
    let region = match link.fence(group, shared.term, shared.holder).await {
        Ok(region) => region,
        Err(NotFenced::Newer(_)) => {
            lock(&shared.state).end(Error::Fenced(shared.term));
            return Err(Error::Fenced(shared.term));
        }
        Err(NotFenced::Unknown(error)) => return Err(error),
    };
    let connected_at = rt::now();
    let held = Held { link, region, reign: Reign { term: shared.term, holder: shared.holder } };
    let headers =
        held.read_all(0, HEADS_BYTES, group.timing.answer_max).await.map_err(Error::rma("reading a node's headers"))?;
    let (mut before, made) = Header::newest(&headers, &group.layout)?;
    if made != shared.made {
        // It is as blank as one that has lost its memory.
        crate::format::begin(group, &held, shared.made).await.map_err(Error::rma("clearing a node"))?;
        before = None;
    }
    let sequence = before.map_or(0, |header| header.sequence);
    let (from, joined_at) = lock(&shared.state).join(&held, sequence)?;
    let leave = Leave { shared, held: &held };
    if let Some(before) = before {
        leave_unchanged(shared, &held, before.applied, joined_at).await?;
    }
    fill(shared, &held, connected_at, from).await?;
    std::mem::forget(leave);
    Ok(())
}

/// Leaves a node that still has its memory what was not written since: from what its header covers on, a live node's log tells
/// what was.
async fn leave_unchanged(shared: &Shared, held: &Held, before: Cursor, joined_at: Cursor) -> Result<(), Error> {
    let layout = &shared.group.layout;
    let behind = joined_at.index.saturating_sub(before.index).saturating_mul(LOG_UNIT_BYTES);
    let source = lock(&shared.state).log_source().filter(|_| behind <= layout.log_bytes);
    let Some((source, header)) = source else { return Ok(()) };
    let patience = shared.group.timing.answer_max;
    // Whether it is lost, its heartbeats tell.
    let Ok(bytes) = source.read_all(layout.log_at(0), layout.log_bytes, patience).await else { return Ok(()) };
    let entries = scan::all(before, &[&Log { header, bytes }], layout);
    if lock(&shared.state).keep_unchanged(held, before, joined_at, &entries)? {
        tracing::debug!(slot = held.link.slot, entries = entries.len(), "a memory node lacks no more than the log has");
        crash_point("consensus.admit.kept").await;
    }
    Ok(())
}

/// Gives a node up that is not admitted in the end.
struct Leave<'a> {
    shared: &'a Shared,
    held: &'a Held,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).give_up_join(self.held);
    }
}

async fn fill(shared: &Shared, held: &Held, connected_at: Instant, from: u64) -> Result<(), Error> {
    let group = &*shared.group;
    let timing = &group.timing;
    let regions = lock(&shared.state).regions();
    let mut in_a_row = 0;
    let mut pace = Pace::new(timing.copy_bytes_per_second, rt::now());
    for region in regions {
        if lock(&shared.state).has_region(held, region)? {
            continue;
        }
        while !copy(shared, held, region).await? {}
        crash_point("consensus.admit.copying").await;
        in_a_row += 1;
        match pace.pause(region_bytes(&group.layout), rt::now()) {
            Some(pause) => rt::sleep(pause).await,
            // With verbs that complete at once nothing here waits. Where many are at work each turn takes long.
            None if in_a_row >= REGIONS_IN_A_ROW_MAX => rt::yield_now().await,
            None => continue,
        }
        in_a_row = 0;
    }
    let newest = confirm(shared, held, connected_at).await?;
    crash_point("consensus.admit.copied").await;

    let ticket = shared.step(|state| state.complete_join(held, from)).await?;
    shared.step(|state| state.has_acked(held, ticket)).await?;
    crash_point("consensus.admit.marked").await;
    give_vote(shared, held, newest).await?;
    let woken = lock(&shared.state).admit(held)?;
    woken.wake();
    Ok(())
}

/// Keeps a rate. Timers are coarse beside what one region takes: pauses are saved up until they are worth one, and one that was too
/// long is made up for.
struct Pace {
    bytes_per_second: u64,
    /// When the next bytes are due.
    due: Instant,
}

impl Pace {
    /// Shorter pauses than this are saved up.
    const PAUSE_MIN: Duration = Duration::from_millis(2);
    /// What is late by more than this is not made up for.
    const LATE_MAX: Duration = Duration::from_millis(10);

    fn new(bytes_per_second: u64, now: Instant) -> Pace {
        Pace { bytes_per_second, due: now }
    }

    /// How long to pause now that so many bytes more are copied.
    fn pause(&mut self, bytes: u64, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == Timing::UNLIMITED {
            return None;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        self.due = self.due.max(now - Self::LATE_MAX) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let pause = self.due.since(now);
        (pause >= Self::PAUSE_MIN).then_some(pause)
    }
}

/// Gives a node that holds everything its vote, unless it has one. A coordinator that ended may have left it without.
async fn see_to_vote(shared: &Shared, held: &Held) -> Result<(), Error> {
    let connected_at = rt::now();
    if held.link.read_admin().await?.admitted != shared.group.id.0 {
        let newest = confirm(shared, held, connected_at).await?;
        give_vote(shared, held, newest).await?;
    } else {
        keep_vote(shared, held).await?;
    }
    lock(&shared.state).note_vote(held);
    Ok(())
}

async fn give_vote(shared: &Shared, held: &Held, newest: Term) -> Result<(), Error> {
    let failed = Error::rma("admitting a memory node");
    let own = held.link.read_admin().await?.term;
    let raised = newest.max(shared.term);
    if own < raised {
        // Whoever was faster has raised it too, or we see that it is not high enough and begin anew.
        let stood = held.link.swap_term(own, raised).await.map_err(&failed)?;
        if stood != own.0 && stood < raised.0 {
            return Err(Error::NotElected);
        }
    }
    let admitted = Bytes::copy_from_slice(&shared.group.id.0.to_le_bytes());
    held.link.write_admin(ADMITTED_AT, admitted).await.map_err(&failed)?;
    keep_vote(shared, held).await
}

/// Has a persistent node remember that it has a vote.
async fn keep_vote(shared: &Shared, held: &Held) -> Result<(), Error> {
    let kept = held.keep(&shared.group, true, Vec::new()).await;
    kept.map_err(Error::rma("having a memory node keep its vote"))
}

/// Copies one region; false when a node that it was read from failed.
async fn copy(shared: &Shared, held: &Held, region: usize) -> Result<bool, Error> {
    let Copying { plain, coded } = shared.step(|state| state.begin_copy(held, region)).await?;
    let patience = shared.group.timing.answer_max;
    let mut copied = Some(Copied { plain: None, coded: None });
    if let Some((source, read)) = plain {
        match shared.answer(&source, read, patience).await {
            Some(bytes) => copied = copied.map(|copied| Copied { plain: Some(bytes.freeze()), ..copied }),
            None => copied = None,
        }
    }
    if let Some(fetch) = coded {
        match shared.gathered(fetch, patience).await {
            Some(bytes) => copied = copied.map(|copied| Copied { coded: Some(bytes.freeze()), ..copied }),
            None => copied = None,
        }
    }
    let is_copied = copied.is_some();
    lock(&shared.state).end_copy(held, region, copied).map(|()| is_copied)
}

/// Waits until a vote that a node gave before it lost its memory is of no use to anybody; then probes F+1 nodes other than
/// this one, and gives the greatest of their terms.
async fn confirm(shared: &Shared, held: &Held, connected_at: Instant) -> Result<Term, Error> {
    let group = &*shared.group;
    let stale = group.timing.attempt_max + group.timing.attempt_max / 10;
    rt::sleep(stale.saturating_sub(connected_at.elapsed())).await;
    let (majority, nodes) = (group.majority(), group.nodes.len());
    let others = lock(&shared.state).others(held.link.slot);
    let probes = others.into_iter().map(|other| async move {
        let probe = other.read(0, rma::WORD_BYTES);
        other.link.endpoint.flush();
        probe.await.ok()?;
        other.link.read_admin().await.ok().map(|admin| admin.term)
    });
    let terms = gather(probes, majority, group.timing.grace, group.timing.answer_max).await;
    if terms.len() < majority {
        return Err(Error::NoMajority { answering: terms.len(), needed: majority, nodes });
    }
    Ok(terms.into_iter().max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_kept_by_timers_that_are_late() {
        let mut now = Instant::from_nanos(1_000_000_000);
        let (begun, mut pace, mut bytes, mut pauses) = (now, Pace::new(100 << 20, now), 0, 0);
        while bytes < 50 << 20 {
            bytes += 64 << 10;
            now += Duration::from_micros(50);
            if let Some(pause) = pace.pause(64 << 10, now) {
                // A timer of whole milliseconds, which begin at any time.
                now += Duration::from_millis(pause.as_millis() as u64 + 2);
                pauses += 1;
            }
        }
        let seconds = now.since(begun).as_secs_f64();
        assert!((0.49..0.52).contains(&seconds), "{seconds} s for half of what a second has");
        assert!(pauses < 800 / 3, "{pauses} pauses for 800 regions");
        // Whoever stood still for long does not copy all of that at once.
        now += Duration::from_secs(10);
        let burst = std::iter::repeat_with(|| pace.pause(64 << 10, now)).position(|pause| pause.is_some());
        assert!(burst.is_some_and(|regions| regions < 32), "{burst:?} regions in a row");
        assert_eq!(Pace::new(Timing::UNLIMITED, now).pause(1 << 40, now), None);
    }
}
