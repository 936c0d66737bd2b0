//! A group whose processes have a limit of memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::group::{self, CgroupError, write_existing};
use crate::mounts::{CgroupMount, CgroupVersion};

/// The controller of this module.
const MEMORY: &str = "memory";
/// The least limit: a process of ours needs more by itself.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// What is allocated at once, at most, if the kernel ends a process for want of it.
const ALLOCATION_BYTES: u64 = 64 << 10;
/// A limit of version 1 above this is none: the kernel writes the largest number of pages that it can count.
const LIMIT_BYTES_MAX: u64 = 1 << 62;

/// A control group with a limit of memory.
///
/// The kernel counts what the group's processes allocate, and the page cache of the files that they were the first to read or
/// write. At the limit it drops page cache; if that is not enough, it kills a process. Memory that a process had before it
/// came into the group does not count, nor do pages of shared memory that another process touched first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryGroup {
    version: CgroupVersion,
    folder: PathBuf,
}

impl MemoryGroup {
    /// Makes a group of this name, without processes and without a limit. A group of this name that has no processes, such
    /// as the leftover of a process that was killed, is taken.
    ///
    /// # Errors
    /// No group may be made in any place.
    pub fn make(name: &str) -> Result<MemoryGroup, CgroupError> {
        group::make(MEMORY, name, MemoryGroup::make_in)
    }

    fn make_in(mount: &CgroupMount, within: &Path) -> io::Result<MemoryGroup> {
        MemoryGroup::make_at(mount.version, mount.root.join(within))
    }

    /// Makes a group of this name within this one, whose limit holds for it too.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub(crate) fn make_within(&self, name: &str) -> io::Result<MemoryGroup> {
        MemoryGroup::make_at(self.version, self.folder.join(name))
    }

    fn make_at(version: CgroupVersion, folder: PathBuf) -> io::Result<MemoryGroup> {
        group::make_folder(MEMORY, version, &folder)?;
        let group = MemoryGroup { version, folder };
        if let Err(error) = group.set_limit(None) {
            group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// Has its limit hold for the groups within it too, which old kernels do only if they are asked before there are any.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub(crate) fn hold_within(&self) -> io::Result<()> {
        match self.version {
            CgroupVersion::Two => Ok(()),
            CgroupVersion::One => if_there(write_existing(&self.folder.join("memory.use_hierarchy"), "1")),
        }
    }

    /// The nearest group with a limit around another process of this machine.
    pub fn around(process: u32) -> Option<MemoryGroup> {
        CgroupMount::of_process(MEMORY, &process.to_string()).iter().find_map(MemoryGroup::around_place)
    }

    fn around_place(mount: &CgroupMount) -> Option<MemoryGroup> {
        let group = |within: &Path| MemoryGroup { version: mount.version, folder: mount.root.join(within) };
        mount.own.ancestors().map(group).find(|group| group.limit().is_some())
    }

    /// A description of the mechanism.
    pub fn mechanism(&self) -> &'static str {
        match self.version {
            CgroupVersion::Two => "cgroup v2 (memory.max)",
            CgroupVersion::One => "cgroup v1 (memory.limit_in_bytes)",
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

    /// Moves a process with all its threads into the group.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn add(&self, process: u32) -> io::Result<()> {
        group::add(&self.folder, process)
    }

    /// Limits the memory of its processes together, page cache included, to this many bytes, at least [`MEMORY_BYTES_MIN`];
    /// `None` lifts the limit. Nothing of it may go to swap.
    ///
    /// # Errors
    /// The kernel rejects it.
    pub fn set_limit(&self, bytes: Option<u64>) -> io::Result<()> {
        let bytes = bytes.map(|bytes| bytes.max(MEMORY_BYTES_MIN));
        let file = |name: &str| self.folder.join(name);
        match self.version {
            CgroupVersion::Two => {
                let text = |bytes: Option<u64>| bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
                write_existing(&file("memory.max"), &text(bytes))?;
                // The file is missing where the kernel has no swap.
                if_there(write_existing(&file("memory.swap.max"), &text(bytes.map(|_| 0))))
            }
            CgroupVersion::One => {
                // Memory and swap together are never allowed to be less than memory. Without their file the kernel does not count
                // swap; then it is asked not to use any.
                let both = file("memory.memsw.limit_in_bytes");
                let text = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
                if_there(write_existing(&both, "-1"))?;
                write_existing(&file("memory.limit_in_bytes"), &text)?;
                match both.exists() {
                    true => write_existing(&both, &text),
                    false if bytes.is_some() => if_there(write_existing(&file("memory.swappiness"), "0")),
                    false => Ok(()),
                }
            }
        }
    }

    /// The limit in bytes, if there is one.
    pub fn limit(&self) -> Option<u64> {
        let name = match self.version {
            CgroupVersion::Two => "memory.max",
            CgroupVersion::One => "memory.limit_in_bytes",
        };
        // Without a limit version 2 has the word `max`.
        self.number(name).filter(|bytes| *bytes < LIMIT_BYTES_MAX)
    }

    /// The bytes that its processes use, page cache included.
    pub fn used(&self) -> Option<u64> {
        self.number(match self.version {
            CgroupVersion::Two => "memory.current",
            CgroupVersion::One => "memory.usage_in_bytes",
        })
    }

    /// How many of the used bytes are page cache. Shared memory counts with it.
    pub fn cached(&self) -> Option<u64> {
        let name = match self.version {
            CgroupVersion::Two => "file",
            CgroupVersion::One => "cache",
        };
        let text = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(line, _)| *line == name)?.1.trim().parse().ok()
    }

    /// How many processes the kernel has ended because the group needed more than its limit.
    pub fn kills(&self) -> Option<u64> {
        let name = match self.version {
            CgroupVersion::Two => "memory.events",
            CgroupVersion::One => "memory.oom_control",
        };
        let text = fs::read_to_string(self.folder.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    /// Where the count of [`was_short`](MemoryGroup::was_short) stands.
    pub fn shortages(&self) -> u64 {
        match self.version {
            CgroupVersion::Two => self.shortages_counted().unwrap_or(0),
            CgroupVersion::One => 0,
        }
    }

    /// Whether a process has found no room below this group's own limit, rather than below that of a group within or around it, since the count
    /// stood there. Version 1 has no such count: whether use has come up to the limit since
    /// [`forget_shortages`](MemoryGroup::forget_shortages), which page cache does as well. `None`: the kernel does not say.
    pub fn was_short(&self, since: u64) -> Option<bool> {
        match self.version {
            CgroupVersion::Two => Some(self.shortages_counted()? > since),
            CgroupVersion::One => {
                let peak = self.number("memory.max_usage_in_bytes")?;
                Some(self.limit().is_some_and(|limit| peak.saturating_add(ALLOCATION_BYTES) >= limit))
            }
        }
    }

    /// Version 1 begins again to note how much is used at most. Version 2 counts on.
    pub fn forget_shortages(&self) {
        if self.version == CgroupVersion::One {
            // Without it more is said to have been short than was.
            let _ = write_existing(&self.folder.join("memory.max_usage_in_bytes"), "0");
        }
    }

    fn shortages_counted(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join("memory.events.local")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom "))?.trim().parse().ok()
    }

    fn number(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }

    /// Removes the group, whose processes have ended or end now. Waits for them up to a second, blocking.
    pub fn remove(&self) {
        group::remove(&self.folder);
    }

    /// Moves this process to the group above and removes the group. If others are in it, it stays.
    pub fn leave(&self) {
        group::leave(&self.folder);
    }
}

/// A file that need not be there.
fn if_there(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::Hierarchy;

    fn group(files: &Hierarchy, version: CgroupVersion, name: &str) -> MemoryGroup {
        MemoryGroup { version, folder: files.0.path().join(name) }
    }

    #[test]
    fn a_limit_is_written_as_the_kernel_reads_it_and_leaves_no_swap() {
        let files = Hierarchy::new();
        for name in [
            "two/memory.max",
            "two/memory.swap.max",
            "bare/memory.max",
            "one/memory.limit_in_bytes",
            "one/memory.memsw.limit_in_bytes",
            "uncounted/memory.limit_in_bytes",
            "uncounted/memory.swappiness",
        ] {
            files.write(name, "");
        }
        let limit = |version, name: &str| group(&files, version, name).set_limit(Some(64 << 20)).expect("files");
        limit(CgroupVersion::Two, "two");
        assert_eq!((files.read("two/memory.max"), files.read("two/memory.swap.max")), ("67108864".into(), "0".into()));
        limit(CgroupVersion::Two, "bare");
        assert_eq!(files.read("bare/memory.max"), "67108864");
        limit(CgroupVersion::One, "one");
        // The second writing of a file of the kernel replaces the first; that of a plain file leaves its end.
        assert_eq!(files.read("one/memory.limit_in_bytes"), "67108864");
        assert!(files.read("one/memory.memsw.limit_in_bytes").starts_with("67108864"));
        limit(CgroupVersion::One, "uncounted");
        assert_eq!(files.read("uncounted/memory.swappiness"), "0");
        let error = group(&files, CgroupVersion::Two, "three").set_limit(None).expect_err("no controller");
        assert!(error.to_string().contains("memory.max"), "{error}");
    }

    #[test]
    fn the_nearest_limit_is_found_in_both_versions() {
        let files = Hierarchy::new();
        let two = files.mount(CgroupVersion::Two, "two", "peer/node");
        files.write("two/peer/node/memory.max", "max\n");
        assert_eq!(MemoryGroup::around_place(&two), None);
        files.write("two/peer/memory.max", "104857600\n");
        files.write("two/peer/memory.current", "7000\n");
        files.write("two/peer/memory.stat", "anon 3000\nfile_mapped 1\nfile 4000\n");
        let group = MemoryGroup::around_place(&two).expect("the group above has one");
        assert_eq!((group.limit(), group.used(), group.cached()), (Some(100 << 20), Some(7000), Some(4000)));

        let one = files.mount(CgroupVersion::One, "one", "node");
        files.write("one/node/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(MemoryGroup::around_place(&one), None, "the largest number is none");
        files.write("one/node/memory.limit_in_bytes", "33554432\n");
        files.write("one/node/memory.usage_in_bytes", "5000\n");
        files.write("one/node/memory.stat", "cache 1000\nrss 4000\n");
        let group = MemoryGroup::around_place(&one).expect("it has one");
        assert_eq!((group.limit(), group.used(), group.cached()), (Some(32 << 20), Some(5000), Some(1000)));
    }

    #[test]
    fn processes_that_the_kernel_has_ended_are_counted_in_both_versions() {
        let files = Hierarchy::new();
        files.write("two/memory.events", "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
        files.write("one/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
        assert_eq!(group(&files, CgroupVersion::Two, "two").kills(), Some(2));
        assert_eq!(group(&files, CgroupVersion::One, "one").kills(), Some(1));
        assert_eq!(group(&files, CgroupVersion::One, "none").kills(), None);
    }

    #[test]
    fn shortages_are_those_of_the_groups_own_limit() {
        let files = Hierarchy::new();
        files.write("two/memory.events", "low 0\nmax 12\noom 5\noom_kill 2\n");
        files.write("two/memory.events.local", "low 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
        let two = group(&files, CgroupVersion::Two, "two");
        assert_eq!((two.shortages(), two.was_short(2), two.was_short(3)), (3, Some(true), Some(false)));
        let one = group(&files, CgroupVersion::One, "one");
        assert_eq!(one.was_short(0), None);
        files.write("one/memory.limit_in_bytes", "33554432\n");
        for (peak, expected) in [("33554432\n", true), ("33550336\n", true), ("33000000\n", false)] {
            files.write("one/memory.max_usage_in_bytes", peak);
            assert_eq!((one.shortages(), one.was_short(0)), (0, Some(expected)), "{peak}");
        }
        one.forget_shortages();
        assert!(files.read("one/memory.max_usage_in_bytes").starts_with('0'));
        files.write("one/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(one.was_short(0), Some(false), "it has no limit");
    }

    /// With the kernel's own files, where this user may make groups.
    #[test]
    fn page_cache_of_a_process_stays_below_its_limit() {
        let group = match MemoryGroup::make(&format!("heddle-test-memory-{}", std::process::id())) {
            Ok(group) => group,
            Err(error) => {
                eprintln!("not tested: {error}");
                return;
            }
        };
        group.set_limit(Some(MEMORY_BYTES_MIN)).expect("the group is ours");
        assert_eq!(group.limit(), Some(MEMORY_BYTES_MIN));
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The shell moves itself into the group, then writes and reads four times as much as the group may have.
        let script = "echo $$ > \"$1/cgroup.procs\" && head -c 67108864 /dev/zero > \"$2\" && cat \"$2\" > /dev/null";
        let file = folder.path().join("file");
        let status = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .args([group.folder(), &file])
            .status()
            .expect("a shell");
        let (used, cached) = (group.used(), group.cached());
        group.remove();
        assert!(status.success(), "{status}");
        let is_within = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes <= MEMORY_BYTES_MIN);
        assert!(is_within(used) && is_within(cached), "{used:?}, of them {cached:?} page cache");
        assert!(cached > Some(0), "page cache counts");
    }
}
