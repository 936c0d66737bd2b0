//! Shared memory: sealed memfds and their mappings.
//!
//! Invariants:
//! * A memfd is mapped only if its seals guarantee that it can neither shrink nor grow, and only up to its size: no access
//!   within a mapping faults, whatever another process does.
//! * A mapping's bytes are accessed only by atomic instructions and by [`copy`]; every access is checked against the size.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use base::{Bytes, BytesMut};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::copy;
use crate::{Error, WORD_BYTES};

/// Bytes of a page, the unit of regions.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Bytes of a huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Seals that a memfd must have before it is mapped.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::system(doing, &std::io::Error::from(errno))
}

/// Creates a memfd of `bytes` zero bytes whose size is sealed.
pub(super) fn create(name: &str, bytes: u64) -> Result<OwnedFd, Error> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(system("create shared memory"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(system("size shared memory"))?;
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(system("seal shared memory"))?;
    Ok(fd)
}

/// Allocates a memfd's memory now, so that later accesses cannot fail for lack of it. Uses huge pages where the system has
/// them: a random access then misses neither the TLB nor the caches of the page table.
pub(super) fn reserve(fd: &OwnedFd, mapping: &Mapping) -> Result<(), Error> {
    let bytes = mapping.bytes as u64;
    let take = |offset: u64, length: u64| {
        rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, length)
            .map_err(|errno| Error::Exhausted(format!("cannot allocate {bytes} bytes of memory: {errno}")))
    };
    if mapping.is_huge() {
        // Only pages that exist can become huge; the later allocation then does not allocate the rest twice.
        for offset in (0..bytes - HUGE_PAGE_BYTES + 1).step_by(HUGE_PAGE_BYTES as usize) {
            take(offset, PAGE_BYTES)?;
        }
        mapping.collapse();
    }
    take(0, bytes)
}

/// From now on no process can map the memfd for writing; existing mappings stay as they are.
pub(super) fn seal_against_writers(fd: &OwnedFd) -> Result<(), Error> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL).map_err(system("seal shared memory"))
}

/// From now on no seal can be added.
pub(super) fn seal_finally(fd: &OwnedFd) -> Result<(), Error> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SEAL).map_err(system("seal shared memory"))
}

/// Frees a memfd's memory, even while processes map it; it reads as zeros afterwards.
pub(super) fn discard(fd: &OwnedFd, bytes: u64) -> Result<(), Error> {
    rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
        .map_err(system("free shared memory"))
}

/// Reads a part of a memfd, even while processes map it.
pub(super) fn load(fd: &OwnedFd, offset: u64, length: usize) -> Result<BytesMut, Error> {
    let mut bytes = BytesMut::zeroed(length);
    let mut done = 0;
    while done < length {
        match rustix::io::pread(fd, &mut bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Error::Malformed("shared memory that ends before its size")),
            Ok(read) => done += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("read shared memory")(errno)),
        }
    }
    Ok(bytes)
}

/// Writes a part of a memfd, even while processes map it.
pub(super) fn store(fd: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(fd, &bytes[done..], offset + done as u64) {
            Ok(written) => done += written,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system("write shared memory")(errno)),
        }
    }
    Ok(())
}

/// How a memfd is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingAccess {
    /// Its words can be loaded.
    Read,
    /// All accesses.
    Write,
}

/// A whole memfd in this process's address space.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    access: MappingAccess,
}

// SAFETY: the memory is shared between processes anyway; every access is atomic or made for races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes, which must be the whole memfd. `populate` fills the page table now rather than at the first access
    /// of each page.
    pub(super) fn new(fd: impl AsFd, bytes: u64, access: MappingAccess, populate: bool) -> Result<Mapping, Error> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(system("read the seals of shared memory"))?;
        let size = rustix::fs::fstat(&fd).map_err(system("read the size of shared memory"))?.st_size;
        let length =
            usize::try_from(bytes).map_err(|_| Error::Malformed("more shared memory than can be addressed"))?;
        if !seals.contains(SIZE_SEALS) || u64::try_from(size) != Ok(bytes) || length == 0 {
            return Err(Error::Malformed(
                "shared memory of another size, or of one that may change; run the same release on both sides",
            ));
        }
        let protection = match access {
            MappingAccess::Read => ProtFlags::READ,
            MappingAccess::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let start = match bytes >= HUGE_PAGE_BYTES {
            true => map_aligned(&fd, length, protection)?,
            // SAFETY: a new mapping at an address of the system's choosing touches nothing that exists.
            false => unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &fd, 0) }
                .map_err(system("map shared memory"))?
                .cast::<u8>(),
        };
        let start = NonNull::new(start).ok_or(Error::Malformed("a mapping at address zero"))?;
        let mapping = Mapping { start, bytes: length, access };
        // A child forked without a new program could write without marks, so it does not inherit the mapping.
        mapping.advise(Advice::LinuxDontFork).map_err(system("keep shared memory from forked children"))?;
        // The rest only makes accesses faster, so a system without it is good enough.
        let _unsupported = mapping.advise(Advice::LinuxHugepage);
        if populate {
            mapping.populate();
        }
        Ok(mapping)
    }

    /// Fills the page table.
    pub(super) fn populate(&self) {
        let advice =
            if self.access == MappingAccess::Write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        let _unsupported = self.advise(advice);
    }

    /// Whether the mapping may consist of huge pages.
    fn is_huge(&self) -> bool {
        self.bytes as u64 >= HUGE_PAGE_BYTES
    }

    /// Turns existing pages into huge pages. Needs Linux 6.1; elsewhere, and where memory is fragmented, pages stay as they
    /// are.
    fn collapse(&self) {
        // SAFETY: the range is this mapping; the advice does not change its contents.
        let _unsupported = unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_COLLAPSE) };
    }

    fn advise(&self, advice: Advice) -> Result<(), rustix::io::Errno> {
        // SAFETY: the range is this mapping; none of the advice that is given here changes its contents.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) }
    }

    /// Its size.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word at a byte offset. A read-only mapping allows only relaxed loads.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(WORD_BYTES) && offset < self.bytes, "a word within the mapping");
        // SAFETY: the mapping's size is a multiple of a page, so that the aligned word lies wholly within it; it lives as
        // long as `self`; the memory is accessed atomically only.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    fn check(&self, offset: usize, length: usize) {
        assert!(offset <= self.bytes && length <= self.bytes - offset, "a range within the mapping");
    }

    /// Appends `length` bytes at `offset` to `into`.
    #[inline]
    pub(super) fn read(&self, offset: usize, length: usize, into: &mut BytesMut) {
        self.check(offset, length);
        into.reserve(length);
        let to = into.spare_capacity_mut();
        assert!(to.len() >= length, "it was reserved");
        let before = into.len();
        // SAFETY: the source was checked; the target is spare capacity of at least `length` bytes, which are written
        // before they count as contents.
        unsafe {
            let to = into.as_mut_ptr().add(before);
            copy::load(self.start.as_ptr().add(offset), to, length);
            into.set_len(before + length);
        }
    }

    /// Writes `bytes` at `offset`.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        assert!(self.access == MappingAccess::Write, "a mapping for writing");
        // SAFETY: the target was checked; the source is a slice.
        unsafe { copy::store(self.start.as_ptr().add(offset), bytes.as_ptr(), bytes.len()) };
    }

    /// Writes the parts one behind the other from `offset` on. A word that spans the end of one part and the start of the next
    /// is written whole.
    #[inline]
    pub(super) fn write_parts(&self, offset: usize, parts: &[Bytes]) {
        if let [only] = parts {
            return self.write(offset, only);
        }
        self.write_gathered(offset, parts);
    }

    fn write_gathered(&self, mut offset: usize, parts: &[Bytes]) {
        // Bytes of a word that earlier parts started and that is not yet written; they belong at `offset`.
        let mut begun = [0u8; WORD_BYTES];
        let mut held = 0;
        for part in parts {
            let mut part: &[u8] = part;
            if held > 0 {
                let taken = part.len().min(WORD_BYTES - held);
                begun[held..held + taken].copy_from_slice(&part[..taken]);
                held += taken;
                part = &part[taken..];
                if held < WORD_BYTES {
                    continue;
                }
                self.write(offset, &begun);
                offset += WORD_BYTES;
            }
            // A part that ends within a word is held back if the word started within this verb.
            let end = offset + part.len();
            let kept = if end - end % WORD_BYTES >= offset { end % WORD_BYTES } else { 0 };
            let (now, later) = part.split_at(part.len() - kept);
            self.write(offset, now);
            offset += now.len();
            begun[..kept].copy_from_slice(later);
            held = kept;
        }
        self.write(offset, &begun[..held]);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing can refer to the mapping any more: references to its words borrow it.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

/// Maps a memfd at a multiple of the size of huge pages.
fn map_aligned(fd: impl AsFd, length: usize, protection: ProtFlags) -> Result<*mut u8, Error> {
    let huge = HUGE_PAGE_BYTES as usize;
    let doing = system("map shared memory");
    let reserved = length.checked_add(huge).ok_or(Error::Malformed("more shared memory than can be addressed"))?;
    // SAFETY: a new mapping at an address of the system's choosing touches nothing that exists.
    let room =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE) };
    let room = room.map_err(&doing)?.cast::<u8>();
    let before = room.addr().wrapping_neg() & (huge - 1);
    // SAFETY: all ranges lie within the address range that was reserved just now and that no other code knows: `before` is less
    // than the size of a huge page. The rest around the mapping is freed.
    unsafe {
        let start = room.add(before);
        let mapped = rustix::mm::mmap(start.cast(), length, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0);
        if let Err(errno) = mapped {
            let _given_back = rustix::mm::munmap(room.cast(), reserved);
            return Err(doing(errno));
        }
        if before > 0 {
            let _given_back = rustix::mm::munmap(room.cast(), before);
        }
        let end = (before + length).next_multiple_of(PAGE_BYTES as usize);
        if end < reserved {
            let _given_back = rustix::mm::munmap(room.add(end).cast(), reserved - end);
        }
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(bytes: u64) -> Mapping {
        let fd = create("test", bytes).expect("there is memory");
        let mapping = Mapping::new(&fd, bytes, MappingAccess::Write, false).expect("it is sealed");
        reserve(&fd, &mapping).expect("there is memory");
        mapping.populate();
        mapping
    }

    #[test]
    fn memory_of_another_size_or_of_one_that_may_change_is_not_mapped() {
        let refused = |fd: &OwnedFd, bytes: u64| {
            let error = Mapping::new(fd, bytes, MappingAccess::Write, false).err();
            assert!(
                matches!(error, Some(Error::Malformed(what)) if what.contains("another size")),
                "{bytes}: {error:?}"
            );
        };
        let fd = create("test", 2 * PAGE_BYTES).expect("there is memory");
        for bytes in [0, 1, PAGE_BYTES, 3 * PAGE_BYTES, u64::MAX] {
            refused(&fd, bytes);
        }
        let open = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("there is memory");
        rustix::fs::ftruncate(&open, PAGE_BYTES).expect("there is memory");
        refused(&open, PAGE_BYTES);
    }

    #[test]
    fn parts_land_one_behind_the_other_at_every_alignment() {
        let mapping = mapping(PAGE_BYTES);
        let content: Bytes = (0..200u8).collect::<Vec<_>>().into();
        for offset in 0..9 {
            for cuts in [[0, 0, 0], [1, 2, 3], [3, 11, 12], [5, 5, 60], [8, 16, 24], [7, 9, 199], [1, 9, 17]] {
                mapping.write(0, &[0xEE; 256]);
                let mut parts = Vec::new();
                let mut start = 0;
                for cut in cuts.into_iter().chain([200]) {
                    parts.push(content.slice(start..cut));
                    start = cut;
                }
                mapping.write_parts(offset, &parts);
                let mut found = BytesMut::new();
                mapping.read(0, 256, &mut found);
                assert_eq!(found[offset..offset + 200], content[..], "at {offset} cut {cuts:?}");
                assert!(found[..offset].iter().chain(&found[offset + 200..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn regions_of_any_length_are_mapped_whole() {
        let huge = HUGE_PAGE_BYTES;
        for bytes in [PAGE_BYTES, huge - PAGE_BYTES, huge, huge + PAGE_BYTES, 3 * huge, 5 * huge - PAGE_BYTES] {
            let mapping = mapping(bytes);
            for offset in (0..bytes as usize - 8).step_by(4000).chain([bytes as usize - 8]) {
                let mut found = BytesMut::new();
                mapping.read(offset, 8, &mut found);
                assert_eq!(found[..], [0; 8]);
                mapping.write(offset, &(offset as u64).to_le_bytes());
                found.clear();
                mapping.read(offset, 8, &mut found);
                assert_eq!(found[..], (offset as u64).to_le_bytes());
            }
        }
    }

    #[test]
    fn memory_that_may_shrink_is_not_mapped() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("there is memory");
        rustix::fs::ftruncate(&fd, PAGE_BYTES).expect("it has no seals");
        assert!(Mapping::new(&fd, PAGE_BYTES, MappingAccess::Write, false).is_err());
        let sealed = create("test", PAGE_BYTES).expect("there is memory");
        assert!(Mapping::new(&sealed, 2 * PAGE_BYTES, MappingAccess::Write, false).is_err());
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err());
    }

    #[test]
    fn memory_sealed_against_writers_is_only_read() {
        let fd = create("test", PAGE_BYTES).expect("there is memory");
        let writable = Mapping::new(&fd, PAGE_BYTES, MappingAccess::Write, false).expect("it is sealed");
        seal_against_writers(&fd).expect("it can be sealed");
        assert!(Mapping::new(&fd, PAGE_BYTES, MappingAccess::Write, false).is_err());
        let readable = Mapping::new(&fd, PAGE_BYTES, MappingAccess::Read, false).expect("it can be read");
        writable.word(8).store(7, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(readable.word(8).load(std::sync::atomic::Ordering::Relaxed), 7);
    }
}
