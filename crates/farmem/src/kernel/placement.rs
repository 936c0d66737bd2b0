//! On which processor the thread that serves faults runs.
//!
//! Waking a thread on another, idle processor costs far more than a switch on the same one: 47 to 62 µs a fault against 7 in
//! a virtual machine. So the handler follows the thread that faults most: now and then it looks where that thread runs,
//! and moves there.

#![allow(unsafe_code)]

use std::fs;

/// Faults between two looks: a look costs some microseconds.
const FAULTS_PER_LOOK: u32 = 256;

/// The placement of the calling thread.
#[derive(Default)]
pub(crate) struct HandlerPlacement {
    faults: u32,
    processor: Option<usize>,
}

impl HandlerPlacement {
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

/// The processor on which a thread of this process ran last.
fn processor_of(thread: u32) -> Option<usize> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
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
    // SAFETY: the kernel reads the set, whose size is given. 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 }
}
