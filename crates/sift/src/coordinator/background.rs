//! The coordinator's background tasks: applying, heartbeats, and re-admitting memory nodes (steps 2, 4 and 5 at the
//! head of [`super`]).

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use base::rt::{Instant, Task};
use base::{Bytes, FenceToken, rt};

use super::state::{CopiedRegion, NodePhase, RegionCopy, UnpersistedWrites, region_bytes};
use crate::coordinator::coordinator_core::{CoordinatorCore, lock};
use crate::fault::crash_point;
use crate::layout::{ADMITTED_AT, CopyHeader, HEADS_BYTES, LOG_UNIT_BYTES, LogCursor};
use crate::link::{FenceError, FencedNode, MemoryNodeLink};
use crate::quorum::gather;
use crate::scan::LogCopy;
use crate::{Error, SiftTimeouts, Term, scan};

/// Regions that are copied in a row before the task yields.
const REGIONS_IN_A_ROW_MAX: usize = 16;

/// Processes completions that no caller awaits, applies entries, and checks the lease, until the coordinator ends.
pub(super) async fn drive(shared: Arc<CoordinatorCore>) {
    while !shared.stop.is_cancelled() {
        let mut tick = pin!(rt::sleep(shared.group.timing.heartbeat));
        std::future::poll_fn(|cx| {
            let woken = lock(&shared.state).advance(cx);
            woken.wake();
            match shared.stop.is_cancelled() {
                true => Poll::Ready(()),
                false => tick.as_mut().poll(cx),
            }
        })
        .await;
        {
            let mut state = lock(&shared.state);
            state.apply_all();
            // The coordinator ends when its lease has run out; callers see that in the state.
            let _ = state.check_lease();
        }
        shared.notify_changed();
    }
}

/// Looks after one node: sends its heartbeat while it is live, and re-admits it after it was lost.
pub(super) async fn maintain_node(shared: Arc<CoordinatorCore>, slot: usize) {
    let mut voting: Option<Task<()>> = None;
    while !shared.stop.is_cancelled() {
        let held = {
            let state = lock(&shared.state);
            let member = &state.members[slot];
            member.node.clone().filter(|_| member.phase == NodePhase::Live)
        };
        let timing = &shared.group.timing;
        match held {
            Some(held) => {
                let start = rt::now();
                heartbeat(&shared, &held).await;
                if lock(&shared.state).lacks_vote(&held) && voting.as_ref().is_none_or(Task::is_finished) {
                    let (shared, held) = (Arc::clone(&shared), held.clone());
                    voting = Some(rt::spawn(async move {
                        if let Err(error) = restore_vote(&shared, &held).await {
                            tracing::debug!(slot, %error, "a memory node has no vote yet");
                        }
                    }));
                }
                let rest = timing.heartbeat.saturating_sub(start.elapsed());
                // If the node is lost meanwhile, the wait ends at once.
                let _ = rt::timeout(rest, shared.stop.run_until_cancelled(shared.changed[slot].notified())).await;
            }
            None if !shared.is_unlogged_recovered.load(Ordering::Acquire) => {
                let _ = rt::timeout(timing.reconnect, shared.stop.run_until_cancelled(shared.changed[slot].notified()))
                    .await;
            }
            None => match shared.stop.run_until_cancelled(readmit(&shared, slot)).await {
                Some(Ok(())) => tracing::info!(slot, term = %shared.term, "a memory node is back"),
                Some(Err(error)) => {
                    tracing::debug!(slot, %error, "a memory node does not come back yet");
                    let _ = rt::timeout(timing.reconnect, shared.stop.cancelled()).await;
                }
                None => return,
            },
        }
        shared.notify_changed();
    }
}

/// Sends a persistent node the writes that are posted to it, all that have accumulated in one message, until the
/// coordinator ends.
pub(super) async fn run_persister(shared: Arc<CoordinatorCore>, slot: usize) {
    loop {
        let unkept = std::future::poll_fn(|cx| lock(&shared.state).poll_unpersisted(slot, cx));
        if shared.stop.run_until_cancelled(unkept).await.is_none() {
            return;
        }
        // Let callers that are about to post do so first: one sync costs the same for one write and for many.
        rt::yield_now().await;
        let unkept = lock(&shared.state).take_unpersisted(slot);
        let Some(UnpersistedWrites { node: held, writes, until }) = unkept else { continue };
        crash_point("consensus.background.sending").await;
        match shared.stop.run_until_cancelled(held.keep(&shared.group, false, writes)).await {
            Some(Ok(())) => {
                let woken = lock(&shared.state).note_persisted(&held, until);
                woken.wake();
            }
            Some(Err(error)) => lock(&shared.state).lose(&held, &error),
            None => return,
        }
        shared.notify_changed();
    }
}

/// One heartbeat, and the probe on which the lease stands.
async fn heartbeat(shared: &CoordinatorCore, held: &FencedNode) {
    let posted_at = rt::now();
    let beat = held.link.heartbeat(shared.node, posted_at.nanos());
    let probe = held.read(0, rma::WORD_BYTES);
    held.link.endpoint.flush();
    let both = async {
        beat.await?;
        probe.await
    };
    // A heartbeat that takes longer than the lease is useless; the node is slow then. A node that is silent for long is
    // lost.
    match rt::timeout(shared.group.timing.lease, both).await {
        Ok(Ok(_)) => lock(&shared.state).renew(held, posted_at),
        Ok(Err(error)) => lock(&shared.state).lose(held, &error),
        Err(rt::Elapsed) => lock(&shared.state).note_silent(held, shared.group.timing.answer_max),
    }
}

/// Step 5 at the head of [`super`].
async fn readmit(shared: &Arc<CoordinatorCore>, slot: usize) -> Result<(), Error> {
    let group = &*shared.group;
    let link = MemoryNodeLink::connect(group, slot).await?;
    let region = match link.fence(group, shared.term, shared.nonce).await {
        Ok(region) => region,
        Err(FenceError::Newer(_)) => {
            lock(&shared.state).end(Error::Fenced(shared.term));
            return Err(Error::Fenced(shared.term));
        }
        Err(FenceError::Unknown(error)) => return Err(error),
    };
    let connected_at = rt::now();
    let held = FencedNode { link, region, token: FenceToken { term: shared.term, nonce: shared.nonce } };
    let headers =
        held.read_all(0, HEADS_BYTES, group.timing.answer_max).await.map_err(Error::rma("reading a node's headers"))?;
    let (mut before, made) = CopyHeader::newest(&headers, &group.layout)?;
    if made != shared.format_term {
        // The node is as blank as one that has lost its memory.
        crate::format::write_initial_header(group, &held, shared.format_term)
            .await
            .map_err(Error::rma("clearing a node"))?;
        before = None;
    }
    let sequence = before.map_or(0, |header| header.sequence);
    let (from, joined_at) = lock(&shared.state).join(&held, sequence)?;
    let leave = JoinGuard { shared, held: &held };
    if let Some(before) = before {
        skip_unchanged(shared, &held, before.applied, joined_at).await?;
    }
    copy_regions(shared, &held, connected_at, from).await?;
    std::mem::forget(leave);
    Ok(())
}

/// Keeps on the node, which still has its memory, the regions that were not written since. The log of a live node, from
/// the position that the node's header covers, names the regions that were.
async fn skip_unchanged(
    shared: &CoordinatorCore,
    node: &FencedNode,
    before: LogCursor,
    joined_at: LogCursor,
) -> Result<(), Error> {
    let layout = &shared.group.layout;
    let behind = joined_at.index.saturating_sub(before.index).saturating_mul(LOG_UNIT_BYTES);
    let source = lock(&shared.state).log_source().filter(|_| behind <= layout.log_bytes);
    let Some((source, header)) = source else { return Ok(()) };
    let patience = shared.group.timing.answer_max;
    // A failed read does not mark the source as lost; its heartbeats decide that.
    let Ok(bytes) = source.read_all(layout.log_at(0), layout.log_bytes, patience).await else { return Ok(()) };
    let entries = scan::all(before, &[&LogCopy { header, bytes }], layout);
    if lock(&shared.state).mark_unchanged(node, before, joined_at, &entries)? {
        tracing::debug!(slot = node.link.slot, entries = entries.len(), "a memory node lacks no more than the log has");
        crash_point("consensus.admit.kept").await;
    }
    Ok(())
}

/// On drop, gives up the join of a node that was not admitted.
struct JoinGuard<'a> {
    shared: &'a CoordinatorCore,
    held: &'a FencedNode,
}

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        lock(&self.shared.state).abort_join(self.held);
    }
}

async fn copy_regions(
    shared: &CoordinatorCore,
    held: &FencedNode,
    connected_at: Instant,
    from: u64,
) -> Result<(), Error> {
    let group = &*shared.group;
    let timing = &group.timing;
    let regions = lock(&shared.state).regions();
    let mut in_a_row = 0;
    let mut pace = CopyPacer::new(timing.copy_bytes_per_second, rt::now());
    for region in regions {
        if lock(&shared.state).has_region(held, region)? {
            continue;
        }
        while !copy_region(shared, held, region).await? {}
        crash_point("consensus.admit.copying").await;
        in_a_row += 1;
        match pace.pause(region_bytes(&group.layout), rt::now()) {
            Some(pause) => rt::sleep(pause).await,
            // With verbs that complete at once nothing here waits, so the task has to yield; but where many tasks run
            // each yield takes long, so it yields only after many regions.
            None if in_a_row >= REGIONS_IN_A_ROW_MAX => rt::yield_now().await,
            None => continue,
        }
        in_a_row = 0;
    }
    let newest = confirm_newest_term(shared, held, connected_at).await?;
    crash_point("consensus.admit.copied").await;

    let sequence = shared.step(|state| state.complete_join(held, from)).await?;
    shared.step(|state| state.has_acked(held, sequence)).await?;
    crash_point("consensus.admit.marked").await;
    grant_vote(shared, held, newest).await?;
    let woken = lock(&shared.state).admit(held)?;
    woken.wake();
    Ok(())
}

/// Limits a rate. Timers are coarse compared with the time that one region takes. So short pauses are saved up until
/// they are worth one timer, and a pause that was too long is made up for.
struct CopyPacer {
    bytes_per_second: u64,
    /// When the next bytes are due.
    due: Instant,
}

impl CopyPacer {
    /// Pauses shorter than this are saved up.
    const PAUSE_MIN: Duration = Duration::from_millis(2);
    /// A delay beyond this is not made up for.
    const LATE_MAX: Duration = Duration::from_millis(10);

    fn new(bytes_per_second: u64, now: Instant) -> CopyPacer {
        CopyPacer { bytes_per_second, due: now }
    }

    /// How long to pause after copying `bytes` more.
    fn pause(&mut self, bytes: u64, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == SiftTimeouts::UNLIMITED {
            return None;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        self.due = self.due.max(now - Self::LATE_MAX) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let pause = self.due.since(now);
        (pause >= Self::PAUSE_MIN).then_some(pause)
    }
}

/// Gives a complete node its vote, unless it has one. A coordinator that ended may have left it without.
async fn restore_vote(shared: &CoordinatorCore, held: &FencedNode) -> Result<(), Error> {
    let connected_at = rt::now();
    if held.link.read_admin().await?.admitted != shared.group.id.0 {
        let newest = confirm_newest_term(shared, held, connected_at).await?;
        grant_vote(shared, held, newest).await?;
    } else {
        persist_vote(shared, held).await?;
    }
    lock(&shared.state).note_vote(held);
    Ok(())
}

async fn grant_vote(shared: &CoordinatorCore, held: &FencedNode, newest: Term) -> Result<(), Error> {
    let failed = Error::rma("admitting a memory node");
    let own = held.link.read_admin().await?.term;
    let raised = newest.max(shared.term);
    if own < raised {
        // If another CPU node was faster, it has raised the term too; if not far enough, the caller starts again.
        let stood = held.link.swap_term(own, raised).await.map_err(&failed)?;
        if stood != own.0 && stood < raised.0 {
            return Err(Error::NotElected);
        }
    }
    let admitted = Bytes::copy_from_slice(&shared.group.id.0.to_le_bytes());
    held.link.write_admin(ADMITTED_AT, admitted).await.map_err(&failed)?;
    persist_vote(shared, held).await
}

/// Makes a persistent node store on disk that it has a vote.
async fn persist_vote(shared: &CoordinatorCore, held: &FencedNode) -> Result<(), Error> {
    let kept = held.keep(&shared.group, true, Vec::new()).await;
    kept.map_err(Error::rma("having a memory node keep its vote"))
}

/// Copies one region; false when a read from a source node failed.
async fn copy_region(shared: &CoordinatorCore, held: &FencedNode, region: usize) -> Result<bool, Error> {
    let RegionCopy { replicated: plain, erasure_coded: coded } =
        shared.step(|state| state.start_copy(held, region)).await?;
    let patience = shared.group.timing.answer_max;
    let mut copied = Some(CopiedRegion { replicated: None, erasure_coded: None });
    if let Some((source, read)) = plain {
        match shared.finish_read(&source, read, patience).await {
            Some(bytes) => copied = copied.map(|copied| CopiedRegion { replicated: Some(bytes.freeze()), ..copied }),
            None => copied = None,
        }
    }
    if let Some(fetch) = coded {
        match shared.gather_shards(fetch, patience).await {
            Some(bytes) => copied = copied.map(|copied| CopiedRegion { erasure_coded: Some(bytes.freeze()), ..copied }),
            None => copied = None,
        }
    }
    let is_copied = copied.is_some();
    lock(&shared.state).finish_copy(held, region, copied).map(|()| is_copied)
}

/// Waits until no candidate can use a vote that the node gave before it lost its memory. Then probes F+1 nodes other
/// than this one, and returns the greatest of their terms.
async fn confirm_newest_term(
    shared: &CoordinatorCore,
    held: &FencedNode,
    connected_at: Instant,
) -> Result<Term, Error> {
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
        let (begun, mut pace, mut bytes, mut pauses) = (now, CopyPacer::new(100 << 20, now), 0, 0);
        while bytes < 50 << 20 {
            bytes += 64 << 10;
            now += Duration::from_micros(50);
            if let Some(pause) = pace.pause(64 << 10, now) {
                // A timer with whole milliseconds, which start at any time.
                now += Duration::from_millis(pause.as_millis() as u64 + 2);
                pauses += 1;
            }
        }
        let seconds = now.since(begun).as_secs_f64();
        assert!((0.49..0.52).contains(&seconds), "{seconds} s for half of what a second has");
        assert!(pauses < 800 / 3, "{pauses} pauses for 800 regions");
        // After a long standstill the copy does not catch up all at once.
        now += Duration::from_secs(10);
        let burst = std::iter::repeat_with(|| pace.pause(64 << 10, now)).position(|pause| pause.is_some());
        assert!(burst.is_some_and(|regions| regions < 32), "{burst:?} regions in a row");
        assert_eq!(CopyPacer::new(SiftTimeouts::UNLIMITED, now).pause(1 << 40, now), None);
    }
}
