//! Limits the processor time of another process.
//!
//! * A **cgroup** with a quota (version 2 or 1, whichever the machine has): the kernel lets the group's processes run for so
//!   much of each period of [`PERIOD`], and keeps them from the processor for the rest.
//! * **Pauses**, where no cgroup can be made: the process is stopped and continued by signals, so that of each period it
//!   exists for a share. That is stricter: time that the process would have slept through counts as used.
//!
//! Dropping a limiter lifts the limit and removes its group, for which the process has to have ended.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;

/// What a share is of. The kernel takes no quota below a millisecond, a tenth of this.
pub const PERIOD: Duration = Duration::from_millis(10);
/// The least share, in percent of one processor.
pub const PERCENT_MIN: u32 = 10;
/// How often a group that its process has just left is tried to be removed.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// How to limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// By a cgroup where one can be made, else by pauses.
    Any,
    /// By a cgroup.
    Cgroup,
    /// By pauses.
    Pauses,
}

/// A process whose processor time can be limited.
pub struct Limiter(Way);

enum Way {
    Cgroup(Group),
    Pauses(Pauses),
}

impl Limiter {
    /// Takes charge of a process.
    ///
    /// # Errors
    /// No cgroup can be made and nothing else is wanted; the error says what was tried.
    pub fn new(kind: Kind, process: u32) -> Result<Limiter, Error> {
        if kind != Kind::Pauses {
            match Group::new(process) {
                Ok(group) => return Ok(Limiter(Way::Cgroup(group))),
                Err(tried) if kind == Kind::Cgroup => {
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
        let pauses = Pauses::new(process);
        pauses.map(|pauses| Limiter(Way::Pauses(pauses))).map_err(|error| failed("a thread that pauses", &error))
    }

    /// What limits, in words.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Way::Cgroup(Group { version: Version::Two, .. }) => "cgroup v2 (cpu.max)",
            Way::Cgroup(Group { version: Version::One, .. }) => "cgroup v1 (cpu.cfs_quota_us)",
            Way::Pauses(_) => "pauses (SIGSTOP and SIGCONT)",
        }
    }

    /// From now on the process has so many percent of one processor; `None` lifts the limit.
    ///
    /// # Errors
    /// The system refuses.
    pub fn set(&self, percent: Option<u32>) -> Result<(), Error> {
        assert!(percent.is_none_or(|percent| percent >= PERCENT_MIN), "a share is checked where it is given");
        match &self.0 {
            Way::Cgroup(group) => group.set(percent).map_err(|error| failed("a cgroup's limit", &error)),
            Way::Pauses(pauses) => {
                pauses.shared.percent.store(percent.unwrap_or(0), Ordering::Release);
                Ok(())
            }
        }
    }
}

impl Limiter {
    /// Lifts the limit for good. From then on the process may end and its number belong to another.
    pub fn end(&self) {
        match &self.0 {
            Way::Cgroup(group) => drop(group.set(None)),
            Way::Pauses(pauses) => pauses.end(),
        }
    }
}

fn failed(what: &'static str, error: &io::Error) -> Error {
    Error::Part { what, reason: error.to_string() }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

/// A cgroup of our own.
struct Group {
    version: Version,
    folder: PathBuf,
}

impl Group {
    /// Makes a group with a processor limit and moves the process there; else says what was tried.
    fn new(process: u32) -> Result<Group, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = places(&mounts, &own);
        if places.is_empty() {
            return Err("no cgroup file system with a cpu controller is mounted".to_owned());
        }
        let mut tried = String::new();
        for (version, parent) in places {
            let folder = parent.join(format!("heddle-bench-{process}"));
            match Group::in_folder(version, &folder, process) {
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

    fn in_folder(version: Version, folder: &Path, process: u32) -> io::Result<Group> {
        fs::create_dir(folder)?;
        // Removed again if anything below fails.
        let group = Group { version, folder: folder.to_path_buf() };
        group.set(None)?;
        fs::write(folder.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }

    fn set(&self, percent: Option<u32>) -> io::Result<()> {
        let period_us = PERIOD.as_micros() as u64;
        let quota_us = percent.map(|percent| period_us * u64::from(percent) / 100);
        match self.version {
            Version::Two => {
                let quota = quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                write_existing(&self.folder.join("cpu.max"), &format!("{quota} {period_us}"))
            }
            Version::One => {
                // Without a limit while the period changes, or the kernel refuses the two together.
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

/// A file that is not there is a controller that is not there.
fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    let mut file = file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    io::Write::write_all(&mut file, text.as_bytes())
}

impl Drop for Group {
    fn drop(&mut self) {
        // The process has ended, or ends now; a group can be removed once nobody is in it.
        for _ in 0..REMOVALS_MAX {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
}

/// Where a group with a cpu controller may be made: below the group that this process is in, then below the root.
fn places(mounts: &str, own: &str) -> Vec<(Version, PathBuf)> {
    let mut places = Vec::new();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, mount, kind, options, ..] = fields[..] else { continue };
        let version = match kind {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "cpu") => Version::One,
            _ => continue,
        };
        let within = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match version {
                Version::Two => number == "0" && controllers.is_empty(),
                Version::One => controllers.split(',').any(|controller| controller == "cpu"),
            };
            is_it.then(|| path.trim_matches('/').to_owned())
        });
        let mount = Path::new(mount);
        if let Some(within) = within.filter(|within| !within.is_empty() && !within.contains("..")) {
            // A version 2 group with processes has no groups beside them: its parent may.
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
struct Pauses {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    process: u32,
    /// 0 is no limit.
    percent: AtomicU32,
    ended: AtomicBool,
}

impl Pauses {
    fn new(process: u32) -> io::Result<Pauses> {
        let shared = Arc::new(Shared { process, percent: AtomicU32::new(0), ended: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pauses".to_owned()).spawn(move || of_thread.run())?;
        Ok(Pauses { shared, thread: Mutex::new(Some(thread)) })
    }
}

impl Shared {
    fn run(&self) {
        let Some(process) = i32::try_from(self.process).ok().and_then(Pid::from_raw) else { return };
        // Late wake-ups are made up for: what the process was given too much, it gets less of later.
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
            let share = f64::from(percent) / 100.0;
            let run = PERIOD.as_secs_f64() * share - owed;
            if run > 0.0 {
                let begin = Instant::now();
                let _ = kill_process(process, Signal::CONT);
                std::thread::sleep(Duration::from_secs_f64(run));
                let _ = kill_process(process, Signal::STOP);
                owed += begin.elapsed().as_secs_f64();
            }
            std::thread::sleep(PERIOD.saturating_sub(since.elapsed().min(PERIOD)));
            // What has passed was good for so much.
            owed -= since.elapsed().as_secs_f64() * share;
            owed = owed.max(-PERIOD.as_secs_f64() * share);
            since = Instant::now();
        }
        let _ = kill_process(process, Signal::CONT);
    }
}

impl Pauses {
    fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Pauses {
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
            places(two, "0::/user.slice/session\n"),
            [
                (Version::Two, path("/sys/fs/cgroup/user.slice/session")),
                (Version::Two, path("/sys/fs/cgroup/user.slice")),
                (Version::Two, path("/sys/fs/cgroup")),
            ]
        );
        let one =
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n";
        assert_eq!(
            places(one, "3:cpuset:/\n2:cpu,cpuacct:/docker\n"),
            [(Version::One, path("/sys/fs/cgroup/cpu/docker")), (Version::One, path("/sys/fs/cgroup/cpu"))]
        );
        // What is outside of a container's view is not reached from inside.
        assert_eq!(places(two, "0::/../other\n"), [(Version::Two, path("/sys/fs/cgroup"))]);
        assert_eq!(places("tmpfs /tmp tmpfs rw 0 0\n", "0::/\n"), []);
    }

    #[test]
    fn a_process_is_stopped_and_goes_on_once_the_limit_is_lifted() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let stopped = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
            stat.rsplit(')').next().unwrap_or("").split_whitespace().next() == Some("T")
        };
        let limiter = Limiter::new(Kind::Pauses, child.id()).expect("signals need no rights");
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
