//! Fence tokens: the rule by which a newer owner takes memory or a log from an older one.

use std::cmp::Ordering;

use crate::Term;

/// The identity of a process that takes memory or a log from its predecessor: the term under which it does so, or the
/// epoch (`FenceToken<Epoch>`), and a random number. The node with the memory or the log records its owner's token; it
/// rejects a lower term, and another process under the same term.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FenceToken<T = Term> {
    /// The term or the epoch.
    pub term: T,
    /// Tells two processes under one term apart.
    pub nonce: u64,
}

/// Why a fence is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceConflict {
    /// The current owner has a higher term.
    Newer,
    /// The current owner has the same term and is another process.
    Disputed,
}

impl<T: Ord> FenceToken<T> {
    /// Whether `asked` may succeed this owner. The owner itself may ask again.
    ///
    /// # Errors
    /// See [`FenceConflict`].
    pub fn admit(&self, asked: &FenceToken<T>) -> Result<(), FenceConflict> {
        match asked.term.cmp(&self.term) {
            Ordering::Less => Err(FenceConflict::Newer),
            Ordering::Equal if asked.nonce != self.nonce => Err(FenceConflict::Disputed),
            Ordering::Equal | Ordering::Greater => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_admitted_by_term_and_by_process() {
        let owner = FenceToken { term: Term(2), nonce: 7 };
        let ask = |term, nonce| owner.admit(&FenceToken { term: Term(term), nonce });
        assert_eq!(ask(2, 7), Ok(()), "the owner itself, over a new connection");
        assert_eq!(ask(3, 8), Ok(()), "a successor");
        assert_eq!(ask(3, 7), Ok(()), "the owner, under a higher term");
        assert_eq!(ask(2, 8), Err(FenceConflict::Disputed));
        assert_eq!(ask(1, 7), Err(FenceConflict::Newer));
    }
}
