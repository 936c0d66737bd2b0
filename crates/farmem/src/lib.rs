//! Far memory: a process uses more memory than it has. Cold pages lie in the memory pool.
//!
//! So far the crate has the part that decides: the page [`table`] of a region, a pure state machine.

#![deny(missing_docs)]

#[doc(hidden)]
pub mod mutant;
mod page;
pub mod table;

pub use page::{GROUP_PAGES, PAGE_BYTES, PageGroup, PageNumber, PageRange, REGION_PAGES_MAX};
