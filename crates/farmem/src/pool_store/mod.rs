//! Pages of several regions in an address space of the pool, and behind it in storage.
//!
//! ```text
//!   store ── group of 16 pages ──▶ frame ──▶ section of a donor   (memory)
//!     │            └─────────────▶ slot ───▶ storage tier         (optional)
//!   fork ─── group ──▶ the same frame and slot, until one of the two is written
//! ```
//!
//! 1. A group of pages gets a *frame* of 64 KiB in one of the space's sections when one of its pages is first written. Groups
//!    that were never written need no memory in the pool, so a region may be larger than the pool. Sections are requested
//!    one by one, from the donor with the most free memory: so a region spans several donors.
//! 2. Each group has three sets of pages: those whose newest version its frame holds (*valid*), those whose newest version
//!    its *slot* holds, a place in storage of a group's size (*stored*), and those whose newest version is lost. A valid page
//!    that is not stored is *dirty*.
//! 3. When the pool has no free frame and no further section, a frame that was not used since the clock last passed is given
//!    up: the dirty pages of each group that refers to it are written to storage first. The stores see every access to the
//!    pool, so here the clock has real marks of use.
//! 4. A read of a page that only storage has is a second fault (TELEPORT, section 2.1): the pages of its group that
//!    storage alone has are read into a frame, clean, and then to the region.
//! 5. When a donor is lost, its frames are lost, in all stores. Clean pages are in storage still; dirty ones are lost, and each
//!    read of them says so and names the donor.
//! 6. A fork copies a store's groups, not its pages: both stores refer to the same frames and slots. Before pages are written to a
//!    frame to which another store refers, the group gets a frame of its own, with copies of its valid pages. Before dirty pages
//!    are written over what another store needs in a slot, the group gets a slot of its own, with copies of its stored pages.
//! 7. A group refers to a frame only while it has valid pages, and to a slot only while it has stored ones. A frame or a slot to
//!    which no group refers is free; so a store that is dropped leaves nothing behind.
//!
//! Invariants:
//! * One change (a write, a second fault, a frame that is given up) is made at a time, in all stores. Reads of valid pages
//!   do not wait for it. A fork, a discard and the drop of a store wait for nothing, so they may come between the steps of another
//!   store's change.
//! * Only a change makes pages valid or stored, and writes to frames and slots. A fork adds groups, each equal to one that there
//!   is; a discard, a loss and the drop of a store only take away. Each step of a change accounts for this.
//! * A page in a frame is overwritten only while it is valid in no group, and a page in a slot only while it is stored in no group.
//! * A frame is free only while no group refers to it and no operation uses it. A frame in use is not given up.
//! * A frame is never written again after a write to it has failed, or its future was dropped: the write might take effect
//!   later. A group with valid pages in it moves to another frame before it is written; the frame is never free.
//! * A page is dirty unless storage has acknowledged the bytes that the frame holds.

mod frames;
mod groups;
mod slots;
mod store;
mod tables;
mod tiers;

pub use store::PoolStore;
pub use tables::StoreUsage;
