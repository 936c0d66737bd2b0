//! Numbers from a client, a peer, a disk or a remote region, before they are checked.
//!
//! Release builds check arithmetic for overflow, so with a single sum of two such numbers a hostile sender could make
//! the process panic. Therefore decoders return such numbers as [`Untrusted`], which has no arithmetic operators. To
//! get the number, the caller must either check a bound or call a method named `unchecked`.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;
use std::ops::Range;

/// A number that the other end chose.
///
/// ```
/// use base::untrusted::Untrusted;
///
/// let (offset, length) = (Untrusted::new(u64::MAX - 7), Untrusted::new(1 << 20));
/// assert_eq!(offset.range(length, 4096), None);
/// assert_eq!(Untrusted::new(64).range(Untrusted::new(32), 4096), Some(64..96));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Untrusted<T>(T);

impl<T> Untrusted<T> {
    /// A number as it arrived.
    pub const fn new(number: T) -> Untrusted<T> {
        Untrusted(number)
    }
}

impl Untrusted<u64> {
    /// The number if it is at most `max`.
    pub fn at_most(self, max: u64) -> Option<u64> {
        (self.0 <= max).then_some(self.0)
    }

    /// `length` units from here, if they lie within `0..within`.
    pub fn range(self, length: Untrusted<u64>, within: u64) -> Option<Range<u64>> {
        let end = self.0.checked_add(length.0)?;
        (end <= within).then_some(self.0..end)
    }

    /// The number, unchecked: for comparing, printing or sending back, never for arithmetic or as a size or an index.
    pub fn unchecked(self) -> u64 {
        self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Untrusted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "untrusted {:?}", self.0)
    }
}

/// The memory that a decoder may still allocate for one message: elements that are tiny on the wire are larger in memory, and a
/// message made only of those is rejected before memory is allocated for them.
///
/// ```
/// use base::untrusted::AllocationBudget;
///
/// let mut allowance = AllocationBudget::authenticated(1 << 20);
/// assert_eq!(allowance.take(1000, 56), Some(1000));
/// assert_eq!(allowance.take(1 << 20, 56), None);
/// ```
#[derive(Debug)]
pub struct AllocationBudget {
    left: usize,
}

/// Memory that any message may take, whatever its size.
const ALLOCATION_FREE_BYTES: usize = 32 << 10;

impl AllocationBudget {
    /// For a message of this many bytes from an authenticated sender: four times as much.
    pub const fn authenticated(message_bytes: usize) -> AllocationBudget {
        AllocationBudget { left: message_bytes.saturating_mul(4).saturating_add(ALLOCATION_FREE_BYTES) }
    }

    /// Takes memory for `count` elements of `each_bytes` bytes; returns the count, or `None` if that is too much.
    #[must_use]
    pub fn take(&mut self, count: usize, each_bytes: usize) -> Option<usize> {
        self.left = self.left.checked_sub(count.checked_mul(each_bytes)?)?;
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_at_the_edges() {
        let range = |at, length, within| Untrusted::new(at).range(Untrusted::new(length), within);
        assert_eq!(range(0, 0, 0), Some(0..0));
        assert_eq!(range(8, 0, 8), Some(8..8));
        assert_eq!(range(8, 1, 8), None);
        assert_eq!(range(u64::MAX, 1, u64::MAX), None);
        assert_eq!(range(u64::MAX, 0, u64::MAX), Some(u64::MAX..u64::MAX));
        assert_eq!(range(1, u64::MAX, u64::MAX), None);
        assert_eq!(Untrusted::new(5_u64).at_most(4), None);
        assert_eq!(Untrusted::new(4_u64).at_most(4), Some(4));
    }
}
