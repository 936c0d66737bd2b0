//! Where control groups are mounted, and which of them this process is in.

use std::path::{Path, PathBuf};

/// The version of the kernel's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupVersion {
    /// One hierarchy for each controller, or for several.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// A mounted hierarchy with a controller, and the path of this process's group within it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CgroupMount {
    pub version: CgroupVersion,
    pub root: PathBuf,
    /// Relative to the root, and empty if the process is in the root's group or outside of what it can see.
    pub own: PathBuf,
}

impl CgroupMount {
    /// The hierarchies with this controller, from `/proc/self/mounts` and `/proc/self/cgroup`.
    pub fn find(controller: &str, mounts: &str, own: &str) -> Vec<CgroupMount> {
        let mut found = Vec::new();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, root, kind, options, ..] = fields[..] else { continue };
            let version = match kind {
                "cgroup2" => CgroupVersion::Two,
                "cgroup" if options.split(',').any(|option| option == controller) => CgroupVersion::One,
                _ => continue,
            };
            let own = own.lines().find_map(|line| own_path(line, version, controller)).unwrap_or_default();
            found.push(CgroupMount { version, root: root.into(), own });
        }
        found
    }

    /// The hierarchies with this controller on this machine.
    pub fn of_machine(controller: &str) -> Vec<CgroupMount> {
        CgroupMount::of_process(controller, "self")
    }

    /// The same, with the group of another process.
    pub fn of_process(controller: &str, process: &str) -> Vec<CgroupMount> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        CgroupMount::find(controller, &read("/proc/self/mounts"), &read(&format!("/proc/{process}/cgroup")))
    }

    /// The groups, relative to the root, below which a group of ours may be made: that of this process, its parent (a
    /// group of version 2 that has processes cannot have groups below it), and the root.
    pub fn places(&self) -> Vec<PathBuf> {
        let own = Some(self.own.clone()).filter(|own| *own != Path::new(""));
        let parent = own.as_ref().and_then(|own| own.parent()).filter(|parent| *parent != Path::new(""));
        let parent = parent.map(Path::to_path_buf);
        own.into_iter().chain(parent).chain([PathBuf::new()]).collect()
    }
}

/// The group in a line of `/proc/self/cgroup`, if the line is of this hierarchy.
fn own_path(line: &str, version: CgroupVersion, controller: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = match version {
        CgroupVersion::Two => number == "0" && controllers.is_empty(),
        CgroupVersion::One => controllers.split(',').any(|one| one == controller),
    };
    // A group outside of a container's view cannot be reached from inside.
    (is_it && !path.contains("..")).then(|| path.trim_matches('/').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(mounts: &str, own: &str) -> Vec<(CgroupVersion, PathBuf)> {
        let mounts = CgroupMount::find("cpu", mounts, own);
        let places = |mount: &CgroupMount| -> Vec<(CgroupVersion, PathBuf)> {
            mount.places().iter().map(|place| (mount.version, mount.root.join(place))).collect()
        };
        mounts.iter().flat_map(places).collect()
    }

    #[test]
    fn groups_are_made_below_ones_own_and_then_below_the_root() {
        let path = |text: &str| PathBuf::from(text);
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(
            places(two, "0::/user.slice/session\n"),
            [
                (CgroupVersion::Two, path("/sys/fs/cgroup/user.slice/session")),
                (CgroupVersion::Two, path("/sys/fs/cgroup/user.slice")),
                (CgroupVersion::Two, path("/sys/fs/cgroup/")),
            ]
        );
        let one =
            "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n";
        assert_eq!(
            places(one, "3:cpuset:/\n2:cpu,cpuacct:/docker\n"),
            [
                (CgroupVersion::One, path("/sys/fs/cgroup/cpu/docker")),
                (CgroupVersion::One, path("/sys/fs/cgroup/cpu/"))
            ]
        );
        assert_eq!(places(two, "0::/../other\n"), [(CgroupVersion::Two, path("/sys/fs/cgroup/"))]);
        assert_eq!(places("tmpfs /tmp tmpfs rw 0 0\n", "0::/\n"), []);
    }
}
