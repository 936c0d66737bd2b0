//! Which code of a program makes remote accesses: a sample of each, or of some of them.
//!
//! A *remote access* is a page fault that is served from the store: a thread of the program waited for a page that was far.
//! First touches, which cost zeros, and first writes to pages that are here are none. Pages that come ahead of a stream are
//! counted beside the access that asked for them.
//!
//! 1. userfaultfd names the thread that has faulted. While it waits, `/proc/THREAD/syscall` has its instruction and stack
//!    pointers, inside a system call too ([`thread_position`]). The handler reads them before it fills the page ([`sampler`]).
//! 2. The executable mappings of the process say which file, and which offset in it, the instruction comes from
//!    ([`address_map`]). They are read when an address is unknown, and again when another one is.
//! 3. In a library that runs on behalf of others ([`CodeObject::is_runtime`]: `memcpy`, `read`) the access is its caller's. The
//!    stack is searched for return addresses ([`callers`]); with [`ProfileConfig::callers`], for more of them in any code.
//! 4. Samples are summed up by their addresses, for all programs of a server together ([`collector`]). Names of functions are
//!    found by others, when the programs have ended ([`access_profile`]).
//!
//! A sample costs some microseconds, of which the thread waits for all. The time between two accesses of a thread is measured
//! from the end of one sample to the beginning of the next, so it does not contain them.
//!
//! Invariants: no far memory is read here, since the handler would wait for itself; a sample that fails is counted as one of
//! unknown code; everything that a program could make grow has a limit.

mod access_profile;
mod address_map;
mod callers;
mod collector;
mod sampler;
mod thread_position;

pub use access_profile::{
    AccessProfile, AccessRun, CodeAddress, CodeObject, CodeSite, ProfileConfig, ReturnAddress, SiteAccesses,
};
pub(super) use collector::AccessCollector;
pub(super) use sampler::ProgramSampler;
