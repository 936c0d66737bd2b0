//! Pages in an address space of the pool, and behind it in storage.
//!
//! ```text
//!   region ── group of 16 pages ──▶ frame ──▶ section of a donor            (memory)
//!                      └───────────▶ storage tier, by number of the group   (optional)
//! ```
//!
//! 1. A group of pages gets a *frame* of 64 KiB in one of the space's sections when one of its pages is first written. Groups
//!    that were never written need no memory in the pool, so a region may be larger than the pool. Sections are requested
//!    one by one, from the donor with the most free memory: so a region spans several donors.
//! 2. Each group has three sets of pages: those that its frame holds (*valid*), those of them that storage does not have in
//!    the same version (*dirty*), and those that storage has (*stored*).
//! 3. When the pool has no free frame and no further section, a group that was not used since the clock last passed gives up its
//!    frame: its dirty pages are written to storage first. The store sees every access to the pool, so here the clock has
//!    real marks of use.
//! 4. A read of a page that only storage has is a second fault (TELEPORT, section 2.1): the pages of its group that
//!    storage alone has are read into a frame, clean, and then to the region.
//! 5. When a donor is lost, its frames are lost. Clean pages are in storage still; dirty ones are lost, and each read of
//!    them says so and names the donor.
//!
//! Invariants:
//! * One change (a write, a second fault, a frame that is given up) is made at a time. Reads of valid pages do not wait for it.
//! * A frame is given up, or written again, only while no read of it is in flight.
//! * A frame is never written again after a write to it has failed: the failed write might take effect later. Its group gets
//!   another frame.
//! * A page is dirty unless storage has acknowledged the bytes that the frame holds.

mod frames;
mod groups;
mod tiered;

pub use tiered::PoolStore;
