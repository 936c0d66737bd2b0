//! One side's end of the link.

#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::sync::atomic::{Ordering, fence};

use bare::system_call::{Errno, system_call};

use crate::area::{Area, Attention};
use crate::message::{ToCaller, ToExecutor};
use crate::ring::{Frame, Ring, RingError};

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
}

impl Link {
    /// The end of this side.
    pub fn new(area: Area, side: Side, socket: i32) -> Link {
        let is_caller = side == Side::Caller;
        Link { area, side, socket, outgoing: area.ring(!is_caller), incoming: area.ring(is_caller) }
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
    /// The other side is gone.
    pub fn send_to_executor(&self, message: &ToExecutor, body: &[u8]) -> Result<(), RingError> {
        let (kind, head) = message.encode();
        self.send(kind, &[&head, body])
    }

    /// Sends a message of the executor; `body` is that of a coherence message.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn send_to_caller(&self, message: &ToCaller, body: &[u8]) -> Result<(), RingError> {
        let (kind, head) = message.encode();
        self.send(kind, &[&head, body])
    }

    /// Waits for room. At most one side may send so much that a ring fills, else both would wait: a side bounds what it asks for
    /// before it receives again, and the pages of a `syncmem` need no answer.
    fn send(&self, kind: u32, parts: &[&[u8]]) -> Result<(), RingError> {
        while !self.outgoing.push(kind, parts) {
            self.wake();
            if !self.is_open() {
                return Err(RingError);
            }
            spin_loop();
        }
        self.wake();
        Ok(())
    }

    /// Wakes the other side's own thread, unless somebody there would notice anyway.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        let other = self.other();
        if other.attending.load(Ordering::SeqCst) == 0 && other.sleeps.swap(0, Ordering::SeqCst) == 1 {
            let byte = 1_u8;
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
            // SAFETY: the kernel reads one byte. If the socket is full or closed, nobody needs the byte.
            let _ = unsafe {
                system_call(libc::SYS_sendto, [self.socket as usize, &raw const byte as usize, 1, flags, 0, 0])
            };
        }
    }

    /// Takes the next message.
    ///
    /// # Errors
    /// The other side broke the rules.
    pub fn receive(&self) -> Result<Option<Frame>, RingError> {
        self.incoming.pop()
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.incoming.has_frame()
    }

    /// Looks for messages without sleeping, up to `turns` times, until there is one or `done` says so. Returns whether either
    /// happened. Senders wake nobody meanwhile, so the caller of this must look again afterwards.
    pub fn attend(&self, turns: u32, done: impl Fn() -> bool) -> bool {
        let attending = &self.own().attending;
        attending.fetch_add(1, Ordering::SeqCst);
        let mut noticed = false;
        for _ in 0..turns {
            if self.has_message() || done() {
                noticed = true;
                break;
            }
            spin_loop();
        }
        attending.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        noticed || self.has_message()
    }

    /// Says that the side's own thread is about to sleep on the socket. Returns whether it may: no message has come meanwhile.
    pub fn may_sleep(&self) -> bool {
        let sleeps = &self.own().sleeps;
        sleeps.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // One that attends takes messages, and has nobody woken.
        if self.has_message() && self.own().attending.load(Ordering::SeqCst) == 0 {
            sleeps.store(0, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Takes the bytes off the socket. Returns whether the other side is still there.
    pub fn drain_socket(&self) -> bool {
        let mut bytes = [0_u8; 64];
        loop {
            let arguments = [self.socket as usize, bytes.as_mut_ptr() as usize, 64, libc::MSG_DONTWAIT as usize, 0, 0];
            // SAFETY: the kernel writes at most 64 bytes to the array.
            match unsafe { system_call(libc::SYS_recvfrom, arguments) } {
                Ok(0) => return false,
                Ok(_) => {}
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return true,
                Err(_) => return false,
            }
        }
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
