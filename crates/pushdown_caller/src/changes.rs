//! Memory that changes while requests for it come.
//!
//! The kernel reports what the program unmaps and moves, and that is handled before a message is. Of drops it says when they begin, and not
//! when they are done; of protection it says nothing. So the functions here take the place of the C library's and of functions' calls.
//!
//! 1. While a thread drops pages, the executor gets none of them: it might get the old contents, or have pages dropped that hold new
//!    ones. Its requests are put off until the drop is done, and other messages are handled meanwhile ([`page_coherence`], step 8).
//! 2. Protection changes under the lock, so that no request is handled between the change and the message about it.

#![allow(unsafe_code)]

use std::ops::Range;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, Outcome, system_call, yield_processor};
use page_coherence::{Access, CoherenceMode, Right, ToCaller as CoherenceToCaller};
use pushdown::ToCaller;

use crate::caller::{Broken, Caller, pages_of};
use crate::outgoing::DROP_LOCKED;
use crate::payload::TakenPage;
use crate::wait::CALLER;

/// Messages that are put off, at most: more than the executor's threads wait for, and read ahead.
const PUT_OFF_MAX: usize = 4096;

/// Calls `madvise`. On a private stack.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// The owner of the memory expects what the advice does to it.
pub(crate) unsafe fn advise(address: u64, bytes: u64, advice: i32) -> Outcome {
    let pages = pages_of(address, address.saturating_add(bytes));
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | DROP_LOCKED);
    if drops && let Some(caller) = CALLER.acquire().as_mut() {
        caller.begin_drop(pages.clone());
    }
    // SAFETY: as the caller answers for. No lock is held: the kernel waits until the drop was noticed.
    let outcome = unsafe { system_call(libc::SYS_madvise, [address as usize, bytes as usize, advice as usize]) };
    if drops && let Some(caller) = CALLER.acquire().as_mut() {
        caller.end_drop(&pages, advice != libc::MADV_FREE);
    }
    outcome
}

/// Calls `mprotect`, and tells the executor if it does not see the call itself. On a private stack.
///
/// # Errors
/// Of the operating system.
///
/// # Safety
/// The owner of the memory expects the protection.
pub(crate) unsafe fn protect(address: u64, bytes: u64, protection: u32, is_told: bool) -> Outcome {
    let mut held = CALLER.acquire();
    // SAFETY: as the caller answers for. The kernel waits for nobody here.
    let outcome = unsafe { system_call(libc::SYS_mprotect, [address as usize, bytes as usize, protection as usize]) };
    if is_told
        && outcome.is_ok()
        && let Some(caller) = held.as_mut()
    {
        caller.protected(address, address.saturating_add(bytes), protection);
    }
    outcome
}

impl Caller {
    /// Handles what the program has done with memory so far. Memory that was unmapped, and mapped again since, may have old pages at
    /// the executor, and a page that it asks for may have moved.
    pub(crate) fn settle(&mut self) {
        // Nothing else says so: the kernel refuses changes until it was told that events are handled.
        while !self.is_remapping && !self.is_lost && self.pages.is_changing() {
            self.handle_events();
            yield_processor();
        }
    }

    /// Takes the page that the executor wants to write, before anything is decided. Where the program may not write any more, the
    /// executor cannot either, and gets a page to read: it has not heard of that when it asked.
    pub(crate) fn take_for(&mut self, message: &mut CoherenceToCaller) -> Result<Option<TakenPage>, Broken> {
        let CoherenceToCaller::Request { page, access } = message else { return Ok(None) };
        // In weaker modes the program keeps the page.
        let is_taken = self.side.mode().is_none_or(|mode| mode == CoherenceMode::Coherent);
        if !is_taken || *access != Access::Write || self.side.right(*page) == Right::None {
            return Ok(None);
        }
        match self.pages.take(*page) {
            Ok(contents) => Ok(Some((*page, Some(contents)))),
            Err(Errno(libc::EINVAL)) if !self.mappings.is_writable(page.0 * PAGE_BYTES as u64) => {
                *access = Access::Read;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A thread is about to drop pages.
    fn begin_drop(&mut self, pages: Range<u64>) {
        self.dropping.push(pages);
    }

    /// It has dropped them. With `MADV_FREE` the kernel may do so later.
    fn end_drop(&mut self, pages: &Range<u64>, is_done: bool) {
        if let Some(at) = self.dropping.iter().position(|dropping| dropping == pages) {
            self.dropping.swap_remove(at);
        }
        if is_done {
            self.pages.dropped_for_good(pages.clone());
        }
        self.handle_messages(false);
    }

    /// Whether a message cannot be handled yet, since the memory that it is about is changing.
    pub(crate) fn must_wait(&self, message: &ToCaller) -> bool {
        match message {
            // Memory is between its old and its new place.
            ToCaller::MappingWanted(_) => self.is_remapping,
            ToCaller::Coherence(bytes) if !self.dropping.is_empty() || self.forks.is_gathering() => {
                let Ok((CoherenceToCaller::Request { page, .. }, _)) = CoherenceToCaller::decode(bytes.clone()) else {
                    return false;
                };
                // What moves is asked for, and its requests have to be answered until it is there.
                let is_dropped = !self.is_remapping && self.dropping.iter().any(|pages| pages.contains(&page.0));
                is_dropped || self.keeps(page)
            }
            _ => false,
        }
    }

    /// Keeps a message for later.
    pub(crate) fn put_off(&mut self, message: ToCaller) -> Result<(), Broken> {
        if self.put_off.len() >= PUT_OFF_MAX {
            return Err(Broken::Protocol("more requests than it has threads"));
        }
        self.put_off.push(message);
        Ok(())
    }

    /// Handles messages that were put off; some may be put off again. Whether any was handled.
    pub(crate) fn handle_put_off(&mut self) -> Result<bool, Broken> {
        if self.is_remapping || self.put_off.is_empty() {
            return Ok(false);
        }
        let put_off = std::mem::take(&mut self.put_off);
        let count = put_off.len();
        for message in put_off {
            self.settle();
            self.handle(message)?;
        }
        Ok(self.put_off.len() < count)
    }
}
