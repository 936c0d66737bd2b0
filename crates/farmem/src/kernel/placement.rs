//! On which processor the thread that serves faults runs.
//!
//! Waking a thread on another, idle processor costs far more than a switch on the same one: 47 to 62 µs a fault against 7 in
//! a virtual machine. So the handler follows the thread that faults most: now and then it looks where that thread runs,
//! and moves there.

#![allow(unsafe_code)]

use std::fs;
use std::time::Duration;

/// Faults between two looks: a look costs some microseconds.
const FAULTS_PER_LOOK: u32 = 256;
/// A fault that took longer to serve: the handler may have waited for its processor, on which others run.
const SLOW: Duration = Duration::from_millis(1);

/// The placement of the calling thread.
pub(crate) struct HandlerPlacement {
    faults: u32,
    /// The processor to which the thread is bound.
    processor: Option<usize>,
    /// Where the thread may run when it is bound to none.
    allowed: Option<libc::cpu_set_t>,
}

impl HandlerPlacement {
    /// The calling thread runs where it did.
    pub(crate) fn new() -> HandlerPlacement {
        HandlerPlacement { faults: 0, processor: None, allowed: allowed() }
    }

    /// Notes how long a fault took to serve. After a slow one the kernel chooses the processor, until the next look.
    pub(crate) fn note_served(&mut self, time: Duration) {
        if time > SLOW
            && self.processor.is_some()
            && let Some(allowed) = &self.allowed
            && set_allowed(allowed)
        {
            self.processor = None;
        }
    }

    /// Notes a fault of a thread, and moves the calling thread when it is due.
    pub(crate) fn follow(&mut self, thread: u32) {
        let is_due = self.faults.is_multiple_of(FAULTS_PER_LOOK);
        self.faults = self.faults.wrapping_add(1);
        if !is_due {
            return;
        }
        let processor = processor_of(thread);
        if processor.is_some() && processor != self.processor {
            // Where the kernel refuses, a processor that was just taken offline say, the handler stays.
            if processor.is_some_and(move_to) {
                self.processor = processor;
            }
        }
    }
}

/// The processor on which a thread, of this or another process, ran last.
fn processor_of(thread: u32) -> Option<usize> {
    // The kernel sums up all threads of a process for the second file.
    let of_own = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = of_own.or_else(|_| fs::read_to_string(format!("/proc/{thread}/stat"))).ok()?;
    // The name, in brackets, may contain spaces. The processor is field 39; behind the name is field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(36)?.parse().ok()
}

fn move_to(processor: usize) -> bool {
    if processor >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: a set of processors is plain data, for which zeros stand for the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is below the set's size.
    unsafe { libc::CPU_SET(processor, &mut set) };
    set_allowed(&set)
}

/// Where the calling thread may run.
fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: as in `move_to`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the set, whose size is given. 0 is the calling thread.
    let got = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    (got == 0).then_some(set)
}

fn set_allowed(set: &libc::cpu_set_t) -> bool {
    // SAFETY: the kernel reads the set, whose size is given. 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(set), set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_fault_unbinds_the_handler_until_the_next_look() {
        let processors = |set: Option<libc::cpu_set_t>| {
            // SAFETY: the set is one that the kernel has filled.
            set.map(|set| unsafe { libc::CPU_COUNT(&set) }).expect("the kernel says where a thread may run")
        };
        let before = processors(allowed());
        // SAFETY: the call has no argument.
        let thread = unsafe { libc::gettid() } as u32;
        let mut placement = HandlerPlacement::new();
        placement.follow(thread);
        assert_eq!(processors(allowed()), 1);
        placement.note_served(SLOW / 2);
        assert_eq!(processors(allowed()), 1);
        placement.note_served(SLOW * 2);
        assert_eq!(processors(allowed()), before);
        (0..FAULTS_PER_LOOK).for_each(|_| placement.follow(thread));
        assert_eq!(processors(allowed()), 1);
        placement.note_served(SLOW * 2);
    }
}
