//! The progress thread of a host: carries out the verbs of everybody who is connected.
//!
//! 1. It sleeps until a socket is ready, then serves it. For a short while after that it looks at the socket that was
//!    served last again and again, and at the others now and then, before it sleeps anew.
//! 2. What a connection has sent is carried out in order; the replies of all that was there go out with one call.
//! 3. A connection whose replies do not go out is not read until they do. What it had sent by then is in our buffer, and no
//!    socket tells of it: such a connection is among the [unfinished](Progress::unfinished) once there is room.
//! 4. A connection that was just accepted is a stranger's. The newest are admitted: where there are too many, from one address
//!    or in all, the oldest stranger gives way ([`base::admission`]). Whoever proves a name becomes a member. A name that
//!    has its share of places displaces its own oldest connection, and the last places are for names that have none.
//! 5. Unfinished messages count against the name. A message that its budget does not cover ends the connection, and so does a
//!    frame that was begun and does not arrive in time ([`super::arrival`]).
//!
//! 6. What waits for a name, messages to be taken and replies to go out, counts against the name's budget ([`super::budget`]). A
//!    connection that brings a message which the budget does not cover is not read until messages of the name were taken: it waits in
//!    the name's queue, and is unfinished once its turn has come.
//! 7. When the host's task says that other certificates are denied than before, the thread looks at the certificate of each
//!    connection, and ends those that are denied.
//!
//! Invariants:
//! * Nothing that one connection sends, or does not, keeps the thread from serving the others: a turn reads and writes a
//!   bounded number of bytes, and every [`LOOKS`] turns of one connection the others have theirs.
//! * A panic in what is done for one connection ends that connection. One of the thread's own ends the host, which then says
//!   so ([`crate::Host::failed`]).
//! * A connection that has something to do is unfinished, or in its name's queue, or its socket is watched for what it waits for.
//! * Messages of a name hold at most its budget and its unfinished ones, and no name waits for another.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::Map;
use base::admission::{Admission, AdmissionLimits};
use base::rt::channel::Sender;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use super::host::Shared;
use super::peer::Peer;
use super::pipe::Pipe;
use super::served::{Door, Served, Turn};
use super::{CLOSING_TIME_MAX, HANDSHAKE_TIME_MAX, clock, tune};
use crate::failure::reason_of;
use crate::{Endpoint, MESSAGE_BYTES_MAX};

/// Connections of one host.
const CONNECTIONS_MAX: usize = 4096;
/// Of these, connections that have not proved themselves yet.
const STRANGERS_MAX: usize = 512;
/// Of these, from one address.
const STRANGERS_PER_ADDRESS_MAX: usize = 256;
/// Connections of one name.
const CONNECTIONS_PER_NAME_MAX: usize = 512;
/// When there are so many that proved themselves, only a name that has none gets one more.
const MEMBERS_MAX: usize = CONNECTIONS_MAX - 2 * STRANGERS_MAX;
/// Bytes of one name's unfinished messages: the longest message, and some.
const UNFINISHED_BYTES_PER_NAME_MAX: u64 = MESSAGE_BYTES_MAX as u64 + (16 << 20);
/// Connections taken from the kernel at once.
const ACCEPTS_MAX: usize = 64;
/// Connections that the kernel keeps until they are taken.
const KERNEL_BACKLOG: i32 = 4096;
/// Times that the last connection is looked at, or served, before the others are.
const LOOKS: u32 = 16;
/// Events taken at once.
const EVENTS_MAX: usize = 64;
/// How often time limits are looked at while there are any.
const TICK: Duration = Duration::from_millis(250);

const OF_LISTENER: u64 = 0;
const OF_WAKE: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

pub struct Progress {
    listener: TcpListener,
    shared: Arc<Shared>,
    accepted: Sender<Endpoint>,
    admission: Arc<Admission>,
    epoll: OwnedFd,
    connections: Map<u64, Served>,
    /// Those with a deadline: strangers, those that close, and those with a frame of which only a part has come.
    timed: BTreeSet<u64>,
    next: u64,
    /// Served last.
    hot: Option<u64>,
    /// As the endpoints were told, [`Progress::look_at`].
    looked_at: u64,
    /// Connections that have more to do than any socket tells of: bytes that were read and are not understood.
    unfinished: Vec<u64>,
    /// The listener is watched. It is not for a moment when the process has no descriptor left for a newcomer.
    listening: bool,
}

/// The bounds of a host. What a member's connections received and nobody took yet is bounded by their windows and by the name's budget;
/// buffers of strangers hold a handshake.
fn limits() -> AdmissionLimits {
    AdmissionLimits {
        strangers_max: STRANGERS_MAX,
        strangers_per_address_max: STRANGERS_PER_ADDRESS_MAX,
        connections_per_organization_max: CONNECTIONS_PER_NAME_MAX,
        connections_per_identity_max: CONNECTIONS_PER_NAME_MAX,
        handshake_time_max: HANDSHAKE_TIME_MAX,
        bytes_per_organization_max: UNFINISHED_BYTES_PER_NAME_MAX,
        ..AdmissionLimits::in_proportion(CONNECTIONS_MAX, 0, 1)
    }
}

impl Progress {
    pub fn new(listener: TcpListener, shared: Arc<Shared>, accepted: Sender<Endpoint>) -> io::Result<Progress> {
        // More than the library asks for, so that a crowd does not keep others from knocking.
        rustix::net::listen(&listener, KERNEL_BACKLOG)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(OF_LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &shared.wake, epoll::EventData::new_u64(OF_WAKE), epoll::EventFlags::IN)?;
        Ok(Progress {
            listener,
            shared,
            accepted,
            admission: Admission::new(limits()),
            epoll,
            connections: Map::default(),
            timed: BTreeSet::new(),
            next: FIRST_CONNECTION,
            hot: None,
            looked_at: 0,
            unfinished: Vec::new(),
            listening: true,
        })
    }

    /// Serves until the host ends, or a defect ends it.
    pub fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve_all()));
        for served in self.connections.values() {
            // Whoever is told of the end may have the same defect; the others are told all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| served.peer.close()));
            served.peer.pipe.cut();
        }
        self.shared.regions.clear();
        if let Err(panic) = outcome {
            self.shared.stopping.store(true, Ordering::Release);
            self.shared.failure.fail(format!("its progress thread panicked: {}", reason_of(&*panic)));
        }
    }

    fn serve_all(&mut self) {
        let spin = self.shared.options.spin;
        let mut spin_until = clock();
        let mut looks = 0_u32;
        let mut tick = clock() + TICK;
        loop {
            let now = clock();
            let spinning = now < spin_until || (!spin.is_zero() && self.is_answered_soon(now));
            self.look_at(if spinning { self.hot } else { None });
            if spinning && let Some(hot) = self.hot {
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(LOOKS) {
                    if self.serve(hot, false) {
                        spin_until = clock() + spin;
                    } else {
                        std::hint::spin_loop();
                    }
                    continue;
                }
            }
            let wait = match spinning || !self.unfinished.is_empty() {
                true => Some(Duration::ZERO),
                false if !self.timed.is_empty() || !self.listening => Some(TICK),
                false => None,
            };
            if self.turn(wait) {
                spin_until = clock() + spin;
            }
            if self.shared.stopping.load(Ordering::Acquire) {
                break;
            }
            if now >= tick {
                tick = now + TICK;
                self.drop_overdue(now);
            }
        }
    }

    /// Whether the caller that was served last is still busy with what it was sent.
    fn is_answered_soon(&self, now: Instant) -> bool {
        self.hot.and_then(|hot| self.connections.get(&hot)).is_some_and(|served| served.peer.is_being_taken(now))
    }

    /// Says at which connection this thread looks, so that endpoints leave the writing to it.
    fn look_at(&mut self, connection: Option<u64>) {
        let connection = connection.unwrap_or(0);
        let before = self.looked_at;
        if connection != before {
            self.looked_at = connection;
            self.shared.looked_at.store(connection, Ordering::SeqCst);
            // What was left to us by then.
            self.serve(before, false);
        }
    }

    /// Serves whatever is ready. True when that was a connection with something to say.
    fn turn(&mut self, wait: Option<Duration>) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() });
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, wait.as_ref()) else {
            // Interrupted; nothing else can happen to a descriptor of our own.
            return false;
        };
        let mut any = false;
        for event in ready.iter() {
            match event.data.u64() {
                OF_LISTENER => self.accept(),
                OF_WAKE => self.attend(),
                connection => {
                    any |= self.serve(connection, false);
                    let flags = event.flags;
                    let is_lost = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
                    // One that is neither read nor written does not find out, and its socket would tell of it for ever.
                    if is_lost && self.connections.get(&connection).is_some_and(|served| served.waits) {
                        self.end(connection);
                    }
                }
            }
        }
        for connection in std::mem::take(&mut self.unfinished) {
            if let Some(served) = self.connections.get_mut(&connection) {
                served.unfinished = false;
                any |= self.serve(connection, false);
            }
        }
        any
    }

    fn accept(&mut self) {
        crate::failure::may_panic();
        for _ in 0..ACCEPTS_MAX {
            match self.listener.accept() {
                // A socket that cannot be set up was lost already.
                Ok((socket, address)) => drop(self.adopt(socket, address.ip())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // No descriptor is left, or the like. A stranger's is given to the newcomer; without one, the newcomer has
                // to wait for the next tick.
                Err(_) => match self.oldest_stranger() {
                    Some(stranger) => self.end(stranger),
                    None => {
                        self.listen(false);
                        break;
                    }
                },
            }
        }
        let is_displaced = |number: &u64| self.connections.get(number).is_some_and(Served::is_displaced);
        let displaced: Vec<u64> = self.timed.iter().copied().filter(is_displaced).collect();
        displaced.into_iter().for_each(|number| self.end(number));
    }

    fn oldest_stranger(&self) -> Option<u64> {
        let is_stranger = |number: &u64| self.connections.get(number).is_some_and(Served::is_stranger);
        self.timed.iter().copied().find(is_stranger)
    }

    /// A connection has proved its name: whoever has to make room for it goes.
    fn welcome(&mut self, connection: u64) {
        self.timed.remove(&connection);
        let Some(served) = self.connections.get(&connection) else { return };
        let name = Arc::clone(&served.name);
        let (_, members) = self.admission.open();
        if members > MEMBERS_MAX {
            let same = |(number, served): &(&u64, &Served)| **number != connection && served.name == name;
            let oldest = self.connections.iter().filter(same).map(|(number, _)| *number).min();
            oldest.into_iter().for_each(|number| self.end(number));
        }
        let displaced = self.connections.iter().filter(|(_, served)| served.is_displaced());
        let displaced: Vec<u64> = displaced.map(|(number, _)| *number).collect();
        displaced.into_iter().for_each(|number| self.end(number));
    }

    fn listen(&mut self, listening: bool) {
        let interest = if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(OF_LISTENER);
        if epoll::modify(&self.epoll, &self.listener, data, interest).is_ok() {
            self.listening = listening;
        }
    }

    fn adopt(&mut self, socket: TcpStream, address: IpAddr) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        tune(&socket, &self.shared.options)?;
        let tls = match &self.shared.options.tls {
            Some(tls) => Some(tls.server().map_err(io::Error::other)?),
            None => None,
        };
        let peer = Arc::new(Peer::new(Pipe::new(socket, tls)));
        let number = self.next;
        epoll::add(&self.epoll, &peer.pipe, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        self.next += 1;
        let served = Served::new(peer, &self.shared, self.admission.admit(address));
        self.connections.insert(number, served);
        self.timed.insert(number);
        Ok(())
    }

    /// Looks at the connections that endpoints ask about.
    fn attend(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        if self.shared.denials_changed.swap(false, Ordering::AcqRel) {
            self.end_denied();
        }
        let attention = std::mem::take(&mut *self.shared.attention.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in attention {
            if let Some(served) = self.connections.get_mut(&connection)
                && served.dropped.load(Ordering::Acquire)
                && !served.closing
            {
                // Verbs are still carried out, and credit taken, until the other side has ended too.
                served.closing = true;
                served.deadline = Some(clock() + CLOSING_TIME_MAX);
                self.timed.insert(connection);
            }
            self.serve(connection, true);
        }
    }

    /// Ends connections whose other side has shown a certificate that is denied by now.
    fn end_denied(&mut self) {
        let Some(denials) = self.shared.options.tls.as_ref().map(|tls| Arc::clone(tls.denials())) else { return };
        let is_denied = |(_, served): &(&u64, &Served)| served.peer.pipe.is_denied(&*denials);
        let denied: Vec<u64> = self.connections.iter().filter(is_denied).map(|(number, _)| *number).collect();
        denied.into_iter().for_each(|number| self.end(number));
    }

    fn drop_overdue(&mut self, now: Instant) {
        self.timed.retain(|number| self.connections.get(number).is_some_and(Served::is_timed));
        let is_overdue = |number: &u64| self.connections.get(number).is_some_and(|served| served.is_overdue(now));
        let overdue: Vec<u64> = self.timed.iter().copied().filter(is_overdue).collect();
        for number in overdue {
            // Where it was this thread that paused, the rest may be there by now.
            self.serve(number, false);
            if let Some(served) = self.connections.get(&number)
                && served.is_overdue(now)
            {
                self.end(number);
            }
        }
        if !self.listening {
            self.listen(true);
        }
    }

    fn end(&mut self, connection: u64) {
        self.timed.remove(&connection);
        if let Some(served) = self.connections.remove(&connection) {
            // Closing the descriptor takes it off the set, but an endpoint may still hold it.
            let _ = epoll::delete(&self.epoll, &served.peer.pipe);
            served.peer.close();
            served.peer.pipe.cut();
            if let Some(budget) = &served.budget {
                budget.leave(connection);
                // It may have had its turn just now.
                self.resume(budget.next_waiting());
            }
        }
        if self.hot == Some(connection) {
            self.hot = None;
        }
    }

    /// A connection that waited for its name's messages to be taken has its turn.
    fn resume(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection
            && let Some(served) = self.connections.get_mut(&connection)
            && !std::mem::replace(&mut served.unfinished, true)
        {
            self.unfinished.push(connection);
        }
    }

    /// Serves a connection; `asked` by an endpoint, which may have left something to write. True when something was done.
    fn serve(&mut self, connection: u64, asked: bool) -> bool {
        let Some(served) = self.connections.get_mut(&connection) else { return false };
        let (door, epoll) = (Door { accepted: &self.accepted, connection }, &self.epoll);
        let was_stranger = served.is_stranger();
        let served_so = catch_unwind(AssertUnwindSafe(|| {
            let mut any = false;
            let asked = served.peer.take_asked() || asked;
            let mut turn = served.turn(&door, asked, &mut any);
            if turn != Turn::Over && turn != Turn::Nothing {
                turn = served.watch(epoll, connection, turn).unwrap_or(Turn::Over);
            }
            (turn, any)
        }));
        // A defect that one connection has found is that connection's end, and no other's.
        let (turn, any) = served_so.unwrap_or((Turn::Over, true));
        if turn == Turn::Unfinished && !std::mem::replace(&mut served.unfinished, true) {
            self.unfinished.push(connection);
        }
        let is_stranger = served.is_stranger();
        if any && !is_stranger {
            self.hot = Some(connection);
        }
        let begun = turn != Turn::Over && !is_stranger && served.note_arrival();
        let next = served.budget.as_ref().and_then(|budget| budget.next_waiting());
        self.resume(next);
        if was_stranger && !is_stranger {
            self.welcome(connection);
        }
        if begun {
            self.timed.insert(connection);
        }
        if turn == Turn::Over {
            self.end(connection);
        }
        any
    }
}
