//! The system calls of far memory, and nothing else: userfaultfd, mappings, processors.
//!
//! The other `unsafe` code of the crate is that of the signal's handler ([`guard`](crate::guard)) and the slices of
//! [`region`](crate::region).

pub(crate) mod dropping;
pub(crate) mod eviction_buffer;
pub(crate) mod mapping;
pub(crate) mod placement;
pub(crate) mod process_memory;
pub(crate) mod signals;
pub(crate) mod userfault;
