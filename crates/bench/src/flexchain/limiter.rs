//! Limits the processor time of another process.
//!
//! * A **cgroup** with a quota (version 2 or 1, depending on the machine): in each [`PERIOD`] the kernel lets the
//!   processes of the group run for the given share of processor time, and then suspends them for the rest.
//! * **Pauses**, if no cgroup can be made: signals stop and continue the process, so that it can run only in a part of
//!   each period. This is stricter than a cgroup, because time in which the process sleeps counts as used.
//!
//! Dropping a limiter lifts the limit and removes the cgroup. The caller must end the process first.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use measurement::error::Error;

/// The period of a quota. The kernel accepts no quota below a millisecond, a tenth of this.
pub const PERIOD: Duration = Duration::from_millis(10);
/// The least limit, in percent of one core.
pub const PERCENT_MIN: u32 = 10;
/// The most attempts to remove a group that its process has just left.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

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
            LimiterBackend::Cgroup(CgroupLimiter { version: CgroupVersion::Two, .. }) => "cgroup v2 (cpu.max)",
            LimiterBackend::Cgroup(CgroupLimiter { version: CgroupVersion::One, .. }) => "cgroup v1 (cpu.cfs_quota_us)",
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
            LimiterBackend::Cgroup(group) => group.set(percent).map_err(|error| failed("a cgroup's limit", &error)),
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
            LimiterBackend::Cgroup(group) => drop(group.set(None)),
            LimiterBackend::Pauses(pauses) => pauses.end(),
        }
    }
}

fn failed(what: &'static str, error: &io::Error) -> Error {
    Error::Part { what, reason: error.to_string() }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CgroupVersion {
    One,
    Two,
}

/// A cgroup of our own.
struct CgroupLimiter {
    version: CgroupVersion,
    folder: PathBuf,
}

impl CgroupLimiter {
    /// Makes a group with a processor limit and moves the process there; the error lists the attempts.
    fn new(process: u32) -> Result<CgroupLimiter, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = cgroup_folders(&mounts, &own);
        if places.is_empty() {
            return Err("no cgroup file system with a cpu controller is mounted".to_owned());
        }
        let mut tried = String::new();
        for (version, parent) in places {
            let folder = parent.join(format!("heddle-bench-{process}"));
            match CgroupLimiter::in_folder(version, &folder, process) {
                Ok(group) => return Ok(group),
                Err(error) => {
                    let separator = if tried.is_empty() { "" } else { ", " };
                    write!(tried, "{separator}{}: {error}", folder.display())
                        .expect("writing into a string does not fail");
                }
            }
        }
        Err(tried)
    }

    fn in_folder(version: CgroupVersion, folder: &Path, process: u32) -> io::Result<CgroupLimiter> {
        fs::create_dir(folder)?;
        // Removed again if anything below fails.
        let group = CgroupLimiter { version, folder: folder.to_path_buf() };
        group.set(None)?;
        fs::write(folder.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    fn set(&self, percent: Option<u32>) -> io::Result<()> {
        let period_us = PERIOD.as_micros() as u64;
        let quota_us = percent.map(|percent| period_us * u64::from(percent) / 100);
        match self.version {
            CgroupVersion::Two => {
                let quota = quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                write_existing(&self.folder.join("cpu.max"), &format!("{quota} {period_us}"))
            }
            CgroupVersion::One => {
                // The limit is lifted while the period changes, or the kernel rejects the combination.
                write_existing(&self.folder.join("cpu.cfs_quota_us"), "-1")?;
                write_existing(&self.folder.join("cpu.cfs_period_us"), &period_us.to_string())?;
                match quota_us {
                    Some(quota) => write_existing(&self.folder.join("cpu.cfs_quota_us"), &quota.to_string()),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Writes to an existing file: a missing file means a missing controller.
fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    let mut file = file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    io::Write::write_all(&mut file, text.as_bytes())
}

impl Drop for CgroupLimiter {
    fn drop(&mut self) {
        // The process has ended, or ends now; a group can be removed once it is empty.
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
}

/// Folders below which a group with a cpu controller may be made: the group of this process, then the root.
fn cgroup_folders(mounts: &str, own: &str) -> Vec<(CgroupVersion, PathBuf)> {
    let mut places = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields[..] else { continue };
        let version = match kind {
            "cgroup2" => CgroupVersion::Two,
            "cgroup" if options.split(',').any(|option| option == "cpu") => CgroupVersion::One,
            _ => continue,
        };
        let within = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match version {
                CgroupVersion::Two => number == "0" && controllers.is_empty(),
                CgroupVersion::One => controllers.split(',').any(|controller| controller == "cpu"),
            };
            is_it.then(|| path.trim_matches('/').to_owned())
        });
        let mount = Path::new(mount);
        if let Some(within) = within.filter(|within| !within.is_empty() && !within.contains("..")) {
            // A version 2 group that has processes cannot have child groups, but its parent can.
            let own = mount.join(within);
            let parent = own.parent().filter(|parent| *parent != mount).map(Path::to_path_buf);
            places.push((version, own));
            places.extend(parent.map(|parent| (version, parent)));
        }
        places.push((version, mount.to_path_buf()));
    }
    places
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
    fn groups_are_made_below_ones_own_and_then_below_the_root() {
        let path = |text: &str| PathBuf::from(text);
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(
            cgroup_folders(two, "0::/user.slice/session\n"),
            [
                (CgroupVersion::Two, path("/sys/fs/cgroup/user.slice/session")),
                (CgroupVersion::Two, path("/sys/fs/cgroup/user.slice")),
                (CgroupVersion::Two, path("/sys/fs/cgroup")),
            ]
        );
        let one =
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n";
        assert_eq!(
            cgroup_folders(one, "3:cpuset:/\n2:cpu,cpuacct:/docker\n"),
            [(CgroupVersion::One, path("/sys/fs/cgroup/cpu/docker")), (CgroupVersion::One, path("/sys/fs/cgroup/cpu"))]
        );
        // A group outside of a container's view cannot be reached from inside.
        assert_eq!(cgroup_folders(two, "0::/../other\n"), [(CgroupVersion::Two, path("/sys/fs/cgroup"))]);
        assert_eq!(cgroup_folders("tmpfs /tmp tmpfs rw 0 0\n", "0::/\n"), []);
    }

    #[test]
    fn a_process_is_stopped_and_goes_on_once_the_limit_is_lifted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let stopped = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
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
