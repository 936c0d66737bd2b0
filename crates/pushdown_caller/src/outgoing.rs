//! Memory for pages on their way out of the program's sight.

#![allow(unsafe_code)]

use bare::PAGE_BYTES;
use bare::system_call::{Errno, advise, map_anonymous_at, system_call};
use bare::userfault::{UserFaults, persist};

use crate::places::OUTGOING;

/// Pages that may be on their way out before their memory is given back.
const OUTGOING_PAGES: u64 = 64;
/// The protection of the areas for pages on their way out, and whether they are locked: that of any memory that programs write.
const AREAS: [(i32, bool); 4] = [
    (libc::PROT_READ | libc::PROT_WRITE, false),
    (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, false),
    (libc::PROT_READ | libc::PROT_WRITE, true),
    (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, true),
];
/// `MLOCK_ONFAULT`.
const LOCK_ON_FAULT: usize = 1;
/// `MADV_DONTNEED_LOCKED`.
pub(crate) const DROP_LOCKED: i32 = 24;

/// Memory for pages on their way out.
#[derive(Clone, Copy)]
struct OutgoingArea {
    start: u64,
    /// How many pages have come since its memory was given back.
    taken: u64,
}

impl OutgoingArea {
    /// # Errors
    /// Of the operating system.
    fn map(&self, faults: UserFaults, protection: i32, is_locked: bool) -> Result<(), Errno> {
        let (start, bytes) = (self.start as usize, OUTGOING_PAGES as usize * PAGE_BYTES);
        map_anonymous_at(start, bytes)?;
        // SAFETY: the range was just mapped, and nobody else knows of it.
        unsafe {
            let _ = advise(start, bytes, libc::MADV_NOHUGEPAGE);
            system_call(libc::SYS_mprotect, [start, bytes, protection as usize])?;
            faults.register(self.start, bytes as u64)?;
            if is_locked {
                // Without filling it. A process that may not lock memory has no locked pages to move.
                let _ = system_call(libc::SYS_mlock2, [start, bytes, LOCK_ON_FAULT]);
            }
        }
        Ok(())
    }

    /// Where the next page goes.
    fn next(&mut self) -> Result<u64, Errno> {
        if self.taken == OUTGOING_PAGES {
            // SAFETY: the pages that came before were copied.
            unsafe { advise(self.start as usize, OUTGOING_PAGES as usize * PAGE_BYTES, DROP_LOCKED) }?;
            self.taken = 0;
        }
        Ok(self.start + self.taken * PAGE_BYTES as u64)
    }
}

/// Where pages go, by the kind of memory from which they come: the kernel moves pages between mappings that are alike only.
pub(crate) struct OutgoingAreas {
    /// One without events: the kernel would wait until somebody has read that the pages here were dropped.
    faults: UserFaults,
    areas: [OutgoingArea; AREAS.len()],
}

impl OutgoingAreas {
    /// # Errors
    /// Of the operating system.
    pub(crate) fn map(faults: UserFaults) -> Result<OutgoingAreas, Errno> {
        let mut areas = [OutgoingArea { start: 0, taken: 0 }; AREAS.len()];
        for (number, ((protection, is_locked), area)) in (0..).zip(AREAS.into_iter().zip(&mut areas)) {
            area.start = OUTGOING + number * 2 * OUTGOING_PAGES * PAGE_BYTES as u64;
            area.map(faults, protection, is_locked)?;
        }
        Ok(OutgoingAreas { faults, areas })
    }

    /// Moves a page to one of them; where it lies then, until others were taken.
    ///
    /// # Errors
    /// Of the operating system: `ENOENT` if the page is not there, `EINVAL` if the program may not write it, `EBUSY` if something holds it.
    pub(crate) fn take(&mut self, source: u64) -> Result<u64, Errno> {
        for area in &mut self.areas {
            let target = area.next()?;
            match persist(|| self.faults.move_page(target, source)) {
                Err(Errno(libc::EINVAL)) => {}
                outcome => {
                    area.taken += u64::from(outcome.is_ok());
                    return outcome.map(|()| target);
                }
            }
        }
        Err(Errno(libc::EINVAL))
    }
}
