//! The memory that a program and its server share.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages of the eviction buffer, and of the bounce buffer.
pub const BUFFER_PAGES: u32 = 512;

/// What a program requests through the doorbell: [`RequestPage::kind`].
pub mod request {
    /// Pages are about to be dropped: no page of the range is filled or evicted until [`DISCARD_END`].
    pub const DISCARD_BEGIN: u32 = 1;
    /// The pages of the range were dropped; they read as zeros.
    pub const DISCARD_END: u32 = 2;
    /// The thread is about to fork.
    pub const FORK_BEGIN: u32 = 3;
    /// The thread has forked, or could not.
    pub const FORK_END: u32 = 4;
}

/// What the server replies: [`RequestPage::reply`].
pub mod reply {
    /// It is done.
    pub const DONE: u32 = 1;
    /// Pages are in flight: ask again after a pause.
    pub const BUSY: u32 = 2;
    /// It cannot be done.
    pub const REFUSED: u32 = 3;
}

/// A request of the program, and its reply. The first page of the shared memory.
#[repr(C)]
pub struct RequestPage {
    /// One of [`request`].
    pub kind: AtomicU32,
    /// The first page of a range, by its number in the region.
    pub first: AtomicU32,
    /// Pages of the range.
    pub pages: AtomicU32,
    /// One of [`reply`].
    pub reply: AtomicU32,
    /// The number of the fork, in the reply to [`request::FORK_BEGIN`].
    pub fork: AtomicU64,
}

/// What the agent does: [`CommandPage::kind`].
pub mod command {
    /// Moves pages into the eviction buffer, copies those to the bounce buffer, and drops the eviction buffer. The pages of a
    /// range have their place in both buffers behind those of the ranges before it, moved or not. A range ends early at a
    /// page that the kernel does not move: [`CommandRange::done`](super::CommandRange::done).
    pub const MOVE: u32 = 1;
    /// As [`MOVE`], after each page was made the program's own (`MADV_POPULATE_WRITE`): one that parent and child of a
    /// fork share cannot be moved. None of the pages is write-protected.
    pub const MOVE_SHARED: u32 = 2;
    /// Drops pages.
    pub const DROP: u32 = 3;
}

/// Ranges of one command.
pub const RANGES_MAX: usize = 511;

/// A range of a command.
#[repr(C)]
pub struct CommandRange {
    /// The address of its first page.
    pub address: AtomicU64,
    /// How many pages.
    pub pages: AtomicU32,
    /// How many of them, from the first one on, it was done for.
    pub done: AtomicU32,
}

/// A command of the server. Behind the request page.
#[repr(C)]
pub struct CommandPage {
    /// One of [`command`].
    pub kind: AtomicU32,
    /// How many ranges.
    pub count: AtomicU32,
    /// The number of the error that stopped the command, other than a page that cannot be moved; 0 if none did.
    pub error: AtomicU32,
    /// 0.
    pub reserved: AtomicU32,
    /// The ranges.
    pub ranges: [CommandRange; RANGES_MAX],
}

/// Where the command page is in the shared memory.
pub const COMMAND_OFFSET: usize = PAGE_BYTES;
/// Where the bounce buffer is in the shared memory.
pub const BOUNCE_OFFSET: usize = COMMAND_OFFSET + size_of::<CommandPage>();
/// Bytes of the shared memory.
pub const SHARED_BYTES: usize = BOUNCE_OFFSET + BUFFER_PAGES as usize * PAGE_BYTES;

const _: () = assert!(size_of::<RequestPage>() <= PAGE_BYTES && size_of::<CommandPage>() == 2 * PAGE_BYTES);
