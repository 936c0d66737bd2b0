//! `mmap` and its relatives: memory of a program that is private and large lies in the far heap.
//!
//! A call whose range has pages inside and outside of the heap is executed for each part. What the heap cannot do fails as it
//! would on a small machine: with `ENOMEM`.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use bare::system_call::{Errno, Outcome, set_errno, system_call};
use farmem_control::PAGE_BYTES;

use crate::far_heap::{FAR_HEAP, FarRange, Reservation};
use crate::{local, startup};

/// Mappings that are smaller stay local: the dynamic linker's and the C library's own ones among them.
const FAR_BYTES_MIN: usize = 64 << 10;

/// Mappings with one of these flags stay local.
const LOCAL_FLAGS: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_GROWSDOWN
    | libc::MAP_32BIT
    | libc::MAP_STACK;

const READ_AND_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

// Advice that the crate `libc` does not name.
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// Returns what a function of the C library returns, and sets `errno` after a failure.
fn status(outcome: Result<(), Errno>) -> c_int {
    outcome.map_or_else(
        |error| {
            set_errno(error);
            -1
        },
        |()| 0,
    )
}

fn address(outcome: Outcome) -> *mut c_void {
    outcome.map_or_else(
        |error| {
            set_errno(error);
            libc::MAP_FAILED
        },
        ptr::with_exposed_provenance_mut,
    )
}

/// Rounds up to whole pages. `None` if that is more than there are addresses.
fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE_BYTES)
}

/// Maps memory (`mmap(2)`).
///
/// # Safety
/// That of `mmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    startup::ensure();
    let hint = hint as usize;
    // SAFETY: the caller promises it.
    let local = || unsafe { local::map(hint, length, protection, flags, file, offset) };
    let Some(reservation) = FAR_HEAP.reservation() else { return address(local()) };
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 && reservation.touches(hint, length) {
        let is_exclusive = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
        return address(Err(Errno(if is_exclusive { libc::EEXIST } else { libc::ENOMEM })));
    }
    if !is_far(length, protection, flags, offset) {
        return address(local());
    }
    let mapped = whole_pages(length).ok_or(Errno(libc::ENOMEM));
    address(mapped.and_then(|bytes| FAR_HEAP.map(reservation, hint, bytes)))
}

fn is_far(length: usize, protection: c_int, flags: c_int, offset: i64) -> bool {
    length >= FAR_BYTES_MIN
        && protection == READ_AND_WRITE
        && flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & LOCAL_FLAGS == 0
        && offset % PAGE_BYTES as i64 == 0
}

/// As [`mmap`].
///
/// # Safety
/// That of `mmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    hint: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller promises it.
    unsafe { mmap(hint, length, protection, flags, file, offset) }
}

/// The parts of a range of whole pages: below the heap, in its region, and above it. The doorbell and the eviction buffer belong to
/// none, since they are not the program's. Address and length of each; a part may be empty.
struct Parts {
    below: (usize, usize),
    far: FarRange,
    above: (usize, usize),
}

impl Parts {
    fn new(reservation: Reservation, address: usize, bytes: usize) -> Parts {
        let end = address.saturating_add(bytes);
        let part = |from: usize, to: usize| (from, to.saturating_sub(from));
        let (start, length) = part(address.max(reservation.region), end.min(reservation.doorbell()));
        Parts {
            below: part(address, end.min(reservation.region)),
            far: FarRange { address: start, bytes: length },
            above: part(address.max(reservation.end()), end),
        }
    }

    /// Executes one call for the local parts, and another one for the part in the region.
    fn each(
        &self,
        local: impl Fn(usize, usize) -> Outcome,
        far: impl FnOnce(FarRange) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if self.far.bytes > 0 {
            far(self.far)?;
        }
        for (address, bytes) in [self.below, self.above] {
            if bytes > 0 {
                local(address, bytes)?;
            }
        }
        Ok(())
    }
}

/// The parts of a range that has any in the heap; `None` if the kernel can answer the call, be it with an error.
fn far_parts(address: usize, length: usize) -> Option<(Reservation, Parts)> {
    let reservation = FAR_HEAP.reservation().filter(|reservation| reservation.touches(address, length))?;
    let bytes = whole_pages(length).filter(|_| address.is_multiple_of(PAGE_BYTES))?;
    Some((reservation, Parts::new(reservation, address, bytes)))
}

/// Unmaps memory (`munmap(2)`).
///
/// # Safety
/// That of `munmap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(start: *mut c_void, length: usize) -> c_int {
    let start = start as usize;
    // SAFETY: the caller uses the memory no more.
    let local = |address, bytes| unsafe { local::unmap(address, bytes) };
    status(match far_parts(start, length) {
        // SAFETY: as above.
        Some((reservation, parts)) => parts.each(local, |range| unsafe { FAR_HEAP.unmap(reservation, range) }),
        None => local(start, length).map(|_| ()),
    })
}

/// Advises about the use of memory (`madvise(2)`).
///
/// # Safety
/// That of `madvise`.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int {
    let start = start as usize;
    // SAFETY: the caller answers for the memory.
    let local = |address, bytes| unsafe { local::advise(address, bytes, advice) };
    status(match far_parts(start, length) {
        Some((reservation, parts)) => parts.each(local, |range| match advice {
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
                // SAFETY: the caller needs the content no more.
                unsafe { FAR_HEAP.discard(reservation, range) }.map(|_| ())
            }
            _ => advise_far(advice).unwrap_or_else(|| local(range.address, range.bytes).map(|_| ())),
        }),
        None => local(start, length).map(|_| ()),
    })
}

/// What becomes of advice about far memory; `None` if the kernel decides.
fn advise_far(advice: c_int) -> Option<Result<(), Errno>> {
    match advice {
        // The server decides which pages are resident, and none of them is huge.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_COLLAPSE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => Some(Ok(())),
        // These change or share pages behind the server's back.
        libc::MADV_REMOVE
        | libc::MADV_MERGEABLE
        | libc::MADV_DONTFORK
        | libc::MADV_WIPEONFORK
        | MADV_GUARD_INSTALL
        | MADV_GUARD_REMOVE => Some(Err(Errno(libc::EINVAL))),
        _ => None,
    }
}

/// Changes the size of a mapping (`mremap(2)`). The C library declares the last argument as optional.
///
/// # Safety
/// That of `mremap`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (old, new) = (old as usize, new as usize);
    let has_new = flags & libc::MREMAP_FIXED != 0;
    address(match FAR_HEAP.reservation() {
        Some(reservation) if reservation.touches(old, old_length.max(1)) => {
            // SAFETY: the caller promises it.
            unsafe { remap_far(reservation, old, old_length, new_length, flags) }
        }
        Some(reservation) if has_new && reservation.touches(new, new_length) => Err(Errno(libc::ENOMEM)),
        // SAFETY: the caller promises it.
        _ => unsafe { system_call(libc::SYS_mremap, [old, old_length, new_length, flags as usize, new]) },
    })
}

/// # Safety
/// That of `mremap`.
unsafe fn remap_far(
    reservation: Reservation,
    old: usize,
    old_length: usize,
    new_length: usize,
    flags: c_int,
) -> Outcome {
    if flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0 {
        return Err(Errno(libc::ENOMEM));
    }
    if flags & !libc::MREMAP_MAYMOVE != 0 || !old.is_multiple_of(PAGE_BYTES) || old_length == 0 || new_length == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let new_bytes = whole_pages(new_length).ok_or(Errno(libc::ENOMEM))?;
    let in_region = |bytes: &usize| reservation.has_in_region(old, *bytes);
    let old_bytes = whole_pages(old_length).filter(in_region).ok_or(Errno(libc::EFAULT))?;
    if new_bytes <= old_bytes {
        let tail = FarRange { address: old + new_bytes, bytes: old_bytes - new_bytes };
        if tail.bytes > 0 {
            // SAFETY: the caller uses the tail no more.
            unsafe { FAR_HEAP.unmap(reservation, tail) }?;
        }
        return Ok(old);
    }
    if FAR_HEAP.grow(reservation, old + old_bytes, new_bytes - old_bytes) {
        return Ok(old);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno(libc::ENOMEM));
    }
    let new = FAR_HEAP.map(reservation, 0, new_bytes)?;
    // SAFETY: the new range was just mapped, and is longer than the old one, which the caller uses at its new place from now on.
    unsafe {
        ptr::copy_nonoverlapping(old as *const u8, new as *mut u8, old_bytes);
        // If they cannot be given back, the old pages stay in use and harm nobody.
        let _ = FAR_HEAP.unmap(reservation, FarRange { address: old, bytes: old_bytes });
    }
    Ok(new)
}

/// Locks memory (`mlock(2)`): far memory cannot be, since it could not be evicted then.
///
/// # Safety
/// That of `mlock`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(start: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller promises it.
    lock_local(start as usize, length, || unsafe { system_call(libc::SYS_mlock, [start as usize, length]) })
}

/// As [`mlock`], with flags.
///
/// # Safety
/// That of `mlock2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(start: *const c_void, length: usize, flags: c_uint) -> c_int {
    let arguments = [start as usize, length, flags as usize];
    // SAFETY: the caller promises it.
    lock_local(start as usize, length, || unsafe { system_call(libc::SYS_mlock2, arguments) })
}

fn lock_local(start: usize, length: usize, call: impl FnOnce() -> Outcome) -> c_int {
    let is_far = FAR_HEAP.reservation().is_some_and(|reservation| reservation.touches(start, length));
    status(if is_far { Err(Errno(libc::ENOMEM)) } else { call().map(|_| ()) })
}

/// Locks all memory (`mlockall(2)`): not that of a program with a far heap.
///
/// # Safety
/// That of `mlockall`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the call has no memory argument.
    let local = || unsafe { system_call(libc::SYS_mlockall, [flags as usize]) };
    status(if FAR_HEAP.reservation().is_some() { Err(Errno(libc::ENOMEM)) } else { local().map(|_| ()) })
}
