//! The previous hash of the first block.

/// Stands for the previous hash in block 0, before which there is no block.
pub const NO_PREVIOUS: [u8; 32] = [0; 32];
