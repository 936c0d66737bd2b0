//! Control groups of Linux that limit processor time and memory, versions 1 and 2 behind one interface.
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
//! * A limit of memory counts page cache, and leaves nothing for swap ([`MemoryGroup`]).
//! * Groups within a group ([`LimitedGroup::make_around`]) have limits of their own, and together those of the group around them.
//! * Nothing is left behind by `remove`, nor by a group that could not be made.
//!
//! # What it needs around it
//! The file systems `cgroup2`, or `cgroup` with the controllers `cpu` (and `cpuacct`, for the time used) and `memory`, as Linux
//! mounts them.
//! On other systems no group can be made, and none is found.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]
#![deny(missing_docs)]

mod cpu;
mod group;
mod memory;
mod mounts;
mod process_limits;

pub use cpu::{CpuGroup, PERCENT_MIN, PERIOD};
pub use group::CgroupError;
pub use memory::{MEMORY_BYTES_MIN, MemoryGroup};
pub use process_limits::{LimitedGroup, LimitedProcess, ProcessLimits};
