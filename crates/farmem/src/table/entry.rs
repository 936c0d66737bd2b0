//! One page of the table.

/// What a thread wants to do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageAccess {
    /// It reads, or executes a system call that reads.
    Read,
    /// It writes.
    Write,
}

/// Where a page is. [`table`](super) has the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PageState {
    /// It reads as zeros, and has no copy anywhere.
    #[default]
    Untouched,
    /// It is being filled.
    Filling,
    /// Resident; the store has the same bytes. Write-protected.
    Clean,
    /// Resident; the store's copy, if there is one, is old.
    Dirty,
    /// It is being evicted.
    Leaving,
    /// The program is dropping it, resident or not.
    Discarding,
    /// The store has it.
    Remote,
    /// The store has lost it.
    Lost,
}

/// A page's entry.
#[derive(Clone, Copy, Default)]
pub(super) struct PageEntry {
    pub(super) state: PageState,
    /// Whether a page that is filling or leaving is, or will be, newer than the store's copy.
    pub(super) is_dirty: bool,
    /// Whether a page that is being discarded is resident.
    pub(super) is_resident: bool,
    /// It came back soon after its last eviction.
    pub(super) is_hot: bool,
    /// The region's count of evictions when it was evicted, modulo 2^32.
    pub(super) evicted_at: u32,
}

const _: () = assert!(size_of::<PageEntry>() == 8, "0.2 % of the region");
