//! Pins threads to cores while the `tcp` provider and its floor ([`super::echo`]) are measured: the caller to one core,
//! the answering thread to another.
//!
//! The kernel often puts a thread on the core of the thread that woke it. Two threads that spin on one core delay each
//! other until both stop spinning and sleep, and a round trip takes twice the spinning time. That would happen to the
//! provider and to the bare socket of its floor alike, and would hide the difference between the two.

use std::fs;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The most cores that this process may use.
const CORES_MAX: usize = CpuSet::MAX_CPU;
/// The name of the provider's answering threads.
const ANSWERING: &str = "rma-tcp";

/// Keeps the caller's thread on one core until this is dropped.
pub struct PinnedCaller {
    /// The cores that it could use before; `None` if there is only one core, which all threads share.
    before: Option<CpuSet>,
}

impl PinnedCaller {
    /// Puts the calling thread on the first core that it may use, and the provider's answering threads on the
    /// second. All others may use both.
    pub fn pin() -> PinnedCaller {
        let Ok(before) = sched_getaffinity(None) else { return PinnedCaller { before: None } };
        let [Some(first), Some(_)] = first_two_cores(&before) else { return PinnedCaller { before: None } };
        // A thread that cannot be pinned runs where the kernel puts it.
        let _ = sched_setaffinity(None, &single_core(first));
        for thread in threads_named(ANSWERING) {
            pin_answering_thread(Some(thread), &before);
        }
        PinnedCaller { before: Some(before) }
    }

    /// Puts the calling thread, which answers this caller, on the second core.
    pub fn answering(&self) -> impl FnOnce() + Send + use<> {
        let before = self.before;
        move || {
            if let Some(before) = before {
                pin_answering_thread(None, &before);
            }
        }
    }
}

impl Drop for PinnedCaller {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

fn pin_answering_thread(thread: Option<Pid>, allowed: &CpuSet) {
    if let [_, Some(second)] = first_two_cores(allowed) {
        let _ = sched_setaffinity(thread, &single_core(second));
    }
}

/// The first two cores.
fn first_two_cores(allowed: &CpuSet) -> [Option<usize>; 2] {
    let mut all = (0..CORES_MAX).filter(|processor| allowed.is_set(*processor));
    [all.next(), all.next()]
}

fn single_core(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

fn threads_named(name: &str) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let tasks = tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?)).collect()
}
