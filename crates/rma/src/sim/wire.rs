//! Verbs in transit: queues, arrivals, bursts, completions, and what happens to them when a connection is lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use base::rt::simulation::Prng;
use base::rt::{self, AbortOnDrop};

use super::connection::{ConnectionKey, ConnectionRecord, EndIndex, EndPhase, QueuedMessage, SimEnd};
use super::memory::{HostMemory, VerbAccess};
use super::verb::{PostedVerb, SimVerb, VerbCompleter, VerbEffect, VerbOutcome, step};
use super::{NodeIncarnation, SimDelays, VerbCounts};
use crate::{Error, IN_FLIGHT_MAX, IncomingEvent, ProviderProfile, Token, TokenLookup};

/// Messages and immediates that have arrived at an end and were not received yet; later ones wait in transit.
const INBOX_MAX: usize = 256;
/// Messages and immediates in transit; when there are more, a write with immediate data waits too.
const QUEUED_MESSAGES_MAX: usize = 256;
/// How soon an arrival that a cut delays is tried again.
const STALL: std::ops::Range<Duration> = Duration::from_millis(1)..Duration::from_millis(5);

/// A future event.
#[derive(Clone, Copy)]
pub(super) enum WireEvent {
    /// The front of an end's queue advances.
    Advance { connection: ConnectionKey, side: EndIndex, alarm: u64 },
    /// The front of an end's mail arrives.
    Deliver { connection: ConnectionKey, side: EndIndex, alarm: u64 },
    /// Completions of an end are due.
    Complete { connection: ConnectionKey, side: EndIndex },
}

/// Work to do after the state's lock is released.
#[derive(Default)]
pub(super) struct Effects {
    pub events: Vec<(Duration, WireEvent)>,
    pub outcomes: Vec<VerbOutcome>,
    pub wakers: Vec<Waker>,
    pub tasks: Vec<AbortOnDrop<()>>,
}

/// A request to connect; the link between the two nodes carries its number.
pub(super) struct ConnectRequest {
    pub place: NodeIncarnation,
    pub name: String,
    pub token: Token,
}

pub(super) struct HostState {
    pub address: String,
    pub place: NodeIncarnation,
    pub tokens: TokenLookup,
    pub memory: HostMemory,
    /// Connections not accepted yet, with the names of their clients.
    pub backlog: VecDeque<(ConnectionKey, Arc<str>)>,
    pub accept_wakers: Vec<Waker>,
    pub acceptor: Option<AbortOnDrop<()>>,
}

/// The whole mutable state of the provider.
pub(super) struct WireState {
    pub rng: Prng,
    pub delays: SimDelays,
    pub profile: ProviderProfile,
    pub now: u64,
    pub hosts: BTreeMap<u64, HostState>,
    pub connect_requests: BTreeMap<u64, ConnectRequest>,
    pub connections: BTreeMap<ConnectionKey, ConnectionRecord>,
    pub made: u64,
    pub counts: VerbCounts,
}

impl WireState {
    pub(super) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(super) fn connect(
        &mut self,
        host: u64,
        name: Arc<str>,
        from: NodeIncarnation,
        to: NodeIncarnation,
    ) -> ConnectionKey {
        let key = self.number();
        self.connections.insert(key, ConnectionRecord { host, name, ends: [SimEnd::new(from), SimEnd::new(to)] });
        key
    }

    /// Sets the task that holds the link of an end. The task is dropped at once if the end has ended meanwhile.
    pub(super) fn set_monitor(
        &mut self,
        key: ConnectionKey,
        side: EndIndex,
        task: AbortOnDrop<()>,
        effects: &mut Effects,
    ) {
        match self.connections.get_mut(&key) {
            Some(connection) if connection.ends[side].phase == EndPhase::Open => {
                connection.ends[side].monitor = Some(task);
            }
            _ => effects.tasks.push(task),
        }
    }

    fn draw_delay(&mut self) -> u64 {
        let delay = self.rng.duration(&self.delays.delay);
        let slow = self.rng.one_in(self.delays.slow_one_in);
        nanos(if slow { delay * self.delays.slow_factor } else { delay })
    }

    /// Puts a verb into an end's queue.
    pub(super) fn post(
        &mut self,
        (key, side): (ConnectionKey, EndIndex),
        work: SimVerb,
        access: Option<VerbAccess>,
        teller: VerbCompleter,
        effects: &mut Effects,
    ) {
        let open = |connection: &&mut ConnectionRecord| connection.ends[side].phase == EndPhase::Open;
        let Some(connection) = self.connections.get_mut(&key).filter(open) else {
            effects.outcomes.push(teller.complete(Err(Error::Closed)));
            return;
        };
        if connection.ends[side].in_flight >= IN_FLIGHT_MAX {
            effects.outcomes.push(teller.complete(Err(Error::Busy)));
            return;
        }
        if side == 1 && access.is_some() {
            // A client owns no regions.
            effects.outcomes.push(teller.complete(Err(Error::Unknown)));
            return;
        }
        self.counts.count(&work, access.map_or(0, |access| access.length));
        let issued_at = self.now + self.draw_delay() / 4;
        let mut due = issued_at + self.draw_delay();
        if rt::fault_point("rma.sim.delay_verb") {
            due += nanos(self.rng.duration(&(Duration::from_millis(1)..Duration::from_secs(2))));
        }
        let end = &mut self.connections.get_mut(&key).expect("it was just seen").ends[side];
        due = due.max(end.last_due + 1 + self.rng.below(100));
        end.last_due = due;
        end.in_flight += 1;
        self.counts.in_flight += 1;
        let mut teller = Some(teller);
        let messages = end.queue.iter().filter(|posted| posted.access.is_none()).count();
        if access.is_none() && messages + end.messages.len() < INBOX_MAX {
            // A message counts as complete once the provider has accepted it.
            let outcome = teller.take().map(|teller| teller.complete(Ok(())));
            end.completions_made += 1;
            end.completing.extend(outcome.map(|outcome| ((issued_at, end.completions_made), outcome)));
            let delay = Duration::from_nanos(issued_at - self.now);
            effects.events.push((delay, WireEvent::Complete { connection: key, side }));
        }
        end.queue.push_back(PostedVerb { work, access, completer: teller, issued_at, due, progress: None });
        if end.queue.len() == 1 {
            if self.profile.synchronous {
                self.run_now((key, side), effects);
            } else {
                self.set_alarm((key, side), due, effects);
            }
        }
    }

    /// For a provider whose verbs complete while they are posted: executes the front as a whole, unless something delays it.
    fn run_now(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        let connection = self.connections.get_mut(&key).expect("the caller has just seen it");
        let host = self.hosts.get_mut(&connection.host);
        let name = Arc::clone(&connection.name);
        let [near, far] = connection.both(side);
        let front = near.queue.front_mut().expect("the caller has just put it there");
        front.due = self.now;
        let one_sided = front.access.is_some() && !matches!(front.work, SimVerb::Write { immediate: Some(_), .. });
        match (front.access, host) {
            (Some(access), Some(host))
                if one_sided
                    && !near.incarnation.is_cut_to(&far.incarnation)
                    && !far.incarnation.is_cut_to(&near.incarnation) =>
            {
                let outcome = loop {
                    match step(front, &access, &name, &mut host.memory, &mut self.rng, self.profile) {
                        Some(outcome) => break outcome,
                        None => continue,
                    }
                };
                let mut posted = near.queue.pop_front().expect("it was just seen");
                near.in_flight -= 1;
                self.counts.in_flight -= 1;
                effects.outcomes.extend(posted.finish(outcome));
            }
            _ => self.set_alarm((key, side), self.now, effects),
        }
    }

    fn set_alarm(&mut self, (connection, side): (ConnectionKey, EndIndex), due: u64, effects: &mut Effects) {
        let alarm = self.number();
        if let Some(state) = self.connections.get_mut(&connection) {
            state.ends[side].alarm = alarm;
            let delay = Duration::from_nanos(due.saturating_sub(self.now));
            effects.events.push((delay, WireEvent::Advance { connection, side, alarm }));
        }
    }

    pub(super) fn event(&mut self, event: WireEvent, effects: &mut Effects) {
        match event {
            WireEvent::Advance { connection, side, alarm } => {
                if self.connections.get(&connection).is_some_and(|state| state.ends[side].alarm == alarm) {
                    self.advance((connection, side), effects);
                }
            }
            WireEvent::Deliver { connection, side, alarm } => {
                if self.connections.get(&connection).is_some_and(|state| state.ends[side].message_alarm == alarm) {
                    self.deliver((connection, side), effects);
                }
            }
            WireEvent::Complete { connection, side } => self.complete((connection, side), effects),
        }
    }

    /// Executes the front of a queue, or its next burst.
    fn advance(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let (host, name) = (connection.host, Arc::clone(&connection.name));
        let [near, far] = connection.both(side);
        let Some(front) = near.queue.front_mut() else {
            self.finish_if_drained((key, side), effects);
            return;
        };
        if front.due > self.now {
            let due = front.due;
            self.set_alarm((key, side), due, effects);
            return;
        }
        if near.phase != EndPhase::Ended && near.incarnation.is_cut_to(&far.incarnation) {
            let due = self.now + nanos(self.rng.duration(&STALL));
            self.set_alarm((key, side), due, effects);
            return;
        }
        if front.progress.is_none() && rt::fault_point("rma.sim.lose_verb") {
            // A reliable connection that has lost a verb is lost itself.
            near.lose_queue();
            self.end((key, side), true, effects);
            return;
        }
        let rings = matches!(front.work, SimVerb::Write { immediate: Some(_), .. });
        if rings
            && front.progress.is_none()
            && far.phase == EndPhase::Open
            && near.messages.len() >= QUEUED_MESSAGES_MAX
        {
            near.blocked = true;
            return;
        }
        let mut mail = None;
        let outcome = match (front.access, self.hosts.get_mut(&host)) {
            (None, _) => {
                let SimVerb::Message(bytes) = &front.work else { unreachable!("all other verbs have an access") };
                mail = Some((IncomingEvent::Message(bytes.clone()), front.completer.take()));
                Some(Ok(VerbEffect::Done))
            }
            (Some(access), Some(host)) => {
                let outcome = step(front, &access, &name, &mut host.memory, &mut self.rng, self.profile);
                if let (Some(Ok(_)), SimVerb::Write { immediate: Some(immediate), .. }) = (&outcome, &front.work) {
                    let (region, immediate) = (access.capability.region, *immediate);
                    let (offset, length) = (access.offset, access.length);
                    mail = Some((IncomingEvent::Immediate { immediate, region, offset, length }, None));
                }
                outcome
            }
            (Some(_), None) => {
                // No answer will come; the end of the connection is noticed later.
                near.lose_queue();
                self.finish_if_drained((key, side), effects);
                return;
            }
        };
        match outcome {
            None => {
                let gap = if self.rng.one_in(self.delays.slow_one_in) || rt::fault_point("rma.sim.tear") {
                    nanos(self.rng.duration(&self.delays.tear_slow))
                } else {
                    nanos(self.rng.duration(&self.delays.tear))
                };
                let due = self.now + gap;
                self.set_alarm((key, side), due, effects);
            }
            Some(outcome) => {
                let mut posted = near.queue.pop_front().expect("it was just seen");
                let told = posted.finish(outcome);
                let next = near.queue.front().map(|posted| posted.due);
                if let Some(outcome) = told {
                    let due = self.now + self.draw_delay();
                    let end = &mut self.connections.get_mut(&key).expect("it was just seen").ends[side];
                    end.completions_made += 1;
                    end.completing.insert((due, end.completions_made), outcome);
                    let delay = Duration::from_nanos(due - self.now);
                    effects.events.push((delay, WireEvent::Complete { connection: key, side }));
                }
                if let Some((incoming, teller)) = mail {
                    self.queue_message((key, side), incoming, teller, effects);
                }
                match next {
                    Some(due) => self.set_alarm((key, side), due.max(self.now), effects),
                    None => self.finish_if_drained((key, side), effects),
                }
            }
        }
    }

    /// Puts an item behind the other mail of an end. Mostly it arrives at once.
    fn queue_message(
        &mut self,
        (key, side): (ConnectionKey, EndIndex),
        incoming: IncomingEvent,
        teller: Option<VerbCompleter>,
        effects: &mut Effects,
    ) {
        let late = if self.rng.one_in(4) { self.draw_delay() } else { 0 };
        let due = self.now + late;
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        end.messages.push_back(QueuedMessage { due, incoming, completer: teller });
        if end.messages.len() == 1 {
            self.deliver((key, side), effects);
        }
    }

    fn set_message_alarm(&mut self, (connection, side): (ConnectionKey, EndIndex), due: u64, effects: &mut Effects) {
        let alarm = self.number();
        if let Some(state) = self.connections.get_mut(&connection) {
            state.ends[side].message_alarm = alarm;
            let delay = Duration::from_nanos(due.saturating_sub(self.now));
            effects.events.push((delay, WireEvent::Deliver { connection, side, alarm }));
        }
    }

    /// Moves mail that is due into the other end's inbox.
    fn deliver(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let [near, far] = connection.both(side);
        while let Some(front) = near.messages.front() {
            if front.due > self.now {
                let due = front.due;
                self.set_message_alarm((key, side), due, effects);
                return;
            }
            if near.phase != EndPhase::Ended && near.incarnation.is_cut_to(&far.incarnation) {
                let due = self.now + nanos(self.rng.duration(&STALL));
                self.set_message_alarm((key, side), due, effects);
                return;
            }
            let receives = far.phase == EndPhase::Open && far.incarnation.is_alive();
            if receives && far.inbox.len() >= INBOX_MAX {
                near.messages_blocked = true;
                return;
            }
            let mut mail = near.messages.pop_front().expect("the front was just seen");
            if receives {
                far.inbox.push_back(mail.incoming);
                effects.wakers.extend(far.waker.take());
            }
            if let Some(teller) = mail.completer.take() {
                near.completions_made += 1;
                near.completing.insert((self.now, near.completions_made), teller.complete(Ok(())));
                effects.events.push((Duration::ZERO, WireEvent::Complete { connection: key, side }));
            }
            if std::mem::take(&mut near.blocked) {
                self.made += 1;
                near.alarm = self.made;
                let event = WireEvent::Advance { connection: key, side, alarm: near.alarm };
                effects.events.push((Duration::ZERO, event));
            }
        }
        self.finish_if_drained((key, side), effects);
    }

    fn complete(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let [near, far] = connection.both(side);
        if near.completing.first_key_value().is_none_or(|((due, _), _)| *due > self.now) {
            return;
        }
        if far.incarnation.is_cut_to(&near.incarnation) {
            let delay = self.rng.duration(&STALL);
            effects.events.push((delay, WireEvent::Complete { connection: key, side }));
            return;
        }
        while near.completing.first_key_value().is_some_and(|((due, _), _)| *due <= self.now) {
            if rt::fault_point("rma.sim.lose_completion") {
                self.end((key, side), true, effects);
                return;
            }
            let (_, outcome) = near.completing.pop_first().expect("it was just seen");
            near.in_flight -= 1;
            self.counts.in_flight -= 1;
            effects.outcomes.push(outcome);
        }
    }

    /// Ends one end of a connection. With `lost`, a prefix of what it had posted arrives, perhaps late; otherwise all of it
    /// still arrives, unless the connection is lost before. Either way the posters do not learn the outcome.
    pub(super) fn end(&mut self, (key, side): (ConnectionKey, EndIndex), lost: bool, effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        let alive = end.incarnation.is_alive();
        let lost = lost || !alive;
        if end.phase == EndPhase::Ended || (end.phase == EndPhase::Lingering && !lost) {
            return;
        }
        if end.phase == EndPhase::Open {
            let mailed = end.messages.iter_mut().filter_map(|mail| mail.completer.take());
            let posted = end.queue.iter_mut().filter_map(|posted| posted.completer.take()).chain(mailed);
            let posted = posted.map(|teller| teller.complete(Err(Error::Closed)));
            let flying = std::mem::take(&mut end.completing).into_values();
            let all = posted.chain(flying).chain(std::mem::take(&mut end.lost));
            effects.outcomes.extend(all.map(VerbOutcome::ambiguous));
            self.counts.in_flight -= end.in_flight as u64;
            end.in_flight = 0;
        }
        effects.wakers.extend(end.waker.take());
        if std::mem::take(&mut connection.ends[1 - side].messages_blocked) {
            // The other end no longer receives, so the mail is dropped on arrival.
            let now = self.now;
            self.set_message_alarm((key, 1 - side), now, effects);
        }
        let end = &mut self.connections.get_mut(&key).expect("it was just seen").ends[side];
        if !lost {
            end.phase = EndPhase::Lingering;
            if end.queue.is_empty() && end.messages.is_empty() {
                self.finish_if_drained((key, side), effects);
            }
            return;
        }
        end.phase = EndPhase::Ended;
        effects.tasks.extend(end.monitor.take());
        if !alive {
            let issued = end.queue.iter().take_while(|posted| posted.issued_at <= self.now).count();
            end.queue.truncate(issued);
        }
        if self.rng.one_in(2) {
            let arriving = self.rng.index(end.queue.len() + 1);
            end.queue.truncate(arriving);
            end.messages.truncate(self.rng.index(end.messages.len() + 1));
        }
        self.counts.stray += end.queue.len() as u64;
        if end.queue.is_empty() {
            self.finish_if_drained((key, side), effects);
            return;
        }
        end.blocked = false;
        if self.rng.one_in(2) {
            // They wait in transit for as long as anything can.
            let late = nanos(self.rng.duration(&(Duration::ZERO..Duration::from_secs(3))));
            end.queue.iter_mut().for_each(|posted| posted.due += late);
        }
        let due = end.queue.front().map_or(0, |posted| posted.due);
        self.set_alarm((key, side), due, effects);
    }

    /// Called when the queue of an end becomes empty: a closed end releases its link, and a connection that both ends have left
    /// is removed.
    fn finish_if_drained(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        if end.phase == EndPhase::Lingering && end.queue.is_empty() && end.messages.is_empty() {
            end.phase = EndPhase::Ended;
            effects.tasks.extend(end.monitor.take());
        }
        if connection.ends.iter().all(SimEnd::is_over) {
            self.connections.remove(&key);
        }
    }

    /// The next message or immediate data that has arrived at an end.
    pub(super) fn receive(
        &mut self,
        (key, side): (ConnectionKey, EndIndex),
        waker: &Waker,
        effects: &mut Effects,
    ) -> Option<Result<IncomingEvent, Error>> {
        let Some(connection) = self.connections.get_mut(&key) else { return Some(Err(Error::Closed)) };
        let [near, far] = connection.both(side);
        if let Some(incoming) = near.inbox.pop_front() {
            if std::mem::take(&mut far.messages_blocked) {
                let now = self.now;
                self.set_message_alarm((key, 1 - side), now, effects);
            }
            return Some(Ok(incoming));
        }
        if near.phase != EndPhase::Open {
            return Some(Err(Error::Closed));
        }
        effects.wakers.extend(near.waker.replace(waker.clone()).filter(|before| !before.will_wake(waker)));
        None
    }

    /// Ends a host: its memory is freed and its connections are lost.
    pub(super) fn end_host(&mut self, host: u64, effects: &mut Effects) {
        let Some(state) = self.hosts.remove(&host) else { return };
        effects.wakers.extend(state.accept_wakers);
        effects.tasks.extend(state.acceptor);
        let keys: Vec<ConnectionKey> =
            self.connections.iter().filter(|(_, connection)| connection.host == host).map(|(key, _)| *key).collect();
        for key in keys {
            self.end((key, 1), true, effects);
        }
        for (key, _) in state.backlog {
            self.release((key, 1), effects);
        }
    }

    /// The endpoint is dropped: nothing more will be received at this end.
    pub(super) fn release(&mut self, (key, side): (ConnectionKey, EndIndex), effects: &mut Effects) {
        self.end((key, side), false, effects);
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.ends[side].held = false;
            self.finish_if_drained((key, side), effects);
        }
    }

    /// Ends the hosts and connections of one incarnation of a node.
    pub(super) fn crashed(&mut self, place: &NodeIncarnation, effects: &mut Effects) {
        let hosts: Vec<u64> =
            self.hosts.iter().filter(|(_, host)| host.place.is_same(place)).map(|(key, _)| *key).collect();
        for host in hosts {
            self.end_host(host, effects);
        }
        let keys: Vec<ConnectionKey> = self.connections.keys().copied().collect();
        for key in keys {
            for side in 0..2 {
                let ended = |connection: &ConnectionRecord| connection.ends[side].incarnation.is_same(place);
                if self.connections.get(&key).is_some_and(ended) {
                    self.end((key, side), true, effects);
                }
            }
        }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
