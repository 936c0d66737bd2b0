//! userfaultfd: page faults that a program handles itself (Linux' `Documentation/admin-guide/mm/userfaultfd.rst`).
//!
//! The crate `userfaultfd` knows neither `UFFDIO_MOVE` nor `UFFDIO_POISON`, on which eviction and losses stand here; so this
//! module has the few structures of `linux/userfaultfd.h` that it needs.
//!
//! No event but the page fault is asked for. So the kernel never waits for another event to be read before it moves or
//! copies pages; `EAGAIN` is retried all the same.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use super::mapping::Mapping;
use crate::error::Error;
use crate::page::PAGE_BYTES;

const API_VERSION: u64 = 0xaa;

const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_POISON: u64 = 1 << 14;
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURES: u64 = FEATURE_WRITE_PROTECT | FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 2;
const COPY_WRITE_PROTECTED: u64 = 2;
const EVENT_PAGE_FAULT: u8 = 0x12;
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

/// A message of the kernel, as far as page faults use it.
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

/// A page fault of a thread of this process.
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

/// A userfaultfd of this process.
pub(crate) struct UserFaults {
    file: OwnedFd,
}

impl UserFaults {
    /// Opens one, with what this crate needs of it.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`].
    pub(crate) fn open() -> Result<UserFaults, Error> {
        let file = open_file().map_err(|error| Error::NoUserFaults(error.to_string()))?;
        let faults = UserFaults { file };
        let mut api = ApiRequest { api: API_VERSION, features: FEATURES, ioctls: 0 };
        faults.call(API, &mut api).map_err(|error| {
            let lacks = "the kernel lacks write protection, moves or poisoned pages";
            Error::NoUserFaults(if error.kind() == io::ErrorKind::InvalidInput {
                lacks.into()
            } else {
                error.to_string()
            })
        })?;
        Ok(faults)
    }

    /// Moves a page of zeros, which Linux 6.8 refuses as if a device were using it: such a page could never leave a region.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`], [`Error::System`].
    pub(crate) fn check_moves(&self) -> Result<(), Error> {
        let pages = Mapping::reserve(2 * PAGE_BYTES)?;
        self.register(&pages, false)?;
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

    /// Has faults of a mapping reported here. With `protects`, pages of it can be write-protected.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn register(&self, mapping: &Mapping, protects: bool) -> Result<(), Error> {
        let range = AddressRange { start: mapping.address(), bytes: mapping.len() as u64 };
        let mode = if protects { REGISTER_MISSING | REGISTER_WRITE_PROTECT } else { REGISTER_MISSING };
        let mut register = RegisterRequest { range, mode, ioctls: 0 };
        self.call(REGISTER, &mut register).map_err(|error| Error::from_io("cannot register far memory", &error))
    }

    /// Waits for faults, and appends them.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wait(&self, faults: &mut Vec<PageFault>) -> io::Result<()> {
        let mut messages = [FaultMessage::default(); FAULTS_MAX];
        let bytes = size_of_val(&messages);
        // SAFETY: the kernel writes at most `bytes` bytes to the array, which is plain data.
        let read = unsafe { libc::read(self.file.as_raw_fd(), messages.as_mut_ptr().cast(), bytes) };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            let again = matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
            return if again { Ok(()) } else { Err(error) };
        };
        let arrived = messages.iter().take(read / size_of::<FaultMessage>());
        faults.extend(arrived.filter(|message| message.event == EVENT_PAGE_FAULT).map(|message| PageFault {
            address: message.address,
            is_write: message.flags & (FAULT_WRITE | FAULT_WRITE_PROTECTED) != 0,
            thread: message.thread,
        }));
        Ok(())
    }

    /// Maps a copy of `bytes` at absent pages, and wakes their threads.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn copy(&self, target: u64, bytes: &[u8], is_protected: bool) -> io::Result<()> {
        let mode = if is_protected { COPY_WRITE_PROTECTED } else { 0 };
        let mut done = 0;
        while done < bytes.len() {
            let source = bytes[done..].as_ptr() as u64;
            let (target, length) = (target + done as u64, (bytes.len() - done) as u64);
            let mut copy = TransferRequest { target, source, bytes: length, mode, done: 0 };
            done += progress(self.call(COPY, &mut copy), copy.done, length)?;
        }
        Ok(())
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
        let mut done = 0;
        while done < bytes {
            let range = AddressRange { start: target + done, bytes: bytes - done };
            let mut call = RangeRequest { range, mode: 0, done: 0 };
            done += progress(self.call(number, &mut call), call.done, bytes - done)? as u64;
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
            match progress(self.call(MOVE, &mut call), call.done, bytes - done) {
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    /// Wakes threads that wait for these pages; they try their accesses again.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn wake(&self, target: u64, bytes: u64) -> io::Result<()> {
        self.call(WAKE, &mut AddressRange { start: target, bytes })
    }
}

/// How many bytes a call has done, of those that were asked for. A call that was interrupted reports a part, or none.
fn progress(outcome: io::Result<()>, done: i64, bytes: u64) -> io::Result<usize> {
    match outcome {
        Ok(()) => Ok(bytes as usize),
        // What was done counts, whatever stopped it; the next call meets the same obstacle.
        Err(_) if done > 0 => Ok(done as usize),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
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
