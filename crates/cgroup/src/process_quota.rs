//! A cgroup that limits the processor time of this process.

use super::CpuGroup;

/// The group that this process is in while it runs. On drop the process leaves it.
pub struct ProcessQuota(CpuGroup);

impl ProcessQuota {
    /// Moves this process into a cgroup of this name, with a quota in percent of one processor. A group that a killed
    /// process left behind is taken over.
    ///
    /// # Errors
    /// Why there can be no such group.
    pub fn enter(name: &str, percent: u32) -> Result<ProcessQuota, String> {
        let quota = ProcessQuota(CpuGroup::make(name).map_err(|error| error.to_string())?);
        let entered = quota.0.add(std::process::id()).and_then(|()| quota.0.set_quota(Some(percent)));
        entered.map_err(|error| format!("{}: {error}", quota.0.folder().display()))?;
        Ok(quota)
    }
}

impl Drop for ProcessQuota {
    fn drop(&mut self) {
        self.0.leave();
    }
}
