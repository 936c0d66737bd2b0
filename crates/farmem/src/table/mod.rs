//! The page table of a region: what state each page is in, and what may happen to it next. Pure: no memory, no store, no clock.
//!
//! ```text
//!              first fault                      eviction, dirty
//!  Untouched ──────────────▶ Dirty ──────────────────────────────▶ Leaving ──▶ Remote   written back
//!      ▲                      ▲ ▲ └─────── the write-back failed ◀─────┘ │       │ ▲
//!      └──────────────────────┼─┼──────────── all of its bytes are zero ─┘       │ │ eviction, clean
//!                 first write │ │ filled for a write                             │ │
//!                           Clean ◀──────── filled for a read ──── Filling ◀─────┘ │
//!                             └────────────────────────────────────────────────────┘
//!                                                          Filling ──▶ Lost   the store has lost it
//!
//!  any that is not in flight ──▶ Discarding ──▶ Untouched
//! ```
//!
//! A driver executes what the table decides, and reports back. All calls are made under one lock; what takes time happens
//! between them.
//!
//! 1. **Fault.** The driver reports the fault of a thread ([`RegionTable::fault`]) and gets a [`FaultPlan`]. A page that
//!    was never touched is filled with zeros, with its neighbours if the faults are a stream. A remote page is read from
//!    the store, with the pages ahead of a stream. The driver maps the bytes and reports [`RegionTable::filled`].
//! 2. **Dirtiness.** A page that is filled for a read is mapped write-protected and is clean. Its first write faults
//!    again; the page is dirty before the driver lifts the protection. A page that is filled for a write, or ahead of a
//!    stream that writes, is dirty from the start: a fault for each page would cost more than a write-back too many.
//! 3. **Eviction.** When little of the budget is left ([`RegionTable::wants_eviction`]), the driver asks for pages to evict
//!    ([`RegionTable::begin_eviction`]). It drops those that are clean and that the store holds: they are write-protected,
//!    so no write can come between ([`RegionTable::dropped`]). It moves the others out of the program's sight, which no
//!    access can overtake, and writes them back in ranges.
//! 4. **Write-back.** A range that the store has acknowledged is remote ([`RegionTable::written`]). A range that the
//!    store refused is mapped again and dirty again ([`RegionTable::restored`]).
//! 5. **Waiting.** A fault on a page in flight is not queued. Its plan says [`FaultPlan::Wait`], and the end of that
//!    operation wakes the page's threads, which then fault again: after it was reported, since a thread may fault on a page
//!    that is mapped and of which the table does not know that yet.
//! 6. **Loss.** What the store has lost is lost for good ([`RegionTable::lost`]): each access to it is an error. A page
//!    that is resident is not affected; a clean one whose copy is gone is evicted as if it were dirty.
//! 7. **Discard.** A program that unmaps pages, or gives up their content, says so before it drops them
//!    ([`RegionTable::begin_discard`]) and afterwards ([`RegionTable::discarded`]). They read as zeros then, lost ones
//!    included. Faults on them wait meanwhile.
//! 8. **Fork.** The driver freezes the table ([`RegionTable::freeze`]): no eviction and no discard begins, and the driver
//!    reports no fault but those of the thread that forks. Once nothing is in flight the process may fork. Then the same pages
//!    are resident in the child, whose table begins with a copy ([`RegionTable::fork`]), and both go on
//!    ([`RegionTable::thaw`]).
//!
//! Invariants:
//! * Resident and filling pages together stay within the budget.
//! * Only a page whose bytes the store has acknowledged, and still holds when its eviction begins, becomes remote.
//! * A page in flight is part of one operation. No page is filled while it leaves.
//! * A page leaves the state `Lost` only by being discarded.
//!
//! [`stream`] decides what is fetched ahead, [`span_queue`] which span gives up pages next.

mod entry;
mod region_table;
pub mod span_queue;
pub mod stream;

pub use entry::{PageAccess, PageState};
pub use region_table::{BUDGET_PAGES_MIN, Eviction, FaultPlan, RegionStats, RegionTable, SPAN_PAGES_MAX};
