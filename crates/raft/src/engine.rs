//! The task that runs one node. No other task touches the `raft` crate's state, the log or the machine. The head of [`super`]
//! describes the protocol and argues why it is safe.

mod event;
#[cfg(test)]
mod hostile;
mod members;
mod received;
mod snapshot_format;
mod snapshots;

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::rt;
use base::rt::channel::{OneshotSender, Receiver, Sender};
use base::rt::net::LinkSender;
use base::rt::sync::SemaphorePermit;
use base::rt::{AbortOnDrop, CancellationToken, Instant};
use futures_util::future::{Either, select};
use raft_rs::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use raft_rs::{Config, RawNode, ReadOnlyOption, Ready, SnapshotStatus, StateRole};

use super::codec::MEMBERS_MAX;
use super::disk::DiskLog;
use super::entries::RaftEntries;
use super::fault::{Mutant, crash_point, mutant};
use super::links::{FRAME_MESSAGES_MAX, LinkEndpoints};
use super::{AppliedEntry, ProposalOutcome, RaftConfig, RaftCore, RaftMember, RaftStatus, StateMachine, codec, links};
use crate::{Error, Term};
use snapshot_format::members_of;

pub(super) use event::{EngineEvent, RequestWaiter};
pub(super) use snapshot_format::{check_snapshot, first_snapshot};

/// Events that are taken at once.
const EVENTS_MAX: usize = 1024;
/// Bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Bytes of committed entries that are applied at once.
const APPLY_BYTES: u64 = 8 << 20;
/// The most heartbeat rounds in which reads wait.
const ROUNDS_MAX: usize = 1024;

/// A caller that is answered when an entry is applied.
enum PendingAnswer<O> {
    Proposed(
        OneshotSender<Result<ProposalOutcome<O>, Error>>,
        #[allow(dead_code, reason = "held until it is answered")] SemaphorePermit,
    ),
    Changed(RequestWaiter),
}

impl<O> PendingAnswer<O> {
    fn fail(self, error: Error) {
        // The caller may have gone.
        match self {
            PendingAnswer::Proposed(answer, _) => drop(answer.send(Err(error))),
            PendingAnswer::Changed(asker) => asker.answer(Err(error)),
        }
    }
}

/// Heartbeats that were sent together, to prove that this node leads.
struct HeartbeatRound {
    number: u64,
    begun: Instant,
    /// The index that must be applied before a read that waits for this round; known once the round has succeeded.
    index: Option<u64>,
    waiting: Vec<RequestWaiter>,
}

/// Messages that wait for a sync.
struct UnsyncedMessages {
    number: u64,
    messages: Vec<Message>,
}

/// See the module.
pub(super) struct RaftEngine<M: StateMachine> {
    options: RaftConfig,
    shared: Arc<RaftCore<M::Output>>,
    node: RawNode<RaftEntries>,
    disk: Option<DiskLog>,
    machine: M,
    members: BTreeMap<u64, RaftMember>,
    applied: u64,
    applied_term: u64,
    events: Sender<EngineEvent<M::Output>>,
    /// Links to other members.
    links: BTreeMap<u64, LinkSender>,
    connectors: BTreeMap<u64, AbortOnDrop<()>>,
    /// Nodes that have opened a link to this one, and that it does not know as members yet.
    learned_addresses: BTreeMap<u64, String>,
    /// Index, term and caller, by ascending index.
    pending: VecDeque<(u64, u64, PendingAnswer<M::Output>)>,
    unsynced: VecDeque<UnsyncedMessages>,
    is_syncing: bool,
    /// The task that makes and writes a snapshot.
    making_snapshot: Option<AbortOnDrop<()>>,
    sending_snapshot: BTreeMap<u64, AbortOnDrop<()>>,
    /// When this node last heard from others, while it leads.
    heard: BTreeMap<u64, Instant>,
    rounds: VecDeque<HeartbeatRound>,
    rounds_begun: u64,
    /// Ticks since the last round.
    quiet: u64,
    /// Ticks that must still be held back before this node stands for election.
    election_delay_ticks: Option<u64>,
    /// Until then this node gives no vote.
    mute_until: Instant,
    /// The index of the last durable snapshot, and bytes of log since.
    snapshot_index: u64,
    bytes_since: u64,
    stop: CancellationToken,
}

/// Passes the crate's log messages on to `tracing`.
fn logger() -> slog::Logger {
    struct ToTracing;
    impl slog::Drain for ToTracing {
        type Ok = ();
        type Err = slog::Never;

        fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
            if record.level().is_at_least(slog::Level::Warning) {
                tracing::debug!(target: "raft", "{}", record.msg());
            }
            Ok(())
        }
    }
    slog::Logger::root(ToTracing, slog::o!())
}

impl<M: StateMachine> RaftEngine<M> {
    /// Restores the machine from the stored snapshot.
    pub fn new(
        options: RaftConfig,
        shared: Arc<RaftCore<M::Output>>,
        (entries, snapshot): (RaftEntries, Snapshot),
        disk: Option<DiskLog>,
        mut machine: M,
        events: Sender<EngineEvent<M::Output>>,
        stop: CancellationToken,
    ) -> Result<RaftEngine<M>, Error> {
        let (applied, applied_term) = entries.base();
        let (members, data) = members_of(snapshot.data)?;
        machine.restore(applied, data)?;
        let timing = options.timing;
        let config = Config {
            id: options.node,
            applied,
            election_tick: timing.election_ticks as usize,
            heartbeat_tick: timing.heartbeat_ticks as usize,
            // One value only: the engine draws its own randomness, in a simulation from the seed. See `tick`.
            min_election_tick: timing.election_ticks as usize,
            max_election_tick: timing.election_ticks as usize + 1,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: rt::net::LINK_MESSAGES_MAX / 2,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            skip_bcast_commit: options.is_commit_lazy,
            batch_append: true,
            max_uncommitted_size: options.uncommitted_bytes_max as u64,
            max_committed_size_per_ready: APPLY_BYTES,
            ..Config::default()
        };
        let hard = entries.hard.clone();
        let node = RawNode::new(&config, entries, &logger()).map_err(|error| Error::Invalid(error.to_string()))?;
        let mute = timing.tick * timing.election_ticks;
        tracing::debug!(node = options.node, term = hard.term, applied, "a Raft node starts");
        Ok(RaftEngine {
            options,
            shared,
            node,
            disk,
            machine,
            members,
            applied,
            applied_term,
            events,
            links: BTreeMap::new(),
            connectors: BTreeMap::new(),
            learned_addresses: BTreeMap::new(),
            pending: VecDeque::new(),
            unsynced: VecDeque::new(),
            is_syncing: false,
            making_snapshot: None,
            sending_snapshot: BTreeMap::new(),
            heard: BTreeMap::new(),
            rounds: VecDeque::new(),
            rounds_begun: 0,
            quiet: 0,
            election_delay_ticks: None,
            mute_until: rt::now() + mute,
            snapshot_index: applied,
            bytes_since: 0,
            stop,
        })
    }

    /// Runs until it is stopped, or fails.
    pub async fn run(mut self, mut events: Receiver<EngineEvent<M::Output>>) {
        let stop = self.stop.clone();
        let outcome = stop.run_until_cancelled(self.serve(&mut events)).await;
        let error = match outcome {
            Some(Err(error)) => error,
            _ => Error::Closed,
        };
        self.shared.lease_until.store(0, Ordering::SeqCst);
        self.abandon(&Error::Ambiguous);
        // Events that have arrived and were not handled have had no effect.
        events.close();
        while let Ok(event) = events.try_recv() {
            match event {
                EngineEvent::Propose { answer, .. } => drop(answer.send(Err(Error::Closed))),
                EngineEvent::Change(_, asker) | EngineEvent::Barrier(asker) => asker.answer(Err(Error::Closed)),
                _ => {}
            }
        }
        // From here on this node no longer touches its directory, and another node may use it.
        match self.making_snapshot.take() {
            Some(making) if mutant(Mutant::LeaveSnapshot) => std::mem::forget(making),
            Some(making) => {
                making.abort();
                // It matters only that the task has ended.
                let _ = making.await;
            }
            None => {}
        }
        self.disk = None;
        self.shared.end(error, &self.stop);
    }

    async fn serve(&mut self, events: &mut Receiver<EngineEvent<M::Output>>) -> Result<(), Error> {
        self.reconnect();
        let mut taken = Vec::new();
        let tick = self.options.timing.tick;
        let mut due = Box::pin(rt::sleep(tick));
        loop {
            // Ticks come first, so that they do not starve; they are rare.
            match select(due.as_mut(), pin!(events.recv_many(&mut taken, EVENTS_MAX))).await {
                Either::Left(_) => {
                    self.tick();
                    // Never sooner than a tick from now, however late this one was: the lease depends on it.
                    due = Box::pin(rt::sleep(tick));
                }
                Either::Right((0, _)) => return Ok(()),
                Either::Right(_) => {}
            }
            self.take(&mut taken).await?;
            self.resign();
            self.advance().await?;
            self.maintain_snapshots()?;
        }
    }

    fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Handles the passing of a tick.
    fn tick(&mut self) {
        let timing = self.options.timing;
        let knows_none = self.node.raft.leader_id == raft_rs::INVALID_ID;
        if knows_none && rt::now().nanos() < self.shared.abstains_until.load(Ordering::Acquire) {
            return;
        }
        if !self.is_leader() && self.node.raft.election_elapsed as u64 + 1 >= u64::from(timing.election_ticks) {
            // The next tick makes it stand for election: nodes do so at different times.
            let patience =
                self.election_delay_ticks.get_or_insert_with(|| rt::random_below(u64::from(timing.election_ticks)));
            if *patience > 0 {
                *patience -= 1;
                return;
            }
        }
        self.election_delay_ticks = None;
        self.node.tick();
        self.quiet += 1;
        if self.is_leader() && self.quiet >= u64::from(timing.heartbeat_ticks) {
            self.start_round();
        }
    }

    /// Sends heartbeats in a round that completes when a majority has answered them.
    fn start_round(&mut self) {
        self.quiet = 0;
        // The crate answers no round as long as no entry of this term is committed.
        if self.rounds.len() >= ROUNDS_MAX || !self.node.raft.commit_to_current_term() {
            return;
        }
        self.rounds_begun += 1;
        let number = self.rounds_begun;
        self.rounds.push_back(HeartbeatRound { number, begun: rt::now(), index: None, waiting: Vec::new() });
        self.node.read_index(number.to_le_bytes().to_vec());
    }

    async fn take(&mut self, taken: &mut Vec<EngineEvent<M::Output>>) -> Result<(), Error> {
        let (mut proposals, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for event in taken.drain(..) {
            match event {
                EngineEvent::Propose { data, term, answer, permit } => {
                    let role = self.is_leader().then_some(Term(self.node.raft.term));
                    if role.is_none() || term.is_some_and(|term| Some(term) != role) {
                        let error = term.map_or_else(|| self.not_leading(), Error::Fenced);
                        drop(answer.send(Err(error)));
                        continue;
                    }
                    // The crate accepts any number of bytes at once while nothing is uncommitted.
                    if bytes + data.len() > self.options.uncommitted_bytes_max {
                        self.propose(&mut proposals, &mut answers);
                        bytes = 0;
                    }
                    bytes += data.len();
                    proposals.push(Entry { data, ..Entry::default() });
                    answers.push(PendingAnswer::Proposed(answer, permit));
                }
                EngineEvent::Change(change, asker) => {
                    self.propose(&mut proposals, &mut answers);
                    self.change(change, asker);
                }
                EngineEvent::Report(answer, _permit) => drop(answer.send(self.report())),
                EngineEvent::Barrier(asker) => self.barrier(asker),
                EngineEvent::Received(messages) => {
                    // All of them are from one sender.
                    if let Some(message) = messages.first()
                        && self.is_leader()
                    {
                        self.heard.insert(message.from, rt::now());
                    }
                    // A proposal and a message that ends this node's leadership are handled in the order in which they arrived.
                    self.propose(&mut proposals, &mut answers);
                    for message in messages {
                        self.step(message)?;
                    }
                }
                EngineEvent::AddressLearned(id, address) => {
                    if !self.members.contains_key(&id) && self.learned_addresses.len() < MEMBERS_MAX {
                        self.learned_addresses.insert(id, address);
                        self.reconnect();
                    }
                }
                EngineEvent::Disowned(by) => return Err(Error::Disowned { node: self.options.node, by }),
                EngineEvent::Linked(to, link) => {
                    if self.connectors.contains_key(&to) {
                        self.links.insert(to, link);
                    }
                }
                EngineEvent::Unlinked(to) => {
                    self.links.remove(&to);
                    self.node.report_unreachable(to);
                }
                EngineEvent::Synced(outcome, number) => {
                    let disk = self.disk.as_mut().expect("only a disk is synced");
                    disk.synced(outcome?);
                    self.is_syncing = false;
                    self.synced(number);
                }
                EngineEvent::SnapshotMade(snapshot) => self.snapshot_made(snapshot?).await?,
                EngineEvent::SnapshotSent(to, is_whole) => {
                    self.sending_snapshot.remove(&to);
                    let status = if is_whole { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                    self.node.report_snapshot(to, status);
                    if self.sending_snapshot.is_empty() {
                        self.node.raft.mut_store().snapshot = None;
                    }
                }
            }
        }
        self.propose(&mut proposals, &mut answers);
        Ok(())
    }

    /// Steps down if this node is to lead no more in its term.
    fn resign(&mut self) {
        let term = self.node.raft.term;
        if self.is_leader() && self.shared.resigned.load(Ordering::Acquire) >= term {
            tracing::debug!(node = self.options.node, term, "a Raft node resigns");
            self.node.raft.become_follower(term, raft_rs::INVALID_ID);
        }
    }

    fn not_leading(&self) -> Error {
        Error::NotLeading(Some(self.node.raft.leader_id).filter(|leader| *leader != 0))
    }

    /// Gives many proposals to the crate at once.
    fn propose(&mut self, proposals: &mut Vec<Entry>, answers: &mut Vec<PendingAnswer<M::Output>>) {
        if proposals.is_empty() {
            return;
        }
        let message = Message {
            msg_type: MessageType::MsgPropose,
            from: self.node.raft.id,
            entries: std::mem::take(proposals).into(),
            ..Message::default()
        };
        let (before, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
        if !self.is_leader() || self.node.raft.step(message).is_err() {
            let error = if self.is_leader() { Error::Busy } else { self.not_leading() };
            answers.drain(..).for_each(|answer| answer.fail(error.clone()));
            return;
        }
        for (index, answer) in (before + 1..).zip(answers.drain(..)) {
            match answer {
                PendingAnswer::Proposed(answer, permit) if mutant(Mutant::AnswerUncommitted) => {
                    drop((
                        answer.send(Ok(ProposalOutcome { index, term: Term(term), output: M::Output::default() })),
                        permit,
                    ));
                }
                answer => self.pending.push_back((index, term, answer)),
            }
        }
    }

    /// Makes a read wait for a round that starts now.
    fn barrier(&mut self, asker: RequestWaiter) {
        if !self.is_leader() {
            asker.answer(Err(self.not_leading()));
            return;
        }
        if !self.node.raft.commit_to_current_term() || self.rounds.len() >= ROUNDS_MAX {
            asker.answer(Err(Error::Busy));
            return;
        }
        let now = rt::now();
        if !self.rounds.back().is_some_and(|round| round.begun == now && round.index.is_none()) {
            self.start_round();
        }
        if let Some(round) = self.rounds.back_mut() {
            round.waiting.push(asker);
        }
    }

    /// Does what the crate asks for, until it asks for nothing more that can be done now.
    async fn advance(&mut self) -> Result<(), Error> {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            // The lease ends before any message is sent that ends this node's leadership.
            self.publish_status(&ready);
            let now = ready.take_messages();
            self.send(now);
            if !ready.snapshot().is_empty() {
                self.install(ready.snapshot(), ready.hs()).await?;
            }
            for state in ready.take_read_states() {
                let number = state.request_ctx.try_into().map(u64::from_le_bytes).unwrap_or(0);
                if let Some(round) = self.rounds.iter_mut().find(|round| round.number == number) {
                    round.index = Some(state.index);
                }
            }
            let committed = ready.take_committed_entries();
            let installed = (!ready.snapshot().is_empty()).then(|| ready.number());
            self.store(ready)?;
            if let Some(number) = installed {
                self.installed(number).await?;
            }
            if !committed.is_empty() {
                crash_point("consensus.raft.applying").await;
                self.apply(committed)?;
            }
            self.end_rounds();
            self.sync();
        }
        Ok(())
    }

    /// Stores new state and entries, and holds back the messages that may only be sent once these are durable.
    fn store(&mut self, mut ready: Ready) -> Result<(), Error> {
        let number = ready.number();
        let messages = ready.take_persisted_messages();
        let entries = ready.entries();
        let storage = self.node.raft.mut_store();
        if let Some(hard) = ready.hs() {
            storage.hard = hard.clone();
        }
        if !entries.is_empty() {
            self.bytes_since +=
                entries.iter().map(|entry| (codec::ENTRY_HEAD_BYTES + entry.data.len()) as u64).sum::<u64>();
            assert!(storage.append(entries), "the crate appends without a gap");
        }
        // A commit index alone is written with the next record: it is soon learned again.
        let must_sync = ready.must_sync();
        if let Some(disk) = &mut self.disk
            && must_sync
            && !(entries.is_empty() && mutant(Mutant::ForgetVote))
        {
            disk.append(&storage.hard, entries)?;
        }
        self.node.advance_append_async(ready);
        let is_early =
            |message: &Message| message.msg_type == MessageType::MsgAppendResponse && mutant(Mutant::ConfirmUnsynced);
        let (early, messages): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_early);
        self.send(early);
        if self.disk.is_none() || (!must_sync && self.unsynced.is_empty()) {
            self.node.on_persist_ready(number);
            self.send(messages);
            return Ok(());
        }
        self.unsynced.push_back(UnsyncedMessages { number, messages });
        Ok(())
    }

    /// Starts a sync of the unsynced records, unless one is in flight.
    fn sync(&mut self) {
        let (Some(disk), false) = (&mut self.disk, self.is_syncing) else { return };
        let Some(last) = self.unsynced.back() else { return };
        let number = last.number;
        let syncing = disk.syncing();
        self.is_syncing = true;
        let events = self.events.clone();
        rt::spawn(async move {
            crash_point("consensus.raft.syncing").await;
            let outcome = syncing.run().await;
            crash_point("consensus.raft.synced").await;
            // The engine may have gone.
            let _ = events.send(EngineEvent::Synced(outcome, number)).await;
        });
    }

    fn synced(&mut self, number: u64) {
        let mut messages = Vec::new();
        while self.unsynced.front().is_some_and(|unsynced| unsynced.number <= number) {
            let unsynced = self.unsynced.pop_front().expect("there is a first");
            messages.extend(unsynced.messages);
        }
        self.node.on_persist_ready(number);
        self.send(messages);
        self.sync();
    }

    fn send(&mut self, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let mut by_receiver: BTreeMap<u64, Vec<Message>> = BTreeMap::new();
        for message in messages {
            if message.msg_type == MessageType::MsgSnapshot {
                self.send_snapshot(message);
            } else if codec::travels(&message) {
                by_receiver.entry(message.to).or_default().push(message);
            }
        }
        for (to, messages) in by_receiver {
            let is_lost = rt::fault_point("consensus.raft.lose_message");
            let sent = messages.chunks(FRAME_MESSAGES_MAX).all(|messages| {
                is_lost || self.links.get(&to).is_some_and(|link| links::try_send(link, links::frame(messages)))
            });
            if !sent {
                self.node.report_unreachable(to);
            }
        }
    }

    fn endpoints(&self, to: u64) -> LinkEndpoints {
        let (group, from, address) = (self.options.group, self.options.node, self.options.listen.clone());
        LinkEndpoints { group, from, incarnation: self.shared.incarnation, address, to }
    }

    /// Publishes the role that the crate reports for this node, and ends everything that depends on its leadership.
    fn publish_status(&mut self, ready: &Ready) {
        let (term, leads) = (Term(self.node.raft.term), self.is_leader());
        let before = *self.shared.role.borrow();
        if ready.ss().is_none() && before.term == term {
            return;
        }
        let leader = Some(self.node.raft.leader_id).filter(|leader| *leader != 0);
        let role = RaftStatus { term, leader, is_leading: leads };
        if before.is_leading && (!leads || before.term != term) {
            self.shared.lease_until.store(0, Ordering::SeqCst);
            self.abandon(&Error::Ambiguous);
        }
        if !leads || before.term != term {
            self.heard.clear();
        }
        if role != before {
            tracing::debug!(node = self.options.node, ?role, "a Raft node's role changes");
            self.shared.role.send(role);
        }
    }

    /// Fails all waiting callers.
    fn abandon(&mut self, error: &Error) {
        self.pending.drain(..).for_each(|(_, _, answer)| answer.fail(error.clone()));
        for round in self.rounds.drain(..) {
            // A read has changed nothing.
            round.waiting.into_iter().for_each(|asker| asker.answer(Err(Error::NotLeading(None))));
        }
    }

    fn apply(&mut self, committed: Vec<Entry>) -> Result<(), Error> {
        let mut run = Vec::with_capacity(committed.len());
        for entry in committed {
            assert_eq!(entry.index, self.applied + 1, "entries are applied in order");
            (self.applied, self.applied_term) = (entry.index, entry.term);
            if entry.entry_type == EntryType::EntryNormal && !entry.data.is_empty() {
                run.push(AppliedEntry { index: entry.index, term: Term(entry.term), data: entry.data });
                continue;
            }
            self.apply_run(&mut run);
            let answer = self.answer_of(entry.index, entry.term);
            match entry.entry_type {
                // The first entry of a new leader, or a change of members that could not be made.
                EntryType::EntryNormal => {
                    if let Some(answer) = answer {
                        answer.fail(Error::Busy);
                    }
                }
                EntryType::EntryConfChange => {
                    self.apply_change(&entry)?;
                    if let Some(PendingAnswer::Changed(asker)) = answer {
                        asker.answer(Ok(()));
                    }
                }
                EntryType::EntryConfChangeV2 => {
                    return Err(Error::Corrupt("a change of members of a Raft group is of an unknown kind"));
                }
            }
        }
        self.apply_run(&mut run);
        self.node.advance_apply_to(self.applied);
        self.shared.applied.store(self.applied, Ordering::Release);
        self.compact();
        Ok(())
    }

    /// Gives entries to the machine, and answers their proposers.
    fn apply_run(&mut self, run: &mut Vec<AppliedEntry>) {
        if run.is_empty() {
            return;
        }
        let places: Vec<(u64, Term)> = run.iter().map(|entry| (entry.index, entry.term)).collect();
        let outputs = self.machine.apply(std::mem::take(run));
        assert_eq!(outputs.len(), places.len(), "a machine gives an output for each entry");
        for ((index, term), output) in places.into_iter().zip(outputs) {
            if let Some(PendingAnswer::Proposed(answer, _permit)) = self.answer_of(index, term.0) {
                drop(answer.send(Ok(ProposalOutcome { index, term, output })));
            }
        }
    }

    /// The caller that waits for an entry, if this is the entry that it proposed.
    fn answer_of(&mut self, index: u64, term: u64) -> Option<PendingAnswer<M::Output>> {
        while self.pending.front().is_some_and(|(at, _, _)| *at <= index) {
            let (at, of, answer) = self.pending.pop_front().expect("there is a first");
            if (at, of) == (index, term) {
                return Some(answer);
            }
            // Its index went to another entry: the proposal had no effect.
            answer.fail(Error::Busy);
        }
        None
    }

    /// Completes the rounds that a majority has answered: extends the lease, and answers the reads that wait for them.
    fn end_rounds(&mut self) {
        let Some(at) = self.rounds.iter().rposition(|round| round.index.is_some_and(|index| index <= self.applied))
        else {
            return;
        };
        let lease = self.options.timing.lease();
        for round in self.rounds.drain(..=at) {
            // A later round proves everything that earlier ones would have proved.
            if round.index.is_some() && self.node.raft.state == StateRole::Leader {
                let until = (round.begun + lease).nanos();
                self.shared.lease_until.fetch_max(until, Ordering::SeqCst);
            }
            round.waiting.into_iter().for_each(|asker| asker.answer(Ok(())));
        }
    }

    /// Drops applied entries from memory, unless a member still needs them and they are not too many.
    fn compact(&mut self) {
        let keep = self.options.log_bytes as u64;
        let snapshot_index = self.snapshot_index;
        let (applied, is_durable) = (self.applied, self.disk.is_some());
        let slowest = if self.is_leader() {
            self.node.raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or(applied)
        } else {
            applied
        };
        let storage = self.node.raft.mut_store();
        // The log on disk starts behind a snapshot; so does the log in memory.
        let until = if is_durable { applied.min(snapshot_index) } else { applied };
        let wanted = storage.surplus(keep as usize, until.min(slowest)).max(storage.surplus(4 * keep as usize, until));
        if wanted > storage.base().0 {
            storage.compact(wanted);
        }
    }
}
