//! userfaultfd: page faults that a program handles itself (Linux' `Documentation/admin-guide/mm/userfaultfd.rst`).
//!
//! The crate `userfaultfd` knows neither `UFFDIO_MOVE` nor `UFFDIO_POISON`, on which eviction and losses stand here; so this
//! module has the few structures of `linux/userfaultfd.h` that it needs.
//!
//! Of this process no event but the page fault is asked for, so the kernel never waits for another event to be read before it
//! moves or copies pages. Of a program that may fork the kernel reports forks too, and refuses every change with `EAGAIN`
//! while such an event is unread. So the thread that reads events does so before it tries again ([`UserFaults::relieve`]).

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::mapping::Mapping;
use crate::error::Error;
use crate::page::PAGE_BYTES;

const API_VERSION: u64 = 0xaa;

const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_EVENT_FORK: u64 = 1 << 1;
const FEATURE_SIGNAL: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURES: u64 = FEATURE_WRITE_PROTECT | FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 2;
const COPY_WRITE_PROTECTED: u64 = 2;
const EVENT_PAGE_FAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const FAULT_WRITE: u64 = 1;
const FAULT_WRITE_PROTECTED: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AddressRange {
    start: u64,
    bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RegisterRequest {
    range: AddressRange,
    mode: u64,
    ioctls: u64,
}

/// Of both `UFFDIO_COPY` and `UFFDIO_MOVE`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TransferRequest {
    target: u64,
    source: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

/// Of both `UFFDIO_ZEROPAGE` and `UFFDIO_POISON`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RangeRequest {
    range: AddressRange,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProtectRequest {
    range: AddressRange,
    mode: u64,
}

/// A message of the kernel, as page faults use it. That of a fork has the child's descriptor in place of the flags.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FaultMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    padding: u32,
}

const _: () = assert!(size_of::<FaultMessage>() == 32, "struct uffd_msg has 32 bytes");

/// The number of an `ioctl` of userfaultfd: its direction (3: in and out, 2: out as the kernel calls it, 0: no argument), the
/// size of its argument, its number.
const fn request(direction: u64, bytes: usize, number: u64) -> libc::Ioctl {
    (direction << 30 | (bytes as u64) << 16 | API_VERSION << 8 | number) as libc::Ioctl
}

const NEW: libc::Ioctl = request(0, 0, 0x00);
const API: libc::Ioctl = request(3, size_of::<ApiRequest>(), 0x3f);
const REGISTER: libc::Ioctl = request(3, size_of::<RegisterRequest>(), 0x00);
const WAKE: libc::Ioctl = request(2, size_of::<AddressRange>(), 0x02);
const COPY: libc::Ioctl = request(3, size_of::<TransferRequest>(), 0x03);
const ZERO: libc::Ioctl = request(3, size_of::<RangeRequest>(), 0x04);
const MOVE: libc::Ioctl = request(3, size_of::<TransferRequest>(), 0x05);
const PROTECT: libc::Ioctl = request(3, size_of::<ProtectRequest>(), 0x06);
const POISON: libc::Ioctl = request(3, size_of::<RangeRequest>(), 0x08);

/// What the kernel reports.
pub(crate) enum UserEvent {
    /// A thread waits for a page.
    Fault(PageFault),
    /// The process has forked. The userfaultfd reports the child's faults.
    Forked(UserFaults),
}

/// A page fault of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageFault {
    pub(crate) address: u64,
    /// The access was a write, to an absent or to a write-protected page.
    pub(crate) is_write: bool,
    /// The kernel's number of the thread.
    pub(crate) thread: u32,
}

/// Faults that are taken from the kernel with one call.
const FAULTS_MAX: usize = 16;

/// A userfaultfd, of this process or of a program.
pub(crate) struct UserFaults {
    file: OwnedFd,
    /// What was read while the kernel refused changes.
    unhandled: Mutex<Vec<UserEvent>>,
    /// The thread that reads events; 0 before it has begun.
    reader: AtomicI32,
    reports_forks: bool,
}

impl UserFaults {
    /// Opens one, with what this crate needs of it.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`].
    pub(crate) fn open() -> Result<UserFaults, Error> {
        UserFaults::open_with(FEATURES)
    }

    /// Opens one that reports no fault: instead the thread gets a SIGBUS, and a system call fails with `EFAULT`.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`].
    pub(crate) fn open_signalling() -> Result<UserFaults, Error> {
        UserFaults::open_with(FEATURES | FEATURE_SIGNAL)
    }

    fn open_with(features: u64) -> Result<UserFaults, Error> {
        let file = open_file().map_err(|error| Error::NoUserFaults(error.to_string()))?;
        let faults = UserFaults::new(file, false);
        faults.enable(features)?;
        Ok(faults)
    }

    /// That of a program, which has just opened it, with what this crate needs of it. Forks are reported if this process may
    /// ask for that (`CAP_SYS_PTRACE`).
    ///
    /// # Errors
    /// [`Error::NoUserFaults`], [`Error::System`].
    pub(crate) fn of_program(file: OwnedFd) -> Result<UserFaults, Error> {
        if !is_userfaultfd(&file) {
            return Err(Error::NoUserFaults("the program has sent another file than a userfaultfd".to_owned()));
        }
        let mut faults = UserFaults::new(file, true);
        // A request that fails leaves the descriptor as it was.
        if faults.enable(FEATURES | FEATURE_EVENT_FORK).is_err() {
            faults.reports_forks = false;
            faults.enable(FEATURES)?;
        }
        faults.do_not_block()?;
        Ok(faults)
    }

    fn new(file: OwnedFd, reports_forks: bool) -> UserFaults {
        UserFaults { file, unhandled: Mutex::default(), reader: AtomicI32::new(0), reports_forks }
    }

    fn enable(&self, features: u64) -> Result<(), Error> {
        let mut api = ApiRequest { api: API_VERSION, features, ioctls: 0 };
        self.call(API, &mut api).map_err(|error| {
            let lacks = "the kernel lacks write protection, moves or poisoned pages";
            Error::NoUserFaults(if error.kind() == io::ErrorKind::InvalidInput {
                lacks.into()
            } else {
                error.to_string()
            })
        })
    }

    /// Has reads return at once, so that the descriptor can be polled.
    fn do_not_block(&self) -> Result<(), Error> {
        let set = rustix::fs::fcntl_setfl(&self.file, rustix::fs::OFlags::NONBLOCK);
        set.map_err(|error| Error::from_io("cannot set up a userfaultfd", &error.into()))
    }

    /// Whether forks of the process are reported.
    pub(crate) fn reports_forks(&self) -> bool {
        self.reports_forks
    }

    /// The descriptor, to poll it or to pass it on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Says that the calling thread is the one that reads events.
    pub(crate) fn set_reader(&self) {
        self.reader.store(thread_number(), Ordering::Relaxed);
    }

    /// Reads events that can wait, since the kernel refuses changes until they are read.
    pub(crate) fn relieve(&self) {
        if self.reports_forks && self.reader.load(Ordering::Relaxed) == thread_number() {
            let mut events = Vec::new();
            // An error shows itself at the next read.
            let _ = self.read_kernel(&mut events);
            self.unhandled().append(&mut events);
        } else {
            std::thread::yield_now();
        }
    }

    fn unhandled(&self) -> MutexGuard<'_, Vec<UserEvent>> {
        // Consistent between any two statements.
        self.unhandled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are events that were read and not returned.
    pub(crate) fn has_unhandled(&self) -> bool {
        !self.unhandled().is_empty()
    }

    /// Moves a page of zeros, which Linux 6.8 refuses as if a device were using it: such a page could never leave a region.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`], [`Error::System`].
    pub(crate) fn check_moves(&self) -> Result<(), Error> {
        let pages = Mapping::reserve(2 * PAGE_BYTES)?;
        self.register(pages.address(), pages.len() as u64, false)?;
        let bytes = PAGE_BYTES as u64;
        let zeroed = self.zero(pages.address(), bytes);
        let moved = zeroed.and_then(|()| self.move_pages(pages.address() + bytes, pages.address(), bytes));
        match moved.map_err(|error| Error::from_io("cannot try how the kernel moves pages", &error))? {
            0 => Err(Error::NoUserFaults(
                "the kernel does not move pages of zeros, as Linux does from 6.9 on".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Executes an `ioctl`. Each constant of this module is used with the structure whose size it carries.
    fn call<T>(&self, number: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the kernel reads and writes as many bytes at `argument` as the number of the request says, which is the size of
        // `T`. The memory that the structure names is checked by the kernel: it belongs to mappings that were registered here.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has faults of a range of anonymous memory reported here. With `protects`, pages of it can be write-protected.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn register(&self, start: u64, bytes: u64, protects: bool) -> Result<(), Error> {
        let range = AddressRange { start, bytes };
        let mode = if protects { REGISTER_MISSING | REGISTER_WRITE_PROTECT } else { REGISTER_MISSING };
        let mut register = RegisterRequest { range, mode, ioctls: 0 };
        self.call(REGISTER, &mut register).map_err(|error| Error::from_io("cannot register far memory", &error))
    }

    /// Reads events, and appends them. Waits for one, unless the userfaultfd is that of a program.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn read(&self, events: &mut Vec<UserEvent>) -> io::Result<()> {
        if self.reports_forks {
            events.append(&mut self.unhandled());
        }
        if events.is_empty() { self.read_kernel(events) } else { Ok(()) }
    }

    fn read_kernel(&self, events: &mut Vec<UserEvent>) -> io::Result<()> {
        let mut messages = [FaultMessage::default(); FAULTS_MAX];
        let bytes = size_of_val(&messages);
        // SAFETY: the kernel writes at most `bytes` bytes to the array, which is plain data.
        let read = unsafe { libc::read(self.file.as_raw_fd(), messages.as_mut_ptr().cast(), bytes) };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => Ok(()),
                // There is no descriptor for the child of a fork, whose event stays for later.
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                    pause();
                    Ok(())
                }
                _ => Err(error),
            };
        };
        let arrived = messages.iter().take(read / size_of::<FaultMessage>());
        events.extend(arrived.filter_map(|message| match message.event {
            EVENT_PAGE_FAULT => Some(UserEvent::Fault(PageFault {
                address: message.address,
                is_write: message.flags & (FAULT_WRITE | FAULT_WRITE_PROTECTED) != 0,
                thread: message.thread,
            })),
            EVENT_FORK => {
                // SAFETY: the kernel has just given this descriptor to us alone; it is the kernel that wrote the message (`of_program`).
                let child = UserFaults::new(unsafe { OwnedFd::from_raw_fd(message.flags as u32 as libc::c_int) }, true);
                // It cannot fail on a descriptor that is open; if it did, the reads of the child's handler would say so.
                let _ = child.do_not_block();
                Some(UserEvent::Forked(child))
            }
            _ => None,
        }));
        Ok(())
    }

    /// Maps a copy of `bytes` at absent pages, and wakes their threads.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn copy(&self, target: u64, bytes: &[u8], is_protected: bool) -> io::Result<()> {
        let mode = if is_protected { COPY_WRITE_PROTECTED } else { 0 };
        self.in_mappings(bytes.len() as u64, |done, length| {
            let source = bytes[done as usize..].as_ptr() as u64;
            let mut copy = TransferRequest { target: target + done, source, bytes: length, mode, done: 0 };
            self.progress(COPY, &mut copy, |copy| copy.done, length)
        })
    }

    /// Maps zeros at absent pages, and wakes their threads.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn zero(&self, target: u64, bytes: u64) -> io::Result<()> {
        self.over_range(ZERO, target, bytes)
    }

    /// Makes absent pages signal each access, and wakes their threads.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn poison(&self, target: u64, bytes: u64) -> io::Result<()> {
        self.over_range(POISON, target, bytes)
    }

    fn over_range(&self, number: libc::Ioctl, target: u64, bytes: u64) -> io::Result<()> {
        self.in_mappings(bytes, |done, length| {
            let mut call =
                RangeRequest { range: AddressRange { start: target + done, bytes: length }, mode: 0, done: 0 };
            self.progress(number, &mut call, |call| call.done, length)
        })
    }

    /// Calls the kernel until all bytes are done: with the whole rest, or page by page where the rest is not one mapping, because a
    /// program has changed the protection of some of its pages.
    fn in_mappings(&self, bytes: u64, call: impl Fn(u64, u64) -> io::Result<usize>) -> io::Result<()> {
        let (mut done, mut step) = (0, bytes);
        while done < bytes {
            let length = step.min(bytes - done);
            match call(done, length) {
                Ok(more) => done += more as u64,
                Err(error) if error.kind() == io::ErrorKind::NotFound && length > PAGE_BYTES as u64 => {
                    step = PAGE_BYTES as u64;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves present pages to absent ones, which takes them out of the program's sight at once. Returns how many bytes were moved;
    /// fewer than asked for when the page behind them cannot be moved now, because a device is using it.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn move_pages(&self, target: u64, source: u64, bytes: u64) -> io::Result<u64> {
        let mut done = 0;
        while done < bytes {
            let mut call =
                TransferRequest { target: target + done, source: source + done, bytes: bytes - done, mode: 0, done: 0 };
            match self.progress(MOVE, &mut call, |call| call.done, bytes - done) {
                Ok(moved) => done += moved as u64,
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Lifts the write protection of present pages, and wakes their threads.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn unprotect(&self, target: u64, bytes: u64) -> io::Result<()> {
        let mut protect = ProtectRequest { range: AddressRange { start: target, bytes }, mode: 0 };
        loop {
            match self.call(PROTECT, &mut protect) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.relieve(),
                outcome => return outcome,
            }
        }
    }

    /// Whether the process has its memory still: it has not ended, and executes the same program. `page` is the address of a
    /// page that was registered without write protection.
    pub(crate) fn has_process(&self, page: u64) -> bool {
        // The kernel refuses this, but first it looks whether the memory is there.
        let refused = self.unprotect(page, PAGE_BYTES as u64);
        refused.err().is_none_or(|error| error.raw_os_error() != Some(libc::ESRCH))
    }

    /// Wakes threads that wait for these pages; they try their accesses again.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wake(&self, target: u64, bytes: u64) -> io::Result<()> {
        self.call(WAKE, &mut AddressRange { start: target, bytes })
    }

    /// Calls the kernel; how many bytes it has done, of those that were asked for. A call that was interrupted reports a part, or
    /// none.
    fn progress<T>(
        &self,
        number: libc::Ioctl,
        argument: &mut T,
        done: impl Fn(&T) -> i64,
        bytes: u64,
    ) -> io::Result<usize> {
        match self.call(number, argument) {
            Ok(()) => Ok(bytes as usize),
            // What was done counts, whatever stopped it; the next call meets the same obstacle.
            Err(_) if done(argument) > 0 => Ok(done(argument) as usize),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.relieve();
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

/// How long to wait for descriptors or memory.
const RESOURCE_PAUSE: Duration = Duration::from_millis(10);

#[allow(clippy::disallowed_methods)] // The thread blocks in the kernel anyway, and there is no simulation of page faults.
fn pause() {
    std::thread::sleep(RESOURCE_PAUSE);
}

/// Whether the file is what its sender says. Others might answer the same requests, and events of theirs would name descriptors
/// of this process.
fn is_userfaultfd(file: &OwnedFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

/// The kernel's number of the calling thread.
fn thread_number() -> i32 {
    // SAFETY: the call has no argument.
    unsafe { libc::gettid() }
}

/// Opens through the device, which its permissions guard, or by the system call, which needs a capability or a setting.
fn open_file() -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open("/dev/userfaultfd");
    // SAFETY: both calls have no memory argument.
    let file = match &device {
        Ok(device) => unsafe { libc::ioctl(device.as_raw_fd(), NEW, libc::O_CLOEXEC) },
        Err(_) => unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as libc::c_int },
    };
    match (file, device) {
        // SAFETY: the kernel has just given this descriptor to us alone.
        (0.., _) => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        (_, Ok(_)) => Err(io::Error::last_os_error()),
        (_, Err(device)) => {
            let call = io::Error::last_os_error();
            Err(io::Error::other(format!("/dev/userfaultfd: {device}; userfaultfd(2): {call}")))
        }
    }
}
