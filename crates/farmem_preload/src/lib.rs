//! The library that gives an unmodified program a far heap: `heddle farmem run -- PROGRAM` starts the program with it.
//!
//! ```text
//! LD_PRELOAD=libheddle_farmem.so HEDDLE_FARMEM_SOCKET=NAME HEDDLE_FARMEM_SECRET=DIGITS redis-server
//! ```
//!
//! It takes the place of `malloc`, `mmap`, `fork` and their relatives. Allocations (`allocation`) and large private mappings
//! (`mapping`) lie in a region (`far_heap`) that is larger than the machine's memory; a server in another process fills its
//! pages and evicts them. [`farmem_control`] has the protocol, in whose steps
//!
//! 1. the program's first call attaches it to the server (`attach`),
//! 2. the kernel reports its faults to the server, without this library,
//! 3. the agent, a thread of this library, moves and drops pages for the server (`agent`),
//! 4. threads of the program ask the server to forget pages (`requests`),
//! 5. and so does a thread that forks (`forks`).
//!
//! With a third variable the heap's home is an executor of pushed functions instead (`executor_heap`), and there is neither server nor agent.
//!
//! Stacks, thread blocks, the program's own data and small or special mappings stay local. Without the variables in its
//! environment a program has no far heap, and the library passes everything through.
//!
//! # Rules
//!
//! - *Nothing here allocates*: the allocator is what is being served. Tables lie in mappings of their own or in statics.
//! - *System calls are made without the C library* (`system_call`). Only the exported functions set `errno`, when they fail.
//! - *One lock* (`lock`) protects the heap's table of pages. Signals are blocked while a thread holds it, no far memory is
//!   touched, and a fork takes it.
//! - *A program that cannot be served ends* with a message and status 70; it never reads zeros in place of its data.
//!
//! # What a program cannot do
//!
//! Lock far memory (`mlock`), map at fixed addresses within it, or fork by calling the kernel itself; with a heap at an executor, fork at all. Calls that want a process with
//! one thread fail, because of the agent: `unshare` and `setns` of user namespaces.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod agent;
mod allocation;
mod attach;
mod connection;
mod early;
mod environment;
mod executor_heap;
mod extents;
mod far_heap;
mod forks;
mod local;
mod mapping;
mod message;
mod mimalloc_options;
mod requests;
mod sandbox;
mod startup;
mod userfault;
