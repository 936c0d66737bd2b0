//! The agent: a thread that does for the server what the kernel allows only to the process itself.
//!
//! 1. It waits for a byte on the socket, executes the command in the shared memory, and answers with a byte.
//! 2. When the server closes the socket, nobody serves the program's faults any more: the agent ends the program.
//!
//! The program's threads wait for pages while they hold any lock, and the server may need the agent before it can fill them. So the
//! agent takes no lock and touches nothing of the program: its stack is a local mapping, it calls nothing of the C library, and
//! has no thread block of its own (`thread`). Its table of descriptors is its own as well, so a program that closes
//! descriptors it does not know does not end its agent, and the agent keeps no file of the program open but standard error, for
//! its last message. Its copy of the userfaultfd has the program's threads wait, rather than read zeros, in the moment between the
//! end of the server and the end of the program.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use bare::memory::bare_memory_copy;
use bare::system_call::{Errno, advise, pause, system_call, wait_for_word, wake_word};
use bare::thread;
use farmem_control::{
    BOUNCE_OFFSET, BUFFER_PAGES, COMMAND_OFFSET, CommandPage, CommandRange, PAGE_BYTES, RANGES_MAX, command,
};

use crate::connection::Descriptor;
use crate::far_heap::Reservation;
use crate::message::end_program;
use crate::sandbox;
use crate::userfault::move_some;

/// The name that tools show.
const NAME: &std::ffi::CStr = c"farmem-agent";

/// How long to wait before a page is moved that could not be moved for now.
const BUSY_PAUSE_MICROSECONDS: i64 = 50;

/// 1 as soon as the agent has closed what it does not need.
static READY: AtomicU32 = AtomicU32::new(0);

/// Starts the agent of this process. It has copies of the descriptors when this returns, and none of the others.
///
/// # Errors
/// Of the operating system.
pub(crate) fn start(
    socket: &Descriptor,
    faults: &Descriptor,
    reservation: Reservation,
    shared: usize,
) -> Result<(), Errno> {
    READY.store(0, Ordering::Relaxed);
    let agent = Agent { socket: socket.number(), faults: faults.number(), process: None, reservation, shared };
    thread::start(run, agent)?;
    while READY.load(Ordering::Acquire) == 0 {
        wait_for_word(&READY, 0);
    }
    Ok(())
}

extern "C" fn run(agent: &mut Agent) -> ! {
    // SAFETY: the kernel reads the name.
    let _ = unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr() as usize]) };
    agent.close_others();
    READY.store(1, Ordering::Release);
    wake_word(&READY);
    agent.process = own_process();
    sandbox::enter();
    loop {
        agent.wait_for_command();
        agent.execute();
        agent.answer();
    }
}

/// A descriptor of this process, for calls that drop many ranges at once.
fn own_process() -> Option<i32> {
    // SAFETY: neither call has a memory argument.
    let process =
        unsafe { system_call(libc::SYS_getpid, []).and_then(|number| system_call(libc::SYS_pidfd_open, [number, 0])) };
    process.ok().map(|number| number as i32)
}

/// What the agent works with. It lies at the upper end of its stack.
struct Agent {
    socket: i32,
    faults: i32,
    /// None where the kernel does not drop many ranges at once (before Linux 6.13).
    process: Option<i32>,
    reservation: Reservation,
    shared: usize,
}

/// A range of a command, checked.
struct PageRange {
    address: usize,
    pages: usize,
    /// Where its first page goes in both buffers, in bytes.
    offset: usize,
}

impl Agent {
    /// Closes all descriptors but the socket, the userfaultfd and standard error.
    fn close_others(&self) {
        let (low, high) = (self.socket.min(self.faults) as usize, self.socket.max(self.faults) as usize);
        let standard_error = libc::STDERR_FILENO as usize;
        let gaps =
            [(0, standard_error - 1), (standard_error + 1, low - 1), (low + 1, high - 1), (high + 1, usize::MAX)];
        for (first, last) in gaps {
            if first <= last {
                // SAFETY: the table is this thread's own, and nobody knows the descriptors in it.
                let _ = unsafe { system_call(libc::SYS_close_range, [first, last.min(u32::MAX as usize), 0]) };
            }
        }
    }

    fn wait_for_command(&self) {
        let mut byte = 0_u8;
        let arguments = [self.socket as usize, &raw mut byte as usize, 1, 0, 0, 0];
        loop {
            // SAFETY: the kernel writes one byte.
            match unsafe { system_call(libc::SYS_recvfrom, arguments) } {
                Ok(1) => return,
                Err(Errno(libc::EINTR)) => {}
                _ => end(),
            }
        }
    }

    fn answer(&self) {
        let byte = 0_u8;
        let flags = libc::MSG_NOSIGNAL as usize;
        // SAFETY: the kernel reads one byte.
        let sent =
            unsafe { system_call(libc::SYS_sendto, [self.socket as usize, &raw const byte as usize, 1, flags, 0, 0]) };
        if sent.is_err() {
            end();
        }
    }

    fn execute(&mut self) {
        // SAFETY: the page lies in the shared memory, which is mapped as long as the process lives, and consists of atomic
        // numbers.
        let page = unsafe { &*((self.shared + COMMAND_OFFSET) as *const CommandPage) };
        let count = (page.count.load(Ordering::Relaxed) as usize).min(RANGES_MAX);
        let ranges = page.ranges.get(..count).unwrap_or_default();
        ranges.iter().for_each(|range| range.done.store(0, Ordering::Relaxed));
        let outcome = match page.kind.load(Ordering::Acquire) {
            command::MOVE => self.move_out(ranges, false),
            command::MOVE_SHARED => self.move_out(ranges, true),
            command::DROP => self.drop_pages(ranges),
            _ => Err(Errno(libc::EINVAL)),
        };
        page.error.store(outcome.map_or_else(|error| error.0 as u32, |()| 0), Ordering::Release);
    }

    /// # Errors
    /// `EFAULT` if the range is not one of the region.
    fn check(&self, range: &CommandRange, offset: usize) -> Result<PageRange, Errno> {
        let address = range.address.load(Ordering::Relaxed) as usize;
        let pages = range.pages.load(Ordering::Relaxed) as usize;
        let is_whole = address.is_multiple_of(PAGE_BYTES);
        if !is_whole || !self.reservation.has_in_region(address, pages * PAGE_BYTES) {
            return Err(Errno(libc::EFAULT));
        }
        Ok(PageRange { address, pages, offset })
    }

    /// Moves ranges into the eviction buffer, and copies them to the bounce buffer. What was moved before an error is copied too.
    fn move_out(&self, ranges: &[CommandRange], is_shared: bool) -> Result<(), Errno> {
        let mut end = 0;
        let moved = ranges.iter().try_for_each(|range| {
            let place = self.check(range, end)?;
            end += place.pages * PAGE_BYTES;
            if end > BUFFER_PAGES as usize * PAGE_BYTES {
                end = place.offset;
                return Err(Errno(libc::EFAULT));
            }
            self.move_range(range, &place, is_shared)
        });
        if end > 0 {
            // SAFETY: the buffer is the agent's, and was copied.
            unsafe { advise(self.reservation.buffer(), end, libc::MADV_DONTNEED) }?;
        }
        moved
    }

    fn move_range(&self, range: &CommandRange, place: &PageRange, is_shared: bool) -> Result<(), Errno> {
        let bytes = place.pages * PAGE_BYTES;
        if is_shared {
            // SAFETY: the call changes no content. A page that it cannot make the program's own is not moved below.
            let _ = unsafe { advise(place.address, bytes, libc::MADV_POPULATE_WRITE) };
        }
        let target = self.reservation.buffer() + place.offset;
        let mut done = 0;
        let outcome = self.move_pages(target, place.address, bytes, &mut done);
        // SAFETY: as many bytes were moved to the buffer, which is the agent's; the bounce buffer is as long.
        unsafe { bare_memory_copy((self.shared + BOUNCE_OFFSET + place.offset) as *mut u8, target as *const u8, done) };
        range.done.store((done / PAGE_BYTES) as u32, Ordering::Relaxed);
        outcome
    }

    /// Moves pages up to the first one that the kernel does not move: a device is using it, parent and child of a fork
    /// share it, or the program may not write it. A range with different protections is moved page by page, since one call works
    /// within one mapping.
    fn move_pages(&self, target: usize, source: usize, bytes: usize, done: &mut usize) -> Result<(), Errno> {
        let (mut step, mut has_emptied) = (bytes, false);
        while *done < bytes {
            let length = step.min(bytes - *done);
            // SAFETY: the buffer is the agent's, and absent from `done` on.
            match unsafe { move_some(self.faults, target + *done, source + *done, length) } {
                // The server has to read the event of a fork first.
                Ok(0) => pause(BUSY_PAUSE_MICROSECONDS),
                Ok(moved) => *done += moved,
                Err(Errno(libc::EINVAL)) if length > PAGE_BYTES => step = PAGE_BYTES,
                Err(Errno(libc::EEXIST)) if !has_emptied => {
                    // Of this command nothing is there yet, and what earlier ones moved was copied. Had the kernel moved a page and not
                    // said so, the next call would fail, since the page would be nowhere.
                    has_emptied = true;
                    // SAFETY: the buffer is the agent's, and holds nothing from `done` on that is needed.
                    unsafe { advise(target + *done, bytes - *done, libc::MADV_DONTNEED) }?;
                }
                Err(Errno(libc::EBUSY | libc::EINVAL)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn drop_pages(&mut self, ranges: &[CommandRange]) -> Result<(), Errno> {
        let is_done = ranges.len() > 1 && self.drop_together(ranges)?;
        for range in ranges {
            let place = self.check(range, 0)?;
            if !is_done {
                // SAFETY: the range is one of the region, and the server has the content.
                unsafe { advise(place.address, place.pages * PAGE_BYTES, libc::MADV_DONTNEED) }?;
            }
            range.done.store(place.pages as u32, Ordering::Relaxed);
        }
        Ok(())
    }

    /// False if the kernel refuses the call, or did only a part of it; dropping the rest again does no harm.
    fn drop_together(&mut self, ranges: &[CommandRange]) -> Result<bool, Errno> {
        let Some(process) = self.process else { return Ok(false) };
        let mut vector: [MaybeUninit<libc::iovec>; RANGES_MAX] = [const { MaybeUninit::uninit() }; RANGES_MAX];
        let mut total = 0;
        for (part, range) in vector.iter_mut().zip(ranges) {
            let place = self.check(range, 0)?;
            let bytes = place.pages * PAGE_BYTES;
            part.write(libc::iovec { iov_base: place.address as *mut libc::c_void, iov_len: bytes });
            total += bytes;
        }
        let advice = libc::MADV_DONTNEED as usize;
        let arguments = [process as usize, vector.as_ptr() as usize, ranges.len(), advice, 0];
        // SAFETY: the kernel reads as many parts as there are ranges; they lie in the region, and the server has the content.
        match unsafe { system_call(libc::SYS_process_madvise, arguments) } {
            Ok(dropped) => Ok(dropped == total),
            Err(_) => {
                self.process = None;
                Ok(false)
            }
        }
    }
}

fn end() -> ! {
    end_program(&["the process that serves this program's far memory has ended, so this program ends"])
}
