//! Processes that cannot be served: the children of forks that nobody has announced, and what is left of other failures.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::kernel::userfault::{UserEvent, UserFaults};
use crate::page::PAGE_BYTES;

/// How often it is checked whether orphans live, and whether there are new ones.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A process whose accesses to absent pages are errors until it ends. What belongs there is not known, and if its userfaultfd were
/// closed it would read zeros.
pub(super) struct Orphan {
    pub(super) faults: UserFaults,
    /// A page that was registered without write protection.
    pub(super) doorbell: u64,
}

/// All orphans of a server.
#[derive(Default)]
pub(super) struct Orphans {
    /// Those that are new.
    new: Mutex<Vec<Orphan>>,
    living: Mutex<usize>,
}

impl Orphans {
    pub(super) fn add(&self, orphan: Orphan) {
        *locked(&self.living) += 1;
        locked(&self.new).push(orphan);
    }

    /// How many live.
    pub(super) fn count(&self) -> usize {
        *locked(&self.living)
    }

    /// Refuses the faults of all, until the server is gone and none lives.
    pub(super) fn run(orphans: &Arc<Orphans>) {
        let mut all: Vec<Orphan> = Vec::new();
        while Arc::strong_count(orphans) > 1 || orphans.count() > 0 {
            all.append(&mut locked(&orphans.new));
            wait_for_any(&all);
            let children: Vec<Orphan> = all.iter().flat_map(refuse_arrived).collect();
            let before = all.len();
            all.retain(|orphan| orphan.faults.has_process(orphan.doorbell));
            *locked(&orphans.living) -= before - all.len();
            children.into_iter().for_each(|child| orphans.add(child));
        }
    }
}

/// Refuses the faults of one process until it has ended.
pub(super) fn refuse_until_end(faults: &UserFaults, doorbell: u64, orphans: &Orphans) {
    while faults.has_process(doorbell) {
        wait_for(&mut [PollFd::from_borrowed_fd(faults.file(), PollFlags::IN)]);
        refuse(faults, doorbell).into_iter().for_each(|child| orphans.add(child));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_for_any(orphans: &[Orphan]) {
    let mut files: Vec<PollFd<'_>> =
        orphans.iter().map(|orphan| PollFd::from_borrowed_fd(orphan.faults.file(), PollFlags::IN)).collect();
    wait_for(&mut files);
}

fn wait_for(files: &mut [PollFd<'_>]) {
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
    // An error shows itself at the reads.
    let _ = poll(files, Some(&limit));
}

fn refuse_arrived(orphan: &Orphan) -> Vec<Orphan> {
    refuse(&orphan.faults, orphan.doorbell)
}

/// Refuses the faults that have arrived; returns the children of forks.
fn refuse(faults: &UserFaults, doorbell: u64) -> Vec<Orphan> {
    faults.set_reader();
    let (mut events, mut children) = (Vec::new(), Vec::new());
    // An error comes again, until the process has ended.
    let _ = faults.read(&mut events);
    for event in events {
        match event {
            UserEvent::Fault(fault) => {
                let page = fault.address & !(PAGE_BYTES as u64 - 1);
                let poisoned = faults.poison(page, PAGE_BYTES as u64);
                // A page that is there is write-protected: the process has it, and may write it.
                if poisoned.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                    let _ = faults.unprotect(page, PAGE_BYTES as u64);
                }
            }
            UserEvent::Forked(child) => children.push(Orphan { faults: child, doorbell }),
        }
    }
    children
}
