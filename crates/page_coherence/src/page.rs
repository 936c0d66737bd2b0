//! Pages, ranges of bytes, rights and accesses.

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// How many page numbers there are: addresses have 48 bits.
pub const PAGE_NUMBERS: u64 = 1 << 36;

/// The number of a page: its address divided by [`PAGE_BYTES`]. Both sides use the same addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNumber(pub u64);

/// A function call that the caller pushed down; the caller never uses a number twice on one connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// What a thread does with a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl Access {
    /// The right that the access needs.
    pub fn right(self) -> Right {
        match self {
            Access::Read => Right::Read,
            Access::Write => Right::Write,
        }
    }
}

/// What one side may do with a page without asking the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Right {
    /// Nothing: the page is absent.
    None,
    /// Read.
    Read,
    /// Read and write.
    Write,
}

/// Bytes within one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageBytes {
    /// The page.
    pub page: PageNumber,
    /// The first byte, from the start of the page.
    pub offset: u16,
    /// How many bytes: at least one, and no more than the page has behind `offset`.
    pub count: u16,
}

impl PageBytes {
    /// Whether these are all bytes of the page.
    pub fn is_whole(self) -> bool {
        u64::from(self.count) == PAGE_BYTES
    }
}
