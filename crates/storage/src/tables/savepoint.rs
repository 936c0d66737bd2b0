//! The savepoint of a channel's tables: the block height below which their rows are complete.

use base::{BlockNumber, Epoch};

use crate::Error;

/// The version of the tables' format: key encoding and savepoint.
pub const FORMAT_VERSION: u32 = 1;

/// The blocks whose rows are in the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Savepoint {
    /// Rows of all blocks below this number are in the tables.
    pub height: u64,
    /// The epoch of the primary that wrote it; `Epoch(0)` if there are no epochs.
    pub epoch: Epoch,
    /// The header hash of the last of these blocks, with which the owner checks that the tables were made from its blocks.
    pub block_hash: [u8; 32],
}

impl Savepoint {
    /// Clamps a read to the savepoint; `None` while there is no block.
    pub(crate) fn clamp(&self, through: BlockNumber) -> Option<u64> {
        Some(through.get().min(self.height.checked_sub(1)?))
    }
}

/// Refuses a batch that may not follow `current`.
pub(super) fn check_follows(current: &Savepoint, next: &Savepoint) -> Result<(), Error> {
    if next.epoch < current.epoch {
        return Err(Error::Fenced { given: next.epoch, newest: current.epoch });
    }
    if next.height < current.height {
        return Err(Error::Invalid("the savepoint is older than the tables'; a savepoint never goes back"));
    }
    Ok(())
}
