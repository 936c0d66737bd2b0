//! Limits the processor time of another process.
//!
//! * A **cgroup** with a quota (version 2 or 1, depending on the machine): in each [`PERIOD`] the kernel lets the
//!   processes of the group run for the given share of processor time, and then suspends them for the rest.
//! * **Pauses**, if no cgroup can be made: signals stop and continue the process, so that it can run only in a part of
//!   each period. This is stricter than a cgroup, because time in which the process sleeps counts as used.
//!
//! Dropping a limiter lifts the limit and removes the cgroup. The caller must end the process first.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cgroup::CpuGroup;
pub use cgroup::{PERCENT_MIN, PERIOD};
use rustix::process::{Pid, Signal, kill_process};

use measurement::error::Error;

/// How to limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimiterKind {
    /// By a cgroup if one can be made, else by pauses.
    Any,
    /// By a cgroup.
    Cgroup,
    /// By pauses.
    Pauses,
}

/// A process whose processor time can be limited.
pub struct CpuLimiter(LimiterBackend);

enum LimiterBackend {
    Cgroup(CgroupLimiter),
    Pauses(PauseLimiter),
}

impl CpuLimiter {
    /// Takes charge of a process.
    ///
    /// # Errors
    /// No cgroup can be made and no other way is allowed; the error lists the attempts.
    pub fn new(kind: LimiterKind, process: u32) -> Result<CpuLimiter, Error> {
        if kind != LimiterKind::Pauses {
            match CgroupLimiter::new(process) {
                Ok(group) => return Ok(CpuLimiter(LimiterBackend::Cgroup(group))),
                Err(tried) if kind == LimiterKind::Cgroup => {
                    let advice = "run as root, or in a cgroup that is delegated to you with its cpu controller (such as \
                                  `systemd-run --user --scope -p Delegate=yes`), or choose `--limit pauses`";
                    return Err(Error::Part {
                        what: "a cgroup for a memory node",
                        reason: format!("{tried}; {advice}"),
                    });
                }
                Err(_) => {}
            }
        }
        let pauses = PauseLimiter::new(process);
        pauses
            .map(|pauses| CpuLimiter(LimiterBackend::Pauses(pauses)))
            .map_err(|error| failed("a thread that pauses", &error))
    }

    /// A description of the mechanism.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            LimiterBackend::Cgroup(group) => group.0.mechanism(),
            LimiterBackend::Pauses(_) => "pauses (SIGSTOP and SIGCONT)",
        }
    }

    /// Limits the process to this percentage of one core from now on; `None` lifts the limit.
    ///
    /// # Errors
    /// The system rejects it.
    pub fn set(&self, percent: Option<u32>) -> Result<(), Error> {
        assert!(percent.is_none_or(|percent| percent >= PERCENT_MIN), "a share is checked where it is given");
        match &self.0 {
            LimiterBackend::Cgroup(group) => {
                group.0.set_quota(percent).map_err(|error| failed("a cgroup's limit", &error))
            }
            LimiterBackend::Pauses(pauses) => {
                pauses.shared.percent.store(percent.unwrap_or(0), Ordering::Release);
                Ok(())
            }
        }
    }
}

impl CpuLimiter {
    /// Lifts the limit for good. After this the process may end and its number be reused.
    pub fn end(&self) {
        match &self.0 {
            LimiterBackend::Cgroup(group) => drop(group.0.set_quota(None)),
            LimiterBackend::Pauses(pauses) => pauses.end(),
        }
    }
}

fn failed(what: &'static str, error: &io::Error) -> Error {
    Error::Part { what, reason: error.to_string() }
}

/// A cgroup with a process in it, removed on drop.
struct CgroupLimiter(CpuGroup);

impl CgroupLimiter {
    fn new(process: u32) -> Result<CgroupLimiter, String> {
        let group = CpuGroup::make(&format!("heddle-bench-{process}")).map_err(|error| error.to_string())?;
        let group = CgroupLimiter(group);
        group.0.add(process).map_err(|error| format!("{}: {error}", group.0.folder().display()))?;
        Ok(group)
    }
}

impl Drop for CgroupLimiter {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// A thread that stops and continues a process.
struct PauseLimiter {
    shared: Arc<LimiterCore>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct LimiterCore {
    process: u32,
    /// 0 is no limit.
    percent: AtomicU32,
    ended: AtomicBool,
}

impl PauseLimiter {
    fn new(process: u32) -> io::Result<PauseLimiter> {
        let shared = Arc::new(LimiterCore { process, percent: AtomicU32::new(0), ended: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pauses".to_owned()).spawn(move || of_thread.run())?;
        Ok(PauseLimiter { shared, thread: Mutex::new(Some(thread)) })
    }
}

impl LimiterCore {
    fn run(&self) {
        let Some(process) = i32::try_from(self.process).ok().and_then(Pid::from_raw) else { return };
        // Late wake-ups are compensated: excess time of the process is deducted later.
        let (mut owed, mut since) = (0.0_f64, Instant::now());
        while !self.ended.load(Ordering::Acquire) {
            let percent = self.percent.load(Ordering::Acquire);
            if percent == 0 || percent >= 100 {
                // The last period may have ended with a stop.
                let _ = kill_process(process, Signal::CONT);
                std::thread::sleep(PERIOD);
                (owed, since) = (0.0, Instant::now());
                continue;
            }
            let fraction = f64::from(percent) / 100.0;
            let run = PERIOD.as_secs_f64() * fraction - owed;
            if run > 0.0 {
                let begin = Instant::now();
                let _ = kill_process(process, Signal::CONT);
                std::thread::sleep(Duration::from_secs_f64(run));
                let _ = kill_process(process, Signal::STOP);
                owed += begin.elapsed().as_secs_f64();
            }
            std::thread::sleep(PERIOD.saturating_sub(since.elapsed().min(PERIOD)));
            // The elapsed time entitled the process to this much.
            owed -= since.elapsed().as_secs_f64() * fraction;
            owed = owed.max(-PERIOD.as_secs_f64() * fraction);
            since = Instant::now();
        }
        let _ = kill_process(process, Signal::CONT);
    }
}

impl PauseLimiter {
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for PauseLimiter {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_stopped_and_goes_on_once_the_limit_is_lifted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
            stat.rsplit(')').next().unwrap_or("").split_whitespace().next() == Some("T")
        };
        let limiter = CpuLimiter::new(LimiterKind::Pauses, child.id()).expect("signals need no rights");
        assert!(limiter.name().contains("SIGSTOP"));
        limiter.set(Some(PERCENT_MIN)).expect("it can be limited");
        while !stopped() {
            std::thread::yield_now();
        }
        limiter.set(None).expect("the limit can be lifted");
        while stopped() {
            std::thread::yield_now();
        }
        limiter.set(Some(PERCENT_MIN)).expect("it can be limited again");
        while !stopped() {
            std::thread::yield_now();
        }
        drop(limiter);
        assert!(!stopped(), "it goes on");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
}
