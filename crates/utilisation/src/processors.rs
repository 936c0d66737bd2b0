//! Measures how busy the processors of this process are.
//!
//! 1. If the process runs under a quota of processor time (a cgroup's, v1 or v2), what counts is the time that its cgroup
//!    has used, as a share of the quota: the rest of the machine says nothing about it.
//! 2. Otherwise it may use the whole machine. Linux counts in `/proc/stat` how long the processors have worked and idled
//!    since boot, and two readings give the busy share of the time between them. In a container the values are the host's,
//!    which is the right measure for processes that share the host.
//!
//! Which of the two applies is found when the meter is made; a quota is read again with each measurement, since it may be
//! changed while the process runs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::rt::{self, Instant};
use replica::load::{LoadMeter, NodeLoad, UNKNOWN_PERCENT};

/// How long a measurement stays valid.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest name of processors.
const PROCESSORS_BYTES_MAX: usize = 512;
/// Where Linux mounts cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Processor time in the system's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuTicks {
    all: u64,
    idle: u64,
}

impl CpuTicks {
    /// Parses the first line of `/proc/stat`: `cpu`, then user, nice, system, idle, iowait, interrupts (hard, soft),
    /// and time stolen by other guests. The time of guests that this machine runs is part of user and nice.
    fn parse(stat: &str) -> Option<CpuTicks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(CpuTicks { all: ticks.iter().sum(), idle })
    }

    fn now() -> Option<CpuTicks> {
        CpuTicks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// How busy the processors were since an earlier reading; `None` if no tick has passed.
    fn percent_since(&self, earlier: &CpuTicks) -> Option<u8> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        // The iowait counter may go backwards.
        let idle = self.idle.saturating_sub(earlier.idle).min(all);
        Some((100 * (all - idle) / all) as u8)
    }
}

/// A cgroup with a quota of processor time: the nearest one around this process.
#[derive(Clone, PartialEq, Eq, Debug)]
enum CpuCgroup {
    /// Version 2: a folder with `cpu.max` and `cpu.stat`.
    Unified(PathBuf),
    /// Version 1: a folder with `cpu.cfs_quota_us` and `cpu.cfs_period_us`, and one with `cpuacct.usage`.
    Legacy { cpu: PathBuf, usage: PathBuf },
}

impl CpuCgroup {
    /// Finds the cgroup in what `/proc/self/cgroup` says.
    fn find(cgroups: &Path, of_process: &str) -> Option<CpuCgroup> {
        for line in of_process.lines() {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let own = path.trim_start_matches('/');
            let found = match (number, controllers) {
                ("0", "") => ancestors(cgroups, own).map(CpuCgroup::Unified).find(|found| found.quota().is_some()),
                (_, list) if list.split(',').any(|one| one == "cpu") => {
                    let roots = [list, "cpu"].into_iter().map(|name| cgroups.join(name));
                    let folders = roots.flat_map(|root| ancestors(&root, own).collect::<Vec<_>>());
                    let usage = |cpu: &Path| {
                        let beside = cgroups.join("cpuacct").join(own);
                        if cpu.join("cpuacct.usage").exists() { cpu.to_path_buf() } else { beside }
                    };
                    let group = |cpu: PathBuf| CpuCgroup::Legacy { usage: usage(&cpu), cpu };
                    folders.map(group).find(|found| found.quota().is_some())
                }
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The quota in processors, if there is one.
    fn quota(&self) -> Option<f64> {
        let read = |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let (quota, period): (f64, f64) = match self {
            CpuCgroup::Unified(folder) => {
                let text = read(folder, "cpu.max")?;
                let mut words = text.split_whitespace();
                // Without a quota the first word is `max`.
                (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
            }
            CpuCgroup::Legacy { cpu, .. } => {
                let number = |name| read(cpu, name)?.trim().parse::<f64>().ok();
                (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            }
        };
        // Version 1 writes -1 for none.
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    }

    /// The processor time that was used so far.
    fn used(&self) -> Option<Duration> {
        match self {
            CpuCgroup::Unified(folder) => {
                let text = std::fs::read_to_string(folder.join("cpu.stat")).ok()?;
                let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                line.trim().parse().ok().map(Duration::from_micros)
            }
            CpuCgroup::Legacy { usage, .. } => {
                let text = std::fs::read_to_string(usage.join("cpuacct.usage")).ok()?;
                text.trim().parse().ok().map(Duration::from_nanos)
            }
        }
    }
}

/// A folder below a root, and the folders around it, up to the root.
fn ancestors(root: &Path, own: &str) -> impl Iterator<Item = PathBuf> {
    let (root, own) = (root.to_path_buf(), PathBuf::from(own));
    let folders: Vec<PathBuf> = own.ancestors().map(|folder| root.join(folder)).collect();
    folders.into_iter()
}

/// What a reading found.
#[derive(Clone, Copy, PartialEq, Debug)]
enum CpuReading {
    Cgroup { used: Duration, quota: f64 },
    Machine(CpuTicks),
}

impl CpuReading {
    fn now(cgroup: Option<&CpuCgroup>) -> Option<CpuReading> {
        let limited =
            cgroup.and_then(|cgroup| Some(CpuReading::Cgroup { used: cgroup.used()?, quota: cgroup.quota()? }));
        limited.or_else(|| CpuTicks::now().map(CpuReading::Machine))
    }

    /// How busy the processors were since an earlier reading, this long ago.
    fn percent_since(&self, earlier: &CpuReading, passed: Duration) -> Option<u8> {
        match (self, earlier) {
            (CpuReading::Machine(now), CpuReading::Machine(earlier)) => now.percent_since(earlier),
            (CpuReading::Cgroup { used, quota }, CpuReading::Cgroup { used: earlier, .. }) => {
                let share = used.checked_sub(*earlier)?.as_secs_f64() / (passed.as_secs_f64() * quota);
                // A number in the range, or a saturated one.
                Some((100.0 * share).min(100.0) as u8)
            }
            _ => None,
        }
    }
}

struct LoadSample {
    at: Instant,
    reading: Option<CpuReading>,
    percent: u8,
}

/// The load of this process. Cheap to ask: it reads files at most ten times a second. Its processors have the name of the
/// machine's present run, and of the cgroup if there is a quota.
pub fn of_process() -> NodeLoad {
    let of_process = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cgroup = CpuCgroup::find(Path::new(CGROUPS), &of_process);
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processors = match (machine.trim(), &cgroup) {
        ("", _) => String::new(),
        (machine, None) => machine.to_owned(),
        (machine, Some(CpuCgroup::Unified(folder) | CpuCgroup::Legacy { cpu: folder, .. })) => {
            let name = format!("{machine} {}", folder.display());
            // Too long a path only keeps two nodes from noticing that they share it.
            if name.len() > PROCESSORS_BYTES_MAX { String::new() } else { name }
        }
    };
    NodeLoad::new(meter(cgroup), &processors)
}

/// A meter of the processors of this process.
fn meter(cgroup: Option<CpuCgroup>) -> LoadMeter {
    let first = LoadSample { at: rt::now(), reading: CpuReading::now(cgroup.as_ref()), percent: UNKNOWN_PERCENT };
    let measured = Mutex::new(first);
    LoadMeter::new(move || {
        let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = measured.at.elapsed();
        if passed >= PERIOD {
            let reading = CpuReading::now(cgroup.as_ref());
            let percent = reading.zip(measured.reading);
            let percent = percent.and_then(|(now, earlier)| now.percent_since(&earlier, passed));
            *measured = LoadSample { at: rt::now(), reading, percent: percent.unwrap_or(UNKNOWN_PERCENT) };
        }
        measured.percent
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_of_the_time_between_two_looks() {
        let ticks = |line: &str| CpuTicks::parse(line).expect("it is well formed");
        let before = ticks("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3 4");
        assert_eq!(before, CpuTicks { all: 1000, idle: 850 });
        let cases = [
            ("cpu 175 0 50 800 75 0 0 0", Some(75)),
            ("cpu 100 0 50 900 50 0 0 0", Some(0)),
            ("cpu 200 0 50 800 50 0 0 0", Some(100)),
            ("cpu 150 0 50 850 40 0 0 10", Some(60)),
            ("cpu 100 0 50 800 50 0 0 0", None),
        ];
        for (line, percent) in cases {
            assert_eq!(ticks(line).percent_since(&before), percent, "{line}");
        }
        for line in ["", "cpu", "cpu 1 2 3", "cpu a b c d e", "intr 1 2 3 4 5"] {
            assert_eq!(CpuTicks::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_quota_is_what_a_process_is_measured_by() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let found = |of_process: &str| CpuCgroup::find(root.path(), of_process);
        assert_eq!(found("0::/peer/node\n"), None, "there is none");
        write("peer/node/cpu.max", "max 100000\n");
        write("peer/cpu.max", "30000 100000\n");
        write("peer/cpu.stat", "usage_usec 1500000\nuser_usec 1\n");
        let unified = found("0::/peer/node\n").expect("the nearest one with a quota");
        assert_eq!(unified, CpuCgroup::Unified(root.path().join("peer/")));
        assert_eq!((unified.quota(), unified.used()), (Some(0.3), Some(Duration::from_millis(1500))));

        write("cpu,cpuacct/node/cpu.cfs_quota_us", "-1\n");
        write("cpu,cpuacct/node/cpu.cfs_period_us", "100000\n");
        let of_process = "5:memory:/node\n4:cpu,cpuacct:/node\n0::/\n";
        assert_eq!(found(of_process), None, "it has no quota");
        write("cpu,cpuacct/node/cpu.cfs_quota_us", "200000\n");
        write("cpu,cpuacct/node/cpuacct.usage", "2000000000\n");
        let legacy = found(of_process).expect("it has one");
        assert_eq!((legacy.quota(), legacy.used()), (Some(2.0), Some(Duration::from_secs(2))));

        let reading = |ms, quota| CpuReading::Cgroup { used: Duration::from_millis(ms), quota };
        let (earlier, second) = (reading(1000, 0.5), Duration::from_secs(1));
        assert_eq!(reading(1250, 0.5).percent_since(&earlier, second), Some(50));
        assert_eq!(reading(1250, 0.25).percent_since(&earlier, second), Some(100), "the quota was lowered");
        assert_eq!(reading(1700, 0.5).percent_since(&earlier, second), Some(100), "it ran ahead of its quota");
        assert_eq!(reading(900, 0.5).percent_since(&earlier, second), None);
    }

    #[test]
    fn a_meter_says_a_percentage() {
        rt::production::run(async {
            let load = of_process();
            assert!(load.percent() <= 100);
            assert!(load.shares_with(of_process().processors()), "both run on this machine");
        });
    }
}
