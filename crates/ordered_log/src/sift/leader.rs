//! The leader, from a won election to entries on disks. Step numbers are those of the head of [`super`].

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::channel::{Receiver, Sender, WatchSender, bounded, watch};
use base::rt::sync::{Mutex as AsyncMutex, Semaphore, SemaphorePermit};
use base::rt::{AbortOnDrop, CancellationToken};
use base::{Bytes, FenceToken, rt};
use futures_util::future::{Either, select};
use sift::{Coordinator, WriteHandle};

use super::acceptor::read;
use super::client::PendingRequest;
use super::limits::BATCH_BYTES;
use super::message::{AcceptorRequest, AcceptorResponse, ENTRIES_MAX};
use super::recovery::{
    AcceptorReport, adopt_newest_log, append_recovered, common_height, query_acceptor, query_acceptors,
};
use super::{APPENDS_MAX, CpuNode, IN_FLIGHT_MAX};
use crate::fault::{Mutant, crash_point, mutant};
use crate::sift::log_core::SiftLogCore;
use crate::{CpuNodeId, Error, Leadership, Term};

/// One term in which this node leads.
pub(super) struct SiftLeader {
    shared: Arc<SiftLogCore>,
    coordinator: Coordinator,
    token: FenceToken,
    state: Mutex<LeadershipState>,
    /// How many entries are committed, and how many are deliverable.
    progress: WatchSender<LeaderProgress>,
    in_flight: Semaphore,
    /// Held by the caller that appends.
    turn: AsyncMutex<Sender<PostedEntry>>,
    stop: CancellationToken,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct LeaderProgress {
    committed: u64,
    deliverable: u64,
}

#[derive(Default)]
struct LeadershipState {
    next: u64,
    /// Committed entries that are not deliverable, or not durable in this node's log store; no gap between them.
    ring: VecDeque<(u64, Bytes, SemaphorePermit)>,
    /// Records of the group's log that are not trimmed: position and index.
    records: VecDeque<(u64, u64)>,
    /// Of each adopted log store, the height with the entries that are not durable, and the height without them.
    heights: BTreeMap<CpuNodeId, (u64, u64)>,
}

/// An entry that has its position in the group's log.
struct PostedEntry {
    position: u64,
    index: u64,
    posted: WriteHandle,
    entry: Bytes,
    permit: SemaphorePermit,
}

/// Leads until the term is over.
///
/// # Errors
/// The reason why it did not start to lead, or stepped down; [`Error::Corrupt`], [`Error::LogStore`] and [`Error::Closed`] end
/// the engine.
pub(super) async fn lead(shared: &Arc<SiftLogCore>, coordinator: Coordinator) -> Result<(), Error> {
    let token = FenceToken { term: coordinator.term(), nonce: rt::random_u64() };
    let mut reports = query_acceptors(shared, token, AcceptorRequest::Fence { leader: shared.me.0 }).await?;
    crash_point("consensus.leadership.fenced").await;
    let own = reports.remove(0);
    let height = adopt_newest_log(shared, token, &own, &mut reports).await?;
    crash_point("consensus.leadership.chosen").await;
    let (height, records) = append_recovered(shared, token, &own, height, coordinator.recovered()).await?;
    let adopted = own.client.request(token, AcceptorRequest::Adopt { height }, shared.disk_timeout).await?;
    let AcceptorResponse::Progress { durable, .. } = adopted else { return Err(own.client.unexpected_response()) };
    crash_point("consensus.leadership.adopted").await;

    let (placing, placed) = bounded(IN_FLIGHT_MAX);
    let state = LeadershipState {
        next: height,
        records,
        heights: [(shared.me, (height, durable))].into(),
        ..LeadershipState::default()
    };
    let lead = Arc::new(SiftLeader {
        shared: Arc::clone(shared),
        coordinator,
        token,
        state: Mutex::new(state),
        progress: watch(LeaderProgress { committed: height, deliverable: 0 }).0,
        in_flight: Semaphore::new(IN_FLIGHT_MAX),
        turn: AsyncMutex::new(placing),
        stop: CancellationToken::new(),
    });
    let mut tasks: Vec<AbortOnDrop<()>> = Vec::new();
    for neighbour in shared.cpu_nodes.iter().cloned() {
        let first = match neighbour.id == shared.me {
            true => Some(AcceptorReport {
                adopted: token.term,
                height,
                client: own.client.clone(),
                cpu_node: neighbour.clone(),
                ..own
            }),
            false => {
                let at = reports.iter().position(|heard| heard.cpu_node == neighbour);
                at.map(|at| reports.swap_remove(at))
            }
        };
        tasks.push(rt::spawn(replicate_to(Arc::clone(&lead), neighbour, first)).abort_on_drop());
    }
    lead.advance();
    let mut progress = lead.progress.subscribe();
    let until = async {
        let everybody = progress.wait_for(|progress| progress.deliverable >= height);
        let majority = rt::timeout(shared.disk_timeout * 2, everybody).await;
        if !matches!(majority, Ok(Ok(_))) {
            let (answering, needed) = (lead.lock().heights.len(), shared.majority());
            return Err(Error::NoMajority { answering, needed, nodes: shared.cpu_nodes.len() });
        }
        crash_point("consensus.leadership.started").await;
        tasks.push(rt::spawn(commit(Arc::clone(&lead), placed)).abort_on_drop());
        shared.set_leader(Arc::downgrade(&lead));
        tracing::info!(cpu_node = %shared.me, term = %token.term, next = height, "this CPU node is the leader");
        shared.leadership.send(Leadership::Leading { term: token.term, next: height });
        let mut before = *lead.progress.borrow();
        loop {
            rt::sleep(shared.disk_timeout * 2).await;
            let now = *lead.progress.borrow();
            if before.committed > before.deliverable && now.deliverable == before.deliverable {
                let (answering, needed) = (lead.lock().heights.len(), shared.majority());
                return Err(Error::NoMajority { answering, needed, nodes: shared.cpu_nodes.len() });
            }
            before = now;
        }
    };
    let (mut ended, mut over) = (pin!(lead.coordinator.ended()), pin!(lead.stop.cancelled()));
    let outcome = match select(pin!(until), select(&mut ended, &mut over)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right((Either::Left((error, _)), _)) => {
            tracing::info!(cpu_node = %shared.me, term = %token.term, %error, "this CPU node is no longer the leader");
            Ok(())
        }
        Either::Right((Either::Right(_), _)) => Ok(()),
    };
    lead.end();
    outcome
}

/// Brings one log store up to date and keeps it so, until the term is over.
async fn replicate_to(lead: Arc<SiftLeader>, neighbour: CpuNode, mut first: Option<AcceptorReport>) {
    loop {
        let heard = match first.take() {
            Some(heard) => Ok(heard),
            None => {
                query_acceptor(
                    &lead.shared,
                    &neighbour,
                    lead.token,
                    AcceptorRequest::Fence { leader: lead.shared.me.0 },
                )
                .await
            }
        };
        let outcome = match heard {
            Ok(heard) => catch_up(&lead, heard).await,
            Err(error) => Err(error),
        };
        let Err(error) = outcome;
        tracing::debug!(cpu_node = %neighbour.id, %error, "a request to an acceptor failed");
        lead.lock().heights.remove(&neighbour.id);
        let is_own = neighbour.id == lead.shared.me;
        if matches!(error, Error::Fenced(_)) || is_own {
            return lead.end();
        }
        rt::sleep(lead.shared.group.timing.reconnect).await;
    }
}

/// Steps 4 and 5 for one log store.
async fn catch_up(lead: &SiftLeader, heard: AcceptorReport) -> Result<std::convert::Infallible, Error> {
    let AcceptorReport { cpu_node: neighbour, client: path, adopted, height, .. } = heard;
    let shared = &*lead.shared;
    let mut sent = height;
    if adopted != lead.token.term {
        // The entries that are durable in this node's own log store are committed, and this term has adopted them.
        let target = shared.log_store.durable();
        let mut at = common_height(shared, lead.token, &path, height.min(target)).await??;
        if at < height {
            path.request(lead.token, AcceptorRequest::Truncate { height: at }, shared.disk_timeout).await?;
        }
        while at < target {
            let entries = read(&*shared.log_store, at, target, BATCH_BYTES)?;
            let count = entries.len() as u64;
            path.request(lead.token, AcceptorRequest::Align { position: at, entries }, shared.disk_timeout).await?;
            at += count;
        }
        crash_point("consensus.leadership.aligned").await;
        path.request(lead.token, AcceptorRequest::Adopt { height: target }, shared.disk_timeout).await?;
        sent = target;
    }
    lead.record_progress(neighbour.id, sent, sent);

    let mut progress = lead.progress.subscribe();
    let (mut told, mut lags) = (0, false);
    let mut underway: VecDeque<PendingRequest> = VecDeque::new();
    loop {
        let now = *progress.borrow_and_update();
        // In a volatile log an acceptor answers before its disk has the entries: a later request asks what became durable.
        let asks = lags && underway.is_empty();
        while underway.len() < APPENDS_MAX
            && (sent < now.committed || told < now.deliverable || asks && underway.is_empty())
        {
            let entries = lead.entries(sent, now.committed)?;
            let count = entries.len() as u64;
            let append = AcceptorRequest::Append { position: sent, deliverable: now.deliverable, entries };
            underway.push_back(path.start_request(lead.token, append).await?);
            (sent, told) = (sent + count, now.deliverable);
        }
        let (more, is_full) = (progress.changed(), underway.len() >= APPENDS_MAX);
        let answer = match underway.front_mut() {
            None => match select(pin!(more), pin!(path.ended())).await {
                Either::Left(_) => continue,
                Either::Right(_) => {
                    return Err(Error::NoAnswer {
                        address: neighbour.address,
                        reason: "the connection has ended".into(),
                    });
                }
            },
            Some(first) => {
                let answer = rt::timeout(shared.disk_timeout, first);
                match select(pin!(answer), pin!(more)).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) if !is_full => continue,
                    Either::Right((_, answer)) => answer.await,
                }
            }
        };
        underway.pop_front();
        match answer {
            Ok(Ok(AcceptorResponse::Progress { height, durable })) => {
                lags = durable < height;
                lead.record_progress(neighbour.id, height, durable);
            }
            Ok(Ok(_)) => return Err(path.unexpected_response()),
            Ok(Err(error)) => return Err(error),
            Err(rt::Elapsed) => {
                return Err(Error::NoAnswer { address: neighbour.address, reason: "timeout".into() });
            }
        }
    }
}

/// Waits for the group's log to commit the entries that have their positions, in order.
async fn commit(lead: Arc<SiftLeader>, mut placed: Receiver<PostedEntry>) {
    while let Some(PostedEntry { position, index, posted, entry, permit: room }) = placed.recv().await {
        if let Err(error) = lead.coordinator.confirm(posted).await {
            tracing::debug!(%error, position, "an entry was not committed");
            return lead.end();
        }
        crash_point("consensus.leadership.committed").await;
        {
            let mut state = lead.lock();
            state.ring.push_back((position, entry, room));
            state.records.push_back((position, index));
        }
        lead.progress.send_modify(|progress| progress.committed = position + 1);
        if lead.shared.volatile {
            lead.advance();
        }
    }
}

impl SiftLeader {
    fn lock(&self) -> MutexGuard<'_, LeadershipState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Ends the term at this node.
    pub(super) fn end(&self) {
        self.stop.cancel();
        self.coordinator.step_down();
        self.shared.set_following();
    }

    /// See [`crate::OrderedLog::append`].
    pub(super) async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        if term != self.token.term || self.stop.is_cancelled() {
            return Err(Error::Fenced(term));
        }
        let placing = self.turn.lock().await;
        let next = self.lock().next;
        if position != next {
            return Err(Error::Invalid(format!("position {position}: the next one is {next}")));
        }
        let fenced = || Error::Fenced(term);
        let room = self.stop.run_until_cancelled(self.in_flight.acquire()).await.ok_or_else(fenced)?;
        // If the caller drops the future meanwhile, a record is left that nobody waits for, and no record may follow it.
        let unplaced = AppendGuard(Some(self));
        let post = self.coordinator.post_record(position, entry.clone());
        let (posted, index) = match self.stop.run_until_cancelled(post).await {
            Some(Ok(posted)) => posted,
            Some(Err(error)) => {
                tracing::debug!(%error, position, "an entry was not appended");
                return Err(fenced());
            }
            None => return Err(fenced()),
        };
        let placed = PostedEntry { position, index, posted, entry, permit: room };
        // The channel has space for all appends that have a permit.
        placing.try_send(placed).map_err(|_| fenced())?;
        self.lock().next += 1;
        unplaced.done();
        Ok(())
    }

    /// Entries to be sent to a log store.
    fn entries(&self, from: u64, until: u64) -> Result<Vec<Bytes>, Error> {
        {
            let state = self.lock();
            if let Some((first, _, _)) = state.ring.front()
                && from >= *first
            {
                let (mut entries, mut bytes) = (Vec::new(), 0);
                for (_, entry, _) in state.ring.iter().skip((from - first) as usize).take(ENTRIES_MAX) {
                    bytes += entry.len() as u64;
                    if !entries.is_empty() && bytes > BATCH_BYTES {
                        break;
                    }
                    entries.push(entry.clone());
                }
                return Ok(entries);
            }
        }
        read(&*self.shared.log_store, from, until, BATCH_BYTES)
    }

    /// Records how far an adopted log store is.
    fn record_progress(&self, whose: CpuNodeId, height: u64, durable: u64) {
        self.lock().heights.insert(whose, (height, durable));
        self.advance();
    }

    /// Finds out which entries are deliverable, and frees the entries and records that are no longer needed here.
    fn advance(&self) {
        let shared = &*self.shared;
        let committed = self.progress.borrow().committed;
        let mut trimmed = None;
        let safe = {
            let mut state = self.lock();
            let own = state.heights.get(&shared.me).copied().unwrap_or_default();
            let mut heights: Vec<u64> = state.heights.values().map(|(_, durable)| *durable).collect();
            heights.sort_unstable_by(|a, b| b.cmp(a));
            let needed = if mutant(Mutant::OneDisk) { 1 } else { shared.majority() };
            let durable = heights.get(needed - 1).copied().unwrap_or_default();
            let adopted = heights.len() >= shared.majority();
            let safe = match shared.volatile && adopted {
                true => committed.min(own.0),
                false => durable.min(own.0),
            };
            while state.ring.front().is_some_and(|(position, _, _)| *position < safe.min(own.1)) {
                state.ring.pop_front();
            }
            // The last record stays: it shows the next leader how far a majority of disks once was.
            let least = if mutant(Mutant::TrimLast) { 0 } else { 1 };
            while state.records.len() > least && state.records.front().is_some_and(|(position, _)| *position < durable)
            {
                trimmed = state.records.pop_front().map(|(_, index)| index);
            }
            safe
        };
        if let Some(index) = trimmed {
            self.coordinator.trim(index);
        }
        self.progress.send_if_modified(|progress| {
            let more = safe > progress.deliverable;
            progress.deliverable = safe.max(progress.deliverable);
            more
        });
    }
}

/// Ends a term whose log has a record that was not registered.
struct AppendGuard<'a>(Option<&'a SiftLeader>);

impl AppendGuard<'_> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for AppendGuard<'_> {
    fn drop(&mut self) {
        if let Some(lead) = self.0 {
            lead.end();
        }
    }
}
