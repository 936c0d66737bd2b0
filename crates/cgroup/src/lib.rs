//! Control groups of Linux that limit processor time, versions 1 and 2 behind one interface.
//!
//! ```
//! use cgroup::CpuGroup;
//!
//! // A group needs root, or a group that was delegated with its cpu controller.
//! if let Ok(group) = CpuGroup::make("heddle-example") {
//!     group.set_quota(Some(50)).expect("the group is ours");
//!     assert_eq!(group.quota(), Some(0.5));
//!     group.remove();
//! }
//! ```
//!
//! # Guarantees
//! * A group is made below the group of this process or, where that is not allowed, below its parent or the root.
//! * A quota holds for all processes of the group together. In each [`PERIOD`] the kernel lets them run for the given share of
//!   processor time, and then suspends them for the rest.
//! * Nothing is left behind by [`CpuGroup::remove`], nor by a group that could not be made.
//!
//! # What it needs around it
//! The file systems `cgroup2`, or `cgroup` with the controller `cpu` (and `cpuacct`, for the time used), as Linux mounts them.
//! On other systems no group can be made, and none is found.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]
#![deny(missing_docs)]

mod cpu;
mod mounts;
mod process_quota;

pub use cpu::{CgroupError, CpuGroup, PERCENT_MIN, PERIOD};
pub use process_quota::ProcessQuota;
