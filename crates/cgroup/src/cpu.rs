//! A group whose processes have a quota of processor time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::group::{self, CgroupError, write_existing};
use crate::mounts::{CgroupMount, CgroupVersion};

/// The controller of this module.
const CPU: &str = "cpu";

/// The period of the quotas that are set here. It bounds how long a process stands still when its quota is used up.
pub const PERIOD: Duration = Duration::from_millis(10);
/// The least quota, in percent of one processor: the kernel accepts no quota below a millisecond.
pub const PERCENT_MIN: u32 = 10;
/// A control group with a quota of processor time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuGroup {
    version: CgroupVersion,
    folder: PathBuf,
    /// Version 1, if the time used is counted in another hierarchy: the group's folder there.
    counted: Option<PathBuf>,
}

impl CpuGroup {
    /// Makes a group of this name, without processes and without a quota. A group of this name that has no processes, such
    /// as the leftover of a process that was killed, is taken.
    ///
    /// # Errors
    /// No group may be made in any place.
    pub fn make(name: &str) -> Result<CpuGroup, CgroupError> {
        group::make(CPU, name, CpuGroup::make_in)
    }

    fn make_in(mount: &CgroupMount, within: &Path) -> io::Result<CpuGroup> {
        let mut group = CpuGroup { version: mount.version, counted: None, folder: mount.root.join(within) };
        group::make_folder(CPU, group.version, &group.folder)?;
        let prepared = group.set_quota(None).and_then(|()| group.count_beside(within));
        if let Err(error) = prepared {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// Makes a group of this name within this one, whose quota holds for it too. Version 1 allows it no larger quota.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub(crate) fn make_within(&self, name: &str) -> io::Result<CpuGroup> {
        let counted = self.counted.as_ref().map(|counted| counted.join(name));
        let group = CpuGroup { version: self.version, counted, folder: self.folder.join(name) };
        group::make_folder(CPU, group.version, &group.folder)?;
        let prepared = group.set_quota(None).and_then(|()| group.counted().map_or(Ok(()), group::make_empty));
        if let Err(error) = prepared {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// Version 1 may count the time used in another hierarchy. Then a group of the same path is made there.
    fn count_beside(&mut self, within: &Path) -> io::Result<()> {
        if self.version == CgroupVersion::Two || self.folder.join("cpuacct.usage").exists() {
            return Ok(());
        }
        let counting = CgroupMount::of_machine("cpuacct");
        let counting = counting.into_iter().find(|mount| mount.version == CgroupVersion::One);
        if let Some(counting) = counting {
            let folder = counting.root.join(within);
            group::make_empty(&folder)?;
            self.counted = Some(folder);
        }
        Ok(())
    }

    /// The nearest group with a quota around this process.
    pub fn around_process() -> Option<CpuGroup> {
        let mounts = CgroupMount::of_machine(CPU);
        mounts.iter().find_map(|mount| CpuGroup::around_place(mount, &CgroupMount::of_machine("cpuacct")))
    }

    /// The nearest group with a quota around another process of this machine.
    pub fn around(process: u32) -> Option<CpuGroup> {
        let process = process.to_string();
        let mounts = CgroupMount::of_process(CPU, &process);
        let counting = CgroupMount::of_process("cpuacct", &process);
        mounts.iter().find_map(|mount| CpuGroup::around_place(mount, &counting))
    }

    fn around_place(mount: &CgroupMount, counting: &[CgroupMount]) -> Option<CpuGroup> {
        let group = |within: &Path| {
            let folder = mount.root.join(within);
            let is_counted_here = mount.version == CgroupVersion::Two || folder.join("cpuacct.usage").exists();
            // The group of the process itself there: it may be in several groups of this one.
            let beside = counting.iter().find(|counting| counting.version == CgroupVersion::One);
            let counted = beside.filter(|_| !is_counted_here).map(|beside| beside.root.join(&beside.own));
            CpuGroup { version: mount.version, folder, counted }
        };
        mount.own.ancestors().map(group).find(|group| group.quota().is_some())
    }

    /// A description of the mechanism.
    pub fn mechanism(&self) -> &'static str {
        match self.version {
            CgroupVersion::Two => "cgroup v2 (cpu.max)",
            CgroupVersion::One => "cgroup v1 (cpu.cfs_quota_us)",
        }
    }

    /// Its version.
    pub(crate) fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Its folder, which names it on this machine.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the hierarchy that counts its time, if that is another one.
    pub(crate) fn counted(&self) -> Option<&Path> {
        self.counted.as_deref()
    }

    /// Moves a process with all its threads into the group.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn add(&self, process: u32) -> io::Result<()> {
        for folder in [Some(&self.folder), self.counted.as_ref()].into_iter().flatten() {
            write_existing(&folder.join("cgroup.procs"), &process.to_string())?;
        }
        Ok(())
    }

    /// Limits its processes together to this percentage of one processor, at least [`PERCENT_MIN`]; `None` lifts the limit.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn set_quota(&self, percent: Option<u32>) -> io::Result<()> {
        let period_us = PERIOD.as_micros() as u64;
        let quota_us = percent.map(|percent| period_us * u64::from(percent.max(PERCENT_MIN)) / 100);
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

    /// The quota in processors, if there is one.
    pub fn quota(&self) -> Option<f64> {
        let (quota, period): (f64, f64) = match self.version {
            CgroupVersion::Two => {
                let text = fs::read_to_string(self.folder.join("cpu.max")).ok()?;
                let mut words = text.split_whitespace();
                // Without a quota the first word is `max`.
                (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
            }
            CgroupVersion::One => {
                let number = |name: &str| fs::read_to_string(self.folder.join(name)).ok()?.trim().parse::<f64>().ok();
                (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
            }
        };
        // Version 1 writes -1 for none.
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    }

    /// The processor time that its processes have used so far.
    pub fn used(&self) -> Option<Duration> {
        match self.version {
            CgroupVersion::Two => {
                let text = fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
                let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                line.trim().parse().ok().map(Duration::from_micros)
            }
            CgroupVersion::One => {
                let folder = self.counted.as_ref().unwrap_or(&self.folder);
                fs::read_to_string(folder.join("cpuacct.usage")).ok()?.trim().parse().ok().map(Duration::from_nanos)
            }
        }
    }

    /// Removes the group, whose processes have ended or end now. Waits for them up to a second, blocking.
    pub fn remove(&self) {
        [Some(&self.folder), self.counted.as_ref()].into_iter().flatten().for_each(|folder| group::remove(folder));
    }

    /// Moves this process to the group above and removes the group. If others are in it, it stays.
    pub fn leave(&self) {
        [Some(&self.folder), self.counted.as_ref()].into_iter().flatten().for_each(|folder| group::leave(folder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::Hierarchy;

    #[test]
    fn the_nearest_quota_is_found_in_version_2() {
        let files = Hierarchy::new();
        let mount = files.mount(CgroupVersion::Two, "", "peer/node");
        assert_eq!(CpuGroup::around_place(&mount, &[]), None, "there is none");
        files.write("peer/node/cpu.max", "max 100000\n");
        assert_eq!(CpuGroup::around_place(&mount, &[]), None, "there is none still");
        files.write("peer/cpu.max", "30000 100000\n");
        files.write("peer/cpu.stat", "usage_usec 1500\nuser_usec 1000\n");
        let group = CpuGroup::around_place(&mount, &[]).expect("the group above has one");
        assert_eq!(group.folder(), files.0.path().join("peer"));
        assert_eq!((group.quota(), group.used()), (Some(0.3), Some(Duration::from_micros(1500))));
        files.write("peer/cpu.max", "max 100000\n");
        assert_eq!(group.quota(), None, "it was lifted");
    }

    #[test]
    fn the_nearest_quota_is_found_in_version_1() {
        let files = Hierarchy::new();
        let mount = files.mount(CgroupVersion::One, "cpu", "node");
        let counting = files.mount(CgroupVersion::One, "cpuacct", "node");
        files.write("cpu/node/cpu.cfs_quota_us", "-1\n");
        files.write("cpu/node/cpu.cfs_period_us", "10000\n");
        files.write("cpuacct/node/cpuacct.usage", "1700\n");
        let around = || CpuGroup::around_place(&mount, std::slice::from_ref(&counting));
        assert_eq!(around(), None, "-1 is none");
        files.write("cpu/node/cpu.cfs_quota_us", "15000\n");
        let group = around().expect("it has one");
        assert_eq!((group.quota(), group.used()), (Some(1.5), Some(Duration::from_nanos(1700))));
        files.write("cpu/node/cpuacct.usage", "1800\n");
        let group = around().expect("it has one");
        assert_eq!(group.used(), Some(Duration::from_nanos(1800)), "one hierarchy has both controllers");
    }

    #[test]
    fn a_quota_is_written_as_the_kernel_reads_it() {
        let files = Hierarchy::new();
        files.write("two/cpu.max", "");
        files.write("one/cpu.cfs_quota_us", "");
        files.write("one/cpu.cfs_period_us", "");
        let group = |version, name: &str| CpuGroup { version, folder: files.0.path().join(name), counted: None };
        let text = |path: &str| fs::read_to_string(files.0.path().join(path)).expect("it is there");
        group(CgroupVersion::Two, "two").set_quota(Some(30)).expect("a file");
        assert_eq!(text("two/cpu.max"), "3000 10000");
        let one = group(CgroupVersion::One, "one");
        one.set_quota(Some(150)).expect("files");
        assert_eq!(one.quota(), Some(1.5));
        let missing = group(CgroupVersion::Two, "three").set_quota(None).expect_err("no controller");
        assert!(missing.to_string().contains("cpu.max"), "{missing}");
    }
}
