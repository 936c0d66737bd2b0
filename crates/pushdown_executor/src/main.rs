//! `heddle-executor`: runs the pushed-down functions of one process, in that process's address space.
//!
//! The steps are at the head of [`pushdown`]. This program is linked at addresses that no other program uses ([`pushdown::PRIVATE`]),
//! and keeps all that it has there:
//!
//! | from the start of the private addresses | |
//! |---|---|
//! | 0 | the program |
//! | 8 GiB | its heap |
//! | 24 GiB | stacks, and stacks for signals |
//! | 28 GiB | pages that are on their way out |
//! | 32 GiB | the area |
//!
//! After it has begun it makes no call of the C library, which is not there any more. It has one *service thread*, which waits for
//! messages, and a thread for each function that runs. A function that needs something is stopped by a signal, on a stack of its
//! own; the handler gets what is needed, and the function goes on.
//!
//! 1. `SIGSEGV` at an address without a mapping, or with another protection than the caller's: ask for the mapping.
//! 2. `SIGBUS`: the page is not there, or is protected: a fault of the coherence protocol, or a page of constant memory.
//! 3. `SIGSYS`: a system call, which the caller makes.
//! 4. Any other signal of an instruction, or one of these without a remedy, ends the function.
//! 5. `SIGXCPU`: the function's time is over, which ends it too (`limit`).
//!
//! # Confinement
//! In every case it closes all files but its socket, and has a filter of system calls (`sandbox`). If the role *executors* starts it, it
//! has namespaces of its own: no process, network or file of the host can be named there. It leaves the host's file system once the
//! loader and the kernel's list of its mappings were needed for the last time (`empty_root`).

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod arguments;
mod arrival;
mod begin;
mod context;
mod empty_root;
mod executor;
mod function;
mod limit;
mod mappings;
mod pages;
mod places;
mod sandbox;
mod signals;
mod storage;
mod system_calls;
mod wait;

fn main() {
    begin::begin()
}
