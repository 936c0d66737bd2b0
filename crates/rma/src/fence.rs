//! Who may take memory from whom: the rule by which memory nodes decide on a fence.

/// Under which a process takes memory from its predecessor: a term or an epoch, and a random number of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FenceToken {
    /// The term or the epoch.
    pub number: u64,
    /// Tells two processes under one number apart.
    pub nonce: u64,
}

/// Why a fence is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceConflict {
    /// The owner has a higher number.
    Newer,
    /// The owner has the same number and is another process.
    Disputed,
}

impl FenceToken {
    /// Whether `asked` may take the memory from this owner. The owner itself may ask again.
    ///
    /// # Errors
    /// See [`FenceConflict`].
    pub fn admit(self, asked: FenceToken) -> Result<(), FenceConflict> {
        match asked.number.cmp(&self.number) {
            std::cmp::Ordering::Less => Err(FenceConflict::Newer),
            std::cmp::Ordering::Equal if asked.nonce != self.nonce => Err(FenceConflict::Disputed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_admitted_by_number_and_by_process() {
        let owner = FenceToken { number: 2, nonce: 7 };
        let ask = |number, nonce| owner.admit(FenceToken { number, nonce });
        assert_eq!(ask(2, 7), Ok(()), "the owner itself, over a new connection");
        assert_eq!(ask(3, 8), Ok(()), "a successor");
        assert_eq!(ask(3, 7), Ok(()), "the owner, under a higher number");
        assert_eq!(ask(2, 8), Err(FenceConflict::Disputed));
        assert_eq!(ask(1, 7), Err(FenceConflict::Newer));
    }
}
