//! Far heaps of unmodified programs, whose page faults this process serves.
//!
//! ```text
//!   program ── malloc, mmap ──▶ libheddle_farmem.so          this process
//!     any thread ──── page fault, doorbell ────────────────▶ handler  ─┐
//!     agent      ◀─── move, drop ──────────────────────────▶ evictor  ─┼─▶ page table, PoolStore
//!                                                            prefetcher┘
//! ```
//!
//! [`farmem_control`] has the protocol, and the library's half of it. This is the server's half:
//!
//! 1. A program connects ([`attach`]). It gets three threads, a page table and a [store of its own](crate::PoolStore::another),
//!    as a [`Region`](crate::Region) has them ([`pager`](crate::pager)); only what the kernel allows to nobody but the
//!    program is done by its agent ([`eviction`]).
//! 2. A program that unmaps pages, or gives up their content, says so before and after it drops them, through the doorbell
//!    ([`memory`]). Between the two no page of the range is filled or evicted, and the store forgets them.
//! 3. Before a program forks, its table is frozen: the faults of all other threads wait, and no eviction begins. The kernel
//!    then reports the fork with a userfaultfd for the child. At that moment the pages that are resident in the parent are so in
//!    the child, and the table and the store are copied ([`RegionTable::fork`](crate::table::RegionTable::fork),
//!    [`PoolStore::fork`](crate::PoolStore::fork)). From then on the child is served like any program, by its own threads.
//! 4. A page that parent and child share in memory cannot be moved. It is made the program's own first, which copies it.
//! 5. A child that was forked without notice, or that cannot be served, has no far memory: each access to an absent page is an
//!    error ([`orphan`]).
//! 6. If it is asked for, the code is sampled that makes remote accesses ([`profile`]).
//! 7. A program whose heap's home is an executor of pushed functions has none of this ([`ExecutorHeap`]).
//! 8. When a program ends, its connection does; its threads end, and its store forgets its pages.
//!
//! Invariants:
//! * No userfaultfd is closed while a process uses the memory: it would read zeros. A program whose faults cannot be served is
//!   killed, and until it has ended each access is an error. When this process ends, each agent ends its program; a child that
//!   has no agent yet, or never will, is the exception.
//! * What a program writes to the memory that both share harms nobody else: numbers are checked, and bytes are copied once.
//! * The copy of table and store for a child is made after the fork is reported, and before any fault of another thread, any
//!   eviction or any discard.

mod attach;
mod eviction;
mod executor_heap;
mod link;
mod memory;
mod orphan;
mod profile;
mod registry;
mod server;
mod shared;
mod socket;

pub use executor_heap::{ExecutorHeap, FAR_HEAP_VARIABLES};
pub use profile::{
    AccessProfile, AccessRun, CodeAddress, CodeObject, CodeSite, ProfileConfig, ReturnAddress, SiteAccesses,
};
pub use registry::{ProgramServerConfig, ProgramStats};
pub use server::ProgramServer;
