//! The connection to one program: its agent, its shared memory, its process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farmem_control::{COMMAND, CommandRange, PAGE_BYTES, RANGES_MAX, RequestPage};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::shared::SharedMemory;
use super::socket::ProgramSocket;

/// For how long a killed program may take to end.
const END_MAX: Duration = Duration::from_secs(10);

/// A range of a command: address and pages.
pub(super) type CommandPart = (u64, u32);

/// A program that has connected.
pub(super) struct Link {
    socket: ProgramSocket,
    shared: SharedMemory,
    process: OwnedFd,
    /// The process number.
    pub(super) number: u32,
}

impl Link {
    /// # Errors
    /// The process has ended, or this one may not signal it.
    pub(super) fn new(socket: ProgramSocket, shared: SharedMemory) -> io::Result<Link> {
        let peer = socket.peer()?;
        let process = pidfd_open(peer, PidfdFlags::empty())?;
        Ok(Link { socket, shared, process, number: peer.as_raw_nonzero().get().cast_unsigned() })
    }

    pub(super) fn request(&self) -> &RequestPage {
        self.shared.request()
    }

    /// Hangs up when the program does.
    pub(super) fn socket(&self) -> &ProgramSocket {
        &self.socket
    }

    /// Whether the program has ended, or has begun to execute another one.
    pub(super) fn has_ended(&self) -> bool {
        let mut files = [PollFd::from_borrowed_fd(self.socket.file(), PollFlags::empty())];
        poll(&mut files, Some(&rustix::time::Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Has the program end.
    pub(super) fn signal_end(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Ends the program, and waits until it has ended.
    pub(super) fn kill(&self) {
        self.signal_end();
        let mut files = [PollFd::new(&self.process, PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: END_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let _ = poll(&mut files, Some(&limit));
    }

    /// Has the agent execute a command. Returns for how many pages of each range it did.
    ///
    /// Panics when there are more ranges than a command has.
    ///
    /// # Errors
    /// Of the operating system, here or at the agent.
    pub(super) fn command(&self, kind: u32, parts: &[CommandPart]) -> io::Result<Vec<u32>> {
        assert!(parts.len() <= RANGES_MAX, "the caller asks for as many ranges as fit");
        let page = self.shared.command();
        for ((address, pages), range) in parts.iter().zip(&page.ranges) {
            let CommandRange { address: to, pages: count, done } = range;
            to.store(*address, Ordering::Relaxed);
            count.store(*pages, Ordering::Relaxed);
            done.store(0, Ordering::Relaxed);
        }
        page.kind.store(kind, Ordering::Relaxed);
        page.count.store(parts.len() as u32, Ordering::Relaxed);
        page.error.store(0, Ordering::Release);
        self.socket.exchange_byte(COMMAND)?;
        match page.error.load(Ordering::Acquire) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
        let done =
            parts.iter().zip(&page.ranges).map(|((_, pages), range)| range.done.load(Ordering::Relaxed).min(*pages));
        Ok(done.collect())
    }

    /// Copies pages out of the bounce buffer.
    pub(super) fn copy_bounce(&self, first: u32, pages: u32) -> Vec<u8> {
        self.shared.copy_bounce(first as usize * PAGE_BYTES, pages as usize * PAGE_BYTES)
    }
}
