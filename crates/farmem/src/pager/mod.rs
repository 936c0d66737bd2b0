//! Serves a region's page faults, and evicts its pages: what the [page table](crate::table) decides, on the kernel and the store.
//!
//! 1. The *handler* is a thread that waits for faults, and stays on the processor of the thread that faults
//!    ([`placement`](crate::kernel::placement)). It reads the page from the store and maps it. What lies ahead of a stream it
//!    leaves to the *prefetcher*, a thread that may run on another processor meanwhile.
//! 2. The *evictor* is a thread that keeps a part of the budget free. Of one span at a time it drops the clean pages, and
//!    moves the dirty ones into a buffer, which takes them out of the program's sight, and writes them back
//!    from there. The program goes on meanwhile, unless it touches one of these pages. Only the process that has the pages can
//!    do this: [`EvictionPath`].
//! 3. A fault that finds no room waits until the evictor has made some.
//! 4. In a region that has it so ([`FaultPath::FaultingThread`](crate::FaultPath)), a thread that faults does itself what the
//!    handler would, and leaves to the handler only what takes longer ([`faulting_thread`]).
//! 5. The *doorbell* is one more registered page, outside of the region. A thread of the process that wants something of the
//!    handler touches it; the handler receives this fault like any other. So it can block in one call, which is the
//!    fastest way to wait. In this process, the thread that drops the region rings; programs have more to say
//!    ([`program`](crate::program)).
//!
//! Invariants:
//! * Only the handler, the prefetcher and faulting threads fill pages, only the evictor takes them away; each holds the table's
//!   lock for its decisions alone.
//! * A page is mapped before the table says that it is, and moved out before the table says that it is not.
//! * No thread of the region touches the region's memory itself.
//!
//! An operation of the kernel that fails for no reason that is planned for ends the process that has the region, with a
//! message: going on would leave threads asleep for ever.

mod core;
mod evictor;
mod faulting_thread;
mod faulting_threads;
mod handler;
mod prefetcher;
mod read_ahead;
mod room;
mod threads;

pub(crate) use core::{Home, PagerCore};
pub(crate) use evictor::{EvictionPath, TakenPages};
pub(crate) use faulting_thread::serve;
pub(crate) use faulting_threads::FaultingThreads;
pub(crate) use threads::PagerThreads;
