//! Far memory: a process uses more memory than it has. Cold pages lie in the memory pool, and page faults bring them back.
//!
//! ```text
//!   program ── load, store ──▶ Region   resident pages, within a budget
//!                                 │ page fault (userfaultfd)      ▲ eviction, write-back
//!                                 ▼                               │
//!                             PageStore ── PoolStore ──▶ sections of several donors (memory)
//!                                               └──────▶ StorageTier                (storage)
//! ```
//!
//! ```no_run
//! use farmem::{FaultPath, PoolStore, Region, RegionConfig};
//! use std::sync::Arc;
//!
//! # fn example(runtime: base::rt::production::Runtime, space: pool::AddressSpace) -> Result<(), farmem::Error> {
//! // `space` was opened in `runtime` for far memory alone. `pool` shows how to open one.
//! let bytes = 1 << 30;
//! let store = runtime.block_on(async { PoolStore::new(space, bytes / farmem::PAGE_BYTES as u32, None) })?;
//! let config = RegionConfig {
//!     name: "index".to_owned(),
//!     bytes: bytes.into(),
//!     budget_bytes: 64 << 20,
//!     store: Arc::new(store),
//!     fault_path: FaultPath::Handler,
//! };
//! // From here on a thread that is none of the runtime's: they answer the donors, and would wait for themselves.
//! let mut region = Region::create(config)?;
//! region.write(4096, b"far away")?; // An error if the page is lost.
//! let sum: u64 = region.as_slice().iter().map(|byte| u64::from(*byte)).sum();
//! println!("{sum}, {:?}", region.stats());
//! drop(region); // On this thread too, and before the runtime ends.
//! # Ok(())
//! # }
//! ```
//!
//! 1. A [`Region`] is a range of this process's addresses. A thread that touches an absent page sleeps until a thread of
//!    the region has filled the page from the [`PageStore`].
//! 2. What happens to which page is decided by a pure state machine, the page [`table`]: it keeps the budget, follows
//!    dirtiness by write protection, reads ahead of streams, and chooses what is evicted.
//! 3. A [`PoolStore`] keeps pages in sections of the memory pool, and below it in a [`StorageTier`]. A region may be larger
//!    than both its budget and the pool.
//! 4. The loss of a memory node is an error: of [`Region::read`] and [`Region::write`], of the closure in [`guard()`], or the
//!    end of the program with a message that names the node.
//!
//! # Guarantees
//! * A read returns what was last written, or does not return: bytes that are lost are never replaced by others. The simulations
//!   in `tests/farmem` check this under failing stores and lost donors.
//! * Resident pages stay within the budget; a buffer of at most 2 MiB for pages that leave comes on top.
//! * Any access works, of any thread, that of system calls included: they sleep for their pages as the program does. Where
//!   threads serve their own faults, system calls fail instead ([`FaultPath`]).
//!
//! # What it needs around it
//! * Linux 6.9 or newer on x86-64, with `/dev/userfaultfd` open to this process, or `vm.unprivileged_userfaultfd = 1`.
//! * An address space of [`pool`] that no other part of the program uses, in a runtime that goes on running: its
//!   tasks read, write and notice lost donors. No thread of that runtime touches or drops the region: in asynchronous
//!   programs, use it in `tokio::task::spawn_blocking` or on threads of your own.
//! * The layers above decide what the bytes mean and what to do after a loss. Nothing of a region outlives its process.

#![deny(missing_docs)]

mod allocator;
mod error;
#[doc(hidden)]
pub mod floor;
mod guard;
mod kernel;
#[doc(hidden)]
pub mod mutant;
mod own_eviction;
mod own_memory;
mod page;
mod pager;
mod pool_store;
mod program;
pub mod pushdown;
mod region;
mod report;
mod storage_tier;
mod store;
pub mod table;

pub use allocator::RegionAllocator;
pub use error::{Error, Lost};
pub use guard::guard;
pub use page::{GROUP_PAGES, PAGE_BYTES, PageGroup, PageNumber, PageRange, REGION_PAGES_MAX};
pub use pool_store::{PoolStore, StoreUsage};
pub use program::{
    AccessProfile, AccessRun, CodeAddress, CodeObject, CodeSite, ExecutorHeap, FAR_HEAP_VARIABLES, ProfileConfig,
    ProgramServer, ProgramServerConfig, ProgramStats, ReturnAddress, SiteAccesses,
};
pub use region::{FaultPath, Region, RegionConfig};
pub use storage_tier::{FileStorage, StorageTier};
pub use store::{PageStore, StoreError, StoreFuture};
