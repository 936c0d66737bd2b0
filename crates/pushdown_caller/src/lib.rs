//! `libheddle_pushdown.so`: with it a program pushes functions down to an executor (TELEPORT, section 3).
//!
//! The interface for C is `include/heddle_pushdown.h`, with one for C++ beside it; `farmem::pushdown` is that for Rust. The steps
//! are at the head of [`pushdown`].
//!
//! - `open` makes the program's memory such that the kernel can report its faults, starts the executor (`executor_start`) and the handler.
//! - `call` is a thread's way through a call: it leaves its stack, waits, and makes the function's system calls
//!   (`system_calls`).
//! - `caller` is the state: the coherence protocol's, with what it says done by `pages`; mappings are looked up by `mappings`, and `answers` tells of them; `events`
//!   is what the kernel and the program do with memory.
//! - `ahead` sends the pages that a function is expected to need.
//! - `refused_memory` is what functions cannot have; `out_of_reach` says why.
//! - `far` is memory whose home is the executor; `far_memory` knows what the program has of it.
//! - `terms` are those of calls; `cancel` takes calls back, by `tickets`; `liveness` notices an executor that does not answer, with what
//!   `watch` knows, and `executor_process` ends it; `statistics` are `counts` and more; `times` are those of a thread's last call.
//! - `synchronise` has the synchronisation points of the weaker modes, `twins` what pages were before they were written, `payload` and `contents` what
//!   messages carry of pages.
//! - `handler` is a thread of the library, which serves the faults of the program and the executor's requests.
//! - `interposed` are the functions of the C library of which the executor must learn, `changes` what they do with requests and messages,
//!   `forks` what a fork needs.
//!
//! # Rules
//!
//! After `open`, code here runs while the program's memory may be anywhere, so
//!
//! - all memory of the library lies in [`pushdown::CALLER_PRIVATE`], its heap included; the executor gets nothing of it, nor of the
//!   library's own variables;
//! - nothing here calls the C library, uses a thread-local variable, or touches the program's memory while it holds the lock, except for
//!   pages that are known to be there;
//! - the lock is taken on private stacks only (`stacks`), with all signals blocked.

#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod ahead;
mod answers;
mod call;
mod call_counts;
mod caller;
mod cancel;
mod changes;
mod contents;
mod descriptors;
mod events;
mod executor_process;
mod executor_start;
mod executor_storage;
mod exported;
mod exported_counts;
mod exported_memory;
mod exported_terms;
mod failure;
mod far;
mod far_memory;
mod fork_state;
mod forks;
mod handler;
mod interposed;
mod liveness;
mod mappings;
mod message;
mod message_counts;
mod open;
mod out_of_reach;
mod outcome;
mod outgoing;
mod pages;
mod payload;
mod places;
mod refused_memory;
mod rseq;
mod settings;
mod stacks;
mod statistics;
mod synchronise;
mod system_calls;
mod terms;
mod tickets;
mod times;
mod twins;
mod variables;
mod vdso;
mod wait;
mod watch;
