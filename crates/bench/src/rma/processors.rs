//! Which processor runs whom while `tcp` and its floor are measured: the caller has one, the thread that answers another.
//!
//! The kernel often puts a thread beside the one that woke it. Two that spin on one processor then take turns in running out
//! of patience, and a round trip is twice that long, for the provider as for the bare socket: nothing of either is seen.

use std::fs;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Processors that this process may use.
const PROCESSORS_MAX: usize = CpuSet::MAX_CPU;
/// The threads of the provider that answer.
const ANSWERING: &str = "rma-tcp";

/// The caller's thread keeps to one processor until this is dropped.
pub struct Placed {
    /// What it was allowed before; `None` where there is only one processor, and everybody shares it.
    before: Option<CpuSet>,
}

impl Placed {
    /// Puts the calling thread on the first processor that it may use, and the provider's threads that answer on the
    /// second. All others may use both.
    pub fn caller() -> Placed {
        let Ok(before) = sched_getaffinity(None) else { return Placed { before: None } };
        let [Some(first), Some(_)] = processors(&before) else { return Placed { before: None } };
        // Whatever cannot be placed runs where the kernel puts it.
        let _ = sched_setaffinity(None, &only(first));
        for thread in threads_named(ANSWERING) {
            answers(Some(thread), &before);
        }
        Placed { before: Some(before) }
    }

    /// Puts the calling thread, which answers this caller, on the second processor.
    pub fn answering(&self) -> impl FnOnce() + Send + use<> {
        let before = self.before;
        move || {
            if let Some(before) = before {
                answers(None, &before);
            }
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(None, before);
        }
    }
}

fn answers(thread: Option<Pid>, allowed: &CpuSet) {
    if let [_, Some(second)] = processors(allowed) {
        let _ = sched_setaffinity(thread, &only(second));
    }
}

/// The first two.
fn processors(allowed: &CpuSet) -> [Option<usize>; 2] {
    let mut all = (0..PROCESSORS_MAX).filter(|processor| allowed.is_set(*processor));
    [all.next(), all.next()]
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

fn threads_named(name: &str) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let tasks = tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    tasks.filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?)).collect()
}
