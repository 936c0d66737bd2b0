//! Leading: from an election won to entries on disks. The steps are numbered at the head of [`super`].

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Bytes;
use base::rt::channel::{Receiver, Sender, WatchSender, bounded, watch};
use base::rt::sync::{Mutex as AsyncMutex, Permit, Semaphore};
use base::rt::{self, AbortOnDrop, Stop};
use futures_util::future::{Either, select};

use super::keeper::{mark_of, marks, read};
use super::message::{Answer, Command, ENTRIES_MAX, MARKS_MAX, Reign};
use super::path::{Path, Underway};
use super::{APPENDS_MAX, Neighbour, Shared, UNSAFE_MAX};
use crate::ordered::fault::{Mutant, crash_point, mutant};
use crate::ordered::{Processor, Role};
use crate::quorum::gather;
use crate::{Coordinator, Entry, Error, Kind, Posted, Term};

/// Bytes of entries of one message; an entry that is longer goes alone.
pub(super) const BATCH_BYTES: u64 = 4 << 20;

/// A keeper that has answered.
pub(super) struct Heard {
    neighbour: Neighbour,
    path: Path,
    pub promised: Term,
    adopted: Term,
    height: u64,
}

/// One reign.
pub(super) struct Lead {
    shared: Arc<Shared>,
    coordinator: Coordinator,
    reign: Reign,
    state: Mutex<State>,
    /// How far entries are committed, and how many may be shown.
    progress: WatchSender<Progress>,
    room: Semaphore,
    /// Held by whoever appends.
    turn: AsyncMutex<Sender<Placed>>,
    over: Stop,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Progress {
    committed: u64,
    safe: u64,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Committed entries that are not safe, or not in this processor's journal; no gap between them.
    ring: VecDeque<(u64, Bytes, Permit)>,
    /// Records of the log that are not trimmed: position and index.
    records: VecDeque<(u64, u64)>,
    /// How far adopted journals are, with what is not durable, and durable.
    journals: BTreeMap<Processor, (u64, u64)>,
}

/// An entry that has its place in the log.
struct Placed {
    position: u64,
    index: u64,
    posted: Posted,
    entry: Bytes,
    room: Permit,
}

/// Asks every keeper; gives the answers of a majority, the first of which is this processor's own.
pub(super) async fn ask_all(shared: &Shared, reign: Reign, command: Command) -> Result<Vec<Heard>, Error> {
    let (own, others): (Vec<_>, Vec<_>) =
        shared.processors.iter().partition(|neighbour| neighbour.processor == shared.me);
    let own = hear(shared, own[0], reign, command.clone()).await?;
    let fenced = AtomicBool::new(false);
    let asks = others.into_iter().map(|neighbour| {
        let (command, fenced) = (command.clone(), &fenced);
        async move {
            let outcome = hear(shared, neighbour, reign, command).await;
            if let Err(error) = &outcome {
                tracing::debug!(%error, "a keeper");
                fenced.fetch_or(matches!(error, Error::Fenced(_)), Ordering::Relaxed);
            }
            outcome.ok()
        }
    });
    let mut heard = gather(asks, shared.majority() - 1, shared.group.timing.grace, shared.disk_max).await;
    heard.insert(0, own);
    if heard.len() >= shared.majority() {
        return Ok(heard);
    }
    if fenced.load(Ordering::Relaxed) {
        return Err(Error::Fenced(reign.term));
    }
    let (answering, needed, nodes) = (heard.len(), shared.majority(), shared.processors.len());
    Err(Error::NoMajority { answering, needed, nodes })
}

async fn hear(shared: &Shared, neighbour: &Neighbour, reign: Reign, command: Command) -> Result<Heard, Error> {
    let path = match neighbour.processor == shared.me {
        true => Path::Here(shared.queue.clone()),
        false => Path::connect(neighbour, shared.disk_max).await?,
    };
    match path.ask(reign, command, shared.disk_max).await? {
        // Behind a term of the last era there is none.
        Answer::Is { promised, adopted, height } if promised.max(adopted).next_era().is_ok() => {
            Ok(Heard { neighbour: neighbour.clone(), path, promised, adopted, height })
        }
        _ => Err(path.strange()),
    }
}

/// Leads until the reign is over.
///
/// # Errors
/// What was in the way before it began; [`Error::Corrupt`], [`Error::Journal`] and [`Error::Closed`] end the engine.
pub(super) async fn lead(shared: &Arc<Shared>, coordinator: Coordinator) -> Result<(), Error> {
    let reign = Reign { term: coordinator.term(), holder: rt::random_u64() };
    let mut heard = ask_all(shared, reign, Command::Fence { leader: shared.me.0 }).await?;
    crash_point("consensus.lead.fenced").await;
    let own = heard.remove(0);
    let height = take(shared, reign, &own, &mut heard).await?;
    crash_point("consensus.lead.chosen").await;
    let (height, records) = continue_with(shared, reign, &own, height, coordinator.recovered()).await?;
    let adopted = own.path.ask(reign, Command::Adopt { height }, shared.disk_max).await?;
    let Answer::Holds { durable, .. } = adopted else { return Err(own.path.strange()) };
    crash_point("consensus.lead.adopted").await;

    let (placing, placed) = bounded(UNSAFE_MAX);
    let state = State { next: height, records, journals: [(shared.me, (height, durable))].into(), ..State::default() };
    let lead = Arc::new(Lead {
        shared: Arc::clone(shared),
        coordinator,
        reign,
        state: Mutex::new(state),
        progress: watch(Progress { committed: height, safe: 0 }).0,
        room: Semaphore::new(UNSAFE_MAX),
        turn: AsyncMutex::new(placing),
        over: Stop::new(),
    });
    let mut tasks: Vec<AbortOnDrop<()>> = Vec::new();
    for neighbour in shared.processors.iter().cloned() {
        let first = match neighbour.processor == shared.me {
            true => {
                Some(Heard { adopted: reign.term, height, path: own.path.clone(), neighbour: neighbour.clone(), ..own })
            }
            false => {
                let at = heard.iter().position(|heard| heard.neighbour == neighbour);
                at.map(|at| heard.swap_remove(at))
            }
        };
        tasks.push(rt::spawn(tend(Arc::clone(&lead), neighbour, first)).abort_on_drop());
    }
    lead.settle();
    let mut progress = lead.progress.subscribe();
    let until = async {
        let everybody = progress.wait_for(|progress| progress.safe >= height);
        let majority = rt::timeout(shared.disk_max * 2, everybody).await;
        if !matches!(majority, Ok(Ok(_))) {
            let (answering, needed) = (lead.lock().journals.len(), shared.majority());
            return Err(Error::NoMajority { answering, needed, nodes: shared.processors.len() });
        }
        crash_point("consensus.lead.begun").await;
        tasks.push(rt::spawn(commit(Arc::clone(&lead), placed)).abort_on_drop());
        shared.set_lead(Some(Arc::clone(&lead)));
        tracing::info!(processor = %shared.me, term = %reign.term, next = height, "it leads");
        shared.role.send(Role::Leading { term: reign.term, next: height });
        let mut before = *lead.progress.borrow();
        loop {
            rt::sleep(shared.disk_max * 2).await;
            let now = *lead.progress.borrow();
            if before.committed > before.safe && now.safe == before.safe {
                let (answering, needed) = (lead.lock().journals.len(), shared.majority());
                return Err(Error::NoMajority { answering, needed, nodes: shared.processors.len() });
            }
            before = now;
        }
    };
    let (mut ended, mut over) = (pin!(lead.coordinator.ended()), pin!(lead.over.stopped()));
    let outcome = match select(pin!(until), select(&mut ended, &mut over)).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right((Either::Left((error, _)), _)) => {
            tracing::info!(processor = %shared.me, term = %reign.term, %error, "it does not lead any more");
            Ok(())
        }
        Either::Right((Either::Right(_), _)) => Ok(()),
    };
    lead.end();
    outcome
}

/// Step 3: makes its own journal equal to the best of those that were heard of; gives its height. One that cannot be had, or whose
/// keeper says what cannot be, was not heard of: as long as the others are a majority, the best of them is taken.
async fn take(shared: &Shared, reign: Reign, own: &Heard, others: &mut Vec<Heard>) -> Result<u64, Error> {
    let mut height = own.height;
    loop {
        let rank = |adopted: Term, height: u64| match mutant(Mutant::LongestJournal) {
            true => (Term(0), height),
            false => (adopted, height),
        };
        let best = (0..others.len()).max_by_key(|at| rank(others[*at].adopted, others[*at].height));
        let better = |best: &usize| rank(others[*best].adopted, others[*best].height) > rank(own.adopted, height);
        let Some(best) = best.filter(better) else { return Ok(height) };
        if mutant(Mutant::OwnDisk) {
            return Ok(height);
        }
        let error = match take_from(shared, reign, own, height, &others[best]).await? {
            Ok(height) => return Ok(height),
            Err(error) => error,
        };
        let from = others.remove(best).neighbour.processor;
        tracing::warn!(processor = %shared.me, %from, %error, "another's journal cannot be had");
        let (answering, needed) = (others.len() + 1, shared.majority());
        if answering < needed {
            return Err(Error::NoMajority { answering, needed, nodes: shared.processors.len() });
        }
        // It may hold a part of the other by now, as after a crash amid this: it still bears its old adoption.
        height = shared.journal.height();
    }
}

/// The error inside is the other's; whatever is wrong with its own journal is outside.
async fn take_from(
    shared: &Shared,
    reign: Reign,
    own: &Heard,
    height: u64,
    best: &Heard,
) -> Result<Result<u64, Error>, Error> {
    tracing::info!(
        processor = %shared.me,
        from = %best.neighbour.processor,
        adopted = %best.adopted,
        height = best.height,
        "its journal is brought up to another's"
    );
    let no_answer = |reason: &str| {
        let address = best.neighbour.address.clone();
        Ok(Err(Error::NoAnswer { address, reason: reason.to_owned() }))
    };
    let mut common = match common(shared, reign, &best.path, height.min(best.height)).await? {
        Ok(common) => common,
        Err(error) => return Ok(Err(error)),
    };
    if common < (*shared.safe.borrow()).min(height) {
        return no_answer("it has other entries than were shown here");
    }
    if common < height {
        own.path.ask(reign, Command::Cut { height: common }, shared.disk_max).await?;
    }
    while common < best.height {
        let read = Command::Read { from: common, bytes: BATCH_BYTES };
        let entries = match best.path.ask(reign, read, shared.disk_max).await {
            Ok(Answer::Entries(entries)) => entries,
            Ok(_) => return Ok(Err(best.path.strange())),
            Err(error) => return Ok(Err(error)),
        };
        let count = entries.len() as u64;
        if !(1..=best.height - common).contains(&count) {
            return no_answer("it has other entries than it said");
        }
        match own.path.ask(reign, Command::Align { position: common, entries }, shared.disk_max).await {
            Ok(_) => common += count,
            Err(Error::Invalid(reason)) => return no_answer(&reason),
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(best.height))
}

/// How many entries two journals have in common, of so many that both have: this processor's, and another's, whose error is inside.
pub(super) async fn common(
    shared: &Shared,
    reign: Reign,
    other: &Path,
    mut height: u64,
) -> Result<Result<u64, Error>, Error> {
    while height > 0 {
        let from = height.saturating_sub(MARKS_MAX.min(64));
        let count = height - from;
        let ours = marks(&*shared.journal, from, count)?;
        let theirs = match other.ask(reign, Command::Marks { from, count }, shared.disk_max).await {
            Ok(Answer::Marks(theirs)) if theirs.len() == ours.len() => theirs,
            Ok(_) => return Ok(Err(other.strange())),
            Err(error) => return Ok(Err(error)),
        };
        // What differs is behind what is common.
        if let Some(last) = ours.iter().zip(&theirs).rposition(|(ours, theirs)| ours == theirs) {
            return Ok(Ok(from + last as u64 + 1));
        }
        height = from;
    }
    tracing::error!(processor = %shared.me, "another journal has no entry in common with this one: it belongs to another log");
    Ok(Err(other.strange()))
}

/// The second half of step 3: appends what the group's log has beyond the journal.
async fn continue_with(
    shared: &Shared,
    reign: Reign,
    own: &Heard,
    mut height: u64,
    recovered: &[Entry],
) -> Result<(u64, VecDeque<(u64, u64)>), Error> {
    let mut records = VecDeque::new();
    for entry in recovered.iter().filter(|entry| entry.kind == Kind::Record) {
        let [write] = &entry.writes[..] else { return Err(Error::Corrupt("a record has one write")) };
        let position = write.address;
        records.push_back((position, entry.index));
        if position < height {
            let held = shared.journal.read(position)?;
            if held.is_none_or(|held| mark_of(&held) != mark_of(&write.bytes)) {
                return Err(Error::Corrupt("the group's log and the journals have two entries at one position"));
            }
            continue;
        }
        if mutant(Mutant::ForgetLog) {
            continue;
        }
        if position > height {
            return Err(Error::Corrupt(
                "the group's log goes on behind the end of the orderers' journals: the directory of an orderer was emptied or \
                 is an older copy; start the orderers that have all blocks, or restore their directories",
            ));
        }
        let align = Command::Align { position, entries: vec![write.bytes.clone()] };
        match own.path.ask(reign, align, shared.disk_max).await {
            Err(Error::Invalid(_)) => {
                return Err(Error::Corrupt("an entry of the group's log cannot follow the journal"));
            }
            aligned => drop(aligned?),
        }
        height += 1;
    }
    Ok((height, records))
}

/// Brings one journal up and keeps it so, until the reign is over.
async fn tend(lead: Arc<Lead>, neighbour: Neighbour, mut first: Option<Heard>) {
    loop {
        let heard = match first.take() {
            Some(heard) => Ok(heard),
            None => hear(&lead.shared, &neighbour, lead.reign, Command::Fence { leader: lead.shared.me.0 }).await,
        };
        let outcome = match heard {
            Ok(heard) => bring_up(&lead, heard).await,
            Err(error) => Err(error),
        };
        let Err(error) = outcome;
        tracing::debug!(processor = %neighbour.processor, %error, "a keeper");
        lead.lock().journals.remove(&neighbour.processor);
        let is_own = neighbour.processor == lead.shared.me;
        if matches!(error, Error::Fenced(_)) || is_own {
            return lead.end();
        }
        rt::sleep(lead.shared.group.timing.reconnect).await;
    }
}

/// Steps 4 and 5 for one journal.
async fn bring_up(lead: &Lead, heard: Heard) -> Result<std::convert::Infallible, Error> {
    let Heard { neighbour, path, adopted, height, .. } = heard;
    let shared = &*lead.shared;
    let mut sent = height;
    if adopted != lead.reign.term {
        // What its own journal has on disk is committed, and its reign's.
        let target = shared.journal.durable();
        let mut at = common(shared, lead.reign, &path, height.min(target)).await??;
        if at < height {
            path.ask(lead.reign, Command::Cut { height: at }, shared.disk_max).await?;
        }
        while at < target {
            let entries = read(&*shared.journal, at, target, BATCH_BYTES)?;
            let count = entries.len() as u64;
            path.ask(lead.reign, Command::Align { position: at, entries }, shared.disk_max).await?;
            at += count;
        }
        crash_point("consensus.lead.aligned").await;
        path.ask(lead.reign, Command::Adopt { height: target }, shared.disk_max).await?;
        sent = target;
    }
    lead.holds(neighbour.processor, sent, sent);

    let mut progress = lead.progress.subscribe();
    let (mut told, mut lags) = (0, false);
    let mut underway: VecDeque<Underway> = VecDeque::new();
    loop {
        let now = *progress.borrow_and_update();
        // In a volatile log a keeper answers before its disk has it: it is asked again for what came of that.
        let asks = lags && underway.is_empty();
        while underway.len() < APPENDS_MAX && (sent < now.committed || told < now.safe || asks && underway.is_empty()) {
            let entries = lead.entries(sent, now.committed)?;
            let count = entries.len() as u64;
            let append = Command::Append { position: sent, safe: now.safe, entries };
            underway.push_back(path.begin(lead.reign, append).await?);
            (sent, told) = (sent + count, now.safe);
        }
        let (more, is_full) = (progress.changed(), underway.len() >= APPENDS_MAX);
        let answer = match underway.front_mut() {
            None => match select(pin!(more), pin!(path.ended())).await {
                Either::Left(_) => continue,
                Either::Right(_) => return Err(Error::NoAnswer { address: neighbour.address, reason: "gone".into() }),
            },
            Some(first) => {
                let answer = rt::timeout(shared.disk_max, first);
                match select(pin!(answer), pin!(more)).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) if !is_full => continue,
                    Either::Right((_, answer)) => answer.await,
                }
            }
        };
        underway.pop_front();
        match answer {
            Ok(Ok(Answer::Holds { height, durable })) => {
                lags = durable < height;
                lead.holds(neighbour.processor, height, durable);
            }
            Ok(Ok(_)) => return Err(path.strange()),
            Ok(Err(error)) => return Err(error),
            Err(rt::Elapsed) => {
                return Err(Error::NoAnswer { address: neighbour.address, reason: "timeout".into() });
            }
        }
    }
}

/// Waits for the log to commit what was placed, in order.
async fn commit(lead: Arc<Lead>, mut placed: Receiver<Placed>) {
    while let Some(Placed { position, index, posted, entry, room }) = placed.recv().await {
        if let Err(error) = lead.coordinator.confirm(posted).await {
            tracing::debug!(%error, position, "not committed");
            return lead.end();
        }
        crash_point("consensus.lead.committed").await;
        {
            let mut state = lead.lock();
            state.ring.push_back((position, entry, room));
            state.records.push_back((position, index));
        }
        lead.progress.send_modify(|progress| progress.committed = position + 1);
        if lead.shared.volatile {
            lead.settle();
        }
    }
}

impl Lead {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The reign is over, here.
    pub(super) fn end(&self) {
        self.over.stop();
        self.coordinator.step_down();
        self.shared.follow();
    }

    /// See [`crate::ordered::OrderedLog::append`].
    pub(super) async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        if term != self.reign.term || self.over.is_stopped() {
            return Err(Error::Fenced(term));
        }
        let placing = self.turn.lock().await;
        let next = self.lock().next;
        if position != next {
            return Err(Error::Invalid(format!("position {position}: the next one is {next}")));
        }
        let fenced = || Error::Fenced(term);
        let room = self.over.or_stopped(self.room.acquire()).await.ok_or_else(fenced)?;
        // Whoever drops the future meanwhile leaves a record that nobody waits for, and nothing may come behind it.
        let unplaced = Unplaced(Some(self));
        let post = self.coordinator.post_record(position, entry.clone());
        let (posted, index) = match self.over.or_stopped(post).await {
            Some(Ok(posted)) => posted,
            Some(Err(error)) => {
                tracing::debug!(%error, position, "not appended");
                return Err(fenced());
            }
            None => return Err(fenced()),
        };
        let placed = Placed { position, index, posted, entry, room };
        // There is room for all that have a permit.
        placing.try_send(placed).map_err(|_| fenced())?;
        self.lock().next += 1;
        unplaced.done();
        Ok(())
    }

    /// Entries that are to be sent to a journal.
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
        read(&*self.shared.journal, from, until, BATCH_BYTES)
    }

    /// Takes in how far an adopted journal is.
    fn holds(&self, whose: Processor, height: u64, durable: u64) {
        self.lock().journals.insert(whose, (height, durable));
        self.settle();
    }

    /// Finds out what is safe, and lets go of what nobody here needs any more.
    fn settle(&self) {
        let shared = &*self.shared;
        let committed = self.progress.borrow().committed;
        let mut trimmed = None;
        let safe = {
            let mut state = self.lock();
            let own = state.journals.get(&shared.me).copied().unwrap_or_default();
            let mut heights: Vec<u64> = state.journals.values().map(|(_, durable)| *durable).collect();
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
            // The last one stays: it tells whoever takes over how far a majority of disks once was.
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
            let more = safe > progress.safe;
            progress.safe = safe.max(progress.safe);
            more
        });
    }
}

/// Ends a reign whose log has a record that was not noted.
struct Unplaced<'a>(Option<&'a Lead>);

impl Unplaced<'_> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unplaced<'_> {
    fn drop(&mut self) {
        if let Some(lead) = self.0 {
            lead.end();
        }
    }
}
