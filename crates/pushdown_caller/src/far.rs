//! Far memory: ranges whose home is the executor, of which the program keeps a budget.
//!
//! Of ordinary memory the program owns what functions have not asked for. A far range is the other way round: the executor has it, the program
//! gets pages as it touches them, and gives the oldest ones back when it has more than its budget. Functions use it where it is.
//!
//! 1. A new range is zero, at the executor. It is mapped there at once, so that functions need not ask.
//! 2. A page that the program gets is the youngest of its range. If the range has more pages than its budget, the oldest is evicted: sent
//!    home if the program has written it, dropped otherwise. A page that a function takes is no more counted.
//! 3. The program may evict all pages of a range itself ([`evict`]).
//! 4. A child of a fork does not have the range.

#![allow(unsafe_code)]

use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, advise, map_anonymous, unmap};
use pushdown::{MappingKind, ToExecutor};

use crate::call::is_in_call;
use crate::caller::{Broken, Caller, pages_of};
use crate::stacks::on_private_stack;
use crate::wait::{CALLER, is_open};

impl Caller {
    /// # Errors
    /// Of the operating system; `EBUSY` while functions run.
    fn add_far_range(&mut self, start: u64, end: u64, budget_pages: usize) -> Result<(), Errno> {
        if self.is_lost {
            return Err(Errno(libc::ENOTCONN));
        }
        if self.open_calls() > 0 {
            return Err(Errno(libc::EBUSY));
        }
        self.pages.register(start, end)?;
        self.pages.registered(start, end);
        let pages = start / PAGE_BYTES as u64..end / PAGE_BYTES as u64;
        self.side.leave_to_pool(pages.clone());
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        let told =
            self.tell(&ToExecutor::Mapping { wanted: start, start, end, protection, kind: MappingKind::Ordinary });
        self.check(told);
        self.far.add(pages, budget_pages);
        Ok(())
    }

    /// Evicts far pages beyond their budget.
    pub(crate) fn evict_far_pages(&mut self) -> Result<(), Broken> {
        while let Some(page) = self.far.oldest() {
            let mut out = Vec::new();
            if self.side.evict(page, &mut out).is_err() {
                // It is on its way.
                self.far.spare(page);
                return Ok(());
            }
            self.carry_out(out, &[])?;
            self.far.unmapped(page);
        }
        Ok(())
    }

    /// Evicts the far pages of a range, but for those that are on their way.
    fn evict_far_range(&mut self, pages: &Range<u64>) -> Result<(), Broken> {
        for page in self.far.resident_in(pages) {
            let mut out = Vec::new();
            // What carrying out the last one brought may have taken this one.
            if self.side.evict(page, &mut out).is_ok() {
                self.carry_out(out, &[])?;
                self.far.unmapped(page);
            }
        }
        Ok(())
    }
}

/// Evicts the far pages of a range; whether the executor is still there. `None` if functions cannot be pushed down here.
pub(crate) fn evict(start: u64, bytes: u64) -> Option<bool> {
    if is_in_call() || !is_open() {
        return None;
    }
    on_private_stack(move |_, _| {
        let mut held = CALLER.acquire();
        let caller = held.as_mut()?;
        if !caller.is_lost {
            let evicted = caller.evict_far_range(&pages_of(start, start.saturating_add(bytes)));
            caller.check(evicted);
        }
        Some(!caller.is_lost)
    })
}

/// Maps far memory; the address.
///
/// # Errors
/// Of the operating system; `EINVAL` without bytes, `ENOTCONN` if no executor is there, `EBUSY` while functions run.
pub(crate) fn map(bytes: usize, budget_bytes: usize) -> Result<usize, Errno> {
    if is_in_call() || !is_open() {
        return Err(Errno(libc::ENOTCONN));
    }
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).filter(|bytes| *bytes > 0).ok_or(Errno(libc::EINVAL))?;
    let budget_pages = (budget_bytes / PAGE_BYTES).max(1);
    let start = map_anonymous(bytes)?;
    // SAFETY: the range was just mapped, and nobody else knows of it.
    let advised = unsafe {
        let _ = advise(start, bytes, libc::MADV_NOHUGEPAGE);
        advise(start, bytes, libc::MADV_DONTFORK)
    };
    let (first, end) = (start as u64, (start + bytes) as u64);
    let added = advised.and_then(|_| {
        on_private_stack(move |_, _| match CALLER.acquire().as_mut() {
            Some(caller) => caller.add_far_range(first, end, budget_pages),
            None => Err(Errno(libc::ENOTCONN)),
        })
    });
    match added {
        Ok(()) => Ok(start),
        Err(error) => {
            // SAFETY: as above.
            let _ = unsafe { unmap(start, bytes) };
            Err(error)
        }
    }
}
