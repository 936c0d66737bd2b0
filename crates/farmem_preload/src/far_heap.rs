//! The far heap: a range of addresses whose pages the server, or the executor whose memory it is, fills and evicts.
//!
//! ```text
//!   | region: what the program maps | doorbell | eviction buffer |
//! ```
//!
//! Invariant: a page of the region that is not in use reads as zeros, is readable and writable, and costs nothing. Giving pages
//! back therefore comes in this order: the server drops its copies, the kernel drops the pages, their protection is restored,
//! and only then may they be found again ([`Extents`]). All of it happens under the lock of the heap, so a child of a fork never
//! sees a half of it.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bare::lock::{Guard, Lock};
use bare::system_call::{Errno, Outcome, advise, map_anonymous, pause, system_call, unmap};
use farmem_control::{BUFFER_PAGES, PAGE_BYTES, RequestPage, reply, request};

use crate::environment::ServerAddress;
use crate::extents::{ALIGNMENT_MAX, Extents};
use crate::{local, requests};

/// The name that mimalloc gives to its memory (`PR_SET_VMA_ANON_NAME`). Two names would divide the region into many mappings, and
/// a call of userfaultfd works within one.
const NAME: &std::ffi::CStr = c"mimalloc";

/// How long to wait for pages that are in flight.
const BUSY_PAUSE_MICROSECONDS: i64 = 50;

/// The addresses of the far heap.
#[derive(Clone, Copy)]
pub(crate) struct Reservation {
    pub(crate) region: usize,
    pub(crate) region_bytes: usize,
}

impl Reservation {
    /// Reserves a region of whole pages, and what belongs to it, as one mapping. The region is aligned as far as extents are.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn new(region_bytes: usize) -> Result<Reservation, Errno> {
        let alignment = ALIGNMENT_MAX * PAGE_BYTES;
        let bytes = Reservation { region: 0, region_bytes }.bytes();
        let start = map_anonymous(bytes + alignment)?;
        let reservation = Reservation { region: start.next_multiple_of(alignment), region_bytes };
        let before = reservation.region - start;
        // SAFETY: both ranges belong to the mapping that was just made, outside of what is kept of it.
        unsafe {
            if before > 0 {
                unmap(start, before)?;
            }
            unmap(reservation.end(), alignment - before)?;
        }
        reservation.set_up();
        Ok(reservation)
    }

    /// As [`Reservation::new`], of memory whose home is an executor, and which `map` maps. What is mapped beside it, for the sake of alignment, is
    /// never used.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn at_executor(region_bytes: usize, map: impl FnOnce(usize) -> Outcome) -> Result<Reservation, Errno> {
        let alignment = ALIGNMENT_MAX * PAGE_BYTES;
        let region_bytes = region_bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno(libc::ENOMEM))?;
        let bytes = Reservation { region: 0, region_bytes }.bytes();
        let start = map(bytes.checked_add(alignment).ok_or(Errno(libc::ENOMEM))?)?;
        let reservation = Reservation { region: start.next_multiple_of(alignment), region_bytes };
        reservation.set_up();
        Ok(reservation)
    }

    /// Asks for pages of 4 KiB and one name. Kernels that do not know the one or the other need neither.
    fn set_up(&self) {
        // SAFETY: neither call changes the content of the memory, which is new.
        unsafe {
            let _ = advise(self.region, self.bytes(), libc::MADV_NOHUGEPAGE);
            let (option, name) = (libc::PR_SET_VMA as usize, libc::PR_SET_VMA_ANON_NAME as usize);
            let _ = system_call(libc::SYS_prctl, [option, name, self.region, self.bytes(), NAME.as_ptr() as usize]);
        }
    }

    /// The page by which a thread tells the server that there is a request.
    pub(crate) fn doorbell(&self) -> usize {
        self.region + self.region_bytes
    }

    /// Where the agent moves pages to.
    pub(crate) fn buffer(&self) -> usize {
        self.doorbell() + PAGE_BYTES
    }

    /// The address behind all of it.
    pub(crate) fn end(&self) -> usize {
        self.buffer() + BUFFER_PAGES as usize * PAGE_BYTES
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> usize {
        self.end() - self.region
    }

    /// A range has a part of it.
    pub(crate) fn touches(&self, address: usize, bytes: usize) -> bool {
        address < self.end() && address.saturating_add(bytes) > self.region
    }

    /// A range lies in the region.
    pub(crate) fn has_in_region(&self, address: usize, bytes: usize) -> bool {
        address >= self.region && address <= self.doorbell() && bytes <= self.doorbell() - address
    }

    /// Takes care that no child has the memory, which nobody would serve there.
    pub(crate) fn keep_from_children(&self) {
        // SAFETY: the advice changes no content.
        let _ = unsafe { advise(self.region, self.bytes(), libc::MADV_DONTFORK) };
    }

    fn page_of(&self, address: usize) -> usize {
        (address - self.region) / PAGE_BYTES
    }

    fn address_of(&self, page: usize) -> usize {
        self.region + page * PAGE_BYTES
    }
}

/// A range of whole pages of the region.
#[derive(Clone, Copy)]
pub(crate) struct FarRange {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

/// What is changed under the lock of the heap.
pub(crate) struct HeapState {
    pub(crate) extents: Extents<'static>,
    /// How a child of a fork reaches the server.
    pub(crate) server: ServerAddress,
}

/// The far heap of this process.
pub(crate) struct FarHeap {
    /// 0 as long as there is none.
    region: AtomicUsize,
    region_bytes: AtomicUsize,
    /// The address of the memory that is shared with the server.
    shared: AtomicUsize,
    can_fork: AtomicBool,
    /// Its home is an executor, and there is no server.
    is_at_executor: AtomicBool,
    state: Lock<HeapState>,
}

/// The far heap of this process.
pub(crate) static FAR_HEAP: FarHeap = FarHeap {
    region: AtomicUsize::new(0),
    region_bytes: AtomicUsize::new(0),
    shared: AtomicUsize::new(0),
    can_fork: AtomicBool::new(false),
    is_at_executor: AtomicBool::new(false),
    state: Lock::new(HeapState { extents: Extents::empty(), server: ServerAddress::empty() }),
};

impl FarHeap {
    /// Makes the heap known to all threads.
    pub(crate) fn attach(&self, reservation: Reservation, shared: usize, can_fork: bool, state: HeapState) {
        *self.lock() = state;
        self.shared.store(shared, Ordering::Relaxed);
        self.can_fork.store(can_fork, Ordering::Relaxed);
        self.region_bytes.store(reservation.region_bytes, Ordering::Relaxed);
        self.region.store(reservation.region, Ordering::Release);
    }

    /// As [`FarHeap::attach`], for a heap whose home is an executor.
    pub(crate) fn attach_at_executor(&self, reservation: Reservation, extents: Extents<'static>) {
        self.is_at_executor.store(true, Ordering::Relaxed);
        self.attach(reservation, 0, false, HeapState { extents, server: ServerAddress::empty() });
    }

    /// Its home is an executor, and there is no server.
    pub(crate) fn is_at_executor(&self) -> bool {
        self.is_at_executor.load(Ordering::Relaxed)
    }

    /// Forgets the heap: in the child of a fork that the server has refused.
    pub(crate) fn detach(&self) {
        self.region.store(0, Ordering::Release);
    }

    /// The addresses of the heap, if there is one.
    pub(crate) fn reservation(&self) -> Option<Reservation> {
        let region = self.region.load(Ordering::Acquire);
        (region != 0).then(|| Reservation { region, region_bytes: self.region_bytes.load(Ordering::Relaxed) })
    }

    /// The address of the memory that is shared with the server.
    pub(crate) fn shared(&self) -> usize {
        self.shared.load(Ordering::Relaxed)
    }

    /// Where requests are written, under the lock.
    pub(crate) fn request_page(&self) -> &RequestPage {
        // SAFETY: the shared memory begins with this page, is mapped as long as the process lives, and consists of atomic numbers.
        unsafe { &*(self.shared() as *const RequestPage) }
    }

    /// The server can serve a child.
    pub(crate) fn can_fork(&self) -> bool {
        self.can_fork.load(Ordering::Relaxed)
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Guard<'_, HeapState> {
        self.state.acquire()
    }

    /// Takes up the lock that [`Guard::keep`] has put aside.
    ///
    /// # Safety
    /// The calling thread holds it, and has no guard of it.
    pub(crate) unsafe fn resume_lock(&self, signals: u64) -> Guard<'_, HeapState> {
        // SAFETY: the caller promises it.
        unsafe { self.state.resume(signals) }
    }

    /// Maps pages of zeros: at `hint` if that is in the region and free. Returns their address.
    ///
    /// # Errors
    /// `ENOMEM` if there is no room.
    pub(crate) fn map(&self, reservation: Reservation, hint: usize, bytes: usize) -> Outcome {
        let pages = bytes / PAGE_BYTES;
        let mut state = self.lock();
        let is_possible = hint.is_multiple_of(PAGE_BYTES) && reservation.has_in_region(hint, bytes);
        if is_possible && state.extents.claim(reservation.page_of(hint), pages) {
            return Ok(hint);
        }
        state.extents.allocate(pages).map(|page| reservation.address_of(page)).ok_or(Errno(libc::ENOMEM))
    }

    /// Maps the pages behind a range if they are free.
    pub(crate) fn grow(&self, reservation: Reservation, end: usize, bytes: usize) -> bool {
        reservation.has_in_region(end, bytes) && self.lock().extents.claim(reservation.page_of(end), bytes / PAGE_BYTES)
    }

    /// Gives pages back.
    ///
    /// # Safety
    /// The program uses the range no more.
    ///
    /// # Errors
    /// `ENOMEM` if the server cannot drop the pages, others of the operating system. The pages then stay in use.
    pub(crate) unsafe fn unmap(&self, reservation: Reservation, range: FarRange) -> Result<(), Errno> {
        // SAFETY: the caller promises it.
        let mut state = unsafe { self.discard(reservation, range) }?;
        // SAFETY: as above; the range is readable and writable unless the program has changed that.
        unsafe { local::protect(range.address, range.bytes, libc::PROT_READ | libc::PROT_WRITE) }?;
        state.extents.release(reservation.page_of(range.address), range.bytes / PAGE_BYTES);
        Ok(())
    }

    /// Drops the content of pages, which read as zeros then. The lock is still held, so nothing happens in between if the caller
    /// gives the pages back.
    ///
    /// # Safety
    /// The program needs the content no more.
    ///
    /// # Errors
    /// As [`FarHeap::unmap`].
    pub(crate) unsafe fn discard(
        &self,
        reservation: Reservation,
        range: FarRange,
    ) -> Result<Guard<'_, HeapState>, Errno> {
        if self.is_at_executor() {
            let state = self.lock();
            // SAFETY: as below.
            unsafe { local::advise(range.address, range.bytes, libc::MADV_DONTNEED) }?;
            return Ok(state);
        }
        let (first, pages) = (reservation.page_of(range.address) as u32, (range.bytes / PAGE_BYTES) as u32);
        let state = loop {
            let state = self.lock();
            match requests::send(self.request_page(), reservation.doorbell(), request::DISCARD_BEGIN, first, pages) {
                reply::DONE => break state,
                reply::BUSY => drop(state),
                _ => return Err(Errno(libc::ENOMEM)),
            }
            pause(BUSY_PAUSE_MICROSECONDS);
        };
        // SAFETY: the range is one of the region, and the caller answers for its content.
        let dropped = unsafe { advise(range.address, range.bytes, libc::MADV_DONTNEED) };
        requests::send(self.request_page(), reservation.doorbell(), request::DISCARD_END, first, pages);
        dropped.map(|_| state)
    }
}
