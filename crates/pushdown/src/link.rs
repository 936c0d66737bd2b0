//! One side's end of the link.

#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::Duration;

use bare::alarm::now;
use bare::system_call::{Errno, system_call, yield_processor};

use crate::area::{Area, Attention};
use crate::message::{ToCaller, ToExecutor, is_about_memory};
use crate::ring::{Frame, Ring, RingError, Shape, cycles};

/// Which side this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The process that pushes functions down.
    Caller,
    /// The executor.
    Executor,
}

/// One end of the link. Sending and receiving are for the thread that holds the side's lock.
pub struct Link {
    area: Area,
    side: Side,
    /// The socket: a byte on it wakes the other side's own thread, its end says that the other side is gone.
    socket: i32,
    outgoing: Ring,
    incoming: Ring,
    /// How long the other side may leave the ring full; zero is for ever.
    patience: Duration,
    /// A thread of the other side was woken, or one of this side: the two may share a processor.
    may_share: AtomicBool,
}

/// Turns of a thread that looks for messages between two in which it lets others run: some 8 µs, in which most answers come.
const YIELD_EVERY: u32 = 256;
/// How often in a row bytes are taken off the socket.
const DRAINS_MAX: usize = 64;
/// If letting others run takes longer, some 2 µs, another thread ran.
const YIELD_CYCLES: u64 = 5_000;

impl Link {
    /// The end of this side.
    pub fn new(area: Area, side: Side, socket: i32) -> Link {
        Link::shaped(area, side, socket, area.shape())
    }

    /// The same for a relay, to whose users the network is the link: what the area says of an imitated one does not count.
    pub fn of_relay(area: Area, side: Side, socket: i32) -> Link {
        Link::shaped(area, side, socket, Shape::default())
    }

    fn shaped(area: Area, side: Side, socket: i32, shape: Shape) -> Link {
        let is_caller = side == Side::Caller;
        let (outgoing, incoming) = (area.ring(!is_caller, shape), area.ring(is_caller, shape));
        Link { area, side, socket, outgoing, incoming, patience: Duration::ZERO, may_share: AtomicBool::new(false) }
    }

    /// The same end, which gives the other side up if that leaves the ring full for so long.
    pub fn with_patience(self, patience: Duration) -> Link {
        Link { patience, ..self }
    }

    /// The area.
    pub fn area(&self) -> Area {
        self.area
    }

    /// The socket.
    pub fn socket(&self) -> i32 {
        self.socket
    }

    fn own(&self) -> &'static Attention {
        self.area.attention(self.side == Side::Caller)
    }

    fn other(&self) -> &'static Attention {
        self.area.attention(self.side != Side::Caller)
    }

    /// Sends a message of the caller; `body` is that of a coherence message.
    ///
    /// # Errors
    /// The other side is gone, or has left the ring full for too long.
    pub fn send_to_executor(&self, message: &ToExecutor, body: &[u8]) -> Result<(), RingError> {
        let (kind, head) = message.encode();
        self.send(&[(kind, &[&head, body])])
    }

    /// Sends two messages of the caller, of which the executor sees either both or none. Returns when, by the clock of [`cycles`].
    ///
    /// # Errors
    /// The other side is gone.
    pub fn send_both_to_executor(&self, messages: [&ToExecutor; 2]) -> Result<u64, RingError> {
        let [first, second] = messages.map(ToExecutor::encode);
        let now = cycles();
        self.send(&[(first.0, &[&first.1]), (second.0, &[&second.1])])?;
        Ok(now)
    }

    /// Sends a message of the executor; `body` is that of a coherence message.
    ///
    /// # Errors
    /// The other side is gone, or has left the ring full for too long.
    pub fn send_to_caller(&self, message: &ToCaller, body: &[u8]) -> Result<(), RingError> {
        let (kind, head) = message.encode();
        self.send(&[(kind, &[&head, body])])
    }

    /// Sends two messages of the executor, of which the caller sees either both or none.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn send_both_to_caller(&self, messages: [&ToCaller; 2]) -> Result<(), RingError> {
        let [first, second] = messages.map(ToCaller::encode);
        self.send(&[(first.0, &[&first.1]), (second.0, &[&second.1])])
    }

    /// Passes frames on that this end has received from another host, all of them or none. Returns whether there was room.
    pub fn forward(&self, frames: &[Frame]) -> bool {
        let parts: Vec<[&[u8]; 1]> = frames.iter().map(|frame| [&frame.bytes[..]]).collect();
        let frames: Vec<(u32, &[&[u8]])> =
            frames.iter().zip(&parts).map(|(frame, parts)| (frame.kind, &parts[..])).collect();
        let is_sent = self.outgoing.push(&frames);
        self.wake();
        is_sent
    }

    /// Waits for room. At most one side may send so much that a ring fills, else both would wait: a side bounds what it asks for
    /// before it receives again, and the pages of a `syncmem` need no answer.
    fn send(&self, frames: &[(u32, &[&[u8]])]) -> Result<(), RingError> {
        let mut full_since = None;
        while !self.outgoing.push(frames) {
            self.wake();
            if !self.is_open() || !self.is_patient(&mut full_since) {
                return Err(RingError);
            }
            spin_loop();
        }
        self.wake();
        Ok(())
    }

    /// Whether the other side may leave the ring full for longer.
    fn is_patient(&self, since: &mut Option<Duration>) -> bool {
        if self.patience.is_zero() {
            return true;
        }
        let now = now();
        now.saturating_sub(*since.get_or_insert(now)) < self.patience
    }

    /// Wakes a thread of the other side, unless one there would notice anyway: one that waits for a message, rather than the side's
    /// own thread, which would have to wake the other one in turn.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        let other = self.other();
        if other.attending.load(Ordering::SeqCst) != 0 {
            return;
        }
        if other.sleepers.load(Ordering::SeqCst) != 0 {
            other.turn.fetch_add(1, Ordering::SeqCst);
            wake_shared(&other.turn, 1);
            self.may_share.store(true, Ordering::Relaxed);
        } else if other.sleeps.swap(0, Ordering::SeqCst) == 1 {
            let byte = 1_u8;
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
            // SAFETY: the kernel reads one byte. If the socket is full or closed, nobody needs the byte.
            let _ = unsafe {
                system_call(libc::SYS_sendto, [self.socket as usize, &raw const byte as usize, 1, flags, 0, 0])
            };
            self.may_share.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the next message.
    ///
    /// # Errors
    /// The other side broke the rules.
    pub fn receive(&self) -> Result<Option<Frame>, RingError> {
        self.incoming.pop()
    }

    /// Whether a message has arrived.
    pub fn has_message(&self) -> bool {
        self.incoming.has_frame()
    }

    /// Whether the next message to the caller that has arrived is about memory: what it means depends on what the program has done to memory
    /// before.
    pub fn is_memory_next(&self) -> bool {
        self.incoming.peek().is_some_and(|(kind, first)| is_about_memory(kind, first))
    }

    /// Whether a message has arrived, or will.
    pub fn is_message_coming(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Looks for messages without sleeping, up to `turns` times, until there is one or `done` says so. Returns whether either happened.
    ///
    /// The scheduler often lets a thread that was woken wait for the processor of the one that has woken it, rather than take another. So a
    /// thread that looks lets others run: at once if it has woken one or was woken, or another ran the last time, and now and then.
    fn look(&self, turns: u32, done: impl Fn() -> bool) -> bool {
        let first = u32::from(!self.may_share.swap(false, Ordering::Relaxed));
        for turn in first..turns {
            if self.has_message() || done() {
                return true;
            }
            if turn % YIELD_EVERY == 0 {
                let since = cycles();
                yield_processor();
                self.may_share.store(cycles().saturating_sub(since) > YIELD_CYCLES, Ordering::Relaxed);
            } else {
                spin_loop();
            }
        }
        false
    }

    /// Has messages noticed by the calling thread as long as what is returned exists: nobody is woken for them. Thereafter the thread looks
    /// once more ([`is_message_coming`](Link::is_message_coming)), and handles what comes.
    pub fn attend(&self) -> Attending<'_> {
        self.own().attending.fetch_add(1, Ordering::SeqCst);
        Attending(self)
    }

    /// What has happened so far on this side. To be asked under the side's lock, before [`wait`](Attending::wait).
    pub fn so_far(&self) -> u32 {
        self.own().turn.load(Ordering::SeqCst)
    }

    /// Tells the threads of this side that wait that one of them may go on. To be called under the side's lock; `is_attending` says whether the
    /// calling thread is one of those that look for messages.
    pub fn tell_waiting(&self, is_attending: bool) {
        let own = self.own();
        // Threads that have not counted themselves yet look at the state when they get the lock.
        if own.attending.load(Ordering::SeqCst) + own.sleepers.load(Ordering::SeqCst) == u32::from(is_attending) {
            return;
        }
        own.turn.fetch_add(1, Ordering::SeqCst);
        if own.sleepers.load(Ordering::SeqCst) != 0 {
            wake_shared(&own.turn, i32::MAX);
        }
    }

    /// Says that the side's own thread is about to sleep on the socket. Returns whether it may: no message has come meanwhile.
    pub fn may_sleep(&self) -> bool {
        let own = self.own();
        own.sleeps.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // A thread that waits takes messages, or was woken for them.
        let has_others = || own.attending.load(Ordering::SeqCst) != 0 || own.sleepers.load(Ordering::SeqCst) != 0;
        if self.is_message_coming() && !has_others() {
            own.sleeps.store(0, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Takes the bytes off the socket. Returns whether the other side is still there, and keeps the rules: it sends a byte for each time that this
    /// side sleeps. One that sends more without end would keep this thread here.
    pub fn drain_socket(&self) -> bool {
        let mut bytes = [0_u8; 64];
        for _ in 0..DRAINS_MAX {
            let arguments = [self.socket as usize, bytes.as_mut_ptr() as usize, 64, libc::MSG_DONTWAIT as usize, 0, 0];
            // SAFETY: the kernel writes at most 64 bytes to the array.
            match unsafe { system_call(libc::SYS_recvfrom, arguments) } {
                Ok(0) => return false,
                Ok(_) => {}
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Whether the other side is still there; takes nothing.
    pub fn is_open(&self) -> bool {
        let mut byte = 0_u8;
        let flags = (libc::MSG_DONTWAIT | libc::MSG_PEEK) as usize;
        let arguments = [self.socket as usize, &raw mut byte as usize, 1, flags, 0, 0];
        // SAFETY: the kernel writes at most one byte.
        match unsafe { system_call(libc::SYS_recvfrom, arguments) } {
            Ok(0) => false,
            Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR)) => true,
            Err(_) => false,
        }
    }
}

/// A thread that looks for messages now and then.
pub struct Attending<'a>(&'a Link);

impl Attending<'_> {
    /// Waits until something has happened since `seen` ([`Link::so_far`]), or a message has come: looks `turns` times, and sleeps
    /// then. Returns early now and then.
    pub fn wait(&self, turns: u32, seen: u32) {
        let own = self.0.own();
        if self.0.look(turns, || own.turn.load(Ordering::Relaxed) != seen) {
            return;
        }
        // A sender finds the one or the other number.
        own.sleepers.fetch_add(1, Ordering::SeqCst);
        own.attending.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !self.0.is_message_coming() {
            sleep_shared(&own.turn, seen);
            self.0.may_share.store(true, Ordering::Relaxed);
        }
        own.attending.fetch_add(1, Ordering::SeqCst);
        own.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Looks `turns` times for a message, and does not sleep.
    pub fn look(&self, turns: u32) {
        self.0.look(turns, || false);
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.own().attending.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// Sleeps until the word, which both sides have, is woken, unless it is not `expected`. Returns early now and then.
fn sleep_shared(word: &AtomicU32, expected: u32) {
    // SAFETY: the kernel reads the word, for as long as the call lasts.
    let _ = unsafe {
        system_call(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, expected as usize, 0])
    };
}

/// Wakes some of the threads of either side that sleep on a word.
fn wake_shared(word: &AtomicU32, threads: i32) {
    // SAFETY: the kernel uses the address alone.
    let _ =
        unsafe { system_call(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, threads as usize]) };
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::area::AREA_HEAD_BYTES;

    /// Regression: a side that sent bytes faster than they were taken kept the other side's thread for ever.
    #[test]
    fn a_side_that_floods_the_socket_is_given_up() {
        #[repr(C, align(4096))]
        struct Memory([u8; AREA_HEAD_BYTES.next_multiple_of(4096)]);
        let mut memory = Box::new(Memory([0; _]));
        // SAFETY: the methods below use the head alone, which lies there.
        let area = unsafe { Area::at(std::ptr::from_mut(&mut *memory).addr()) };
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let link = Link::of_relay(area, Side::Executor, ours.as_raw_fd());
        theirs.write_all(&[1; 100]).expect("there is room");
        assert!(link.drain_socket(), "some bytes are no flood");
        theirs.write_all(&[1; 64 << 10]).expect("there is room");
        assert!(!link.drain_socket());
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drop(theirs);
        assert!(!Link::new(area, Side::Caller, ours.as_raw_fd()).drain_socket(), "it is gone");
    }
}
