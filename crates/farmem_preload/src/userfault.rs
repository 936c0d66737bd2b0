//! The calls of userfaultfd that only the process itself may make: to open one, and to move pages.

#![allow(unsafe_code)]

use bare::system_call::{Errno, system_call};

use crate::connection::Descriptor;

const TYPE: u64 = 0xaa;
/// `USERFAULTFD_IOC_NEW`, of `/dev/userfaultfd`.
const NEW: u64 = TYPE << 8;
/// `UFFDIO_MOVE`: a structure goes in and comes back.
pub(crate) const MOVE: u64 = 3 << 30 | (size_of::<MoveRequest>() as u64) << 16 | TYPE << 8 | 0x05;

/// `struct uffdio_move`.
#[repr(C)]
struct MoveRequest {
    target: u64,
    source: u64,
    bytes: u64,
    mode: u64,
    moved: i64,
}

/// Opens a userfaultfd: through the device, which its permissions guard, or else by the system call, which needs a capability or
/// a setting. The server enables it.
///
/// # Errors
/// Of the operating system.
pub(crate) fn open(device: Option<&Descriptor>) -> Result<Descriptor, Errno> {
    let flags = libc::O_CLOEXEC as usize;
    // SAFETY: neither call has a memory argument.
    let opened = match device {
        Some(device) => unsafe { system_call(libc::SYS_ioctl, [device.number() as usize, NEW as usize, flags]) },
        None => unsafe { system_call(libc::SYS_userfaultfd, [flags]) },
    };
    opened.map(Descriptor::new)
}

/// Moves present pages to absent ones. Returns how many bytes one call has moved: 0 if it has to be repeated.
///
/// # Safety
/// The target belongs to the caller. The source may belong to anybody: who uses it waits for the page's fault.
///
/// # Errors
/// Of the operating system.
pub(crate) unsafe fn move_some(faults: i32, target: usize, source: usize, bytes: usize) -> Result<usize, Errno> {
    let mut request =
        MoveRequest { target: target as u64, source: source as u64, bytes: bytes as u64, mode: 0, moved: 0 };
    let arguments = [faults as usize, MOVE as usize, &raw mut request as usize];
    // SAFETY: the kernel reads and writes the structure whose size the number has; the caller answers for the pages.
    match unsafe { system_call(libc::SYS_ioctl, arguments) } {
        Ok(_) => Ok(bytes),
        // What was moved counts, whatever stopped it; the next call meets the same obstacle.
        Err(_) if request.moved > 0 => Ok(request.moved as usize),
        Err(Errno(libc::EAGAIN)) => Ok(0),
        Err(error) => Err(error),
    }
}
