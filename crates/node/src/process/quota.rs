//! Puts a process into a cgroup that limits its processor time.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cgroup::CpuGroup;

use super::file::NodeFile;
use crate::network::NodeError;

/// The group that this process is in while it runs.
pub(super) struct ProcessQuota(CpuGroup);

impl ProcessQuota {
    /// Moves this process into a cgroup, if its configuration, in `folder`, has a quota. The name of the group is that of
    /// the process and its folder, so that the next start takes what a killed process left behind.
    ///
    /// # Errors
    /// [`NodeError::Quota`].
    pub fn enter(file: &NodeFile, folder: &Path) -> Result<Option<ProcessQuota>, NodeError> {
        let percent = file.compute.as_ref().map_or(0, |compute| compute.cpu_percent);
        if percent == 0 {
            return Ok(None);
        }
        let inode = std::fs::metadata(folder).map_err(NodeError::file("reading", folder))?.ino();
        let group = CpuGroup::make(&format!("heddle-{}-{inode:x}", file.name));
        let quota = ProcessQuota(group.map_err(|error| NodeError::Quota(error.to_string()))?);
        let entered = quota.0.add(std::process::id()).and_then(|()| quota.0.set_quota(Some(percent)));
        match entered {
            Ok(()) => Ok(Some(quota)),
            Err(error) => Err(NodeError::Quota(format!("{}: {error}", quota.0.folder().display()))),
        }
    }
}

impl Drop for ProcessQuota {
    fn drop(&mut self) {
        self.0.leave();
    }
}
