//! Verbs on their way: queues, arrivals, bursts, completions, and what becomes of them when a connection is lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use base::rt::simulation::Chance;
use base::rt::{self, AbortOnDrop};
use base::{Bytes, BytesMut};

use super::memory::{Access, Memory, Tear, words_of};
use super::{Counts, Place, Timing};
use crate::{Completer, Error, IN_FLIGHT_MAX, Incoming, Profile, Token, Tokens};

/// Messages and immediates that have arrived at an end and were not yet received; others wait on their way.
const INBOX_MAX: usize = 256;
/// Messages and immediates that wait on their way before a write with immediate data waits too.
const MAIL_MAX: usize = 256;
/// How soon an arrival that a cut holds up is tried again.
const STALL: std::ops::Range<Duration> = Duration::from_millis(1)..Duration::from_millis(5);

/// What a connection is, for those who hold one.
pub(super) type ConnectionKey = u64;

/// One end of a connection: 0 connected, 1 accepted.
pub(super) type Side = usize;

/// Something that happens later.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// The front of an end's queue goes on.
    Advance { connection: ConnectionKey, side: Side, alarm: u64 },
    /// The front of an end's mail arrives.
    Deliver { connection: ConnectionKey, side: Side, alarm: u64 },
    /// Completions of an end are due.
    Complete { connection: ConnectionKey, side: Side },
}

/// What is to be done when the state's lock is free again.
#[derive(Default)]
pub(super) struct Effects {
    pub events: Vec<(Duration, Event)>,
    pub outcomes: Vec<Outcome>,
    pub wakers: Vec<Waker>,
    pub tasks: Vec<AbortOnDrop<()>>,
}

/// Whom to tell about a verb, and what.
pub(super) enum Outcome {
    Read(Completer<BytesMut>, Result<BytesMut, Error>),
    Done(Completer<()>, Result<(), Error>),
    Word(Completer<u64>, Result<u64, Error>),
}

impl Outcome {
    pub(super) fn tell(self) {
        match self {
            Outcome::Read(completer, outcome) => completer.complete(outcome),
            Outcome::Done(completer, outcome) => completer.complete(outcome),
            Outcome::Word(completer, outcome) => completer.complete(outcome),
        }
    }

    fn ambiguous(mut self) -> Outcome {
        const LOST: Error = Error::Ambiguous("the connection was lost while the verb was in flight");
        match &mut self {
            Outcome::Read(_, outcome) => *outcome = Err(LOST),
            Outcome::Done(_, outcome) => *outcome = Err(LOST),
            Outcome::Word(_, outcome) => *outcome = Err(LOST),
        }
        self
    }
}

/// A verb.
pub(super) enum Work {
    Read { into: BytesMut },
    Write { bytes: Bytes, immediate: Option<u32> },
    CompareSwap { expected: u64, new: u64 },
    FetchAdd { add: u64 },
    Message(Bytes),
}

/// A posted verb that has not taken effect.
pub(super) struct Posted {
    pub work: Work,
    /// Absent for a message.
    pub access: Option<Access>,
    /// Absent when nobody is to be told any more.
    pub teller: Option<Teller>,
    /// Until then it is lost with its node.
    issued_at: u64,
    due: u64,
    progress: Option<Progress>,
}

/// Whom to tell about a verb.
pub(super) enum Teller {
    Read(Completer<BytesMut>),
    Done(Completer<()>),
    Word(Completer<u64>),
}

/// A verb that has begun to take effect.
struct Progress {
    tear: Tear,
    burst: u32,
    /// What a read has read.
    read: Vec<u8>,
}

/// A message or immediate data on the way.
struct Mail {
    due: u64,
    incoming: Incoming,
    /// Present when the sender waits for room.
    teller: Option<Teller>,
}

/// What a verb came to.
enum Effect {
    Bytes(Vec<u8>),
    Done,
    Word(u64),
}

#[derive(PartialEq, Eq)]
enum Phase {
    /// In use.
    Open,
    /// Closed by its holder: what was posted still arrives.
    Lingering,
    /// Lost: what was posted may still arrive.
    Ended,
}

pub(super) struct End {
    pub place: Place,
    phase: Phase,
    queue: VecDeque<Posted>,
    last_due: u64,
    /// The event that advances the queue; an older one is void.
    alarm: u64,
    /// The front waits for room in the mail.
    blocked: bool,
    /// Messages and immediates that have left the queue for the other end's inbox. Verbs overtake them.
    mail: VecDeque<Mail>,
    /// The event that delivers mail; an older one is void.
    mail_alarm: u64,
    /// The mail waits for room in the other end's inbox.
    mail_blocked: bool,
    in_flight: usize,
    completing: BTreeMap<(u64, u64), Outcome>,
    completions_made: u64,
    /// Verbs that a host which has gone will never answer.
    lost: Vec<Outcome>,
    inbox: VecDeque<Incoming>,
    waker: Option<Waker>,
    /// Holds the link whose end tells that the connection is lost.
    monitor: Option<AbortOnDrop<()>>,
    /// An endpoint is there that may still receive.
    pub held: bool,
}

impl End {
    fn new(place: Place) -> End {
        End {
            place,
            phase: Phase::Open,
            queue: VecDeque::new(),
            last_due: 0,
            alarm: 0,
            blocked: false,
            mail: VecDeque::new(),
            mail_alarm: 0,
            mail_blocked: false,
            in_flight: 0,
            completing: BTreeMap::new(),
            completions_made: 0,
            lost: Vec::new(),
            inbox: VecDeque::new(),
            waker: None,
            monitor: None,
            held: false,
        }
    }

    /// What is in the queue will have no effect; who posted it learns that when the connection is lost.
    fn lose_queue(&mut self) {
        let gone = self.queue.drain(..).filter_map(|posted| posted.teller);
        self.lost.extend(gone.map(|teller| teller.tell(Err(Error::Closed))));
    }

    fn is_over(&self) -> bool {
        let sent = self.queue.is_empty() && self.mail.is_empty();
        self.phase == Phase::Ended && sent && (self.inbox.is_empty() || !self.held)
    }
}

pub(super) struct Connection {
    pub host: u64,
    /// The name that the connecting end proved to bear.
    name: Arc<str>,
    pub ends: [End; 2],
}

/// Somebody who asks to be let in; the link between the two carries its number.
pub(super) struct Knock {
    pub place: Place,
    pub name: String,
    pub token: Token,
}

pub(super) struct HostState {
    pub address: String,
    pub place: Place,
    pub tokens: Tokens,
    pub memory: Memory,
    /// Connections not yet accepted, with the names of those who connected.
    pub backlog: VecDeque<(ConnectionKey, Arc<str>)>,
    pub accept_wakers: Vec<Waker>,
    pub acceptor: Option<AbortOnDrop<()>>,
}

/// All that changes.
pub(super) struct State {
    pub chance: Chance,
    pub timing: Timing,
    pub profile: Profile,
    pub now: u64,
    pub hosts: BTreeMap<u64, HostState>,
    pub knocks: BTreeMap<u64, Knock>,
    pub connections: BTreeMap<ConnectionKey, Connection>,
    pub made: u64,
    pub counts: Counts,
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(super) fn connect(&mut self, host: u64, name: Arc<str>, from: Place, to: Place) -> ConnectionKey {
        let key = self.number();
        self.connections.insert(key, Connection { host, name, ends: [End::new(from), End::new(to)] });
        key
    }

    /// Gives an end the task that holds its link. The task is dropped at once when the end has ended meanwhile.
    pub(super) fn set_monitor(&mut self, key: ConnectionKey, side: Side, task: AbortOnDrop<()>, effects: &mut Effects) {
        match self.connections.get_mut(&key) {
            Some(connection) if connection.ends[side].phase == Phase::Open => {
                connection.ends[side].monitor = Some(task);
            }
            _ => effects.tasks.push(task),
        }
    }

    fn draw_delay(&mut self) -> u64 {
        let delay = self.chance.duration(&self.timing.delay);
        let slow = self.chance.one_in(self.timing.slow_one_in);
        nanos(if slow { delay * self.timing.slow_factor } else { delay })
    }

    /// Puts a verb into an end's queue.
    pub(super) fn post(
        &mut self,
        (key, side): (ConnectionKey, Side),
        work: Work,
        access: Option<Access>,
        teller: Teller,
        effects: &mut Effects,
    ) {
        let open = |connection: &&mut Connection| connection.ends[side].phase == Phase::Open;
        let Some(connection) = self.connections.get_mut(&key).filter(open) else {
            effects.outcomes.push(teller.tell(Err(Error::Closed)));
            return;
        };
        if connection.ends[side].in_flight >= IN_FLIGHT_MAX {
            effects.outcomes.push(teller.tell(Err(Error::Busy)));
            return;
        }
        if side == 1 && access.is_some() {
            // Who connected owns no regions.
            effects.outcomes.push(teller.tell(Err(Error::Unknown)));
            return;
        }
        self.counts.count(&work, access.map_or(0, |access| access.length));
        let issued_at = self.now + self.draw_delay() / 4;
        let mut due = issued_at + self.draw_delay();
        if rt::fault_point("rma.sim.delay_verb") {
            due += nanos(self.chance.duration(&(Duration::from_millis(1)..Duration::from_secs(2))));
        }
        let end = &mut self.connections.get_mut(&key).expect("it was just seen").ends[side];
        due = due.max(end.last_due + 1 + self.chance.below(100));
        end.last_due = due;
        end.in_flight += 1;
        self.counts.in_flight += 1;
        let mut teller = Some(teller);
        let messages = end.queue.iter().filter(|posted| posted.access.is_none()).count();
        if access.is_none() && messages + end.mail.len() < INBOX_MAX {
            // A message is the provider's once it has taken it.
            let outcome = teller.take().map(|teller| teller.tell(Ok(())));
            end.completions_made += 1;
            end.completing.extend(outcome.map(|outcome| ((issued_at, end.completions_made), outcome)));
            let delay = Duration::from_nanos(issued_at - self.now);
            effects.events.push((delay, Event::Complete { connection: key, side }));
        }
        end.queue.push_back(Posted { work, access, teller, issued_at, due, progress: None });
        if end.queue.len() == 1 {
            if self.profile.synchronous {
                self.run_now((key, side), effects);
            } else {
                self.set_alarm((key, side), due, effects);
            }
        }
    }

    /// For a provider whose verbs complete while they are posted: all of the front at once, unless something is in its way.
    fn run_now(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        let connection = self.connections.get_mut(&key).expect("the caller has just seen it");
        let host = self.hosts.get_mut(&connection.host);
        let name = Arc::clone(&connection.name);
        let [near, far] = connection.both(side);
        let front = near.queue.front_mut().expect("the caller has just put it there");
        front.due = self.now;
        let one_sided = front.access.is_some() && !matches!(front.work, Work::Write { immediate: Some(_), .. });
        match (front.access, host) {
            (Some(access), Some(host))
                if one_sided && !near.place.is_cut_to(&far.place) && !far.place.is_cut_to(&near.place) =>
            {
                let outcome = loop {
                    match step(front, &access, &name, &mut host.memory, &mut self.chance, self.profile) {
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

    fn set_alarm(&mut self, (connection, side): (ConnectionKey, Side), due: u64, effects: &mut Effects) {
        let alarm = self.number();
        if let Some(state) = self.connections.get_mut(&connection) {
            state.ends[side].alarm = alarm;
            let delay = Duration::from_nanos(due.saturating_sub(self.now));
            effects.events.push((delay, Event::Advance { connection, side, alarm }));
        }
    }

    pub(super) fn event(&mut self, event: Event, effects: &mut Effects) {
        match event {
            Event::Advance { connection, side, alarm } => {
                if self.connections.get(&connection).is_some_and(|state| state.ends[side].alarm == alarm) {
                    self.advance((connection, side), effects);
                }
            }
            Event::Deliver { connection, side, alarm } => {
                if self.connections.get(&connection).is_some_and(|state| state.ends[side].mail_alarm == alarm) {
                    self.deliver((connection, side), effects);
                }
            }
            Event::Complete { connection, side } => self.complete((connection, side), effects),
        }
    }

    /// Lets the front of a queue take effect, or the next part of it.
    fn advance(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let (host, name) = (connection.host, Arc::clone(&connection.name));
        let [near, far] = connection.both(side);
        let Some(front) = near.queue.front_mut() else {
            self.settle((key, side), effects);
            return;
        };
        if front.due > self.now {
            let due = front.due;
            self.set_alarm((key, side), due, effects);
            return;
        }
        if near.phase != Phase::Ended && near.place.is_cut_to(&far.place) {
            let due = self.now + nanos(self.chance.duration(&STALL));
            self.set_alarm((key, side), due, effects);
            return;
        }
        if front.progress.is_none() && rt::fault_point("rma.sim.lose_verb") {
            // A reliable connection that has lost something is lost.
            near.lose_queue();
            self.end((key, side), true, effects);
            return;
        }
        let rings = matches!(front.work, Work::Write { immediate: Some(_), .. });
        if rings && front.progress.is_none() && far.phase == Phase::Open && near.mail.len() >= MAIL_MAX {
            near.blocked = true;
            return;
        }
        let mut mail = None;
        let outcome = match (front.access, self.hosts.get_mut(&host)) {
            (None, _) => {
                let Work::Message(bytes) = &front.work else { unreachable!("all other verbs have an access") };
                mail = Some((Incoming::Message(bytes.clone()), front.teller.take()));
                Some(Ok(Effect::Done))
            }
            (Some(access), Some(host)) => {
                let outcome = step(front, &access, &name, &mut host.memory, &mut self.chance, self.profile);
                if let (Some(Ok(_)), Work::Write { immediate: Some(immediate), .. }) = (&outcome, &front.work) {
                    let (region, immediate) = (access.capability.region, *immediate);
                    let (offset, length) = (access.offset, access.length);
                    mail = Some((Incoming::Immediate { immediate, region, offset, length }, None));
                }
                outcome
            }
            (Some(_), None) => {
                // Nothing will ever answer; the connection's end is noticed in its own time.
                near.lose_queue();
                self.settle((key, side), effects);
                return;
            }
        };
        match outcome {
            None => {
                let gap = if self.chance.one_in(self.timing.slow_one_in) || rt::fault_point("rma.sim.tear") {
                    nanos(self.chance.duration(&self.timing.tear_slow))
                } else {
                    nanos(self.chance.duration(&self.timing.tear))
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
                    effects.events.push((delay, Event::Complete { connection: key, side }));
                }
                if let Some((incoming, teller)) = mail {
                    self.mail((key, side), incoming, teller, effects);
                }
                match next {
                    Some(due) => self.set_alarm((key, side), due.max(self.now), effects),
                    None => self.settle((key, side), effects),
                }
            }
        }
    }

    /// Puts something behind the other mail of an end. Mostly it arrives at once.
    fn mail(
        &mut self,
        (key, side): (ConnectionKey, Side),
        incoming: Incoming,
        teller: Option<Teller>,
        effects: &mut Effects,
    ) {
        let late = if self.chance.one_in(4) { self.draw_delay() } else { 0 };
        let due = self.now + late;
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        end.mail.push_back(Mail { due, incoming, teller });
        if end.mail.len() == 1 {
            self.deliver((key, side), effects);
        }
    }

    fn set_mail_alarm(&mut self, (connection, side): (ConnectionKey, Side), due: u64, effects: &mut Effects) {
        let alarm = self.number();
        if let Some(state) = self.connections.get_mut(&connection) {
            state.ends[side].mail_alarm = alarm;
            let delay = Duration::from_nanos(due.saturating_sub(self.now));
            effects.events.push((delay, Event::Deliver { connection, side, alarm }));
        }
    }

    /// Moves mail that is due into the other end's inbox.
    fn deliver(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let [near, far] = connection.both(side);
        while let Some(front) = near.mail.front() {
            if front.due > self.now {
                let due = front.due;
                self.set_mail_alarm((key, side), due, effects);
                return;
            }
            if near.phase != Phase::Ended && near.place.is_cut_to(&far.place) {
                let due = self.now + nanos(self.chance.duration(&STALL));
                self.set_mail_alarm((key, side), due, effects);
                return;
            }
            let receives = far.phase == Phase::Open && far.place.is_alive();
            if receives && far.inbox.len() >= INBOX_MAX {
                near.mail_blocked = true;
                return;
            }
            let mut mail = near.mail.pop_front().expect("the front was just seen");
            if receives {
                far.inbox.push_back(mail.incoming);
                effects.wakers.extend(far.waker.take());
            }
            if let Some(teller) = mail.teller.take() {
                near.completions_made += 1;
                near.completing.insert((self.now, near.completions_made), teller.tell(Ok(())));
                effects.events.push((Duration::ZERO, Event::Complete { connection: key, side }));
            }
            if std::mem::take(&mut near.blocked) {
                self.made += 1;
                near.alarm = self.made;
                let event = Event::Advance { connection: key, side, alarm: near.alarm };
                effects.events.push((Duration::ZERO, event));
            }
        }
        self.settle((key, side), effects);
    }

    fn complete(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let [near, far] = connection.both(side);
        if near.completing.first_key_value().is_none_or(|((due, _), _)| *due > self.now) {
            return;
        }
        if far.place.is_cut_to(&near.place) {
            let delay = self.chance.duration(&STALL);
            effects.events.push((delay, Event::Complete { connection: key, side }));
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

    /// Ends one end of a connection. With `lost`, what it had posted arrives up to some point, perhaps late; otherwise all
    /// of it still arrives unless the connection is lost before. Either way nobody will know.
    pub(super) fn end(&mut self, (key, side): (ConnectionKey, Side), lost: bool, effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        let alive = end.place.is_alive();
        let lost = lost || !alive;
        if end.phase == Phase::Ended || (end.phase == Phase::Lingering && !lost) {
            return;
        }
        if end.phase == Phase::Open {
            let mailed = end.mail.iter_mut().filter_map(|mail| mail.teller.take());
            let posted = end.queue.iter_mut().filter_map(|posted| posted.teller.take()).chain(mailed);
            let posted = posted.map(|teller| teller.tell(Err(Error::Closed)));
            let flying = std::mem::take(&mut end.completing).into_values();
            let all = posted.chain(flying).chain(std::mem::take(&mut end.lost));
            effects.outcomes.extend(all.map(Outcome::ambiguous));
            self.counts.in_flight -= end.in_flight as u64;
            end.in_flight = 0;
        }
        effects.wakers.extend(end.waker.take());
        if std::mem::take(&mut connection.ends[1 - side].mail_blocked) {
            // Nobody receives it any more: it is on its way to nowhere.
            let now = self.now;
            self.set_mail_alarm((key, 1 - side), now, effects);
        }
        let end = &mut self.connections.get_mut(&key).expect("it was just seen").ends[side];
        if !lost {
            end.phase = Phase::Lingering;
            if end.queue.is_empty() && end.mail.is_empty() {
                self.settle((key, side), effects);
            }
            return;
        }
        end.phase = Phase::Ended;
        effects.tasks.extend(end.monitor.take());
        if !alive {
            let issued = end.queue.iter().take_while(|posted| posted.issued_at <= self.now).count();
            end.queue.truncate(issued);
        }
        if self.chance.one_in(2) {
            let arriving = self.chance.index(end.queue.len() + 1);
            end.queue.truncate(arriving);
            end.mail.truncate(self.chance.index(end.mail.len() + 1));
        }
        self.counts.stray += end.queue.len() as u64;
        if end.queue.is_empty() {
            self.settle((key, side), effects);
            return;
        }
        end.blocked = false;
        if self.chance.one_in(2) {
            // Somewhere on the way they wait, for as long as anything can.
            let late = nanos(self.chance.duration(&(Duration::ZERO..Duration::from_secs(3))));
            end.queue.iter_mut().for_each(|posted| posted.due += late);
        }
        let due = end.queue.front().map_or(0, |posted| posted.due);
        self.set_alarm((key, side), due, effects);
    }

    /// An end whose queue has become empty: one that was closed lets go of its link, and a connection that both ends have
    /// left is forgotten.
    fn settle(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let end = &mut connection.ends[side];
        if end.phase == Phase::Lingering && end.queue.is_empty() && end.mail.is_empty() {
            end.phase = Phase::Ended;
            effects.tasks.extend(end.monitor.take());
        }
        if connection.ends.iter().all(End::is_over) {
            self.connections.remove(&key);
        }
    }

    /// What has arrived at an end.
    pub(super) fn receive(
        &mut self,
        (key, side): (ConnectionKey, Side),
        waker: &Waker,
        effects: &mut Effects,
    ) -> Option<Result<Incoming, Error>> {
        let Some(connection) = self.connections.get_mut(&key) else { return Some(Err(Error::Closed)) };
        let [near, far] = connection.both(side);
        if let Some(incoming) = near.inbox.pop_front() {
            if std::mem::take(&mut far.mail_blocked) {
                let now = self.now;
                self.set_mail_alarm((key, 1 - side), now, effects);
            }
            return Some(Ok(incoming));
        }
        if near.phase != Phase::Open {
            return Some(Err(Error::Closed));
        }
        effects.wakers.extend(near.waker.replace(waker.clone()).filter(|before| !before.will_wake(waker)));
        None
    }

    /// A host ends: its memory is gone, its connections are lost.
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
            self.let_go((key, 1), effects);
        }
    }

    /// Nobody will receive at an end any more.
    pub(super) fn let_go(&mut self, (key, side): (ConnectionKey, Side), effects: &mut Effects) {
        self.end((key, side), false, effects);
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.ends[side].held = false;
            self.settle((key, side), effects);
        }
    }

    /// A life of a node has ended.
    pub(super) fn crashed(&mut self, place: &Place, effects: &mut Effects) {
        let hosts: Vec<u64> =
            self.hosts.iter().filter(|(_, host)| host.place.is_same(place)).map(|(key, _)| *key).collect();
        for host in hosts {
            self.end_host(host, effects);
        }
        let keys: Vec<ConnectionKey> = self.connections.keys().copied().collect();
        for key in keys {
            for side in 0..2 {
                let ended = |connection: &Connection| connection.ends[side].place.is_same(place);
                if self.connections.get(&key).is_some_and(ended) {
                    self.end((key, side), true, effects);
                }
            }
        }
    }
}

impl Connection {
    /// The end of a side, and the other.
    fn both(&mut self, side: Side) -> [&mut End; 2] {
        let [zero, one] = &mut self.ends;
        if side == 0 { [zero, one] } else { [one, zero] }
    }
}

impl Teller {
    fn tell(self, outcome: Result<(), Error>) -> Outcome {
        let failed = outcome.err();
        match self {
            Teller::Read(completer) => Outcome::Read(completer, failed.map_or_else(|| Ok(BytesMut::new()), Err)),
            Teller::Done(completer) => Outcome::Done(completer, failed.map_or(Ok(()), Err)),
            Teller::Word(completer) => Outcome::Word(completer, failed.map_or(Ok(0), Err)),
        }
    }
}

impl Posted {
    /// Whom to tell what, if anybody is still there to be told.
    fn finish(&mut self, outcome: Result<Effect, Error>) -> Option<Outcome> {
        let outcome = match (self.teller.take()?, outcome) {
            (Teller::Read(completer), Ok(Effect::Bytes(bytes))) => {
                let Work::Read { into } = &mut self.work else { unreachable!("only a read has bytes") };
                let mut into = std::mem::take(into);
                into.extend_from_slice(&bytes);
                Outcome::Read(completer, Ok(into))
            }
            (Teller::Word(completer), Ok(Effect::Word(word))) => Outcome::Word(completer, Ok(word)),
            (teller, Ok(_)) => teller.tell(Ok(())),
            (teller, Err(error)) => teller.tell(Err(error)),
        };
        Some(outcome)
    }
}

/// Lets one burst of a verb take effect; gives its outcome when that was the last, or when it failed.
fn step(
    posted: &mut Posted,
    access: &Access,
    holder: &str,
    memory: &mut Memory,
    chance: &mut Chance,
    profile: Profile,
) -> Option<Result<Effect, Error>> {
    let length = usize::try_from(access.length).unwrap_or(usize::MAX);
    if posted.progress.is_none()
        && let Err(error) = memory.admit(access, holder)
    {
        return Some(Err(error));
    }
    let progress = posted.progress.get_or_insert_with(|| {
        let tear = Tear::draw(chance, words_of(access.offset, length), profile.ordering);
        let read = if matches!(posted.work, Work::Read { .. }) { vec![0; length] } else { Vec::new() };
        Progress { tear, burst: 0, read }
    });
    let Some(bytes) = memory.reach(access) else {
        // Words of a write that landed before the fence stay.
        let partial = matches!(posted.work, Work::Write { .. }) && progress.burst > 0;
        let torn = Error::Ambiguous("the capability was revoked while the verb took effect");
        return Some(Err(if partial { torn } else { Error::Revoked }));
    };
    let burst = progress.burst;
    progress.burst += 1;
    let last = progress.burst >= progress.tear.bursts();
    match &posted.work {
        Work::Read { .. } => {
            let read = &mut progress.read;
            progress.tear.each(burst, access.offset, length, |range| {
                read[range.clone()].copy_from_slice(&bytes[range]);
            });
            last.then(|| Ok(Effect::Bytes(std::mem::take(&mut progress.read))))
        }
        Work::Write { bytes: source, .. } => {
            progress.tear.each(burst, access.offset, length, |range| {
                bytes[range.clone()].copy_from_slice(&source[range]);
            });
            last.then_some(Ok(Effect::Done))
        }
        Work::CompareSwap { expected, new } => {
            let before = word(bytes);
            if before == *expected {
                bytes.copy_from_slice(&new.to_le_bytes());
            }
            Some(Ok(Effect::Word(before)))
        }
        Work::FetchAdd { add } => {
            let before = word(bytes);
            bytes.copy_from_slice(&before.wrapping_add(*add).to_le_bytes());
            Some(Ok(Effect::Word(before)))
        }
        Work::Message(_) => unreachable!("a message has no access"),
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("an atomic verb is admitted for one word"))
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
