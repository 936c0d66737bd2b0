//! userfaultfd, of the process itself (Linux' `Documentation/admin-guide/mm/userfaultfd.rst`).

#![allow(unsafe_code)]

use crate::PAGE_BYTES;
use crate::system_call::{Errno, system_call};

const API_VERSION: u64 = 0xaa;

/// Write protection of registered pages.
pub const FEATURE_WRITE_PROTECT: u64 = 1;
/// `mremap` of registered memory is reported.
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
/// `madvise` that drops registered pages is reported.
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
/// `munmap` of registered memory is reported.
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// A fault is a signal to the thread itself (`SIGBUS`).
pub const FEATURE_SIGNAL: u64 = 1 << 7;
/// Pages can be moved.
pub const FEATURE_MOVE: u64 = 1 << 16;

const MODE_MISSING: u64 = 1;
const MODE_PROTECT: u64 = 2;
const MODE_COPY_PROTECTED: u64 = 2;
const EVENT_PAGE_FAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const FAULT_WRITE: u64 = 1;
const FAULT_PROTECTED: u64 = 2;

const fn request(direction: u64, bytes: usize, number: u64) -> usize {
    (direction << 30 | (bytes as u64) << 16 | API_VERSION << 8 | number) as usize
}

const NEW: usize = request(0, 0, 0x00);
const API: usize = request(3, 24, 0x3f);
const REGISTER: usize = request(3, 32, 0x00);
const WAKE: usize = request(2, 16, 0x02);
const COPY: usize = request(3, 40, 0x03);
const ZERO: usize = request(3, 32, 0x04);
const MOVE: usize = request(3, 40, 0x05);
const PROTECT: usize = request(3, 24, 0x06);

/// Calls again as long as the kernel says `EAGAIN`: for a userfaultfd without events.
///
/// # Errors
/// Any other.
pub fn persist(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno(libc::EAGAIN)) => {}
            outcome => return outcome,
        }
    }
}

/// The requests that the methods of [`UserFaults`] make, for a filter of system calls.
pub const REQUESTS: [u32; 6] = [REGISTER as u32, WAKE as u32, COPY as u32, ZERO as u32, MOVE as u32, PROTECT as u32];

/// What the kernel reports of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// The address of the access.
        address: u64,
        /// It was a write.
        is_write: bool,
        /// The page is there, and write-protected.
        is_protected: bool,
    },
    /// Pages of memory are about to be dropped: from the first address to the second one.
    Dropped(u64, u64),
    /// Memory was unmapped: from the first address to the second one.
    Unmapped(u64, u64),
    /// Memory was moved by `mremap`: from, to, how many bytes.
    Remapped(u64, u64, u64),
    /// What this module does not know.
    Other,
}

const FLAGS: usize = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;

/// Opens `/dev/userfaultfd`'s descriptor for this process, or uses the system call; with these features.
///
/// # Errors
/// Of the operating system; `EINVAL` if the kernel lacks a feature.
pub fn open(features: u64) -> Result<UserFaults, Errno> {
    let path = c"/dev/userfaultfd".as_ptr() as usize;
    let at = libc::AT_FDCWD as usize;
    let mode = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
    // SAFETY: the kernel reads a static path; the other calls have no memory argument.
    let file = unsafe {
        match system_call(libc::SYS_openat, [at, path, mode, 0]) {
            Ok(device) => {
                let file = system_call(libc::SYS_ioctl, [device, NEW, FLAGS]);
                let _ = system_call(libc::SYS_close, [device]);
                file
            }
            Err(_) => system_call(libc::SYS_userfaultfd, [FLAGS]),
        }
    }?;
    begin(file, features)
}

/// The same, with `/dev/userfaultfd` that another process has opened. The descriptor that comes of it is for the memory of this process.
///
/// # Errors
/// Of the operating system; `EINVAL` if the kernel lacks a feature.
pub fn open_from(device: i32, features: u64) -> Result<UserFaults, Errno> {
    // SAFETY: the call has no memory argument.
    let file = unsafe { system_call(libc::SYS_ioctl, [device as usize, NEW, FLAGS]) }?;
    begin(file, features)
}

fn begin(file: usize, features: u64) -> Result<UserFaults, Errno> {
    let faults = UserFaults(file as i32);
    faults.call(API, &mut [API_VERSION, features, 0])?;
    Ok(faults)
}

/// A userfaultfd. It is a number, which is closed with the process.
///
/// The calls that change pages fail with `EAGAIN` while an event is unread, and may fail so for a moment at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFaults(
    /// The descriptor.
    pub i32,
);

impl UserFaults {
    /// Each constant of this module is used with an array of the size that it carries.
    fn call<const N: usize>(self, number: usize, argument: &mut [u64; N]) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes as many bytes as the number of the request says: those of the array. What memory the
        // array names, the callers of the public functions answer for.
        unsafe { system_call(libc::SYS_ioctl, [self.0 as usize, number, argument.as_mut_ptr() as usize]) }.map(|_| ())
    }

    /// Calls again until all bytes are done; `done` is where the kernel says how many.
    fn repeat<const N: usize>(
        self,
        number: usize,
        bytes: u64,
        done: usize,
        argument: impl Fn(u64) -> [u64; N],
    ) -> Result<(), Errno> {
        let mut all = 0;
        while all < bytes {
            let mut argument = argument(all);
            match self.call(number, &mut argument) {
                Ok(()) => return Ok(()),
                Err(error) => match argument[done] as i64 {
                    more if more > 0 => all = all.wrapping_add(more as u64),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Has faults of a range of private anonymous memory reported, absent pages and write-protected ones.
    ///
    /// # Errors
    /// Of the operating system: `EINVAL` for other memory, `EBUSY` if another userfaultfd has it.
    pub fn register(self, start: u64, bytes: u64) -> Result<(), Errno> {
        self.call(REGISTER, &mut [start, bytes, MODE_MISSING | MODE_PROTECT, 0])
    }

    /// Copies a page to an absent one; `EEXIST` if it is not absent. Wakes nobody.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn copy(self, page: u64, source: &[u8; PAGE_BYTES], is_protected: bool) -> Result<(), Errno> {
        const DO_NOT_WAKE: u64 = 1;
        let mode = DO_NOT_WAKE | if is_protected { MODE_COPY_PROTECTED } else { 0 };
        let source = source.as_ptr() as u64;
        self.repeat(COPY, PAGE_BYTES as u64, 4, |_| [page, source, PAGE_BYTES as u64, mode, 0])
    }

    /// Makes absent pages zero; `EEXIST` at the first one that is not absent. Wakes nobody.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn zero(self, page: u64, bytes: u64) -> Result<(), Errno> {
        const DO_NOT_WAKE: u64 = 1;
        self.repeat(ZERO, bytes, 3, |done| [page.wrapping_add(done), bytes.wrapping_sub(done), DO_NOT_WAKE, 0])
    }

    /// Moves a page: nobody sees it at its old address any more. `ENOENT` if it was absent, `EBUSY` if something holds it.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn move_page(self, target: u64, source: u64) -> Result<(), Errno> {
        self.repeat(MOVE, PAGE_BYTES as u64, 4, |_| [target, source, PAGE_BYTES as u64, 0, 0])
    }

    /// Sets or lifts the write protection of pages. Lifting it wakes the threads that wait to write.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn protect(self, page: u64, bytes: u64, is_protected: bool) -> Result<(), Errno> {
        self.call(PROTECT, &mut [page, bytes, u64::from(is_protected)])
    }

    /// Lets threads that wait for these pages try again.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn wake(self, page: u64, bytes: u64) -> Result<(), Errno> {
        self.call(WAKE, &mut [page, bytes])
    }

    /// Takes an event, if there is one.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn read(self) -> Result<Option<Event>, Errno> {
        let mut message = [0_u64; 4];
        let arguments = [self.0 as usize, message.as_mut_ptr() as usize, 32];
        // SAFETY: the kernel writes at most 32 bytes to the array.
        match unsafe { system_call(libc::SYS_read, arguments) } {
            Ok(32) => Ok(Some(event(message))),
            Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `struct uffd_msg`.
fn event([kind, first, second, third]: [u64; 4]) -> Event {
    match kind as u8 {
        EVENT_PAGE_FAULT => Event::Fault {
            address: second,
            is_write: first & (FAULT_WRITE | FAULT_PROTECTED) != 0,
            is_protected: first & FAULT_PROTECTED != 0,
        },
        EVENT_REMOVE => Event::Dropped(first, second),
        EVENT_UNMAP => Event::Unmapped(first, second),
        EVENT_REMAP => Event::Remapped(first, second, third),
        _ => Event::Other,
    }
}
