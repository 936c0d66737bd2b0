//! What works without the C library.
//!
//! Some of our code runs where the C library may not be used: inside `malloc`, in a process whose memory is that of another program,
//! beside threads that wait for a page while they hold a lock of the C library. The parts here make system calls themselves,
//! keep their state in memory of their own, and use no thread-local variable and no `errno`.
//!
//! - [`system_call`]: the calls, [`SignalsBlocked`](system_call::SignalsBlocked), and waiting for a word.
//! - [`lock`]: a lock that signal handlers and forks respect, and a lighter one for threads that block all signals.
//! - [`thread`]: threads that the C library does not know.
//! - [`heap`]: an allocator on memory of its own, for a library that must not use that of its program.
//! - [`memory`]: `memcpy` and its relatives, for the linker.
//! - [`filter`]: what system calls a thread may make.
//! - [`signal`]: handlers of signals, and system calls that are signals.
//! - [`alarm`]: a time at which a sleeping thread wakes.
//! - [`userfault`]: page faults that user space serves.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(missing_docs)]

pub mod alarm;
pub mod filter;
pub mod heap;
pub mod lock;
pub mod memory;
pub mod signal;
pub mod system_call;
pub mod thread;
pub mod userfault;

pub use memory::PAGE_BYTES;
