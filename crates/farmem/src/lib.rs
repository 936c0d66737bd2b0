//! Far memory: a process uses more memory than it has. Cold pages lie in the memory pool, and page faults bring them back.
//!
//! ```text
//!   program ── load, store ──▶ Region   resident pages, within a budget
//!                                 │ page fault (userfaultfd)      ▲ eviction, write-back
//!                                 ▼                               │
//!                             PageStore
//! ```
//!
//! 1. A [`Region`] is a range of this process's addresses. A thread that touches an absent page sleeps until a thread of
//!    the region has filled the page from the [`PageStore`].
//! 2. What happens to which page is decided by a pure state machine, the page [`table`]: it keeps the budget, follows
//!    dirtiness by write protection, reads ahead of streams, and chooses what is evicted.
//! 3. The loss of a memory node is an error: of [`Region::read`] and [`Region::write`], of the closure in [`guard()`], or the
//!    end of the program with a message that names the node.
//!
//! # Guarantees
//! * A read returns what was last written, or does not return: bytes that are lost are never replaced by others. The simulations
//!   in `tests/farmem` check this under failing stores and lost donors.
//! * Resident pages stay within the budget; a buffer of at most 2 MiB for pages that leave comes on top.
//! * Any access works, of any thread, that of system calls included: they sleep for their pages as the program does.
//!
//! # What it needs around it
//! * Linux 6.8 or newer on x86-64, with `/dev/userfaultfd` open to this process, or `vm.unprivileged_userfaultfd = 1`.
//! * The layers above decide what the bytes mean and what to do after a loss. Nothing of a region outlives its process.

#![deny(missing_docs)]

mod error;
mod guard;
mod kernel;
#[doc(hidden)]
pub mod mutant;
mod page;
mod pager;
mod region;
mod store;
pub mod table;

pub use error::{Error, Lost};
pub use guard::guard;
pub use page::{GROUP_PAGES, PAGE_BYTES, PageGroup, PageNumber, PageRange, REGION_PAGES_MAX};
pub use region::{Region, RegionConfig};
pub use store::{PageStore, StoreError, StoreFuture};
