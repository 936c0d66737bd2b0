//! The previous hash of the first block.

/// The previous hash of block 0, which has none.
pub const NO_PREVIOUS: [u8; 32] = [0; 32];
