//! The floor of a verb: the cheapest operation that moves the same bytes, measured beside it.

use measurement::error::Error;

/// The floor of a verb. It blocks the calling thread, which has no other work.
pub trait FloorOperation {
    /// Performs `count` operations one after the other, and records the nanoseconds of each.
    ///
    /// # Errors
    /// A socket fails.
    fn one_by_one(&mut self, count: usize, samples: &mut Vec<u32>) -> Result<(), Error>;

    /// Performs `count` operations as fast as possible.
    ///
    /// # Errors
    /// A socket fails.
    fn many(&mut self, count: usize) -> Result<(), Error>;
}
