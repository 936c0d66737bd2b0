//! The progress thread of a host: it executes the verbs of all connections.
//!
//! 1. The thread sleeps until a socket is ready, then serves it. Before it sleeps again, the thread polls for a short
//!    time the socket that it served last, and now and then the others.
//! 2. The frames of a connection are executed in order. One system call sends the replies to all frames that had
//!    arrived.
//! 3. While the replies of a connection cannot be written, the thread does not read from it. Frames may then wait in
//!    the host's read buffer, where no socket event announces them. So once the reply queue has space, the thread puts
//!    the connection on the [ready list](ProgressEngine::unfinished): the connections that are served in the next
//!    round.
//! 4. An accepted connection is unauthenticated at first. New connections are always admitted: if there are too many,
//!    from one address or in all, the oldest unauthenticated one is dropped ([`base::admission`]). A connection that
//!    has proved a name becomes a member. A new connection of a name that is at its limit displaces that name's oldest
//!    one. The last free places are reserved for names without a connection.
//! 5. Unfinished messages count against the name. A connection ends if its message exceeds the bound for unfinished
//!    messages, or if a frame has started and does not arrive in time ([`super::arrival`]).
//! 6. Messages that the application has not taken yet, and queued replies, count against the name's budget
//!    ([`super::budget`]). If the budget does not cover a connection's next message, the thread stops reading from the
//!    connection and puts it in the name's queue. Once the application has taken enough messages of the name and the
//!    connection's turn has come, the connection goes on the ready list.
//! 7. When the host's task reports that the set of denied certificates changed, the thread checks the certificate of
//!    each connection, and ends the denied connections.
//!
//! Invariants:
//! * No connection, whatever it sends or withholds, keeps the thread from serving the others: a turn reads and writes a
//!   bounded number of bytes, and after every [`SPINS_MAX`] turns of one connection the other connections get a turn.
//! * A panic while the thread serves one connection ends that connection. A panic in the thread's own code ends the
//!   host, which then reports it ([`crate::Host::failed`]).
//! * A connection with work to do is on the ready list, in its name's queue, or has its socket watched for the event
//!   that it needs.
//! * The messages of a name stay within the bound of [`super::budget`], and no name waits for another.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::Map;
use base::admission::{Admission, AdmissionLimits};
use base::rt::channel::Sender;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use super::host_core::HostCore;
use super::peer::ConnectionQueues;
use super::pipe::SocketPipe;
use super::served::{ServedConnection, TurnContext, TurnOutcome};
use super::{CLOSE_TIMEOUT, HANDSHAKE_TIMEOUT, clock, tune};
use crate::failure::reason_of;
use crate::{Endpoint, MESSAGE_BYTES_MAX};

/// Connections of one host.
const CONNECTIONS_MAX: usize = 4096;
/// Of these, connections that have not authenticated yet.
const UNAUTHENTICATED_MAX: usize = 512;
/// Of these, unauthenticated connections from one address.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 256;
/// Connections of one name.
const CONNECTIONS_PER_NAME_MAX: usize = 512;
/// Above this number of members, only a name without a connection gets one more.
const AUTHENTICATED_MAX: usize = CONNECTIONS_MAX - 2 * UNAUTHENTICATED_MAX;
/// Bytes of one name's unfinished messages: the longest message, and a reserve.
const UNFINISHED_BYTES_PER_NAME_MAX: u64 = MESSAGE_BYTES_MAX as u64 + (16 << 20);
/// Connections accepted in one go.
const ACCEPTS_MAX: usize = 64;
/// Connections that the kernel queues until the thread accepts them.
const KERNEL_BACKLOG: i32 = 4096;
/// Times that the last connection is polled or served before the others are.
const SPINS_MAX: u32 = 16;
/// Events that one call to epoll returns.
const EVENTS_MAX: usize = 64;
/// How often deadlines are checked while there are any.
const TICK: Duration = Duration::from_millis(250);

const LISTENER_TOKEN: u64 = 0;
const WAKE_TOKEN: u64 = 1;
const CONNECTION_TOKEN_MIN: u64 = 2;

pub struct ProgressEngine {
    listener: TcpListener,
    shared: Arc<HostCore>,
    accepted: Sender<Endpoint>,
    admission: Arc<Admission>,
    epoll: OwnedFd,
    connections: Map<u64, ServedConnection>,
    /// Connections with a deadline: unauthenticated ones, closing ones, and those with a partly received frame.
    timed: BTreeSet<u64>,
    next: u64,
    /// The connection that was served last.
    hot: Option<u64>,
    /// The connection that this thread polls, as the endpoints see it: see [`ProgressEngine::look_at`].
    looked_at: u64,
    /// Connections with work that no socket event announces: bytes that were read and not yet executed.
    unfinished: Vec<u64>,
    /// Whether epoll watches the listener. It does not while the process has no file descriptor left for a new connection.
    listening: bool,
}

/// The bounds of a host. The untaken messages of members are bounded by their windows and by the name's budget; the buffer of
/// an unauthenticated connection holds only a handshake.
fn limits() -> AdmissionLimits {
    AdmissionLimits {
        unauthenticated_max: UNAUTHENTICATED_MAX,
        unauthenticated_per_address_max: UNAUTHENTICATED_PER_ADDRESS_MAX,
        connections_per_organization_max: CONNECTIONS_PER_NAME_MAX,
        connections_per_identity_max: CONNECTIONS_PER_NAME_MAX,
        handshake_time_max: HANDSHAKE_TIMEOUT,
        bytes_per_organization_max: UNFINISHED_BYTES_PER_NAME_MAX,
        ..AdmissionLimits::in_proportion(CONNECTIONS_MAX, 0, 1)
    }
}

impl ProgressEngine {
    pub fn new(listener: TcpListener, shared: Arc<HostCore>, accepted: Sender<Endpoint>) -> io::Result<ProgressEngine> {
        // More than the library's default, so that a crowd of connections does not keep others out of the kernel's queue.
        rustix::net::listen(&listener, KERNEL_BACKLOG)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER_TOKEN), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &shared.attention.wake, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN)?;
        Ok(ProgressEngine {
            listener,
            shared,
            accepted,
            admission: Admission::new(limits()),
            epoll,
            connections: Map::default(),
            timed: BTreeSet::new(),
            next: CONNECTION_TOKEN_MIN,
            hot: None,
            looked_at: 0,
            unfinished: Vec::new(),
            listening: true,
        })
    }

    /// Serves until the host is stopped, or until a defect ends it.
    pub fn run(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve_all()));
        for served in self.connections.values() {
            // Waking this connection's waiter may hit the same defect; the other connections are closed all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| served.peer.close()));
            served.peer.pipe.abort();
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
                if !looks.is_multiple_of(SPINS_MAX) {
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

    /// Whether the client that was served last is probably still receiving what was sent to it.
    fn is_answered_soon(&self, now: Instant) -> bool {
        self.hot.and_then(|hot| self.connections.get(&hot)).is_some_and(|served| served.peer.is_being_taken(now))
    }

    /// Publishes which connection this thread polls, so that endpoints leave the writing to it.
    fn look_at(&mut self, connection: Option<u64>) {
        let connection = connection.unwrap_or(0);
        let before = self.looked_at;
        if connection != before {
            self.looked_at = connection;
            self.shared.looked_at.store(connection, Ordering::SeqCst);
            // Endpoints have left frames for this thread to write until now.
            self.serve(before, false);
        }
    }

    /// Serves all ready connections. Returns whether one of them had work.
    fn turn(&mut self, wait: Option<Duration>) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() });
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, wait.as_ref()) else {
            // Interrupted: no other error is possible on our own descriptor.
            return false;
        };
        let mut any = false;
        for event in ready.iter() {
            match event.data.u64() {
                LISTENER_TOKEN => self.accept(),
                WAKE_TOKEN => self.attend(),
                connection => {
                    any |= self.serve(connection, false);
                    let flags = event.flags;
                    let is_lost = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
                    // A connection that is neither read nor written does not notice the loss, and its socket would report it
                    // for ever.
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
                // A socket that cannot be set up was already lost.
                Ok((socket, address)) => drop(self.adopt(socket, address.ip())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // No descriptor is left, or a similar error. The new connection gets the descriptor of the oldest
                // unauthenticated one; if there is none, it has to wait for the next tick.
                Err(_) => match self.oldest_unauthenticated() {
                    Some(stranger) => self.end(stranger),
                    None => {
                        self.listen(false);
                        break;
                    }
                },
            }
        }
        let is_displaced = |number: &u64| self.connections.get(number).is_some_and(ServedConnection::is_displaced);
        let displaced: Vec<u64> = self.timed.iter().copied().filter(is_displaced).collect();
        displaced.into_iter().for_each(|number| self.end(number));
    }

    fn oldest_unauthenticated(&self) -> Option<u64> {
        let is_stranger = |number: &u64| self.connections.get(number).is_some_and(ServedConnection::is_unauthenticated);
        self.timed.iter().copied().find(is_stranger)
    }

    /// A connection has proved its name: the connections that it displaces end.
    fn welcome(&mut self, connection: u64) {
        self.timed.remove(&connection);
        let Some(served) = self.connections.get(&connection) else { return };
        let name = Arc::clone(&served.name);
        let (_, members) = self.admission.open();
        if members > AUTHENTICATED_MAX {
            let same = |(number, served): &(&u64, &ServedConnection)| **number != connection && served.name == name;
            let oldest = self.connections.iter().filter(same).map(|(number, _)| *number).min();
            oldest.into_iter().for_each(|number| self.end(number));
        }
        let displaced = self.connections.iter().filter(|(_, served)| served.is_displaced());
        let displaced: Vec<u64> = displaced.map(|(number, _)| *number).collect();
        displaced.into_iter().for_each(|number| self.end(number));
    }

    fn listen(&mut self, listening: bool) {
        let interest = if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER_TOKEN);
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
        let peer = Arc::new(ConnectionQueues::new(SocketPipe::new(socket, tls)));
        let number = self.next;
        epoll::add(&self.epoll, &peer.pipe, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        self.next += 1;
        let served = ServedConnection::new(peer, &self.shared, self.admission.admit(address));
        self.connections.insert(number, served);
        self.timed.insert(number);
        Ok(())
    }

    /// Serves the connections for which endpoints asked.
    fn attend(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.attention.wake, &mut count);
        if self.shared.denials_changed.swap(false, Ordering::AcqRel) {
            self.end_denied();
        }
        let attention = self.shared.attention.take();
        for connection in attention {
            if let Some(served) = self.connections.get_mut(&connection)
                && served.dropped.load(Ordering::Acquire)
                && !served.closing
            {
                // Verbs are still executed, and credit accepted, until the other end has closed too.
                served.closing = true;
                served.deadline = Some(clock() + CLOSE_TIMEOUT);
                self.timed.insert(connection);
            }
            self.serve(connection, true);
        }
    }

    /// Ends connections whose certificate is now denied.
    fn end_denied(&mut self) {
        let Some(denials) = self.shared.options.tls.as_ref().map(|tls| Arc::clone(tls.denials())) else { return };
        let is_denied = |(_, served): &(&u64, &ServedConnection)| served.peer.pipe.is_denied(&*denials);
        let denied: Vec<u64> = self.connections.iter().filter(is_denied).map(|(number, _)| *number).collect();
        denied.into_iter().for_each(|number| self.end(number));
    }

    fn drop_overdue(&mut self, now: Instant) {
        self.timed.retain(|number| self.connections.get(number).is_some_and(ServedConnection::is_timed));
        let is_overdue = |number: &u64| self.connections.get(number).is_some_and(|served| served.is_overdue(now));
        let overdue: Vec<u64> = self.timed.iter().copied().filter(is_overdue).collect();
        for number in overdue {
            // If this thread was the one that paused, the rest of the frame may be there by now.
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
            // Closing the descriptor would remove it from the epoll set, but an endpoint may still hold it.
            let _ = epoll::delete(&self.epoll, &served.peer.pipe);
            served.peer.close();
            served.peer.pipe.abort();
            if let Some(budget) = &served.budget {
                budget.leave(connection);
                // It may have been this connection's turn.
                self.resume(budget.next_waiting());
            }
        }
        if self.hot == Some(connection) {
            self.hot = None;
        }
    }

    /// Gives a connection that waited for its name's messages to be taken its turn.
    fn resume(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection
            && let Some(served) = self.connections.get_mut(&connection)
            && !std::mem::replace(&mut served.unfinished, true)
        {
            self.unfinished.push(connection);
        }
    }

    /// Serves a connection. `asked`: an endpoint asked for it and may have left something to write. Returns whether something
    /// was done.
    fn serve(&mut self, connection: u64, asked: bool) -> bool {
        let Some(served) = self.connections.get_mut(&connection) else { return false };
        let (door, epoll) = (TurnContext { accepted: &self.accepted, connection }, &self.epoll);
        let was_stranger = served.is_unauthenticated();
        let served_so = catch_unwind(AssertUnwindSafe(|| {
            let mut any = false;
            let asked = served.peer.take_write_request() || asked;
            let mut turn = served.turn(&door, asked, &mut any);
            if turn != TurnOutcome::Over && turn != TurnOutcome::Nothing {
                turn = served.watch(epoll, connection, turn).unwrap_or(TurnOutcome::Over);
            }
            (turn, any)
        }));
        // A defect that one connection hits ends that connection and no other.
        let (turn, any) = served_so.unwrap_or((TurnOutcome::Over, true));
        if turn == TurnOutcome::Unfinished && !std::mem::replace(&mut served.unfinished, true) {
            self.unfinished.push(connection);
        }
        let is_stranger = served.is_unauthenticated();
        if any && !is_stranger {
            self.hot = Some(connection);
        }
        let begun = turn != TurnOutcome::Over && !is_stranger && served.track_arrival();
        let next = served.budget.as_ref().and_then(|budget| budget.next_waiting());
        self.resume(next);
        if was_stranger && !is_stranger {
            self.welcome(connection);
        }
        if begun {
            self.timed.insert(connection);
        }
        if turn == TurnOutcome::Over {
            self.end(connection);
        }
        any
    }
}
