//! The task that runs one node: it alone touches the crate's state, the log and the machine. The protocol and why it is safe
//! are at the head of [`super`].

#[cfg(test)]
mod hostile;
mod members;
mod received;
mod snapshots;

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Bytes;
use base::rt::channel::{OneshotSender, Receiver, Sender};
use base::rt::net::LinkSender;
use base::rt::sync::Permit;
use base::rt::{self, AbortOnDrop, Instant, Stop};
use futures_util::future::{Either, select};
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use raft::{Config, RawNode, ReadOnlyOption, Ready, SnapshotStatus, StateRole};

use super::codec::{self, MEMBERS_MAX};
use super::disk::DiskLog;
use super::entries::Entries;
use super::fault::{Mutant, crash_point, mutant};
use super::links::{self, Ends, FRAME_MESSAGES_MAX};
use super::{Applied, Change, Machine, Member, Options, Proposed, Report, Role, Shared};
use crate::{Error, Term};
use snapshots::members_of;
pub(super) use snapshots::{check_snapshot, first_snapshot};

/// Events that are taken at once.
const EVENTS_MAX: usize = 1024;
/// Bytes of entries in one message.
const MESSAGE_BYTES: u64 = 1 << 20;
/// Bytes of committed entries that are applied at once.
const APPLY_BYTES: u64 = 8 << 20;
/// Reads that ask for a round of heartbeats wait in these many rounds at most.
const ROUNDS_MAX: usize = 1024;

/// What the task is told.
pub(super) enum Event<O> {
    Propose {
        data: Bytes,
        term: Option<Term>,
        answer: OneshotSender<Result<Proposed<O>, Error>>,
        permit: Permit,
    },
    Change(Change, Asker),
    Report(OneshotSender<Report>, Permit),
    /// A read waits for proof that this node still leads.
    Barrier(Asker),
    Received(Vec<Message>),
    /// Somebody has made a link to this node, and listens there.
    Met(u64, String),
    /// Another member knows this node with another log.
    Disowned(u64),
    Linked(u64, LinkSender),
    Unlinked(u64),
    Synced(Result<u64, Error>, u64),
    SnapshotMade(Result<Snapshot, Error>),
    SnapshotSent(u64, bool),
}

/// Who waits for a read or a change of members.
pub(super) struct Asker {
    pub answer: OneshotSender<Result<(), Error>>,
    /// One of [`super::ASKING_MAX`], held until it is answered.
    #[allow(dead_code, reason = "held until it is answered")]
    pub permit: Permit,
}

impl Asker {
    fn answer(self, outcome: Result<(), Error>) {
        // Nobody may wait any more.
        let _ = self.answer.send(outcome);
    }
}

/// What is told when an entry is applied.
enum Answer<O> {
    Proposed(
        OneshotSender<Result<Proposed<O>, Error>>,
        #[allow(dead_code, reason = "held until it is answered")] Permit,
    ),
    Changed(Asker),
}

impl<O> Answer<O> {
    fn fail(self, error: Error) {
        // Nobody may wait any more.
        match self {
            Answer::Proposed(answer, _) => drop(answer.send(Err(error))),
            Answer::Changed(asker) => asker.answer(Err(error)),
        }
    }
}

/// Heartbeats that were sent together, to prove that this node leads.
struct Round {
    number: u64,
    begun: Instant,
    /// What must be applied before a read that waits for it; known once it has succeeded.
    index: Option<u64>,
    waiting: Vec<Asker>,
}

/// What waits for a sync.
struct Unsynced {
    number: u64,
    messages: Vec<Message>,
}

/// See the module.
pub(super) struct Engine<M: Machine> {
    options: Options,
    shared: Arc<Shared<M::Output>>,
    node: RawNode<Entries>,
    disk: Option<DiskLog>,
    machine: M,
    members: BTreeMap<u64, Member>,
    applied: u64,
    applied_term: u64,
    events: Sender<Event<M::Output>>,
    /// To other members.
    links: BTreeMap<u64, LinkSender>,
    connectors: BTreeMap<u64, AbortOnDrop<()>>,
    /// Nodes that have made a link to this one, which does not know yet that they are members.
    met: BTreeMap<u64, String>,
    /// By index, ascending.
    pending: VecDeque<(u64, u64, Answer<M::Output>)>,
    unsynced: VecDeque<Unsynced>,
    is_syncing: bool,
    /// A snapshot is being made, and written.
    making_snapshot: Option<AbortOnDrop<()>>,
    sending_snapshot: BTreeMap<u64, AbortOnDrop<()>>,
    /// When this node heard of others, while it leads.
    heard: BTreeMap<u64, Instant>,
    rounds: VecDeque<Round>,
    rounds_begun: u64,
    /// Ticks since the last round.
    quiet: u64,
    /// Ticks that are still to be held back before this node stands for election.
    patience: Option<u64>,
    /// Until then no vote is given.
    mute_until: Instant,
    /// Index of the last snapshot that is durable, and bytes of log since.
    snapshot_index: u64,
    bytes_since: u64,
    stop: Stop,
}

/// What the crate has to say, for whoever logs.
fn logger() -> slog::Logger {
    struct ToTracing;
    impl slog::Drain for ToTracing {
        type Ok = ();
        type Err = slog::Never;

        fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
            if record.level().is_at_least(slog::Level::Warning) {
                tracing::debug!(target: "consensus::raft", "{}", record.msg());
            }
            Ok(())
        }
    }
    slog::Logger::root(ToTracing, slog::o!())
}

impl<M: Machine> Engine<M> {
    /// Restores the machine from what is stored.
    pub fn new(
        options: Options,
        shared: Arc<Shared<M::Output>>,
        (entries, snapshot): (Entries, Snapshot),
        disk: Option<DiskLog>,
        mut machine: M,
        events: Sender<Event<M::Output>>,
        stop: Stop,
    ) -> Result<Engine<M>, Error> {
        let (applied, applied_term) = entries.base();
        let (members, data) = members_of(snapshot.data)?;
        machine.restore(applied, data)?;
        let timing = options.timing;
        let config = Config {
            id: options.node,
            applied,
            election_tick: timing.election_ticks as usize,
            heartbeat_tick: timing.heartbeat_ticks as usize,
            // One value only: chance is ours to take, from the seed in a simulation. See `tick`.
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
        Ok(Engine {
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
            met: BTreeMap::new(),
            pending: VecDeque::new(),
            unsynced: VecDeque::new(),
            is_syncing: false,
            making_snapshot: None,
            sending_snapshot: BTreeMap::new(),
            heard: BTreeMap::new(),
            rounds: VecDeque::new(),
            rounds_begun: 0,
            quiet: 0,
            patience: None,
            mute_until: rt::now() + mute,
            snapshot_index: applied,
            bytes_since: 0,
            stop,
        })
    }

    /// Runs until it is told to stop, or cannot go on.
    pub async fn run(mut self, mut events: Receiver<Event<M::Output>>) {
        let stop = self.stop.clone();
        let outcome = stop.or_stopped(self.serve(&mut events)).await;
        let error = match outcome {
            Some(Err(error)) => error,
            _ => Error::Closed,
        };
        self.shared.lease_until.store(0, Ordering::SeqCst);
        self.abandon(&Error::Ambiguous);
        // What has come and was not looked at has not been done.
        events.close();
        while let Ok(event) = events.try_recv() {
            match event {
                Event::Propose { answer, .. } => drop(answer.send(Err(Error::Closed))),
                Event::Change(_, asker) | Event::Barrier(asker) => asker.answer(Err(Error::Closed)),
                _ => {}
            }
        }
        // From here on nothing of this node touches its directory, and another may have it.
        match self.making_snapshot.take() {
            Some(making) if mutant(Mutant::LeaveSnapshot) => std::mem::forget(making),
            Some(making) => {
                making.abort();
                // That it has ended is all that counts.
                let _ = making.await;
            }
            None => {}
        }
        self.disk = None;
        self.shared.end(error, &self.stop);
    }

    async fn serve(&mut self, events: &mut Receiver<Event<M::Output>>) -> Result<(), Error> {
        self.reconnect();
        let mut taken = Vec::new();
        let tick = self.options.timing.tick;
        let mut due = Box::pin(rt::sleep(tick));
        loop {
            // Ticks come first, lest they starve; they are far between.
            match select(due.as_mut(), pin!(events.recv_many(&mut taken, EVENTS_MAX))).await {
                Either::Left(_) => {
                    self.tick();
                    // Never sooner than a tick from now, however late this one was: the lease counts on it.
                    due = Box::pin(rt::sleep(tick));
                }
                Either::Right((0, _)) => return Ok(()),
                Either::Right(_) => {}
            }
            self.take(&mut taken).await?;
            self.resign();
            self.advance().await?;
            self.look_after_snapshots()?;
        }
    }

    fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Time goes on.
    fn tick(&mut self) {
        let timing = self.options.timing;
        let knows_none = self.node.raft.leader_id == raft::INVALID_ID;
        if knows_none && rt::now().nanos() < self.shared.abstains_until.load(Ordering::Acquire) {
            return;
        }
        if !self.leads() && self.node.raft.election_elapsed as u64 + 1 >= u64::from(timing.election_ticks) {
            // The next tick lets it stand for election: nodes do so at different times.
            let patience = self.patience.get_or_insert_with(|| rt::random_below(u64::from(timing.election_ticks)));
            if *patience > 0 {
                *patience -= 1;
                return;
            }
        }
        self.patience = None;
        self.node.tick();
        self.quiet += 1;
        if self.leads() && self.quiet >= u64::from(timing.heartbeat_ticks) {
            self.begin_round();
        }
    }

    /// Sends heartbeats of which it will be known when a majority has answered them.
    fn begin_round(&mut self) {
        self.quiet = 0;
        // The crate answers none as long as nothing of this term is committed.
        if self.rounds.len() >= ROUNDS_MAX || !self.node.raft.commit_to_current_term() {
            return;
        }
        self.rounds_begun += 1;
        let number = self.rounds_begun;
        self.rounds.push_back(Round { number, begun: rt::now(), index: None, waiting: Vec::new() });
        self.node.read_index(number.to_le_bytes().to_vec());
    }

    async fn take(&mut self, taken: &mut Vec<Event<M::Output>>) -> Result<(), Error> {
        let (mut proposals, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        for event in taken.drain(..) {
            match event {
                Event::Propose { data, term, answer, permit } => {
                    let role = self.leads().then_some(Term(self.node.raft.term));
                    if role.is_none() || term.is_some_and(|term| Some(term) != role) {
                        let error = term.map_or_else(|| self.not_leading(), Error::Fenced);
                        drop(answer.send(Err(error)));
                        continue;
                    }
                    // The crate takes whatever comes at once while nothing is uncommitted.
                    if bytes + data.len() > self.options.uncommitted_bytes_max {
                        self.propose(&mut proposals, &mut answers);
                        bytes = 0;
                    }
                    bytes += data.len();
                    proposals.push(Entry { data, ..Entry::default() });
                    answers.push(Answer::Proposed(answer, permit));
                }
                Event::Change(change, asker) => {
                    self.propose(&mut proposals, &mut answers);
                    self.change(change, asker);
                }
                Event::Report(answer, _permit) => drop(answer.send(self.report())),
                Event::Barrier(asker) => self.barrier(asker),
                Event::Received(messages) => {
                    // All of them are of one sender.
                    if let Some(message) = messages.first()
                        && self.leads()
                    {
                        self.heard.insert(message.from, rt::now());
                    }
                    // The order of a proposal and of what ends this node's leading is that in which they came.
                    self.propose(&mut proposals, &mut answers);
                    for message in messages {
                        self.step(message)?;
                    }
                }
                Event::Met(id, address) => {
                    if !self.members.contains_key(&id) && self.met.len() < MEMBERS_MAX {
                        self.met.insert(id, address);
                        self.reconnect();
                    }
                }
                Event::Disowned(by) => return Err(Error::Disowned { node: self.options.node, by }),
                Event::Linked(to, link) => {
                    if self.connectors.contains_key(&to) {
                        self.links.insert(to, link);
                    }
                }
                Event::Unlinked(to) => {
                    self.links.remove(&to);
                    self.node.report_unreachable(to);
                }
                Event::Synced(outcome, number) => {
                    let disk = self.disk.as_mut().expect("only a disk is synced");
                    disk.synced(outcome?);
                    self.is_syncing = false;
                    self.synced(number);
                }
                Event::SnapshotMade(snapshot) => self.snapshot_made(snapshot?).await?,
                Event::SnapshotSent(to, is_whole) => {
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

    /// Leads no more in a term that is to be over.
    fn resign(&mut self) {
        let term = self.node.raft.term;
        if self.leads() && self.shared.resigned.load(Ordering::Acquire) >= term {
            tracing::debug!(node = self.options.node, term, "a Raft node resigns");
            self.node.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    fn not_leading(&self) -> Error {
        Error::NotLeading(Some(self.node.raft.leader_id).filter(|leader| *leader != 0))
    }

    /// Gives many proposals to the crate at once.
    fn propose(&mut self, proposals: &mut Vec<Entry>, answers: &mut Vec<Answer<M::Output>>) {
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
        if !self.leads() || self.node.raft.step(message).is_err() {
            let error = if self.leads() { Error::Busy } else { self.not_leading() };
            answers.drain(..).for_each(|answer| answer.fail(error.clone()));
            return;
        }
        for (index, answer) in (before + 1..).zip(answers.drain(..)) {
            match answer {
                Answer::Proposed(answer, permit) if mutant(Mutant::AnswerUncommitted) => {
                    drop((answer.send(Ok(Proposed { index, term: Term(term), output: M::Output::default() })), permit));
                }
                answer => self.pending.push_back((index, term, answer)),
            }
        }
    }

    /// A read waits for a round that begins now.
    fn barrier(&mut self, asker: Asker) {
        if !self.leads() {
            asker.answer(Err(self.not_leading()));
            return;
        }
        if !self.node.raft.commit_to_current_term() || self.rounds.len() >= ROUNDS_MAX {
            asker.answer(Err(Error::Busy));
            return;
        }
        let now = rt::now();
        if !self.rounds.back().is_some_and(|round| round.begun == now && round.index.is_none()) {
            self.begin_round();
        }
        if let Some(round) = self.rounds.back_mut() {
            round.waiting.push(asker);
        }
    }

    /// Does what the crate wants done, until it wants nothing more that can be done now.
    async fn advance(&mut self) -> Result<(), Error> {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            // Before anything is sent that ends this node's leading, its lease has ended.
            self.look_at_role(&ready);
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

    /// Stores what is new, and lets go what may only be sent once that is durable.
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
        // A commit alone is written with what comes next: it is known again soon.
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
        self.unsynced.push_back(Unsynced { number, messages });
        Ok(())
    }

    /// Starts making durable what is not, unless that is being done.
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
            // Nobody may be there any more.
            let _ = events.send(Event::Synced(outcome, number)).await;
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

    fn ends(&self, to: u64) -> Ends {
        let (group, from, address) = (self.options.group, self.options.node, self.options.listen.clone());
        Ends { group, from, incarnation: self.shared.incarnation, address, to }
    }

    /// Tells what the crate says of this node, and ends what ends with its leading.
    fn look_at_role(&mut self, ready: &Ready) {
        let (term, leads) = (Term(self.node.raft.term), self.leads());
        let before = *self.shared.role.borrow();
        if ready.ss().is_none() && before.term == term {
            return;
        }
        let leader = Some(self.node.raft.leader_id).filter(|leader| *leader != 0);
        let role = Role { term, leader, is_leading: leads };
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

    /// Whoever waits is told that it will not be told.
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
                run.push(Applied { index: entry.index, term: Term(entry.term), data: entry.data });
                continue;
            }
            self.apply_run(&mut run);
            let answer = self.answer_of(entry.index, entry.term);
            match entry.entry_type {
                // What a new leader appends first, and what a change became that could not be made.
                EntryType::EntryNormal => {
                    if let Some(answer) = answer {
                        answer.fail(Error::Busy);
                    }
                }
                EntryType::EntryConfChange => {
                    self.apply_change(&entry)?;
                    if let Some(Answer::Changed(asker)) = answer {
                        asker.answer(Ok(()));
                    }
                }
                EntryType::EntryConfChangeV2 => return Err(Error::Corrupt("a change of members of an unknown kind")),
            }
        }
        self.apply_run(&mut run);
        self.node.advance_apply_to(self.applied);
        self.shared.applied.store(self.applied, Ordering::Release);
        self.compact();
        Ok(())
    }

    /// Gives entries to the machine, and answers whoever proposed them.
    fn apply_run(&mut self, run: &mut Vec<Applied>) {
        if run.is_empty() {
            return;
        }
        let places: Vec<(u64, Term)> = run.iter().map(|entry| (entry.index, entry.term)).collect();
        let outputs = self.machine.apply(std::mem::take(run));
        assert_eq!(outputs.len(), places.len(), "a machine gives an output for each entry");
        for ((index, term), output) in places.into_iter().zip(outputs) {
            if let Some(Answer::Proposed(answer, _permit)) = self.answer_of(index, term.0) {
                drop(answer.send(Ok(Proposed { index, term, output })));
            }
        }
    }

    /// Who waits for an entry, if it is the one that was proposed.
    fn answer_of(&mut self, index: u64, term: u64) -> Option<Answer<M::Output>> {
        while self.pending.front().is_some_and(|(at, _, _)| *at <= index) {
            let (at, of, answer) = self.pending.pop_front().expect("there is a first");
            if (at, of) == (index, term) {
                return Some(answer);
            }
            // Its place was given to another: it has not been done.
            answer.fail(Error::Busy);
        }
        None
    }

    /// Rounds that a majority has answered make the lease longer, and let reads go that wait.
    fn end_rounds(&mut self) {
        let Some(at) = self.rounds.iter().rposition(|round| round.index.is_some_and(|index| index <= self.applied))
        else {
            return;
        };
        let lease = self.options.timing.lease();
        for round in self.rounds.drain(..=at) {
            // A later round proves what earlier ones would have proved.
            if round.index.is_some() && self.node.raft.state == StateRole::Leader {
                let until = (round.begun + lease).nanos();
                self.shared.lease_until.fetch_max(until, Ordering::SeqCst);
            }
            round.waiting.into_iter().for_each(|asker| asker.answer(Ok(())));
        }
    }

    /// Forgets entries in memory that are applied, as far as no member still needs them, or there are too many.
    fn compact(&mut self) {
        let keep = self.options.log_bytes as u64;
        let snapshot_index = self.snapshot_index;
        let (applied, is_durable) = (self.applied, self.disk.is_some());
        let slowest = if self.leads() {
            self.node.raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or(applied)
        } else {
            applied
        };
        let storage = self.node.raft.mut_store();
        // The log on disk begins behind a snapshot; so does that in memory.
        let until = if is_durable { applied.min(snapshot_index) } else { applied };
        let wanted = storage.surplus(keep as usize, until.min(slowest)).max(storage.surplus(4 * keep as usize, until));
        if wanted > storage.base().0 {
            storage.compact(wanted);
        }
    }
}
